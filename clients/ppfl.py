"""PPFL, client half. The algorithm boxes are in strategies/ppfl.py."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedpers.families.disclosures import MEMBERSHIP
from fedpers.families.mixtures.client import MixtureClient
from fedpers.families.mixtures.messages import (
    BothBlocks,
    FullGradients,
    MembershipBlock,
    MembershipGradient,
    ThetaBlock,
    Trained,
    TrainedTheta,
)
from fedpers.families.mixtures.simplex import mirror_step
from fedpers.families.mixtures.stationarity import block_weight
from fedpers.families.starts import Start
from fedpers.method import Data, LocalConfig, Stream, bounds, minibatches, minimise


@dataclass(frozen=True)
class PPFLConfig:
    """Hyper-parameters of PPFL, with the paper's letters."""

    algorithm: Literal["alternating", "rbcd"] = "alternating"       # Algorithm 3 or 1
    num_canonical: int = 3                                          # K: canonical models
    canonical: Literal["head", "model"] = "head"                    # what there are K of
    arch: Literal["output", "parameter"] = "parameter"              # what is mixed: PPFL1 or PPFL2
    glm_mix: Literal["logit", "prob"] = "logit"                     # PPFL1: before or after link
    eta_2: float = 0.5                                              # η_2: rate of the mirror step
    floor: float = 1e-6                                             # lower entries are raised to it
    membership_weighting: Literal["none", "p"] = "none"             # mirror step on f_i or p_i f_i
    lam: float = 1e-5                                               # λ: strength of the Laplacian
    affinity: Literal["label_cosine", "ones", "none", "given"] = "label_cosine"  # W
    affinity_file: str = ""                                         # given: .npy, a row a client
    rho: float = 0.5                                                # ρ_1: how often rbcd trains θ
    output: Literal["last", "random"] = "last"                      # random: an iterate by eq. 16
    smoothness: tuple[float, float] = (0.0, 0.0)                    # L_1, L_2 of eq. 16
    stationarity: bool = False                                      # measure Theorems 1 and 2
    new_steps: int = 50                                             # mirror steps of a new client
    finetune_steps: int = 0                                         # of others, before they predict
    local: LocalConfig = field(default_factory=LocalConfig)         # E steps at rate η_1, batch ξ
    start: Start = "seeds"                                          # how they start apart

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = bounds(self, num_canonical=(1, None), eta_2=(0, None), floor=(0, 0.1),
                       lam=(0, None), rho=(0, 1), new_steps=(0, None), finetune_steps=(0, None))
        if (self.affinity == "given") != bool(self.affinity_file):
            found.append(f"affinity_file={self.affinity_file}: needs affinity=given")
        if self.output == "random" and self.algorithm != "rbcd":
            found.append("output=random: is Algorithm 1's rule, so it needs algorithm=rbcd")
        elif self.output == "random" and not block_weight(self.eta_2, self.rho, *self.smoothness) > 0:
            found.append("output=random: eq. 16 gives q_t <= 0: lower eta_2, or rho inside (0, 1)")
        return found


class PPFLClient(MixtureClient):
    """Finds its place among the canonical models, and trains them; the server keeps its c_i."""

    config: PPFLConfig
    disclosure = MEMBERSHIP

    def answer(self, order: Any, state: None, data: Data, rng: Stream) -> tuple[Any, None]:
        """A client's side of Algorithm 3, of Algorithm 1, or of the measure."""
        if isinstance(order, BothBlocks):
            return self._algorithm_3(order, data, rng), None
        if isinstance(order, FullGradients):
            return self.measured(order, data), None
        return self._algorithm_2(order, data, rng), None

    def _algorithm_3(self, order: BothBlocks, data: Data, rng: Stream) -> Trained:
        g = self.slope(order, data) + 2 * order.pull                                     # [C1]
        c = mirror_step(order.c, g, order.eta_2, self.config.floor)                      # [C2]
        w = minimise(self.mixture.loss_at(c), order.theta, data, rng, self.config.local)  # [C3]
        return Trained(w, c)                                                             # [C4]

    def _algorithm_2(self, order: ThetaBlock | MembershipBlock, data: Data, rng: Stream) -> Any:
        h = self.config
        if isinstance(order, ThetaBlock):
            w = minimise(self.mixture.loss_at(order.c), order.theta, data, rng, h.local)  # [C5]
            return TrainedTheta(w)                                                       # [C6]
        xi = next(minibatches(data, rng, replace(h.local, steps=1)))
        g = self.slope(order, xi)                                                        # [C7]
        return MembershipGradient(g)                                                     # [C8]
