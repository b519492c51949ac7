"""Objectives whose client predicts by a shared and a private part together: of one model, or two models."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from fedpers.core.bounds import bounds
from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params, merge, scale, split, sq_norm
from fedpers.core.work import Work
from fedpers.families.unified.objective import Base, Constants, Objective, Of, Reparametrised
from fedpers.learning.gradients import is_linear
from fedpers.learning.kernels.programs import Draw, run_program
from fedpers.learning.model import HEAD
from fedpers.learning.step import Grad, Mix, Program

WEIGHT = HEAD + "weight"


@dataclass(frozen=True)
class WS2Settings(Reparametrised):
    """Keys of WS2."""

    private: Literal["head", "body", "features", "none"] = "head"  # β_m
    shared_features: int = 0  # private=features: inputs that w sees, the first

    def check(self) -> list[str]:
        """Problems of values."""
        problems = [*super().check(), *bounds(self, shared_features=(0, None))]
        if self.private == "features" and not self.shared_features:
            problems.append("private=features: needs shared_features, the inputs that w sees")
        if self.private != "features" and self.shared_features:
            problems.append(f"shared_features={self.shared_features}: is read with private=features only")
        return problems


@dataclass(frozen=True)
class FRSettings(Reparametrised):
    """Keys of FR."""

    name: str = "fr"
    shared_features: int = 0  # inputs that w sees, the first; 0: all
    private_features: int = 0  # inputs that β_m sees, the last; 0: all

    def check(self) -> list[str]:
        """Problems of values."""
        zero = (0, None)
        return [*super().check(), *bounds(self, shared_features=zero, private_features=zero)]


class WS2(Objective):
    """Weight sharing (eq. 16): f'([u, β_m]), cut at the head or at inputs (`private`)."""

    settings = WS2Settings

    def start(self, params: Params) -> tuple[Params, Params]:
        """The model, cut in two."""
        u, beta = self._cut(params)
        return scale(u, 1 / self.s), beta

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """The loss of the model put together."""
        return self.loss(self.personal(w, beta), data)

    def personal(self, w: Params, beta: Params) -> Params:
        """[u, β_m]."""
        u = self.shared(w)
        if self.config.private != "features":
            return merge(u, beta)
        both = torch.cat([u[WEIGHT], beta[WEIGHT]], dim=1)
        return {**{k: v for k, v in beta.items() if k != WEIGHT}, WEIGHT: both}

    def measure(self, params: Params, data: Data) -> Base:
        """Of the columns that each block multiplies, where these are known."""
        if self.config.private != "features":
            return super().measure(params, data)
        k, x = self.config.shared_features, data.x.flatten(1)
        whole = self._base(params, data, data)
        parts = self._base(params, *(Data(p, data.y, data.mask) for p in (x[:, :k], x[:, k:])))
        return Base(whole.mu, parts.L_w, parts.L_b, parts.cL_w, parts.cL_b)

    def constants(self, base: Base) -> Constants:
        """Those of f', over M (Table 2 and Lemma 4 print them without or with one 1/M)."""
        return self._constants(base.mu, base.L_w, base.L_b, base.cL_w, base.cL_b)

    def gradient_work(self, of: Of) -> Work:
        """A head's gradient goes back through no body, but its features pass forward."""
        kind = self.config.private
        if of == "beta" and kind == "none":
            return Work()
        head = {"head": "beta", "body": "w"}.get(kind)
        return Work(forwards=1, head_steps=1) if of == head else Work(1)

    def _cut(self, params: Params) -> tuple[Params, Params]:
        kind = self.config.private
        if kind == "none":
            return params, {}
        if kind != "features":
            head, body = split(params, self.model.is_head)
            return (body, head) if kind == "head" else (head, body)
        if set(params) - {WEIGHT, HEAD + "bias"}:
            raise ConfigError("private=features is for linear models; use model=logistic or linear")
        k = self.config.shared_features
        rest = {name: v for name, v in params.items() if name != WEIGHT}
        return {WEIGHT: params[WEIGHT][:, :k]}, {WEIGHT: params[WEIGHT][:, k:], **rest}


@cache
def beside_step(of_u: float, of_beta: float) -> Program:
    """A step of both models of FR, from the gradients of the loss of the sum of their outputs."""
    return Program((
        Grad("g_w", "w", beside="β"),
        Grad("g_β", "β", beside="w"),
        Mix("w", ((1.0, "w"), (-of_u, "g_w"))),
        Mix("β", ((1.0, "β"), (-of_beta, "g_β"))),
    ))  # fmt: skip


@cache
def sum_step(of_u: float, of_beta: float) -> Program:
    """The same of linear models, whose sum is a model."""
    return Program((
        Mix("x", ((1.0, "w"), (1.0, "β"))),
        Grad("g", "x"),
        Mix("w", ((1.0, "w"), (-of_u, "g"))),
        Mix("β", ((1.0, "β"), (-of_beta, "g"))),
    ))  # fmt: skip


class FR(Objective):
    """Federated residual learning (eq. 18): the outputs of a shared and a private model add up."""

    settings = FRSettings
    one_model = False

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """The loss of the sum of outputs, with a ridge on both models."""
        losses = self.model.sample_losses(self.outputs(w, beta, data.x), data.y)
        value = (losses * data.mask).sum() / data.num
        if not self.config.l2:
            return value
        return value + self.config.l2 / 2 * (sq_norm(self.shared(w)) + sq_norm(beta))

    def outputs(self, w: Params, beta: Params, x: Tensor) -> Tensor:
        """A^w(u, x^w) + A^β(β_m, x^β)."""
        x_w, x_b = self._seen(x)
        return self.model(self.shared(w), x_w) + self.model(beta, x_b)

    def descend(
        self, w: Params, beta: Params, data: Data, draw: Draw, steps: tuple[float, float]
    ) -> tuple[Params, Params] | None:
        """In one call where both models see all inputs; of linear ones the sum is a model too, u + β_m."""
        h = self.config
        if not self._as_written or h.l2 or h.shared_features or h.private_features:
            return None
        made = sum_step if is_linear(self.model) else beside_step
        vectors, sizes = {"w": self.shared(w), "β": beta}, (steps[0] * self.s**2, steps[1])
        found = run_program(self.model.loss, made(*sizes), vectors, ("w", "β"), data.block, draw)
        return (scale(found[0], 1 / self.s), found[1]) if found else None

    def gradient_work(self, of: Of) -> Work:
        """The other model passes forward where one alone has a gradient."""
        return Work(2) if of == "both" else Work(1, forwards=1)

    def measure(self, params: Params, data: Data) -> Base:
        """Of the inputs that each model sees; μ' is the ridge, for the sum may be degenerate."""
        parts = self._base(params, *(Data(x, data.y, data.mask) for x in self._seen(data.x)))
        mu = parts.L_w * 0 + self.config.l2
        return Base(mu, parts.L_w, parts.L_b, parts.cL_w, parts.cL_b)

    def constants(self, base: Base) -> Constants:
        """Assumed in the paper; these are right for models that are linear in their parameters."""
        return self._constants(base.mu, base.L_w, base.L_b, base.cL_w, base.cL_b)

    @property
    def _as_written(self) -> bool:
        """Whether the objective is that of this class."""
        return all(getattr(type(self), name) is getattr(FR, name) for name in ("value", "outputs", "grads"))

    def _seen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, last = self.config.shared_features, self.config.private_features
        place = torch.arange(x[0].numel(), device=x.device).reshape(x[0].shape)
        x_w = x * (place < first).to(x) if first else x
        return x_w, x * (place >= x[0].numel() - last).to(x) if last else x
