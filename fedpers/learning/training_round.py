"""What local training knows of its round: the rate that a schedule gives, the momentum that it kept.

Every method has both by `LocalConfig.schedule` and `LocalConfig.keep_momentum`: engines call `answer`
below, and `minimise` takes its optimiser from here. So it is as if each client had one torch optimiser
and one torch scheduler for the whole run, one for each call of `minimise` in a round.
"""

import copy
import dataclasses
import math
from contextvars import ContextVar
from functools import cache, cached_property
from typing import Any

from fedpers.core.data import Data
from fedpers.core.errors import FedpersError
from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.core.rng import Stream
from fedpers.core.scope import holding
from fedpers.core.work import work_of
from fedpers.learning.optimizers import LocalConfig, OptimizerState, init_optimizer

DROPS = {  # the factor of the rate, and the parts of the horizon after which it is applied
    "step": (0.1, (0.5, 0.75)),
    "halve": (0.5, (0.25, 0.5, 0.75)),
}


@record("learning.Remembering")  # as files have it
class StateWithOptimizers:
    """A client's state, and what its optimisers keep between rounds, in the order of its trainings."""

    state: Any
    optimisers: tuple[OptimizerState, ...]


class Memory:
    """The optimisers of one client in one round: as they were, and as its trainings leave them."""

    def __init__(self, before: tuple[OptimizerState, ...]) -> None:
        self.before, self.after = before, list[OptimizerState]()

    def next(self, params: Params, cfg: LocalConfig) -> OptimizerState:
        """The optimiser of the training that comes now; a fresh one in a client's first round."""
        place = len(self.after)
        return self.before[place] if place < len(self.before) else init_optimizer(params, cfg)


_memory: ContextVar[Memory | None] = ContextVar("memory", default=None)


def memory_of(cfg: LocalConfig) -> Memory | None:
    """Where the optimiser of this training is kept; None if it is not, or outside a round (adaptation)."""
    return _memory.get() if cfg.keep_momentum else None


def rate(cfg: LocalConfig, t: int) -> float:
    """The factor of the learning rate in round t = 1, 2, ...; rounds are what epochs are to torch.

    >>> [rate(LocalConfig(schedule="step", horizon=4), t) for t in (1, 2, 3, 4, 5)]
    [1.0, 1.0, 0.1, 0.010000000000000002, 0.010000000000000002]
    """
    done, grown = min(t - 1, cfg.horizon), min(t / cfg.warmup, 1.0) if cfg.warmup else 1.0
    if cfg.schedule in DROPS:
        factor, parts = DROPS[cfg.schedule]
        return grown * factor ** sum(done >= part * cfg.horizon for part in parts)
    return grown * (1 + math.cos(math.pi * done / cfg.horizon)) / 2 if cfg.schedule == "cosine" else grown


def in_round(config: Any, t: int) -> Any:
    """A method's config with the learning rates of round t; the same object if none has a schedule."""
    changed = {
        name: dataclasses.replace(cfg, lr=cfg.lr * rate(cfg, t))
        for name, cfg in trainings(config).items()
        if cfg.schedule != "constant" or cfg.warmup
    }
    return dataclasses.replace(config, **changed) if changed else config


def at_most(config: Any, passes: int) -> Any:
    """A method's config with so many epochs at most of each local training, or steps where these count."""

    def fewer(cfg: LocalConfig) -> LocalConfig:
        name = "steps" if cfg.steps else "epochs"
        return dataclasses.replace(cfg, **{name: min(getattr(cfg, name), passes)})

    return dataclasses.replace(config, **{k: fewer(cfg) for k, cfg in trainings(config).items()})


def trainings(config: Any) -> dict[str, LocalConfig]:
    """The settings of local training among a config's fields, by name."""
    values = {name: getattr(config, name) for name in _candidates(config.__class__)}
    return {name: v for name, v in values.items() if isinstance(v, LocalConfig)}


@cache
def _candidates(kind: Any) -> tuple[str, ...]:
    """Fields of a dataclass that may be settings of local training; asked for every client and round."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return tuple(f.name for f in fields if "LocalConfig" in str(f.type))


def cannot_keep(cfg: LocalConfig, why: str) -> list[str]:
    """The problem, for `check`, of a method that cannot keep momentum between rounds."""
    return [f"local.keep_momentum=true: {why}; leave it false"] if cfg.keep_momentum else []


def loops_itself(cfg: LocalConfig, why: str) -> list[str]:
    """The problems, for `check`, of a method whose steps are a loop of its own, around `sgd_step`."""
    plain = LocalConfig()
    unheard = ("warmup_steps", "step_schedule", "micro_batch", "label_smoothing", "class_weights")
    asked = [name for name in unheard if getattr(cfg, name) != getattr(plain, name)]
    return [f"local.{name}={getattr(cfg, name)}: {why}; leave it out" for name in asked]


def answer(
    client: Any, order: Any, state: Any, data: Data, rng: Stream, t: int, passes: int = 0
) -> tuple[Any, Any]:
    """`client.answer` in round t, with `state` as it is stored: its optimisers with it if they are kept.

    Args:
        passes: epochs (steps, where these count) that the client makes at most; 0: all that are configured.

    Raises:
        FedpersError: momentum is to be kept, and the method trains without `minimise`.
    """
    client = doing(_with_config(client, in_round(client.config, t)), passes)
    if not any(cfg.keep_momentum for cfg in trainings(client.config).values()):
        return client.answer(order, state, data, rng)  # type: ignore[no-any-return]
    inner = own_state(state)
    memory = Memory(state.optimisers if isinstance(state, StateWithOptimizers) else ())
    with holding(_memory, memory):
        reply, kept = client.answer(order, inner, data, rng)
    if not memory.after:
        cost = work_of(client.work(order, len(data)))
        if (cost.gradients or cost.head_steps) and not client.trains_without_momentum(order):
            raise FedpersError(
                f"local.keep_momentum=true: {type(client).__name__} does not train by `minimise`, so it has "
                "no momentum that could be kept; leave it false"
            )
        return reply, state if kept is inner else StateWithOptimizers(kept, memory.before)
    return reply, StateWithOptimizers(kept, tuple(memory.after))


def own_state(state: Any) -> Any:
    """The method's part of a client's stored state."""
    return state.state if isinstance(state, StateWithOptimizers) else state


def doing(client: Any, passes: int) -> Any:
    """The client that makes so many epochs at most; 0: itself. All that it tells of its work follows."""
    return _with_config(client, at_most(client.config, passes)) if passes > 0 else client


def _with_config(client: Any, config: Any) -> Any:
    if config is client.config:
        return client
    fresh = copy.copy(client)
    for name in [n for n in vars(fresh) if isinstance(getattr(type(client), n, None), cached_property)]:
        del vars(fresh)[name]  # made from the old config
    fresh.config = config
    return fresh
