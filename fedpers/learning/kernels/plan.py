"""What a kernel is told: the layers of a network, the rule of a step, the tensors."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, lru_cache

from torch import Tensor

from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.learning.kernels.steps import known
from fedpers.learning.layers import Conv, Dense, Flatten, Layer, MaxPool, Relu, SquashedStack, Stack, image
from fedpers.learning.model import HEAD, Model
from fedpers.learning.optimizers import LocalConfig, program
from fedpers.learning.step import Grad, Program, pulled

GRADIENT = Program((Grad(),))  # what gives ∇f, as "g"
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
    program: Program = GRADIENT  # of a step, without the pull of that term
    wanted: tuple[str, ...] = ("g",)  # the vectors to be had after the last step
    lr: float = 0.0
    convs: tuple[Shape, ...] = ()  # of the first layers; the others are dense
    extra: Extra = Extra()

    @cached_property
    def steps(self) -> Program:
        """The program, with the pull of the proximal term."""
        return pulled(self.program, self.lam)

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
def shared_plan(plan: Plan) -> Plan:
    """The plan itself, of equal ones the first."""
    return plan


@lru_cache(256)
def stepping(plan: Plan, cfg: LocalConfig, lr: float) -> Plan:
    """The plan of a local training by this optimiser, of size `lr`."""
    steps = program(cfg)
    return replace(plan, program=steps, wanted=("w", *steps.keeps), lr=lr)


@record("learning.Training")
class Training:
    """The tensors of a local training, one client's or stacks [C, ...] of them."""

    vectors: dict[
        str, Params
    ]  # by their names in the program: "w", frozen ones too; of others what is trained
    own: dict[str, Tensor]  # numbers of the client, by their names in the program: scalars
    step: tuple[Tensor, ...] = ()  # (steps made before,), a scalar, if the optimiser counts them
    gradient_scale: Params = field(
        default_factory=dict
    )  # factors of the loss's gradients, a scalar a layer; {} without
    each: tuple[Tensor, ...] = ()  # ([n],) factors of the samples' losses, not counted in a batch's size
    extra: tuple[Tensor, ...] = ()  # a, or a and b, of the plan's Extra

    @property
    def w(self) -> Params:
        """The weights: the first vector."""
        return next(iter(self.vectors.values()))


# The settings that a kernel obeys, spelled out: a new one is unknown until somebody adds it here.
SETTINGS = {"lr", "epochs", "steps", "batch_size"}
SETTINGS |= {"momentum", "weight_decay", "optimizer", "betas", "eps", "clip_norm"}  # of the program
SETTINGS |= {"keep_momentum", "schedule", "horizon", "warmup"}  # of a round: obeyed before a kernel is asked


@lru_cache(256)
def understood(cfg: LocalConfig) -> bool:
    """Whether a kernel knows all that these settings ask for: what it does not know is left to torch."""
    others = [f for f in fields(cfg) if f.name not in SETTINGS]
    plain = all(f.default is not MISSING and getattr(cfg, f.name) == f.default for f in others)
    return plain and known(program(cfg))


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
