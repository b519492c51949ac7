"""The objectives of the unified framework, by name; `objective.Objective` says what one is."""

import importlib
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params, add, merge, scale, split, sq_dist, sq_norm, sub
from fedpers.families.unified.adapted import MAML, Moreau
from fedpers.families.unified.objective import Base, Constants, Objective
from fedpers.learning.model import HEAD, Model


class FL(Objective):
    """Traditional federated learning (eq. 4): f'(w), no private block."""

    has_beta = False
    rescaled = False

    def start(self, params: Params) -> tuple[Params, Params]:
        """The model is shared."""
        return params, {}

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """f'(w)."""
        return self.loss(w, data)

    def personal(self, w: Params, beta: Params) -> Params:
        """The one model."""
        return w

    def constants(self, base: Base) -> Constants:
        """Those of f'."""
        return Constants(float(base.mu), float(base.L_w), 0.0, float(base.cL_w), 0.0)


class Full(Objective):
    """Fully personalised (eq. 5): f'(β_m), nothing shared."""

    has_w = False

    def start(self, params: Params) -> tuple[Params, Params]:
        """The model is private."""
        return {}, params

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """f'(β_m)."""
        return self.loss(beta, data)

    def constants(self, base: Base) -> Constants:
        """Those of f', over M."""
        return self._constants(base.mu, 0.0, base.L_b, 0.0, base.cL_b)


class MX2(Objective):
    """Mixture of local and global models (eq. 11): f'(β_m) + (λ/2)‖u - β_m‖²."""

    w_uses_data = False

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """The client's loss and the distance to the shared model."""
        return self.loss(beta, data) + self.config.lam / 2 * sq_dist(scale(w, self.s), beta)

    def grad_w(self, w: Params, beta: Params, data: Data) -> Params:
        """s λ(u - β_m); it touches no data."""
        return scale(add(beta, w, -self.s), -self.s * self.config.lam)

    def grad_beta(self, w: Params, beta: Params, data: Data) -> Params:
        """∇f'(β_m) + λ(β_m - u)."""
        return add(self.loss_gradient(beta, data), add(beta, w, -self.s), self.config.lam)

    def grads(self, w: Params, beta: Params, data: Data) -> tuple[Params, Params]:
        """Both, from one β_m - u."""
        lam, apart = self.config.lam, add(beta, w, -self.s)
        return scale(apart, -self.s * lam), add(self.loss_gradient(beta, data), apart, lam)

    def constants(self, base: Base) -> Constants:
        """μ is exact where every f' has Hessian μ'I (attained), a bound elsewhere."""
        lam, mu = self.config.lam, base.mu
        mu_F = (2 * lam + mu - (mu**2 + 4 * lam**2) ** 0.5) / 2 if lam else mu
        return self._constants(mu_F, lam, base.L_b + lam, lam, base.cL_b + lam)


class MT2(Objective):
    """Relaxed multi-task learning, Ditto's (eq. 8): Λf'(u) + f'(β_m) + (λ/2)‖β_m - u‖²."""

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """Both models' losses and their distance."""
        u = self.shared(w)
        own = self.loss(beta, data) + self.config.lam / 2 * sq_dist(u, beta)
        return own + self.config.Lambda * self.loss(u, data)

    def grad_w(self, w: Params, beta: Params, data: Data) -> Params:
        """s [Λ ∇f'(u) + λ(u - β_m)]."""
        u = self.shared(w)
        g = add(scale(self.loss_gradient(u, data), self.config.Lambda), sub(u, beta), self.config.lam)
        return scale(g, self.s)

    def grad_beta(self, w: Params, beta: Params, data: Data) -> Params:
        """∇f'(β_m) + λ(β_m - u)."""
        return add(self.loss_gradient(beta, data), sub(beta, self.shared(w)), self.config.lam)

    def grads(self, w: Params, beta: Params, data: Data) -> tuple[Params, Params]:
        """Both."""
        return self.grad_w(w, beta, data), self.grad_beta(w, beta, data)

    def constants(self, base: Base) -> Constants:
        """Lemma 1's smoothness (Table 2 prints half of it); the exact μ."""
        lam, Lam, mu = self.config.lam, self.config.Lambda, base.mu
        root = (((Lam - 1) * mu) ** 2 + 4 * lam**2) ** 0.5
        of_w, of_b = Lam * base.L_w + lam, base.L_b + lam
        mu_F = ((Lam + 1) * mu + 2 * lam - root) / 2
        return self._constants(mu_F, of_w, of_b, Lam * base.cL_w + lam, base.cL_b + lam)


class APFL2(Objective):
    """Relaxed adaptive personalised FL (eq. 14): Λf'(u) + f'((1-α)β_m + αu)."""

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """The shared model's loss and the mixed model's."""
        own = self.loss(self._mixed(w, beta), data)
        return self.config.Lambda * self.loss(self.shared(w), data) + own

    def grad_w(self, w: Params, beta: Params, data: Data) -> Params:
        """s [Λ ∇f'(u) + α ∇f'(x_m)] at the mixed model x_m."""
        return self.grads(w, beta, data)[0]

    def grad_beta(self, w: Params, beta: Params, data: Data) -> Params:
        """(1-α) ∇f'(x_m)."""
        return scale(self.loss_gradient(self._mixed(w, beta), data), 1 - self.config.alpha)

    def grads(self, w: Params, beta: Params, data: Data) -> tuple[Params, Params]:
        """Both, from one ∇f'(x_m)."""
        a, at_x = self.config.alpha, self.loss_gradient(self._mixed(w, beta), data)
        of_u = self.loss_gradient(self.shared(w), data)
        g = add(scale(at_x, a), of_u, self.config.Lambda)
        return scale(g, self.s), scale(at_x, 1 - a)

    def personal(self, w: Params, beta: Params) -> Params:
        """The mixed model, or β_m alone (predict: private)."""
        return beta if self.config.predict == "private" else self._mixed(w, beta)

    def constants(self, base: Base) -> Constants:
        """The exact μ; the paper's Lemma 3 claims up to twice as much, which is not true."""
        a, Lam = self.config.alpha, self.config.Lambda
        one, two = Lam + a**2, (1 - a) ** 2
        lowest = (one + two - ((one - two) ** 2 + 4 * (a * (1 - a)) ** 2) ** 0.5) / 2
        of_w, of_b = one * base.L_w, two * base.L_b
        return self._constants(lowest * base.mu, of_w, of_b, one * base.cL_w, two * base.cL_b)

    def _mixed(self, w: Params, beta: Params) -> Params:
        a = self.config.alpha
        return add(scale(beta, 1 - a), w, a * self.s)


class WS2(Objective):
    """Weight sharing (eq. 16): f'([u, β_m]), cut at the head or at inputs (`private`)."""

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


class FR(Objective):
    """Federated residual learning (eq. 18): the outputs of a shared and a private model add up."""

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

    def measure(self, params: Params, data: Data) -> Base:
        """Of the inputs that each model sees; μ' is the ridge, for the sum may be degenerate."""
        parts = self._base(params, *(Data(x, data.y, data.mask) for x in self._seen(data.x)))
        mu = parts.L_w * 0 + self.config.l2
        return Base(mu, parts.L_w, parts.L_b, parts.cL_w, parts.cL_b)

    def constants(self, base: Base) -> Constants:
        """Assumed in the paper; these are right for models that are linear in their parameters."""
        return self._constants(base.mu, base.L_w, base.L_b, base.cL_w, base.cL_b)

    def _seen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, last = self.config.shared_features, self.config.private_features
        place = torch.arange(x[0].numel(), device=x.device).reshape(x[0].shape)
        x_w = x * (place < first).to(x) if first else x
        return x_w, x * (place >= x[0].numel() - last).to(x) if last else x


WEIGHT = HEAD + "weight"
OBJECTIVES: dict[str, type[Objective]] = {
    "mx2": MX2,
    "mt2": MT2,
    "apfl2": APFL2,
    "ws2": WS2,
    "fr": FR,
    "fl": FL,
    "full": Full,
    "moreau": Moreau,
    "maml": MAML,
}


def make_objective(config: Any, model: Model, M: int) -> Objective:
    """The objective that `config` names, for M clients.

    Raises:
        ConfigError: there is no such objective, or it is no Objective.
    """
    name = config.objective
    if name in OBJECTIVES:
        return OBJECTIVES[name](config, model, M)
    module, _, attribute = name.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"objective={name}: cannot be imported: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Objective)):
        raise ConfigError(f"objective={name}: it is no subclass of {Objective.__module__}.Objective")
    return cls(config, model, M)
