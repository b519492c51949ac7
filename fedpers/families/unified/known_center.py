"""Objectives around a shared model that is known beforehand: the second of two stages.

First w'* = argmin 1/M Σ_m f'_m(w), by objective=fl or any method of one model, and `fedpers export` of it;
then each client alone. Nothing is communicated, so a round has `max_local` iterations.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fedpers.core.bounds import bounds
from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params, add, blend, scale, sq_dist, sub
from fedpers.core.work import Work
from fedpers.families.unified.mixture import OwnShares, Shares
from fedpers.families.unified.objective import Base, Constants, Objective, Of, Settings
from fedpers.learning.model import Model


@dataclass(frozen=True)
class KnownCenterSettings(Settings):
    """Keys of both."""

    center: str = ""  # w'*: a .safetensors file as `fedpers export` writes it, on each client's machine

    def check(self) -> list[str]:
        """Problems of values."""
        missing = f"objective {self.name}: give center, the .safetensors file of the shared model"
        return [*super().check(), *([] if self.center else [missing])]


@dataclass(frozen=True)
class MTSettings(KnownCenterSettings):
    """Keys of MT."""

    name: str = "mt"
    lam: float = 0.5  # λ: penalty (λ/2)‖β_m - w'*‖²

    def check(self) -> list[str]:
        """Problems of values."""
        return [*super().check(), *bounds(self, lam=(0, None))]


@dataclass(frozen=True)
class APFLSettings(Shares, KnownCenterSettings):
    """Keys of APFL."""

    name: str = "apfl"


class KnownCenter(Objective):
    """There is no shared block: w'* is read from a file, and only β_m is trained."""

    settings: ClassVar[type[Settings]] = KnownCenterSettings
    has_w = False

    def __init__(self, config: Any, model: Model, M: int) -> None:
        super().__init__(config, model, M)
        self._center = _read(config.center)

    def center(self, like: Params) -> Params:
        """w'*, in the type and on the device of `like`.

        Raises:
            ConfigError: it is not a model of this shape.
        """
        have, want = ({k: tuple(v.shape) for k, v in p.items()} for p in (self._center, like))
        if have != want:
            raise ConfigError(f"center={self.config.center}: holds {have}, and the model has {want}")
        return {k: self._center[k].to(v) for k, v in like.items()}

    def start(self, params: Params) -> tuple[Params, Params]:
        """Nothing is shared; the center must be a model like `params`."""
        self.center(params)
        return {}, params

    def grad_w(self, w: Params, beta: Params, data: Data) -> Params:
        """There is no w."""
        return {}

    def grads(self, w: Params, beta: Params, data: Data) -> tuple[Params, Params]:
        """There is no w."""
        return {}, self.grad_beta(w, beta, data)

    def gradient_work(self, of: Of) -> Work:
        """That of β_m alone."""
        return Work(int(of != "w"))


class MT(KnownCenter):
    """Multi-task learning (eq. 6; Ditto): f'(β_m) + (λ/2)‖β_m - w'*‖²."""

    settings = MTSettings

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """The client's loss and its distance from w'*."""
        return self.loss(beta, data) + self.config.lam / 2 * sq_dist(beta, self.center(beta))

    def grad_beta(self, w: Params, beta: Params, data: Data) -> Params:
        """∇f'(β_m) + λ(β_m - w'*)."""
        return add(self.loss_gradient(beta, data), sub(beta, self.center(beta)), self.config.lam)

    def constants(self, base: Base) -> Constants:
        """λ more than those of f'."""
        lam = self.config.lam
        return self._constants(base.mu + lam, 0.0, base.L_b + lam, 0.0, base.cL_b + lam)


class APFL(OwnShares, KnownCenter):
    """Adaptive personalised learning (eq. 12): f'((1-α)β_m + α w'*)."""

    settings = APFLSettings

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """The mixed model's loss."""
        return self.loss(self.personal(w, beta), data)

    def grad_beta(self, w: Params, beta: Params, data: Data) -> Params:
        """(1-α) ∇f' at the mixed model."""
        return scale(self.loss_gradient(self.personal(w, beta), data), 1 - self.config.alpha)

    def personal(self, w: Params, beta: Params) -> Params:
        """The mixed model."""
        return blend(beta, self.center(beta), self.config.alpha)

    def constants(self, base: Base) -> Constants:
        """(1-α)² of those of f'."""
        square = (1 - self.config.alpha) ** 2
        return self._constants(square * base.mu, 0.0, square * base.L_b, 0.0, square * base.cL_b)


@cache
def _read(path: str) -> Params:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(Path(path))
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"center={path}: cannot be read ({error}); write it with `fedpers export RUN` of a shared model"
        ) from error
