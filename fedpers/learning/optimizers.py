"""The settings of local training, what an optimiser remembers, and optimisers as rules of a step.

An optimiser is a function of the settings that gives a `Rule`: what it makes of a gradient, as instructions
(step.py), and which moments it keeps. One from outside the package is `optimizer=package.module:function`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from fedpers.core.errors import ConfigError, unknown
from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.core.vmap import scalar
from fedpers.core.witness import TORCH, stepped_by, took
from fedpers.learning.step import Adam, ClipNorm, Grad, Instruction, Mix, Now, Program, Rate, Rule, stepped

MOMENTS = ("m", "v")  # the vectors that an optimiser may keep from one step to the next


@dataclass(frozen=True)
class LocalConfig:
    """How a client trains between two messages."""

    lr: float = 0.05
    epochs: int = 1  # passes over the local data
    steps: int = 0  # minibatch steps instead of epochs, if > 0
    batch_size: int = 10  # 0: the whole local data at each step
    momentum: float = 0.0  # of sgd and nesterov
    weight_decay: float = 0.0
    optimizer: str = "sgd"  # a name of OPTIMIZERS, or package.module:function
    keep_momentum: bool = False  # moments of the optimiser, between rounds, on the client
    # Of lr over rounds: training_round.py.
    schedule: Literal["constant", "step", "halve", "cosine"] = "constant"
    horizon: int = 0  # rounds that a schedule runs over
    warmup: int = 0  # rounds in which lr first grows to what the schedule says
    # Of lr over the steps of each training.
    step_schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0  # in which lr first grows
    betas: tuple[float, float] = (0.9, 0.999)  # of adam and adamw
    eps: float = 1e-8
    clip_norm: float = 0.0  # longest gradient of a step; 0: any
    micro_batch: int = 0  # samples whose gradient is taken at once; 0: all of a minibatch
    label_smoothing: float = 0.0  # of classes
    class_weights: tuple[float, ...] = ()  # one for each class; (): all count the same

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = []
        for name in (
            "lr",
            "epochs",
            "steps",
            "batch_size",
            "warmup",
            "warmup_steps",
            "clip_norm",
            "micro_batch",
        ):
            if getattr(self, name) < 0:
                found.append(f"local.{name}={getattr(self, name)}: must not be negative")
        if not 0 <= self.momentum < 1:
            found.append(f"local.momentum={self.momentum}: must be in [0, 1)")
        if not all(0 <= b < 1 for b in self.betas) or self.eps <= 0:
            found.append(f"local.betas={self.betas}, eps={self.eps}: betas must be in [0, 1), eps positive")
        if not 0 <= self.label_smoothing < 1:
            found.append(f"local.label_smoothing={self.label_smoothing}: must be in [0, 1)")
        if any(w < 0 for w in self.class_weights) or (self.class_weights and not any(self.class_weights)):
            found.append(f"local.class_weights={self.class_weights}: must not be negative, nor all 0")
        if self.horizon < 0 or (self.schedule == "constant") != (self.horizon == 0):
            found.append(
                f"local.horizon={self.horizon}: the rounds of schedule=step, halve or cosine, 0 for constant"
            )
        return found + self._check_optimizer()

    def _check_optimizer(self) -> list[str]:
        """Problems of the optimiser's name, and of settings that it does not have."""
        try:
            keeps = program(self).keeps
        except ConfigError as error:
            return list(error.problems)
        found = []
        if self.momentum and self.optimizer in ("adam", "adamw"):
            found.append(f"local.momentum is for optimizer=sgd and nesterov; {self.optimizer} has betas")
        if self.optimizer == "nesterov" and not self.momentum:
            found.append("local.optimizer=nesterov: without momentum it is sgd; set local.momentum")
        if (self.betas, self.eps) != ((0.9, 0.999), 1e-8) and self.optimizer in ("sgd", "nesterov"):
            found.append(f"local.betas and local.eps are for optimizer=adam and adamw, not {self.optimizer}")
        if self.keep_momentum and not keeps:
            found.append("local.keep_momentum=true: there is none; set local.momentum, or optimizer=adam")
        return found

    def num_steps(self, n: int) -> int:
        """Gradient steps that `minimise` makes on n samples."""
        per_pass = -(-n // min(self.batch_size or n, n))
        return self.steps or self.epochs * per_pass

    def work(self, n: int) -> int:
        """Samples whose gradient is taken by `minimise` on n samples."""
        if not self.steps or not self.batch_size:
            return (self.steps or self.epochs) * n
        per_pass = -(-n // min(self.batch_size, n))
        whole, rest = divmod(self.steps, per_pass)
        return whole * n + min(rest * self.batch_size, n)


@record("learning.OptimizerState")
class OptimizerState:
    """What an optimiser remembers; dicts like the parameters (empty where unused)."""

    step: Tensor  # scalar, steps made
    m: Params  # momentum, or Adam's first moment
    v: Params  # Adam's second moment


def init_optimizer(params: Params, cfg: LocalConfig) -> OptimizerState:
    """The optimiser's state before the first step; of a stack of clients all share it."""

    def zeros(kept: bool) -> Params:  # not zeros_like, which under vmap would be a stack
        chosen = params.items() if kept else ()
        return {k: torch.zeros(p.shape, dtype=p.dtype, device=p.device) for k, p in chosen}

    like = next(iter(params.values()), scalar(0.0, torch.float32))  # a model may be all head, or all body
    keeps = program(cfg).keeps
    return OptimizerState(scalar(0.0, like.dtype, like.device), *(zeros(k in keeps) for k in MOMENTS))


def sgd_step(
    params: Params, g: Params, opt: OptimizerState, cfg: LocalConfig, lr: Any
) -> tuple[Params, OptimizerState]:
    """One step of the optimiser by a gradient g, as torch.optim defines it; `lr` may be a tensor."""
    stepped_by(program(cfg))
    return one_step(program(cfg), params, opt, Now(lambda _: g, lr, opt.step + 1))


def one_step(steps: Program, params: Params, opt: OptimizerState, now: Now) -> tuple[Params, OptimizerState]:
    """The parameters and the optimiser's state after one step of the program."""
    took(TORCH)
    v = stepped(steps.instructions, {"w": params, "m": opt.m, "v": opt.v}, now)
    if not steps.keeps:  # nobody counts
        return v["w"], opt
    return v["w"], OptimizerState(now.number, *(v[k] if k in steps.keeps else {} for k in MOMENTS))


# ---- optimisers ------------------------------------------------------------------------------------


def _decayed(cfg: LocalConfig) -> tuple[Instruction, ...]:
    """The gradient of ½ weight_decay ‖w‖² beside the loss's."""
    return (Mix("g", ((1.0, "g"), (cfg.weight_decay, "w"))),) if cfg.weight_decay else ()


def sgd(cfg: LocalConfig) -> Rule:
    """torch.optim.SGD, with momentum or without."""
    if not cfg.momentum:
        return Rule((*_decayed(cfg), Mix("w", ((1.0, "w"), (Rate(), "g")))))
    moved = Mix("m", ((cfg.momentum, "m"), (1.0, "g"))), Mix("w", ((1.0, "w"), (Rate(), "m")))
    return Rule((*_decayed(cfg), *moved), ("m",))


def nesterov(cfg: LocalConfig) -> Rule:
    """torch.optim.SGD(nesterov=True): the gradient is taken a step of momentum ahead."""
    ahead = Mix("m", ((cfg.momentum, "m"), (1.0, "g"))), Mix("g", ((1.0, "g"), (cfg.momentum, "m")))
    return Rule((*_decayed(cfg), *ahead, Mix("w", ((1.0, "w"), (Rate(), "g")))), ("m",))


def adam(cfg: LocalConfig) -> Rule:
    """torch.optim.Adam."""
    return Rule((*_decayed(cfg), Adam((cfg.betas[0], cfg.betas[1]), cfg.eps)), MOMENTS)


def adamw(cfg: LocalConfig) -> Rule:
    """torch.optim.AdamW: weights decay by themselves, not by way of the moments."""
    decay = (Mix("w", ((Rate(-cfg.weight_decay, 1.0), "w"),)),) if cfg.weight_decay else ()
    return Rule((*decay, Adam((cfg.betas[0], cfg.betas[1]), cfg.eps)), MOMENTS)


OPTIMIZERS: dict[str, Callable[[Any], Rule]] = {
    "sgd": sgd,
    "nesterov": nesterov,
    "adam": adam,
    "adamw": adamw,
}


def optimizer(name: str) -> Callable[[Any], Rule]:
    """The function of that name, of ours or package.module:function.

    Raises:
        ConfigError: there is none.
    """
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(unknown("local.optimizer", name, [*OPTIMIZERS, "package.module:function"]))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"local.optimizer={name}: cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(
            f"local.optimizer={name}: it must be a function that takes the settings and returns a Rule"
        )
    return found  # type: ignore[no-any-return]


@lru_cache(256)
def program(cfg: LocalConfig) -> Program:
    """The step of a local training with these settings (`LocalConfig`).

    Raises:
        ConfigError: the optimiser is unknown, or keeps other vectors than "m" and "v".
    """
    rule = optimizer(cfg.optimizer)(cfg)
    if not isinstance(rule, Rule) or not {*rule.keeps} <= {*MOMENTS}:
        raise ConfigError(
            f"local.optimizer={cfg.optimizer}: it must give a Rule that keeps no vectors but 'm' and 'v'"
        )
    clip = (ClipNorm("g", cfg.clip_norm),) if cfg.clip_norm else ()
    return Program((Grad(), *clip, *rule.instructions), tuple(rule.keeps))
