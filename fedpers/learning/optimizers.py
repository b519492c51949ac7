"""Steps of SGD and Adam, what they remember, and the settings of local training."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedpers.core.errors import ConfigError, unknown
from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.core.vmap import scalar

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of Adam


@dataclass(frozen=True)
class LocalConfig:
    """How a client trains between two messages."""

    lr: float = 0.05
    epochs: int = 1  # passes over the local data
    steps: int = 0  # minibatch steps instead of epochs, if > 0
    batch_size: int = 10  # 0: the whole local data at each step
    momentum: float = 0.0  # SGD only
    weight_decay: float = 0.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    keep_momentum: bool = False  # of SGD or Adam, between rounds, on the client
    # Of lr over rounds: training_round.py.
    schedule: Literal["constant", "step", "halve", "cosine"] = "constant"
    horizon: int = 0  # rounds that a schedule runs over

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = []
        if self.lr < 0:
            found.append(f"local.lr={self.lr}: must not be negative")
        for name in ("epochs", "steps", "batch_size"):
            if getattr(self, name) < 0:
                found.append(f"local.{name}={getattr(self, name)}: must be at least 0")
        if not 0 <= self.momentum < 1:
            found.append(f"local.momentum={self.momentum}: must be in [0, 1)")
        if self.momentum and self.optimizer == "adam":
            found.append("local.momentum is for optimizer=sgd; Adam has its own")
        if self.keep_momentum and self.optimizer == "sgd" and not self.momentum:
            found.append("local.keep_momentum=true: there is none; set local.momentum, or optimizer=adam")
        if self.horizon < 0 or (self.schedule == "constant") != (self.horizon == 0):
            found.append(
                f"local.horizon={self.horizon}: the rounds of schedule=step, halve or cosine, 0 for constant"
            )
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

    def zeros() -> Params:  # not zeros_like, which under vmap would be a stack
        return {k: torch.zeros(p.shape, dtype=p.dtype, device=p.device) for k, p in params.items()}

    like = next(iter(params.values()), scalar(0.0, torch.float32))  # a model may be all head, or all body
    uses_m = cfg.optimizer == "adam" or cfg.momentum > 0
    step = scalar(0.0, like.dtype, like.device)
    return OptimizerState(step, zeros() if uses_m else {}, zeros() if cfg.optimizer == "adam" else {})


def sgd_step(
    params: Params, g: Params, opt: OptimizerState, cfg: LocalConfig, lr: Any
) -> tuple[Params, OptimizerState]:
    """One step of SGD (with momentum) or Adam, as torch.optim defines them.

    Raises:
        ConfigError: the optimiser is another one.
    """
    if cfg.optimizer not in ("sgd", "adam"):
        raise ConfigError(unknown("local.optimizer", cfg.optimizer, ("sgd", "adam")))
    if cfg.weight_decay:
        g = {k: torch.add(v, params[k], alpha=cfg.weight_decay) for k, v in g.items()}
    if cfg.optimizer == "adam":
        return adam_step(params, g, opt, lr)
    if cfg.momentum:
        g = {k: cfg.momentum * opt.m[k] + v for k, v in g.items()}
        opt = OptimizerState(opt.step + 1, g, {})
    if isinstance(lr, Tensor):
        return {k: params[k] - lr * v for k, v in g.items()}, opt
    return {k: torch.add(params[k], v, alpha=-lr) for k, v in g.items()}, opt


def adam_step(params: Params, g: Params, opt: OptimizerState, lr: Any) -> tuple[Params, OptimizerState]:
    """One step of Adam (Kingma & Ba, Algorithm 1); `lr` may be a tensor."""
    step = opt.step + 1
    m = {k: BETA1 * opt.m[k] + (1 - BETA1) * v for k, v in g.items()}
    v = {k: BETA2 * opt.v[k] + (1 - BETA2) * x * x for k, x in g.items()}
    rate = lr / (1 - BETA1**step)
    new = {k: params[k] - rate * m[k] / ((v[k] / (1 - BETA2**step)).sqrt() + EPSILON) for k in params}
    return new, OptimizerState(step, m, v)


def sgd_in_place(
    params: list[Tensor],
    g: list[Tensor],
    m: list[Tensor],
    _v: list[Tensor],
    _step: Tensor,
    cfg: LocalConfig,
    lr: float,
) -> None:
    """`sgd_step` without Adam, written into the parameters and momenta; `g` may be overwritten."""
    if cfg.weight_decay:
        torch._foreach_add_(g, params, alpha=cfg.weight_decay)
    if cfg.momentum:
        torch._foreach_mul_(m, cfg.momentum)
        torch._foreach_add_(m, g)
        g = m
    torch._foreach_add_(params, g, alpha=-lr)


def adam_in_place(
    params: list[Tensor],
    g: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    step: Tensor,
    cfg: LocalConfig,
    lr: float,
) -> None:
    """`adam_step` number `step`, in one pass over the parameters and moments, which it writes.

    torch's pass takes memory in its order, whatever the strides: gradients are laid out as their parameters.
    """
    torch._fused_adam_(
        params,
        [
            a if a.stride() == p.stride() else torch.empty_like(p).copy_(a)
            for a, p in zip(g, params, strict=True)
        ],
        m,
        v,
        [],
        [step.float()] * len(params),
        lr=lr,
        beta1=BETA1,
        beta2=BETA2,
        weight_decay=cfg.weight_decay,
        eps=EPSILON,
        amsgrad=False,
        maximize=False,
    )
