"""What a personalised objective is: F(w, β) = 1/M Σ_m f_m(w, β_m), blocks w shared and β_m private.

Hanzely, Zhao, Kolar, "Personalized Federated Learning: A Unified Framework and Universal
Optimization Techniques". One class an objective (see objectives.py): what f_m is, where the
blocks start, the constants of F, and the model that a client predicts with. Any optimiser takes any
objective.

f' is a client's plain loss, plus (l2/2)‖·‖²; s = M^(-1/2) (1 without reparametrisation), and
u = s·w is the shared block as a model. A new objective is a subclass of `Objective` named by
`method.objective=package.module:Class`.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params, add, scale, sq_norm
from fedpers.core.pytree import record
from fedpers.families.unified.curvature import curvature
from fedpers.learning.gradients import grad, model_gradient
from fedpers.learning.model import Model


@record("unified.Base")
class Base:
    """Constants of the plain losses f', in the inputs that each block sees."""

    mu: float | Tensor  # μ'
    L_w: float | Tensor  # L' of the whole loss, in what w sees
    L_b: float | Tensor  # ... in what β_m sees
    cL_w: float | Tensor  # script L', of one sample's loss
    cL_b: float | Tensor


@record("unified.Constants")
class Constants:
    """Constants of F: strong convexity and smoothness of each block, whole and per sample."""

    mu: float
    L_w: float
    L_b: float
    cL_w: float
    cL_b: float


class Objective(ABC):
    """One f_m; `config` is an ObjectiveConfig.

    Gradients are of f_m, not of F: what F's β-block needs is (1/M) ∇_β f_m.

    `grad_w`, `grad_beta` and `grads` are those of `value`, by `local.grad`; an objective may write
    them out (with `loss_gradient`, the gradient of f'), which is faster.
    """

    has_w: ClassVar[bool] = True
    has_beta: ClassVar[bool] = True
    finite_sum: ClassVar[bool] = True  # f_m is the mean of its samples' f_{m,i}
    w_uses_data: ClassVar[bool] = True  # False: ∇_w f_m costs no sample
    rescaled: ClassVar[bool] = True  # w may be reparametrised
    one_model: ClassVar[bool] = True  # False: predictions are no single model's
    adapts: ClassVar[bool] = False  # a client predicts with `adapted`, made from its data

    def __init__(self, config: Any, model: Model, M: int) -> None:
        self.config, self.model, self.M = config, model, M
        self.s = M**-0.5 if config.reparametrise and self.rescaled else 1.0

    # ---- what an objective writes ---------------------------------------------------------------

    @abstractmethod
    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """f_m(w, β_m), a scalar; with one sample as `data`, f_{m,i}."""

    @abstractmethod
    def constants(self, base: Base) -> Constants:
        """The constants of F from those of the plain losses."""

    def start(self, params: Params) -> tuple[Params, Params]:
        """(w, β_m) from the model's initial parameters."""
        return scale(params, 1 / self.s), params

    def personal(self, w: Params, beta: Params) -> Params:
        """The model that a client predicts with."""
        return beta

    def adapted(self, w: Params, data: Data) -> Params:
        """The w that a client with these data predicts with, where the objective `adapts`."""
        return w

    def shared(self, w: Params) -> Params:
        """The shared block as a model, u = s·w."""
        return scale(w, self.s)

    def outputs(self, w: Params, beta: Params, x: Tensor) -> Tensor:
        """Outputs [n, K] of the personal model."""
        return self.model(self.personal(w, beta), x)

    def measure(self, params: Params, data: Data) -> Base:
        """The constants of this client's plain loss."""
        return self._base(params, data, data)

    # ---- what it gets ---------------------------------------------------------------------------

    def loss(self, params: Params, data: Data) -> Tensor:
        """f'(params), with its ridge."""
        value = self.model.loss(params, data)
        return value + self.config.l2 / 2 * sq_norm(params) if self.config.l2 else value

    def grad_w(self, w: Params, beta: Params, data: Data) -> Params:
        """∇_w f_m; of one sample's f_{m,i} if `data` holds one."""
        return grad(self.value)(w, beta, data)

    def grad_beta(self, w: Params, beta: Params, data: Data) -> Params:
        """∇_β f_m."""
        return grad(self.value, argnums=1)(w, beta, data)

    def grads(self, w: Params, beta: Params, data: Data) -> tuple[Params, Params]:
        """(∇_w f_m, ∇_β f_m) from one pass."""
        return grad(self.value, argnums=(0, 1))(w, beta, data)

    def loss_gradient(self, params: Params, data: Data) -> Params:
        """∇f'(params), with its ridge."""
        g = model_gradient(self.model, params, data)
        return add(g, params, self.config.l2) if self.config.l2 else g

    def _base(self, params: Params, seen_w: Data, seen_b: Data) -> Base:
        of_w = curvature(self.model, self.loss, params, seen_w, self.config.l2)
        of_b = of_w if seen_b is seen_w else curvature(self.model, self.loss, params, seen_b, self.config.l2)
        return Base(of_w.mu, of_w.L, of_b.L, of_w.cL, of_b.cL)

    def _constants(self, mu: Any, L_w: Any, L_b: Any, cL_w: Any, cL_b: Any) -> Constants:
        """Constants of F: all carry 1/M, but for the w-block without reparametrisation."""
        M, of_w = self.M, self.s**2
        return Constants(*(float(v) for v in (mu / M, of_w * L_w, L_b / M, of_w * cL_w, cL_b / M)))
