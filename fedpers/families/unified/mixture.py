"""Objectives that are plain losses at mixtures of u and β_m, and the distance between these two."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple

from torch import Tensor

from fedpers.core.bounds import bounds
from fedpers.core.data import Data
from fedpers.core.params import Params, add, scale, sq_dist, zeros_like
from fedpers.core.work import Work
from fedpers.families.unified.objective import Base, Constants, Objective, Of, Reparametrised, Settings
from fedpers.learning.gradients import is_linear
from fedpers.learning.kernels.programs import Draw, run_program
from fedpers.learning.step import Grad, Instruction, Mix, Program


class Term(NamedTuple):
    """c f'(a u + b β_m)."""

    c: float
    a: float
    b: float


@cache
def mixed_step(terms: tuple[Term, ...], of_w: float, of_beta: float) -> Program:
    """A step of both models by Σ_k c_k f'(a_k w + b_k β), from gradients at where both were before it."""
    apart = sorted(terms, key=lambda t: t.a != 0 and t.b != 0)  # of one model alone: taken at that model
    lines = list[Instruction]()
    for k, t in enumerate(apart):
        lines += [Mix(f"x{k}", ((t.a, "w"), (t.b, "β")))] * ((t.a, t.b) not in ((1, 0), (0, 1)))
    for k, t in enumerate(apart):
        alone = "w" if (t.a, t.b) == (1, 0) else "β"
        lines.append(Grad("g", alone if (t.a, t.b) in ((1, 0), (0, 1)) else f"x{k}"))
        lines += [Mix("w", ((1.0, "w"), (-of_w * t.c * t.a, "g")))] * bool(t.a)
        lines += [Mix("β", ((1.0, "β"), (-of_beta * t.c * t.b, "g")))] * bool(t.b)
    return Program(tuple(lines))


class Mixture(Objective):
    """f_m = Σ_k c_k f'(a_k u + b_k β_m) + (λ/2)‖u - β_m‖²; values, gradients and constants follow.

    Both gradients are sums of the same slopes ∇f'(a_k u + b_k β_m):
    ∇_w = s [Σ c_k a_k slope_k + λ(u - β_m)] and ∇_β = Σ c_k b_k slope_k + λ(β_m - u).
    """

    lam: Any = 0.0  # λ
    terms: Any = ()  # Terms; Any, for some are properties

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """The terms' losses and the distance."""
        value = sum(t.c * self.loss(self._point(t, w, beta), data) for t in self.terms)
        return value + self.lam / 2 * sq_dist(self.shared(w), beta) if self.lam else value

    def grad_w(self, w: Params, beta: Params, data: Data) -> Params:
        """∇_w f_m, from the terms in which w is."""
        slopes = self._slopes([t for t in self.terms if t.a], w, beta, data)
        return self._of_w(slopes, self._apart(w, beta)) or zeros_like(w)

    def grad_beta(self, w: Params, beta: Params, data: Data) -> Params:
        """∇_β f_m, from the terms in which β_m is."""
        slopes = self._slopes([t for t in self.terms if t.b], w, beta, data)
        return self._of_beta(slopes, self._apart(w, beta)) or zeros_like(beta)

    def grads(self, w: Params, beta: Params, data: Data) -> tuple[Params, Params]:
        """Both, from one slope a term and one β_m - u."""
        slopes, apart = self._slopes(self.terms, w, beta, data), self._apart(w, beta)
        return self._of_w(slopes, apart) or zeros_like(w), self._of_beta(slopes, apart) or zeros_like(beta)

    @property
    def stacks(self) -> bool:
        """Where the model's gradient is written out, unless a subclass has other gradients."""
        return self.sums_gradients and is_linear(self.model)

    @property
    def sums_gradients(self) -> bool:
        """Where the gradients are those of this class."""
        own = ("grad_w", "grad_beta", "grads", "loss_gradient")
        return all(getattr(type(self), name) is getattr(Mixture, name) for name in own)

    def descend(
        self, w: Params, beta: Params, data: Data, draw: Draw, steps: tuple[float, float]
    ) -> tuple[Params, Params] | None:
        """In one call where there are two models, u = w, and nothing but the terms."""
        if not self.sums_gradients or self.lam or self.s != 1 or self.config.l2 or not (w and beta):
            return None
        made, vectors = mixed_step(tuple(self.terms), *steps), {"w": w, "β": beta}
        found = run_program(self.model.loss, made, vectors, ("w", "β"), data.block, draw)
        return (found[0], found[1]) if found else None

    def gradient_work(self, of: Of) -> Work:
        """One gradient of the model for each term that the block is in."""
        factors = {"w": [t.a for t in self.terms], "beta": [t.b for t in self.terms]}
        return Work(sum(f != 0 for f in factors[of]) if of in factors else len(self.terms))

    def constants(self, base: Base) -> Constants:
        """Smoothness Σ c a² L' + λ and Σ c b² L' + λ; μ is exact where every f' has Hessian μ'I."""
        of_w, of_b = (sum(t.c * t[i] ** 2 for t in self.terms) for i in (1, 2))
        L_w, L_b = of_w * base.L_w + self.lam, of_b * base.L_b + self.lam
        cL_w, cL_b = of_w * base.cL_w + self.lam, of_b * base.cL_b + self.lam
        return self._constants(self._mu(float(base.mu), of_w, of_b), L_w, L_b, cL_w, cL_b)

    def _mu(self, mu: float, of_w: float, of_b: float) -> float:
        """Smallest eigenvalue of [[of_w μ' + λ, cross μ' - λ], [cross μ' - λ, of_b μ' + λ]]."""
        lam, cross = self.lam, sum(t.c * t.a * t.b for t in self.terms)
        if of_w == lam == 0 or of_b == lam == 0:  # one block is free, or not there
            return (of_w + of_b) * mu
        trace = (of_w + of_b) * mu + 2 * lam
        determinant = mu**2 * (of_w * of_b - cross**2) + lam * mu * (of_w + of_b + 2 * cross)
        root = max(trace**2 - 4 * determinant, 0.0) ** 0.5
        return 2 * determinant / (trace + root) if determinant else 0.0

    def _point(self, t: Term, w: Params, beta: Params) -> Params:
        if not t.a:
            return beta if t.b == 1 else scale(beta, t.b)
        return add(scale(beta, t.b), w, t.a * self.s) if t.b else scale(w, t.a * self.s)

    def _slopes(
        self, terms: Sequence[Term], w: Params, beta: Params, data: Data
    ) -> list[tuple[Term, Params]]:
        return [(t, self.loss_gradient(self._point(t, w, beta), data)) for t in terms]

    def _apart(self, w: Params, beta: Params) -> Params:
        """β_m - u; {} where nothing depends on it."""
        return add(beta, w, -self.s) if self.lam else {}

    def _of_w(self, slopes: list[tuple[Term, Params]], apart: Params) -> Params:
        return _sum(*((self.s * t.c * t.a, g) for t, g in slopes if t.a), (-self.s * self.lam, apart))

    def _of_beta(self, slopes: list[tuple[Term, Params]], apart: Params) -> Params:
        return _sum(*((t.c * t.b, g) for t, g in slopes if t.b), (self.lam, apart))


def _sum(*parts: tuple[float, Params]) -> Params:
    """Σ factor·part; parts that are {} are left out."""
    total: Params = {}
    for factor, part in parts:
        if total:
            total = add(total, part, factor) if part else total
        else:
            total = part if factor == 1 else scale(part, factor)
    return total


@dataclass(frozen=True)
class MX2Settings(Reparametrised):
    """Keys of MX2."""

    name: str = "mx2"
    lam: float = 0.5  # λ: penalty (λ/2)‖u - β_m‖²

    def check(self) -> list[str]:
        """Problems of values."""
        return [*super().check(), *bounds(self, lam=(0, None))]


@dataclass(frozen=True)
class MT2Settings(MX2Settings):
    """Keys of MT2."""

    name: str = "mt2"
    Lambda: float = 1.0  # Λ: weight of the shared model's own loss

    def check(self) -> list[str]:
        """Problems of values."""
        return [*super().check(), *bounds(self, Lambda=(0, None))]


Alpha = float | tuple[float, ...]  # one number, or α_m of each client in turn


@dataclass(frozen=True)
class Shares(Settings):
    """A key of objectives at a mixture of two models."""

    alpha: Alpha = 0.1  # α: share of the common model in the mixed one

    @property
    def count(self) -> int:
        """How many α_m there are."""
        return len(self.alpha) if isinstance(self.alpha, tuple) else 0

    def check(self) -> list[str]:
        """Problems of values."""
        each = self.alpha if isinstance(self.alpha, tuple) else (self.alpha,)
        wrong = [f"alpha={a}: must be at least 0 and below 1" for a in each if not 0 <= a < 1]
        return [*super().check(), *wrong]


class OwnShares(Objective):
    """Objectives whose α may be a number for each client."""

    def of(self, m: int) -> "OwnShares":
        """With α_m for α."""
        if not self.config.count:
            return self
        return type(self)(replace(self.config, alpha=self.config.alpha[m]), self.model, self.M)


@dataclass(frozen=True)
class APFL2Settings(Shares, Reparametrised):
    """Keys of APFL2."""

    name: str = "apfl2"
    Lambda: float = 1.0  # Λ: weight of the shared model's own loss
    predict: Literal["personal", "private"] = "personal"  # by the mixed model, or by β_m alone

    def check(self) -> list[str]:
        """Problems of values."""
        return [*super().check(), *bounds(self, Lambda=(0, None))]


class FL(Mixture):
    """Traditional federated learning (eq. 4): f'(w), no private block, no scale of w."""

    settings = Settings
    has_beta = False
    terms = (Term(1, 1, 0),)

    def start(self, params: Params) -> tuple[Params, Params]:
        """The model is shared."""
        return params, {}

    def personal(self, w: Params, beta: Params) -> Params:
        """The one model."""
        return w


class Full(Mixture):
    """Fully personalised (eq. 5): f'(β_m), nothing shared."""

    settings = Settings
    has_w = False
    terms = (Term(1, 0, 1),)

    def start(self, params: Params) -> tuple[Params, Params]:
        """The model is private."""
        return {}, params


class MX2(Mixture):
    """Mixture of local and global models (eq. 11): f'(β_m) + (λ/2)‖u - β_m‖²."""

    one_space = True
    settings = MX2Settings
    w_uses_data = False
    terms = (Term(1, 0, 1),)

    @property
    def lam(self) -> float:
        """λ."""
        return float(self.config.lam)


class MT2(MX2):
    """Relaxed multi-task learning, Ditto's (eq. 8): Λf'(u) + f'(β_m) + (λ/2)‖β_m - u‖²."""

    settings = MT2Settings
    w_uses_data = True

    @property
    def terms(self) -> tuple[Term, ...]:  # type: ignore[override]
        """Both models' losses."""
        return Term(1, 0, 1), Term(self.config.Lambda, 1, 0)


class APFL2(OwnShares, Mixture):
    """Relaxed adaptive personalised FL (eq. 14): Λf'(u) + f'((1-α)β_m + αu).

    The paper's Lemma 3 claims up to twice the μ of `constants`, which is not true.
    """

    one_space = True
    settings = APFL2Settings

    @property
    def terms(self) -> tuple[Term, ...]:
        """The mixed model's loss and the shared one's."""
        return self._mixed, Term(self.config.Lambda, 1, 0)

    @property
    def _mixed(self) -> Term:
        return Term(1, self.config.alpha, 1 - self.config.alpha)

    def personal(self, w: Params, beta: Params) -> Params:
        """The mixed model, or β_m alone (predict: private)."""
        return beta if self.config.predict == "private" else self._point(self._mixed, w, beta)
