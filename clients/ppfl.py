"""PPFL, client half. The algorithm boxes are in strategies/ppfl.py."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from fedpers.families.disclosures import MEMBERSHIP
from fedpers.families.mixtures.messages import (
    BothBlocks,
    MembershipBlock,
    MembershipGradient,
    Personal,
    Trained,
)
from fedpers.families.mixtures.mixture import Mixture
from fedpers.families.mixtures.simplex import mirror_step
from fedpers.families.mixtures.stationarity import block_weight
from fedpers.method import Data, LocalConfig, PersonalizedClient, Stream, bounds, minibatches, minimise


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


class PPFLClient(PersonalizedClient):
    """Finds its place among the canonical models, and trains them; the server keeps its c_i."""

    config: PPFLConfig
    disclosure = MEMBERSHIP
    mixture = property(lambda self: Mixture.of(self.config, self.model))

    def answer(self, order: Any, state: None, data: Data, rng: Stream) -> tuple[Any, None]:
        """Algorithm 3, or one block of Algorithm 1."""
        if isinstance(order, MembershipBlock):
            xi = next(minibatches(data, rng, replace(self.config.local, steps=1)))
            return MembershipGradient(self._gradient(order, xi, data)), None             # [C5]
        c = self._stepped(order, data) if isinstance(order, BothBlocks) else order.c
        w = minimise(self.mixture.loss_at(c), order.theta, data, rng, self.config.local)     # [C3]
        return Trained(w, c), None                                                       # [C4]

    def trains_without_momentum(self, order: Any) -> bool:
        """A block of memberships has no local steps."""
        return isinstance(order, MembershipBlock)

    def _stepped(self, order: BothBlocks, data: Data) -> Tensor:
        g = self._gradient(order, data, data) + 2 * order.pull                           # [C1]
        return mirror_step(order.c, g, self.config.eta_2, self.config.floor)             # [C2]

    def _gradient(self, order: Any, batch: Data, data: Data) -> Tensor:
        """∇_c f_i on a batch, times p_i if memberships are weighted by it."""
        p = data.num / order.num_total if self.config.membership_weighting == "p" else 1.0
        return p * self.mixture.membership_gradient(order.theta, batch, order.c)

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
        newest = reply if isinstance(reply, Trained) else order
        return Personal(newest.theta, newest.c)

    def work(self, order: Any, n: int) -> int:
        """Samples of the block or blocks, times the networks that run for one."""
        local = self.config.local
        samples = replace(local, steps=1).work(n) if isinstance(order, MembershipBlock) else local.work(n)
        samples += n * isinstance(order, BothBlocks)
        return samples * self.mixture.passes(self.config.num_canonical)
