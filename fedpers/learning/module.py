"""Anybody's nn.Module as a network: a function of its parameters, in the mode that the moment asks for.

While a client trains (a gradient is taken in its turn) the module is in training mode: Dropout draws from the
client's own random numbers, BatchNorm normalises by the batch. Whatever else is asked of it, it is in
evaluation mode, and BatchNorm's statistics are those of the client's training samples under the very
parameters that predict: they are nobody's average and nothing that could be sent (docs/adr/0016).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase

from fedpers.core.data import Data
from fedpers.core.errors import FedpersError
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.core.scope import holding
from fedpers.learning.constants import digest_of, moved, other_base
from fedpers.learning.draws import drawing, seed_of
from fedpers.learning.layers import Network
from fedpers.learning.lora import merged
from fedpers.learning.substitution import Substitution

BODY, HEAD = "body.", "head."
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
REFERENCE = 2048  # training samples at most that BatchNorm's statistics are taken of


class Recipe(Protocol):
    """How a module is made (fedpers.learning.recipes); it can be sent to another process."""

    @property
    def what(self) -> str:
        """What it is called in messages."""
        ...

    @property
    def head(self) -> str:
        """Name of its last linear layer."""
        ...

    def make(self) -> nn.Module:
        """A new module."""
        ...

    def network(self) -> Any:
        """Its network."""
        ...


@dataclass
class Turn:
    """One client at work: its training inputs, and the statistics that were last asked for."""

    x: Tensor | None  # None: a stack of clients
    key: list[tuple[Tensor, int]] = field(default_factory=list)
    statistics: Params = field(default_factory=dict)


_turn: ContextVar[Turn | None] = ContextVar("turn", default=None)


@dataclass(frozen=True)
class ModuleNetwork(Network):
    """The body of a module; its last linear layer is the model's head."""

    recipe: Recipe
    skeleton: nn.Module = field(repr=False, compare=False)  # the module with nothing in its head's place
    num_features: int
    num_outputs: int
    head_bias: bool
    tokens: bool  # inputs are numbers of tokens
    alone: str  # why clients run one by one; "": they may be stacked
    draws: bool = False  # it has Dropout
    activations: int = 0  # bytes a sample that a training pass keeps
    each_token: bool = False  # outputs are [n, length, K]

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (self.recipe, self.digest)

    def init(self) -> Params:
        """What is trained, the head too, as the module's own code draws it."""
        module = self.recipe.make()
        head = module.get_submodule(self.recipe.head)
        found = {HEAD + name: p.detach().clone() for name, p in head.named_parameters()}
        cut_head(module, self.recipe.head)
        own = {BODY + name: p for name, p in module.named_parameters() if p.requires_grad}
        return {name: p.detach().clone() for name, p in own.items()} | found

    @cached_property
    def constants(self) -> Params:
        """Parameters that are frozen and buffers that nothing changes: one copy a process, never sent."""
        frozen = {BODY + k: v.detach() for k, v in self.skeleton.named_parameters() if not v.requires_grad}
        buffers = {BODY + k: v for k, v in self.skeleton.named_buffers() if k not in self._measured}
        return frozen | buffers

    @property
    def num_frozen(self) -> int:  # type: ignore[override]
        """Entries of frozen parameters."""
        return sum(p.numel() for p in self.skeleton.parameters() if not p.requires_grad)

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        """sha256 over names, types, shapes and bytes of the constants; "" without any."""
        return digest_of(self.constants)

    @cached_property
    def _measured(self) -> set[str]:
        """Buffers of BatchNorm, which belong to each client."""
        return {f"{p}.{n}".lstrip(".") for p, _ in tracking(self.skeleton) for n in (*STATISTICS, COUNT)}

    @cached_property
    def _trained(self) -> list[str]:
        return [name for name, p in self.skeleton.named_parameters() if p.requires_grad]

    @cached_property
    def _elsewhere(self) -> dict[tuple[torch.device, torch.dtype], Params]:
        """The constants on devices and in types that parameters had."""
        return {}

    @cached_property
    def norms(self) -> frozenset[str]:
        """Names of the parameters of normalisation layers."""
        return frozenset(
            f"{BODY}{place}.{name}"
            for place, layer in self.skeleton.named_modules()
            if isinstance(layer, NORMS) or type(layer).__name__.endswith("Norm")  # LlamaRMSNorm
            for name, _ in layer.named_parameters(recurse=False)
        )

    @cached_property
    def tracked(self) -> list[str]:
        """Names of BatchNorm's running statistics in the skeleton."""
        return [f"{place}.{name}" for place, layer in tracking(self.skeleton) for name in STATISTICS]

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        turn = _turn.get()
        trains = turn is not None and torch.is_grad_enabled()
        lone = trains and len(x) == 1 and bool(self.tracked)  # of one sample there is no variance
        known = self.tracked and (lone or not trains)
        statistics = self._statistics(params) if known else {k: v.clone() for k, v in self._buffers.items()}
        self._set_mode(trains, norms=trains and not lone)
        return self._run(params, x, statistics)

    def _run(self, params: Params, x: Tensor, statistics: Params) -> Tensor:
        own = {name: params[BODY + name] for name in self._trained}
        like = next(iter(own.values()), x)
        if statistics:
            counts = {k: v.to(like.device).clone() for k, v in self._counts.items()}  # training counts
            own |= counts | {k: v.to(like) for k, v in statistics.items()}
        x = x.long() if self.tokens else x
        return self._substitution(self._constants_for(params, like) | own, x)

    @cached_property
    def _substitution(self) -> Substitution:
        return Substitution(self.skeleton)

    @cached_property
    def _buffers(self) -> Params:
        """BatchNorm's statistics as the module was made; training writes to copies of them."""
        return {k: v for k, v in self.skeleton.named_buffers() if k in self.tracked}

    @cached_property
    def _counts(self) -> Params:
        return {k: v for k, v in self.skeleton.named_buffers() if k in self._measured and k.endswith(COUNT)}

    def _constants_for(self, params: Params, like: Tensor) -> Params:
        """What must stand in for the skeleton's own constants: those of `params`, or those of its device."""
        if not self.constants:
            return {}
        if next(iter(self.constants)) in params:
            return {k.removeprefix(BODY): params[k] for k in self.constants}
        if like.device.type == "cpu" and like.dtype == torch.float32:
            return {}
        where = like.device, like.dtype
        if where not in self._elsewhere:
            self._elsewhere[where] = {k.removeprefix(BODY): moved(v, like) for k, v in self.constants.items()}
        return self._elsewhere[where]

    def _statistics(self, params: Params) -> Params:
        """BatchNorm's, from the parameters if they hold them, else from the client whose turn it is."""
        if BODY + self.tracked[0] in params:
            return {name: params[BODY + name] for name in self.tracked}
        turn = _turn.get()
        if turn is None or turn.x is None:
            raise FedpersError(
                "the model has BatchNorm, whose statistics are a client's own: predict with parameters from "
                "`model.with_statistics(params, x)`, x a client's training inputs"
            )
        key = [(v, v._version) for v in params.values()]
        known = len(key) == len(turn.key) and all(
            a is b and m == n for (a, m), (b, n) in zip(key, turn.key, strict=True)
        )
        if not known:
            turn.statistics, turn.key = self.statistics(params, turn.x), key
        return turn.statistics

    def statistics(self, params: Params, x: Tensor) -> Params:
        """Mean and variance [channels] of each BatchNorm layer on the inputs x [n, ...], Dropout off."""
        if not self.tracked:
            return {}
        if len(x) < 2:
            raise FedpersError("BatchNorm needs at least two training samples of a client, and one has 1")
        like = next(iter(params.values()))
        measured = {k: v.clone().to(like) for k, v in self._buffers.items()}
        own = {k: v.detach() for k, v in params.items()}
        momenta = [(layer, layer.momentum) for _, layer in tracking(self.skeleton)]
        self._set_mode(False, norms=True)
        try:
            for layer, _ in momenta:
                layer.momentum = 1.0  # not a running mean: the samples' own
            with torch.no_grad():
                self._run(own, x[:REFERENCE], measured)  # in place
        finally:
            for layer, momentum in momenta:
                layer.momentum = momentum
        return measured

    def _set_mode(self, trains: bool, norms: bool) -> None:
        """Training or evaluation mode, that of layers with running statistics apart; set when it changes."""
        if self._mode.get("now") == (trains, norms):
            return
        self._mode["now"] = trains, norms
        self.skeleton.train(trains)
        if norms != trains:
            for _, layer in tracking(self.skeleton):
                layer.train(norms)

    @cached_property
    def _mode(self) -> dict[str, tuple[bool, bool]]:
        return {}

    def plain_state(self, params: Params) -> Params:
        """What `load_state_dict` of the module without adapters takes: model.lora's are added to its weights.

        Args:
            params: of the whole model; constants may be left out.
        """
        whole = self.constants | params
        head = {k.replace(HEAD, f"{self.recipe.head}.", 1): v for k, v in whole.items() if k.startswith(HEAD)}
        body = {k.removeprefix(BODY): v for k, v in whole.items() if k.startswith(BODY)}
        return merged(self.skeleton, body) | head

    @contextmanager
    def turn(self, data: Data | None, rng: Stream | None) -> Iterator[None]:
        """While this is open, what a client does with the module is done in its turn.

        Args:
            data: its training samples; None: a stack of clients.
            rng: its random numbers; Dropout draws from others of the same key.
        """
        with holding(_turn, Turn(None if data is None else data.x)):
            if rng is None or data is None:
                with sdpa_kernel(SDPBackend.MATH):  # vmap has rules for its parts
                    yield
                return
            devices = [data.x.device] if data.x.is_cuda else []
            with torch.random.fork_rng(devices=devices), drawing([rng]):
                (torch.manual_seed if devices else torch.default_generator.manual_seed)(seed_of(rng))
                yield


STATISTICS, COUNT = ("running_mean", "running_var"), "num_batches_tracked"


def tracking(module: nn.Module) -> list[tuple[str, Any]]:
    """BatchNorm layers, and others of its kind, that keep running statistics."""
    return [
        (place, layer)
        for place, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.running_mean is not None
    ]


def cut_head(module: nn.Module, head: str) -> None:
    """Put nothing where the module has its head."""
    parent, _, name = head.rpartition(".")
    setattr(module.get_submodule(parent), name, nn.Identity())


def rebuilt(recipe: Recipe, digest: str) -> ModuleNetwork:
    """The network in another process.

    Raises:
        FedpersError: its frozen parameters are others there.
    """
    network: ModuleNetwork = recipe.network()
    if network.digest != digest:
        raise FedpersError(other_base(recipe.what, network.digest, digest))
    return network
