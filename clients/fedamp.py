"""FedAMP, client half. The algorithm box is in strategies/fedamp.py."""

from dataclasses import dataclass, field

from fedpers.families.peers.own_model import OwnModel, OwnModelClient
from fedpers.method import Data, LocalConfig, Params, Stream, above, bounds, minimise, proximal, record


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


class FedAMPClient(OwnModelClient):
    """Trains its own model near the one that the server mixed for it."""

    config: FedAMPConfig

    def answer(
        self, order: CloudModel, state: OwnModel, data: Data, rng: Stream
    ) -> tuple[OwnModel, OwnModel]:
        """One local training of the own model."""
        h = self.config
        near = proximal(self.model.loss, h.lam / h.alpha, order.w)
        new = OwnModel(minimise(near, state.w, data, rng, h.local))                      # [C1]
        return new, new                                                                  # [C2]
