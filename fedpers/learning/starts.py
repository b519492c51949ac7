"""How parameters start: torch's generator under a seed, and names for what is drawn."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedpers.core.params import Params


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global generator starts from `seed` while this is open, and is put back then."""
    # torch.manual_seed would also reseed the generators of CUDA devices.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def _xavier_normal(params: Params) -> Params:
    # Biases start at zero; the scales of normalisation layers keep their ones.
    def draw(name: str, value: Tensor) -> Tensor:
        if value.dim() > 1:
            return nn.init.xavier_normal_(torch.empty_like(value))
        return torch.zeros_like(value) if name.endswith("bias") else value

    return {name: draw(name, value) for name, value in params.items()}


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(value) for name, value in params.items()}


INITS: dict[str, Callable[[Params], Params]] = {
    "default": lambda params: params,  # what torch's layers start with
    "xavier_normal": _xavier_normal,
    "zeros": _zeros,  # only where the loss is convex: no hidden layer
}
