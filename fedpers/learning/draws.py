"""Random numbers of Dropout and of losses: each client has its own, the same alone and in a stack.

A mask depends on the client's stream, on which local training and which of its steps this is, and on how many
masks the step has drawn before: not on who else is in the stack, nor on its padding. Numbers are drawn row by
row, so a batch without its padded rows sees the same ones.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedpers.core.errors import FedpersError
from fedpers.core.rng import Stream
from fedpers.core.scope import holding
from fedpers.core.vmap import outside, row_of

T = TypeVar("T")
MODULE_STREAM = 7  # last part of the key of a module's random numbers: not those of the minibatches


def seed_of(rng: Stream) -> int:
    """64 bits for the module's random numbers of one client in one exchange."""
    return int(np.random.SeedSequence([*rng.key, MODULE_STREAM]).generate_state(1, np.uint64)[0])


@dataclass
class Draws:
    """The random numbers of one client or of a stack, by local training and step."""

    seeds: Sequence[int]
    client: Tensor | None = None  # a row of the stack, inside vmap
    training: int = 0
    step: int = 0
    drawn: int = 0  # masks of this step

    def at(self, training: int, step: int) -> None:
        """Note that step `step` of local training number `training` begins."""
        self.training, self.step, self.drawn = training, step, 0

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers in [0, 1), float32; inside vmap each client's own."""
        self.drawn += 1
        place = self.training << 44 | self.step << 16 | self.drawn
        keys = [np.random.Philox(key=[seed, place]) for seed in self.seeds]
        rows = np.empty((len(keys), *shape), np.float32)
        for row, bits in zip(rows, keys, strict=True):
            np.random.Generator(bits).random(out=row, dtype=np.float32)
        table = outside(torch.from_numpy, rows)
        return table[0] if self.client is None else row_of(self.client, table)


_draws: ContextVar[Draws | None] = ContextVar("draws", default=None)


def drawing(rngs: Sequence[Stream], client: Tensor | None = None) -> AbstractContextManager[None]:
    """While this is open, Dropout draws for these clients.

    Args:
        client: where it is a stack, a row of it inside vmap.
    """
    return holding(_draws, Draws([seed_of(rng) for rng in rngs], client))


def uniform(like: Tensor) -> Tensor:
    """Numbers in [0, 1) of the training client, float32, of the shape and on the device of `like`.

    For losses of a method whose client half has `draws = True`.

    Raises:
        FedpersError: nobody draws: no client trains, or its class does not say that its losses draw.
    """
    draws = _draws.get()
    if draws is None:
        raise FedpersError("a loss draws random numbers; set `draws = True` in the method's client class")
    return draws.uniform(like.shape).to(like.device)


def steps_of(batches: Iterator[T]) -> Iterator[T]:
    """The minibatches of one local training; Dropout is told of each."""
    draws = _draws.get()
    if draws is None:
        yield from batches
        return
    training = draws.training + 1
    for step, batch in enumerate(batches):
        draws.at(training, step)
        yield batch
    draws.at(training + 1, 0)


class ClientDropout(nn.Dropout):
    """torch.nn.Dropout with the draws of the client that trains; outside training, torch's own."""

    def forward(self, input: Tensor) -> Tensor:
        """Inputs [...] to [...]: in training each is 0 with probability p, else divided by 1 - p."""
        draws = _draws.get()
        if not self.training or not self.p or draws is None:
            return super().forward(input)
        kept = draws.uniform(input.shape) >= self.p
        return input * (kept.to(input) / (1 - self.p) if self.p < 1 else 0.0)


def own_draws(module: nn.Module) -> bool:
    """Replace all Dropout layers by `ClientDropout`; returns whether any has p > 0."""
    found = [m for m in module.modules() if type(m) is nn.Dropout]
    for layer in found:
        layer.__class__ = ClientDropout
    return any(layer.p > 0 for layer in found)
