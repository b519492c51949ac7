"""PPFL, client half. The algorithm boxes are in strategies/ppfl.py."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from fedpers.families.mixtures.mixture import Mixture
from fedpers.families.mixtures.simplex import mirror_step
from fedpers.families.mixtures.stationarity import block_weight
from fedpers.method import (
    Data,
    LocalConfig,
    OptimizerState,
    Params,
    PersonalizedClient,
    Stream,
    bounds,
    init_optimizer,
    minibatches,
    minimise_from,
    record,
)


@dataclass(frozen=True)
class PPFLConfig:
    """Hyper-parameters of PPFL, with the paper's letters."""

    algorithm: Literal["alternating", "rbcd"] = "alternating"       # Algorithm 3 or 1
    num_canonical: int = 3                                          # K: canonical models
    canonical: Literal["head", "model"] = "head"                    # what there are K of
    arch: Literal["output", "parameter"] = "parameter"              # what is mixed: PPFL1 or PPFL2
    mix_level: Literal["module", "layer"] = "module"                # PPFL1: after module or layer
    glm_mix: Literal["logit", "prob"] = "logit"                     # PPFL1: before or after link
    eta_2: float = 0.5                                              # η_2: rate of the mirror step
    floor: float = 1e-6                                             # lower bound of memberships
    membership_weighting: Literal["none", "p"] = "none"             # mirror step on f_i or p_i f_i
    lam: float = 1e-5                                               # λ: strength of the Laplacian
    affinity: Literal["label_cosine", "ones", "none", "given"] = "label_cosine"  # W
    affinity_file: str = ""                                         # given: .npy, a row a client
    rho: float = 0.5                                                # ρ_1: how often rbcd trains θ
    output: Literal["last", "random"] = "last"                      # random: an iterate by eq. 16
    smoothness: tuple[float, float] = (0.0, 0.0)                    # L_1, L_2 of eq. 16
    keep_momentum: bool = False                                     # between rounds, on the client
    new_steps: int = 50                                             # mirror steps of a new client
    local: LocalConfig = field(default_factory=LocalConfig)         # E steps at rate η_1, batch ξ

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = bounds(self, num_canonical=(1, None), eta_2=(0, None), floor=(0, 0.1),
                       lam=(0, None), rho=(0, 1), new_steps=(0, None))
        if (self.affinity == "given") != bool(self.affinity_file):
            found.append(f"affinity_file={self.affinity_file}: needs affinity=given")
        if self.output == "random" and not block_weight(self.eta_2, self.rho, *self.smoothness) > 0:
            found.append("output=random: eq. 16 gives q_t <= 0: lower eta_2, or rho inside (0, 1)")
        return found


@record
class Personal:
    """What client i predicts with; the order of Algorithm 1's block θ; the reply to most orders."""

    theta: Params             # canonical models, stacked, and what all share
    c: Tensor                 # [K] float64
    steps: int = 0            # mirror steps before it predicts


@record
class Weigh:
    """Order: a mirror step on c_i, then train θ; without `pull`, the block C of Algorithm 1."""

    theta: Params
    c: Tensor
    pull: Tensor | None       # [K] a_i = λ (L C)_i
    num_total: float          # Σ_j n_j over all clients, for p_i


@record
class MembershipGradient:
    """Reply to the block C of Algorithm 1: p_i ∇_c f_i."""

    c: Tensor                 # [K]


class PPFLClient(PersonalizedClient):
    """Finds its place among the canonical models, and trains them; the server keeps its c_i."""

    config: PPFLConfig
    mixture = property(lambda self: Mixture.of(self.config, self.model))

    def answer(self, order: Any, state: OptimizerState | None, data: Data, rng: Stream) -> tuple[Any, Any]:
        """Algorithm 3, or one block of Algorithm 1."""
        h, c = self.config, order.c
        if isinstance(order, Weigh):
            p = data.num / order.num_total if h.membership_weighting == "p" else 1.0
            if order.pull is None:
                xi = next(minibatches(data, rng, replace(h.local, steps=1)))
                g = p * self.mixture.membership_gradient(order.theta, xi, c)             # [C5]
                return MembershipGradient(g), state
            g = p * self.mixture.membership_gradient(order.theta, data, c) + 2 * order.pull  # [C1]
            c = mirror_step(c, g, h.eta_2, h.floor)                                      # [C2]
        opt = state or init_optimizer(order.theta, h.local)
        f = self.mixture.loss_at(c)
        w, opt = minimise_from(f, order.theta, opt, data, rng, h.local)                  # [C3]
        return Personal(w, c), opt if h.keep_momentum else None                          # [C4]

    def predict(self, shared: Personal, state: Any, x: Tensor) -> Tensor:
        """The mixture by the client's membership."""
        return self.mixture.outputs(shared.theta, shared.c, x)

    def adapts_to(self, shared: Personal) -> bool:
        """New clients find their membership first."""
        return shared.steps > 0

    def adapt(self, shared: Personal, state: Any, data: Data, rng: Stream) -> tuple[Personal, Any]:
        """Mirror steps with θ frozen and λ = 0."""
        h = self.config
        c = self.mixture.settle(shared.theta, data, shared.c, shared.steps, h.eta_2, h.floor)
        return Personal(shared.theta, c), state

    def local_model(self, order: Any, reply: Any) -> Personal:
        """A participant predicts with what it has just trained."""
        return reply if isinstance(reply, Personal) else Personal(order.theta, order.c)

    def work(self, order: Any, n: int) -> int:
        """Samples of the block or blocks, times the networks that run for one."""
        h, both = self.config, isinstance(order, Weigh) and order.pull is not None
        trained = h.local if both or isinstance(order, Personal) else replace(h.local, steps=1)
        return (trained.work(n) + both * n) * self.mixture.passes(h.num_canonical)
