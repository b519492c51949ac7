"""What a kernel is told: the layers of a network, the rule of a step, the tensors."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property, lru_cache

from torch import Tensor

from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.learning.layers import Conv, Dense, Flatten, Layer, MaxPool, Relu, SquashedStack, Stack, image
from fedpers.learning.model import HEAD, Model
from fedpers.learning.optimizers import LocalConfig

PLAIN, PROXIMAL, MOMENTUM, ADAM, GRADIENT, BLEND = range(6)  # the kernel's rules for a step
STACKS = (Stack, SquashedStack)  # subclasses may do anything
HEADS = (HEAD.rstrip("."),)  # the layers of a model whose features are given
TAPS = 6144  # weights of a convolution that is small: its gradients, a register each, stay in the cache
PULL, CONTRAST, TWO_HEADS = 1, 2, 3  # what a loss may have beside the model's own: extra.h
Shape = tuple[int, int, int, int, int, int, int]  # as `shape` in convolve.h
Step = tuple[str, Layer, tuple[int, ...]]  # of a `Stack`


@dataclass(frozen=True)
class Extra:
    """What a loss has beside the model's own, as extra.h has it."""

    kind: int = 0
    weight: float = 0.0
    tau: float = 1.0
    prefix: str = ""  # before the names of a second head; "": there is none

    def shapes(self, n: int, features: int, outputs: int) -> list[tuple[int, ...]]:
        """Of its tensors a and b, for n samples."""
        if self.kind == TWO_HEADS:
            return [(outputs,)]
        return [(n, features), (n,) if self.kind == PULL else (n, features)]


@dataclass(frozen=True)
class Plan:
    """The settings of a local training, or of one gradient."""

    layers: tuple[str, ...]  # parameter prefixes, the head last
    bias: bool  # of the head
    task: str
    trained: frozenset[str]  # the parameters that move
    lam: float = 0.0  # weight of the proximal term
    rule: int = GRADIENT  # of a step
    lr: float = 0.0
    decay: float = 0.0  # weight decay
    momentum: float = 0.0
    convs: tuple[Shape, ...] = ()  # of the first layers; the others are dense
    keeps: bool = True  # whether somebody wants the moments after the last step
    extra: Extra = Extra()

    @cached_property
    def places(self) -> list[str]:
        """Names of each layer's weight and bias in turn, whether it has one or not."""
        return places_of(self.layers)

    @cached_property
    def second(self) -> list[str]:
        """Names of the second head's weight and bias, whether it has one or not; [] without a second head."""
        return [self.extra.prefix + name for name in self.places[-2:]] if self.extra.prefix else []

    @cached_property
    def names(self) -> list[str]:
        """The parameters that the network has."""
        kept = slice(None) if self.bias else slice(-1)
        return self.places[kept] + self.second[kept]

    @cached_property
    def moving(self) -> list[str]:
        """The parameters that are trained, in order."""
        return [k for k in self.names if k in self.trained]


@lru_cache(256)  # clients ask for the same in every round: what is derived from a plan stays with it
def known(plan: Plan) -> Plan:
    """The plan itself, of equal ones the first."""
    return plan


@lru_cache(256)
def stepping(plan: Plan, cfg: LocalConfig, lr: float) -> Plan:
    """The plan of a local training by this optimiser, of size `lr`."""
    rule = rule_of(cfg, plan.lam)
    return replace(plan, rule=rule, lr=lr, decay=cfg.weight_decay, momentum=cfg.momentum)


@record("learning.Training")
class Training:
    """The tensors of a local training, one client's or stacks [C, ...] of them."""

    w: Params  # weights, frozen ones too
    cbar: Params  # c̄ of the proximal term; {} without; of a BLEND where its way begins
    ubar: tuple[Tensor, ...]  # (ū of the proximal term,), a scalar; () without
    m: Params  # momentum or first moment; the result of a GRADIENT; the weights of a BLEND
    v: Params  # second moment; the way that a BLEND weighs
    step: tuple[Tensor, ...]  # (steps made before,), a scalar, if the rule counts them
    pace: Params  # factors of the loss's gradients, a scalar a layer; {} without
    each: tuple[Tensor, ...] = ()  # ([n],) factors of the samples' losses, not counted in a batch's size
    extra: tuple[Tensor, ...] = ()  # a, or a and b, of the plan's Extra


@dataclass(frozen=True)
class Ahead:
    """Steps of size lr with the gradient at w - α ∇f(w; D), in D'."""

    alpha: float
    lr: float
    kind = 0

    @property
    def numbers(self) -> tuple[float, ...]:
        """What the kernel is told."""
        return self.alpha, self.lr


@dataclass(frozen=True)
class Mixed:
    """Steps of two models w and v with gradients at a w + b v."""

    terms: tuple[
        tuple[float, float, float, float], ...
    ]  # (a, b, how much goes to w, how much to v), two at most
    kind = 1

    @property
    def numbers(self) -> tuple[float, ...]:
        """What the kernel is told."""
        return tuple(v for term in self.terms for v in term)


@dataclass(frozen=True)
class Summed:
    """Steps of two models w and v with gradients of the loss of the sum of their outputs."""

    to_w: float
    to_v: float
    kind = 2

    @property
    def numbers(self) -> tuple[float, ...]:
        """What the kernel is told."""
        return self.to_w, self.to_v


# The settings that a kernel obeys, spelled out: a new one is unknown until somebody adds it here.
SETTINGS = {"lr", "epochs", "steps", "batch_size", "momentum", "weight_decay", "optimizer"}
SETTINGS |= {"keep_momentum", "schedule", "horizon"}  # obeyed by training_round.py, before a kernel is asked
OPTIMIZERS = ("sgd", "adam")


@lru_cache(256)
def understood(cfg: LocalConfig) -> bool:
    """Whether a kernel knows all that these settings ask for: what it does not know is left to torch."""
    others = [f for f in fields(cfg) if f.name not in SETTINGS]
    return cfg.optimizer in OPTIMIZERS and all(
        f.default is not MISSING and getattr(cfg, f.name) == f.default for f in others
    )


def rule_of(cfg: LocalConfig, lam: float) -> int:
    """The rule for a step of an optimiser, with a proximal term of weight `lam`."""
    if cfg.optimizer == "adam" or cfg.momentum:
        return ADAM if cfg.optimizer == "adam" else MOMENTUM
    return PROXIMAL if cfg.weight_decay or lam else PLAIN


def steps_of(model: Model) -> Sequence[Step]:
    """The layers of a network that is a `Stack` and no subclass with ways of its own; else ()."""
    network = model.network
    return network.steps if isinstance(network, Stack) and type(network) in STACKS else ()


def layers_of(model: Model) -> tuple[str, ...] | None:
    """The parameter prefixes of a purely dense network, or None if it is something else."""
    return _dense(steps_of(model))


def _dense(steps: Sequence[Step]) -> tuple[str, ...] | None:
    kinds = [type(layer) for _, layer, _ in steps]
    if kinds[:1] != [Flatten] or kinds[1:] != [Dense, Relu] * (len(kinds) // 2):
        return None
    return (*(name for name, layer, _ in steps if type(layer) is Dense), *HEADS)


def small_convs(model: Model) -> tuple[tuple[str, ...], tuple[Shape, ...]] | None:
    """(prefixes of all layers, shapes of the convolutions) of dense layers above small convolutions.

    Each convolution has ReLU behind it, perhaps pooling by windows side by side. None for other networks;
    large convolutions are faster by oneDNN.
    """
    steps = list(steps_of(model))
    names: list[str] = []
    shapes: list[Shape] = []
    while len(steps) > 2 and type(steps[1][1]) is Relu:
        name, conv, inputs = steps[0]
        if type(conv) is not Conv or image(inputs)[0] * conv.channels * conv.kernel**2 > TAPS:
            return None
        pooling = steps[2][1]
        pool = pooling.size if type(pooling) is MaxPool else 1
        if type(pooling) is MaxPool and (pooling.stride, pooling.padding) != (pool, 0):
            return None
        names.append(name)
        shapes.append((*image(inputs), conv.channels, conv.kernel, conv.padding, pool))
        steps = steps[2 + (type(pooling) is MaxPool) :]
    dense = _dense(steps) if names else None
    return ((*names, *dense), tuple(shapes)) if dense else None


def places_of(layers: tuple[str, ...]) -> list[str]:
    """Names of each layer's weight and bias in turn, whether it has one or not."""
    return [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
