"""FedSoft, client half. The algorithm box is in strategies/fedsoft.py."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from fedpers.core.bounds import bounds
from fedpers.core.params import combine, scale
from fedpers.families.clustered.centers import nearest_shares
from fedpers.families.clustered.least_squares import least_squares
from fedpers.families.disclosures import CENTERS
from fedpers.learning.local_training import minimise_from
from fedpers.learning.losses import soft_proximal
from fedpers.learning.optimizers import init_optimizer
from fedpers.method import Data, LocalConfig, OptimizerState, Params, PersonalizedClient, Stream, record


@dataclass(frozen=True)
class FedSoftConfig:
    """Hyper-parameters of FedSoft, with the paper's letters."""

    S: int = 2                                           # S: number of clusters
    K: int | None = None                                 # K: drawn for each cluster; null: 60% of N
    tau: int = 2                                         # τ: rounds between two estimations of u
    sigma: float = 1e-4                                  # σ: least importance weight
    lam: float = 1.0                                     # λ: pull of the centers
    local: LocalConfig = field(default_factory=lambda: LocalConfig(0.005, 10, optimizer="adam"))
    solver: Literal["local", "exact"] = "local"          # exact: for linear regression
    local_init: Literal["own", "center_mix"] = "own"
    optimizer_state: Literal["persist", "reset"] = "persist"
    participation: Literal["sampled", "full"] = "sampled"
    sampling: Literal["without_replacement", "with_replacement"] = "without_replacement"
    aggregation: Literal["mean", "v_weighted"] = "mean"  # where clients are sampled
    u_update: Literal["hard", "given"] = "hard"          # given: the state's u is never estimated
    final_pass: bool = False                             # solve once more before predicting

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, S=(1, None), K=(1, None), tau=(1, None), sigma=(0, 1), lam=(0, None))


@record
class Estimate:
    """Order: say which share of your samples each center fits best."""
    centers: tuple[Params, ...]
    u: Tensor                # [S] what the server takes u_k for so far


@record
class Importance:
    """Reply: S + 1 numbers."""
    u: Tensor                # [S] u_k
    n: Tensor                # n_k


@record
class Train:
    """Order: minimise h_k."""
    centers: tuple[Params, ...]
    u: Tensor                # [S] u_k


@record
class LocalModel:
    """Reply: one model."""
    w: Params


@record
class ClientState:
    """The personal model, and the optimiser's state if it persists."""
    w: Params
    opt: OptimizerState | None


class FedSoftClient(PersonalizedClient):
    """Weighs the centers, then solves one problem with proximal terms towards them."""

    config: FedSoftConfig
    disclosure = CENTERS

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from one common model, which is no center."""
        persist = self.config.optimizer_state == "persist"
        return ClientState(params, init_optimizer(params, self.config.local) if persist else None)

    def answer(self, order: Any, state: ClientState, data: Data, rng: Stream) -> tuple[Any, ClientState]:
        """Importance weights for `Estimate`, one local training for `Train`."""
        if isinstance(order, Estimate):
            share = nearest_shares(self.model, order.centers, data)                      # [C1]
            return Importance(share.clamp(self.config.sigma), data.num), state           # [C2] [C3]
        state = self._solve(order, state, data, rng)                                     # [C5]
        return LocalModel(state.w), state                                                # [C6]

    def _solve(self, order: Train, state: ClientState, data: Data, rng: Stream) -> ClientState:
        h, ubar, cbar = self.config, order.u.sum(), combine(order.centers, order.u)
        if h.solver == "exact":
            return ClientState(least_squares(self.model, data, h.lam, ubar, cbar), state.opt)
        w = state.w if h.local_init == "own" else scale(cbar, 1 / ubar)
        h_k = soft_proximal(self.model.loss, h.lam, ubar, cbar)
        w, opt = minimise_from(h_k, w, state.opt or init_optimizer(w, h.local), data, rng, h.local)  # [C4]
        return ClientState(w, opt if h.optimizer_state == "persist" else None)

    def personal(self, shared: Any, state: ClientState) -> Params:
        """The client's own model w_k."""
        return state.w

    @property
    def adapts(self) -> bool:
        """Whether there is a final pass with the newest centers."""
        return self.config.final_pass

    def adapt(self, shared: Train, state: ClientState, data: Data, rng: Stream) -> tuple[Train, ClientState]:
        """The final pass."""
        return shared, self._solve(shared, state, data, rng)

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes; estimation takes none."""
        return self.config.local.work(n) if isinstance(order, Train) else 0
