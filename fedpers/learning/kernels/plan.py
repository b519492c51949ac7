"""What a kernel is told: the layers of a dense network, the rule of a step, the tensors."""

from dataclasses import dataclass

from torch import Tensor

from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.learning.layers import Dense, Flatten, Relu, Stack
from fedpers.learning.model import HEAD, Model

PLAIN, PROXIMAL, MOMENTUM, ADAM, GRADIENT = range(5)  # the kernel's rules for a step
HEADS = (HEAD.rstrip("."),)  # the layers of a model whose features are given


@dataclass(frozen=True)
class Plan:
    """What a local training is, or one gradient."""

    layers: tuple[str, ...]  # parameter prefixes, the head last
    bias: bool  # of the head
    task: str
    trained: frozenset[str]  # the parameters that move
    lam: float = 0.0  # of the pull
    rule: int = GRADIENT  # of a step
    lr: float = 0.0
    decay: float = 0.0  # weight decay
    momentum: float = 0.0
    per_pass: int = 1  # steps of one pass over the data
    compiled: bool = True  # whether the kernel in C does it

    @property
    def places(self) -> list[str]:
        """Names of each layer's weight and bias in turn, whether it has one or not."""
        return places_of(self.layers)

    @property
    def names(self) -> list[str]:
        """The parameters."""
        return self.places if self.bias else self.places[:-1]

    @property
    def moving(self) -> list[str]:
        """The parameters that are trained, in order."""
        return [k for k in self.names if k in self.trained]

    @property
    def plain(self) -> bool:
        """SGD on the model's own loss, in all parameters."""
        simple = self.rule in (PLAIN, PROXIMAL) and not self.lam
        return simple and len(self.trained) == len(self.names)


@record("learning.Training")
class Training:
    """The tensors of a local training, one client's or stacks of them."""

    w: Params  # weights, also those that are held fixed
    cbar: Params  # c̄ of the pull; {} without
    ubar: Tensor  # ū of the pull, scalar
    m: Params  # the optimiser's state; of one gradient, the gradient
    v: Params
    step: Tensor  # scalar
    pace: Params  # factors of the loss's gradients, a scalar a layer; {} without


def layers_of(model: Model) -> tuple[str, ...] | None:
    """The parameter prefixes of a purely dense network, or None if it is something else."""
    if not isinstance(model.network, Stack):
        return None
    kinds = [type(layer) for _, layer, _ in model.network.steps]
    if kinds[:1] != [Flatten] or kinds[1:] != [Dense, Relu] * (len(kinds) // 2):
        return None
    dense = [name for name, layer, _ in model.network.steps if isinstance(layer, Dense)]
    return (*dense, *HEADS)


def places_of(layers: tuple[str, ...]) -> list[str]:
    """Names of each layer's weight and bias in turn, whether it has one or not."""
    return [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
