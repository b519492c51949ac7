"""K canonical models under one membership vector: their outputs or their parameters are mixed.

The parameters of a mixture are one dict: canonical entries are stacked, [K, ...], the others (a
shared body) are as in the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.core.vmap import all_at_once, shared
from fedpers.families.mixtures.simplex import mirror_step
from fedpers.families.starts import Start, refuse_equal, started
from fedpers.learning.gradients import grad
from fedpers.learning.local_training import minimise_scaled
from fedpers.learning.losses import Loss
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig, OptimizerState


@dataclass(frozen=True)
class Mixture:
    """How a model is mixed. `theta` is the dict of all its parameters, `c` [K] a membership."""

    model: Model
    arch: Literal["output", "parameter"] = "parameter"
    canonical: Literal["head", "model"] = "head"
    glm_mix: Literal["logit", "prob"] = "logit"

    @classmethod
    def of(cls, config: Any, model: Model) -> "Mixture":
        """As the config's keys of the same names say."""
        return cls(model, config.arch, config.canonical, config.glm_mix)

    def is_canonical(self, name: str) -> bool:
        """Is this parameter there K times?"""
        return self.canonical == "model" or self.model.is_head(name)

    @property
    def one_pass(self) -> bool:
        """Whether one module with mixed parameters runs, instead of K modules.

        Mixing after every layer is this too: layers are affine in their parameters, so a mixture of
        their outputs is the output of their mixed parameters.
        """
        return self.arch == "parameter"

    def passes(self, K: int) -> int:
        """Networks that run for one sample; K heads on one body count as one."""
        return 1 if self.one_pass or self.canonical == "head" else K

    # ---- parameters -----------------------------------------------------------------------------

    def start(self, params: Params, K: int, rng: np.random.Generator, start: Start = "seeds") -> Params:
        """theta of K models that start apart; `params` are the first and what is shared.

        Raises:
            ConfigError: they start alike; memberships would stay uniform and the models equal.
        """
        seeds = [int(rng.integers(2**31)) for _ in range(K - 1)]
        models = [params, *(started(self.model, params, s, start) for s in seeds)]
        own = [{n: v for n, v in m.items() if self.is_canonical(n)} for m in models]
        refuse_equal(own, f"method.num_canonical={K} canonical models")
        return self.stack(models)

    def stack(self, models: Sequence[Params]) -> Params:
        """theta of K models; what is shared is that of the first."""
        return {
            n: torch.stack([m[n] for m in models]) if self.is_canonical(n) else v
            for n, v in models[0].items()
        }

    def unstack(self, theta: Params) -> list[Params]:
        """The K models, each with the shared part."""
        parts = {n: v.unbind(0) for n, v in theta.items() if self.is_canonical(n)}
        shared = {n: v for n, v in theta.items() if n not in parts}
        K = len(next(iter(parts.values())))
        return [shared | {n: v[k] for n, v in parts.items()} for k in range(K)]

    def mix(self, theta: Params, c: Tensor) -> Params:
        """One model: Σ_k c_k θ_k and the shared part."""
        return theta | {n: torch.tensordot(c.to(theta[n]), theta[n], dims=1) for n in self._canonical(theta)}

    def _canonical(self, theta: Params) -> list[str]:
        return [n for n in theta if self.is_canonical(n)]

    # ---- functions of parameters and membership --------------------------------------------------

    def outputs(self, theta: Params, c: Tensor, x: Tensor) -> Tensor:
        """Outputs [n, out]: logits or values, whatever is mixed."""
        if self.one_pass:
            return self.model(self.mix(theta, c), x)
        each = torch.stack(self._each(theta, x), -1)
        kind = self.model.kind.outputs
        if self.glm_mix == "logit" or kind == "values":
            return each @ c.to(each)
        if kind == "sigmoid":
            return log_mix(F.logsigmoid(each), c) - log_mix(F.logsigmoid(-each), c)
        return log_mix(F.log_softmax(each, -2), c)

    def loss(self, theta: Params, data: Data, c: Tensor) -> Tensor:
        """Mean loss over the samples that are no padding, a scalar."""
        losses = self.model.sample_losses(self.outputs(theta, c, data.x), data.y)
        return (losses * data.mask).sum() / data.num

    def loss_at(self, c: Tensor) -> Loss:
        """The loss as a function of the parameters."""
        if self.one_pass:
            return MixedLoss(self, c)
        return lambda theta, data: self.loss(theta, data, c)

    def membership_gradient(self, theta: Params, data: Data, c: Tensor) -> Tensor:
        """Gradient [K] of the loss in the membership, in the dtype of c."""
        if not self.one_pass:
            return grad(self.loss, argnums=2)(theta, data, c)
        g = grad(self.model.loss)(self.mix(theta, c), data)  # ∂/∂c_k = ⟨θ_k, g⟩
        slopes = [theta[n].flatten(1) @ g[n].flatten() for n in self._canonical(theta)]
        return torch.stack(slopes).sum(0).to(c)

    def settle(self, theta: Params, data: Data, c: Tensor, steps: int, eta: float, floor: float) -> Tensor:
        """The membership after mirror steps on all of `data`; the models are frozen."""
        for _ in range(steps):
            c = mirror_step(c, self.membership_gradient(theta, data, c), eta, floor)
        return c

    def _each(self, theta: Params, x: Tensor) -> list[Tensor]:
        models = self.unstack(theta)
        if self.canonical == "model":
            return [self.model(m, x) for m in models]
        features = self.model.body(theta, x)
        return [self.model.head(m, features) for m in models]


@dataclass(frozen=True)
class MixedLoss:
    """The loss of mixed parameters, as a function of theta."""

    mixture: Mixture
    c: Tensor

    def __call__(self, theta: Params, data: Data) -> Tensor:
        return self.mixture.loss(theta, data, self.c)

    def gradient(self, theta: Params, data: Data) -> Params:
        """By the chain rule: c_k g for θ_k, where g is the gradient in the mixed parameters."""
        model, is_canonical = self.mixture.model, self.mixture.is_canonical
        g = grad(model.loss)(self.mixture.mix(theta, self.c), data)
        share = {n: self.c.to(v).reshape(-1, *[1] * v.dim()) for n, v in g.items()}
        return {n: share[n] * v if is_canonical(n) else v for n, v in g.items()}

    def minimise(
        self, theta: Params, opt: OptimizerState, data: Data, rng: Stream, cfg: LocalConfig, lr: Any
    ) -> tuple[Params, OptimizerState] | None:
        """SGD on theta, from steps of the mixed parameters w alone; None if that cannot be done.

        With momentum m a step is m' = μm + λθ + c_k g, θ' = θ - lr m': linear in (θ, m), and the same for
        all k but for the factor c_k of what gradients add. So θ_k(E) = a θ_k + b m_k + c_k z for the first
        row (a, b) of A^E, A = [[1 - lr λ, -lr μ], [λ, μ]]; and z is that of w = Σ_k c_k θ_k, whose own
        factor is ‖c‖². The second row gives m_k(E).
        """
        w, rate = self.mixture.mix(theta, self.c), self.c.square().sum()
        mixed = self.mixture._canonical(theta)
        like = theta[mixed[0]]
        rates = {n.rpartition(".")[0]: rate.to(like) for n in mixed}
        moments = self.mixture.mix(opt.m, self.c) if opt.m else {}
        start = OptimizerState(opt.step, moments, {})
        done = minimise_scaled(self.mixture.model.loss, w, rates, start, data, rng, cfg, lr)
        if done is None:
            return None
        w_E, m_E, weight = done
        if opt.m or cfg.weight_decay:
            steps = all_at_once(lambda w: (w.sum(-1) > 0).sum(-1), weight)
            powers = _drift(cfg, lr, data, steps).to(like)
        else:  # nothing moves but by gradients, whose number nobody asks for
            powers = torch.eye(2, dtype=like.dtype, device=like.device)
        kinds = ((theta, w, w_E), (opt.m, moments, m_E))[: 1 + bool(opt.m)]
        for (_, _, end), row in zip(kinds, powers, strict=False):
            end |= {n: self._shared_out(n, row, kinds, end[n], rate) for n in mixed}
        return w_E, OptimizerState(opt.step + steps, m_E, {}) if opt.m else opt

    def _shared_out(self, name: str, row: Tensor, kinds: Sequence[Any], end: Tensor, rate: Tensor) -> Tensor:
        """Σ row·(θ_k, m_k) + c_k z [K, ...], where z is what `end` has beyond its own such sum."""
        terms = [(factor, kind[name], own[name]) for factor, (kind, own, _) in zip(row, kinds, strict=False)]
        z = (end - sum(factor * own for factor, _, own in terms)) / rate.to(end)
        c = self.c.to(end).reshape(-1, *[1] * end.dim())
        return sum((factor * kind for factor, kind, _ in terms), c * z)


def _drift(cfg: LocalConfig, lr: float, data: Data, steps: Tensor) -> Tensor:
    """A^steps [2, 2] float64: what `steps` steps without gradients make of a parameter and its momentum."""
    table = _powers(lr, cfg.weight_decay, cfg.momentum, cfg.num_steps(len(data))).to(steps.device)
    return all_at_once(lambda n: table[n], steps)  # type: ignore[no-any-return]


@shared
def _powers(lr: float, decay: float, momentum: float, most: int) -> Tensor:
    """A^0, A^1, ..., A^most, [most + 1, 2, 2] float64."""
    step = np.array([[1 - lr * decay, -lr * momentum], [decay, momentum]])
    if not momentum:
        step[1] = 0.0
    powers = [np.eye(2)]
    for _ in range(most):
        powers.append(step @ powers[-1])
    return torch.from_numpy(np.stack(powers))


def log_mix(logs: Tensor, c: Tensor) -> Tensor:
    """log Σ_k c_k exp(logs_k) over the last dimension; a c_k of 0 takes model k out entirely."""
    used = c > 0
    weights = torch.where(used, torch.where(used, c, 1.0).log(), -torch.inf)
    return torch.logsumexp(logs + weights.to(logs), -1)
