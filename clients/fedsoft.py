"""FedSoft, client half. The algorithm box is in strategies/fedsoft.py."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedpers.core.params import combine, scale
from fedpers.families.clustered.centers import nearest_shares, own_blend
from fedpers.families.clustered.least_squares import least_squares
from fedpers.families.clustered.messages import Centers
from fedpers.families.disclosures import CENTERS
from fedpers.families.starts import Start
from fedpers.learning.local_training import minimise_from
from fedpers.learning.losses import soft_proximal
from fedpers.learning.optimizers import LocalConfig, OptimizerState, init_optimizer
from fedpers.method import Data, Params, PersonalizedClient, Stream, Work, bounds, record


@dataclass(frozen=True)
class FedSoftConfig:
    """Hyper-parameters of FedSoft, with the paper's letters."""

    S: int = 2                                           # S: number of clusters
    K: int | None = None                                 # K: drawn for each; null: clients_per_round, or 60%
    tau: int = 2                                         # τ: rounds between two estimations of u
    sigma: float = 1e-4                                  # σ: least importance weight
    lam: float = 0.1                                     # λ: pull of the centers
    local: LocalConfig = field(default_factory=lambda: LocalConfig(0.001, 10, optimizer="adam"))
    solver: Literal["local", "exact"] = "local"          # exact: for linear regression
    local_init: Literal["own", "center_mix"] = "own"
    optimizer_state: Literal["persist", "reset"] = "persist"
    sampling: Literal["without_replacement", "with_replacement", "full"] = "without_replacement"
    predict: Literal["own", "solved", "center", "mix"] = "own"   # solved: w_k after one more solve
    start: Start = "seeds"                               # how the centers start apart

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, S=(1, None), K=(1, None), tau=(1, None), sigma=(0, 1), lam=(0, None))


@record
class Importance:
    """Reply: S + 1 numbers."""
    u: Tensor                # [S] u_k
    n: Tensor                # n_k
    ranges: ClassVar = {"u": (0, 1), "n": ("samples", "samples")}


@record
class Train:
    """Order: minimise h_k."""
    centers: tuple[Params, ...]
    u: Tensor                # [S] u_k


@record
class LocalModel:
    """Reply: one model; also what a client without one of its own predicts with."""
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
    read_only_orders = (Centers,)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from one common model, which is no center."""
        persist = self.config.optimizer_state == "persist"
        return ClientState(params, init_optimizer(params, self.config.local) if persist else None)

    def answer(self, order: Any, state: ClientState, data: Data, rng: Stream) -> tuple[Any, ClientState]:
        """Importance weights for `Centers`, one local training for `Train`."""
        if isinstance(order, Centers):
            share = nearest_shares(self.model, order.centers, data)                      # [C1]
            return Importance(share.clamp(self.config.sigma), data.num), state           # [C2] [C3]
        state = self._solve(order, state, data, rng)                                # [C4] [C5]
        return LocalModel(state.w), state                                                # [C6]

    def _solve(self, order: Train, state: ClientState, data: Data, rng: Stream) -> ClientState:
        h, ubar, cbar = self.config, order.u.sum(), combine(order.centers, order.u)
        if h.solver == "exact":
            return ClientState(least_squares(self.model, data, h.lam, ubar, cbar), state.opt)
        w = state.w if h.local_init == "own" else scale(cbar, 1 / ubar)
        h_k = soft_proximal(self.model.loss, h.lam, ubar, cbar)
        w, opt = minimise_from(h_k, w, state.opt or init_optimizer(w, h.local), data, rng, h.local)
        return ClientState(w, opt if h.optimizer_state == "persist" else None)

    def choose(self, shared: Any, state: ClientState, data: Data) -> Any:
        """A center, or a mean of them, for a client that does not predict with a model of its own."""
        if shared is None or (isinstance(shared, Train) and self.config.predict in ("own", "solved")):
            return shared
        return LocalModel(own_blend(self.model, shared.centers, data, mix=self.config.predict == "mix"))

    def personal(self, shared: Any, state: ClientState) -> Params:
        """The client's own model w_k, or what it chose."""
        return shared.w if isinstance(shared, LocalModel) else state.w

    def adapts_to(self, shared: Any) -> bool:
        """Whether there is one more solve, with the newest centers."""
        return self.config.predict == "solved" and isinstance(shared, Train)

    def adapt(self, shared: Train, state: ClientState, data: Data, rng: Stream) -> tuple[Train, ClientState]:
        """That solve; nothing of it is kept."""
        return shared, self._solve(shared, state, data, rng)

    def work(self, order: Any, n: int) -> Work:
        """As many sample gradients as the local training takes; estimation takes each center's losses."""
        steps = self.config.local.work(n) if isinstance(order, Train) else 0
        return Work(steps, forwards=len(order.centers) * n if isinstance(order, Centers) else 0)
