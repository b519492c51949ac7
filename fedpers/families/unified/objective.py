"""What a personalised objective is: F(w, β) = 1/M Σ_m f_m(w, β_m), blocks w shared and β_m private.

Hanzely, Zhao, Kolar, "Personalized Federated Learning: A Unified Framework and Universal
Optimization Techniques". One class an objective: what f_m is, where the
blocks start, the constants of F, and the model that a client predicts with; and one dataclass of the
keys that it reads (`settings`). Any optimiser takes any objective.

f' is a client's plain loss, plus (l2/2)‖·‖²; s = M^(-1/2) (1 without reparametrisation), and
u = s·w is the shared block as a model. A new objective is a subclass of `Objective` named by
`method.objective.name=package.module:Class`.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedpers.core.bounds import above, bounds
from fedpers.core.data import Data
from fedpers.core.errors import ConfigError, unknown
from fedpers.core.params import Params, add, scale, sq_norm
from fedpers.core.pytree import record
from fedpers.core.work import Work
from fedpers.families.unified.curvature import curvature
from fedpers.learning.gradients import grad, model_gradient
from fedpers.learning.kernels.programs import Draw
from fedpers.learning.model import Model

Of = Literal["w", "beta", "both"]  # what a gradient is taken in
OBJECTIVES = {  # name: module:Class, imported where it is used
    "mx2": "fedpers.families.unified.mixture:MX2",
    "mt2": "fedpers.families.unified.mixture:MT2",
    "apfl2": "fedpers.families.unified.mixture:APFL2",
    "ws2": "fedpers.families.unified.composed:WS2",
    "fr": "fedpers.families.unified.composed:FR",
    "fl": "fedpers.families.unified.mixture:FL",
    "full": "fedpers.families.unified.mixture:Full",
    "mt": "fedpers.families.unified.known_center:MT",
    "apfl": "fedpers.families.unified.known_center:APFL",
    "moreau": "fedpers.families.unified.adapted:Moreau",
    "maml": "fedpers.families.unified.adapted:MAML",
}


@dataclass(frozen=True)
class Settings:
    """Keys that every objective reads; a subclass adds its own."""

    name: str = ""  # of OBJECTIVES, or package.module:Class
    l2: float = 0.0  # ridge of the plain loss f'
    mu: float | None = None  # μ' of the plain loss; null: l2, and what a regression has beyond it
    mu_F: float | None = None  # μ of F; null: from μ', by the objective's formula
    L: float | None = None  # L' of the plain loss; null: from the data
    cL: float | None = None  # script L' of one sample's loss; null: from the data

    def check(self) -> list[str]:
        """Problems of values."""
        return bounds(self, l2=(0, None)) + above(self, mu=0, mu_F=0, L=0, cL=0)

    @property
    def count(self) -> int:
        """How many clients have settings of their own; 0: all have the same."""
        return 0

    @classmethod
    def variant(cls, values: Any) -> "tuple[type[Settings], dict[str, Any]]":
        """(the dataclass of the objective that `values` name, its keys); a name alone will do.

        Raises:
            ConfigError: there is no such objective.
        """
        plain = dict(values) if isinstance(values, Mapping) else {"name": values}
        return objective_class(str(plain.get("name", cls.name))).settings, plain


@dataclass(frozen=True)
class Reparametrised(Settings):
    """Keys of objectives whose w may be scaled."""

    reparametrise: bool = True  # u = M^(-1/2) w; false: u = w


@record("unified.Base")
class Base:
    """Constants of the plain losses f', in the inputs that each block sees."""

    mu: float | Tensor  # μ'
    L_w: float | Tensor  # L' of the whole loss, in what w sees
    L_b: float | Tensor  # ... in what β_m sees
    cL_w: float | Tensor  # script L', of one sample's loss
    cL_b: float | Tensor
    ranges: ClassVar = dict.fromkeys(("mu", "L_w", "L_b", "cL_w", "cL_b"), (0, None))


@record("unified.Constants")
class Constants:
    """Constants of F: strong convexity and smoothness of each block, whole and per sample."""

    mu: float
    L_w: float
    L_b: float
    cL_w: float
    cL_b: float


class Objective(ABC):
    """One f_m; `config` is an instance of its `settings`.

    Gradients are of f_m, not of F: what F's β-block needs is (1/M) ∇_β f_m. They are those of `value`, by
    autograd; an objective may write them out (with `loss_gradient`, the gradient of f'), which is faster.
    """

    settings: ClassVar[type[Settings]] = Reparametrised

    has_w: ClassVar[bool] = True
    has_beta: ClassVar[bool] = True
    finite_sum: ClassVar[bool] = True  # f_m is the mean of its samples' f_{m,i}
    convex: ClassVar[bool] = True  # wherever f' is
    w_uses_data: ClassVar[bool] = True  # False: ∇_w f_m costs no sample
    one_model: ClassVar[bool] = True  # False: predictions are no single model's
    one_space: ClassVar[bool] = False  # u and β_m are models of one kind: their distance tells something
    adapts: ClassVar[bool] = False  # a client predicts with `adapted`, made from its data

    def __init__(self, config: Any, model: Model, M: int) -> None:
        self.config, self.model, self.M = config, model, M
        self.s = M**-0.5 if getattr(config, "reparametrise", False) else 1.0

    # ---- what an objective writes ---------------------------------------------------------------

    @abstractmethod
    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """f_m(w, β_m), a scalar; with one sample as `data`, f_{m,i}."""

    @abstractmethod
    def constants(self, base: Base) -> Constants:
        """The constants of F from those of the plain losses."""

    def of(self, m: int) -> "Objective":
        """f_m of client m, where clients have settings of their own."""
        return self

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

    def gradient_work(self, of: Of) -> Work:
        """What a gradient of one sample's f_{m,i} costs: a pass of the whole model where `value` has one."""
        return Work(1)

    @property
    def stacks(self) -> bool:
        """Whether gradients may be taken of a whole stack, with a dimension of clients in front."""
        return False

    @property
    def sums_gradients(self) -> bool:
        """Whether gradients are linear in w, β_m and what `loss_gradient` gives at points linear in these."""
        return False

    def descend(
        self, w: Params, beta: Params, data: Data, draw: Draw, steps: tuple[float, float]
    ) -> tuple[Params, Params] | None:
        """(w, β_m) after gradient steps of sizes `steps` on the batches that `draw` gives, by a kernel.

        None if there is none for this objective, and nothing is drawn.
        """
        return None

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


def objective_class(name: str) -> type[Objective]:
    """The objective of that name, of ours or package.module:Class.

    Raises:
        ConfigError: there is no such objective, or it is no Objective.
    """
    if name not in OBJECTIVES and ":" not in name:
        raise ConfigError(unknown("objective", name, OBJECTIVES))
    module, _, attribute = OBJECTIVES.get(name, name).partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"objective={name}: cannot be imported: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Objective)):
        raise ConfigError(f"objective={name}: it is no subclass of {Objective.__module__}.Objective")
    return cls


def make_objective(settings: Settings, model: Model, M: int) -> Objective:
    """The objective with these settings, for M clients."""
    return objective_class(settings.name)(settings, model, M)
