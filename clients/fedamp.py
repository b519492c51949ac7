"""FedAMP, client half. The algorithm box is in strategies/fedamp.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.families.disclosures import OWN_MODEL
from fedpers.method import (
    Data,
    LocalConfig,
    Params,
    PersonalizedClient,
    Stream,
    above,
    bounds,
    minimise,
    proximal,
    record,
)


@dataclass(frozen=True)
class FedAMPConfig:
    """Hyper-parameters of FedAMP, with the paper's letters."""

    alpha: float = 0.05                   # α: step size of the server
    lam: float = 0.01                     # λ: weight of the attraction between clients
    sigma: float = 1.0                    # σ: squared distance at which models attract each other
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return [*above(self, alpha=0, sigma=0), *bounds(self, lam=(0, None))]


@record
class CloudModel:
    """Order: the model u_i that the server keeps for this client."""

    w: Params


@record
class OwnModel:
    """The client's model w_i: its state, and its reply."""

    w: Params


class FedAMPClient(PersonalizedClient):
    """Trains its own model near the one that the server mixed for it."""

    config: FedAMPConfig
    disclosure = OWN_MODEL

    def initial_state(self, params: Params, data: Data, rng: Stream) -> OwnModel:
        """All clients start from the same initial model."""
        return OwnModel(params)

    def answer(
        self, order: CloudModel, state: OwnModel, data: Data, rng: Stream
    ) -> tuple[OwnModel, OwnModel]:
        """One local training of the own model."""
        h = self.config
        near = proximal(self.model.loss, h.lam / h.alpha, order.w)
        new = OwnModel(minimise(near, state.w, data, rng, h.local))                      # [C1]
        return new, new                                                                  # [C2]

    def personal(self, shared: Any, state: OwnModel) -> Params:
        """The client's own model."""
        return state.w

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
