"""pFedHN, client half. The algorithm box is in strategies/pfedhn.py."""

from dataclasses import dataclass, field

from fedpers.families.disclosures import MADE_MODEL
from fedpers.families.global_model.client import GlobalModelClient, Weights
from fedpers.method import Data, LocalConfig, Stream, above, bounds, minimise


@dataclass(frozen=True)
class PFedHNConfig:
    """Hyper-parameters of pFedHN."""

    embed_dim: int = 0                    # length of a client's embedding; 0: 1 + a quarter of the clients
    hidden: int = 100                     # width of the hypernetwork
    depth: int = 3                        # its hidden layers after the first
    server_lr: float = 0.1                # η of the hypernetwork
    embed_lr: float = 0.1                 # η_e of the embeddings
    momentum: float = 0.9                 # β of the server's steps
    weight_decay: float = 0.001           # ω of the server's steps
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = bounds(self, embed_dim=(0, None), hidden=(1, None), depth=(0, None), weight_decay=(0, None))
        found += bounds(self, momentum=(0, 0.9999))
        return [*found, *above(self, server_lr=0, embed_lr=0)]


class PFedHNClient(GlobalModelClient):
    """Trains the model that the hypernetwork made for it and sends it back; remembers nothing."""

    config: PFedHNConfig
    disclosure = MADE_MODEL

    def answer(self, order: Weights, state: None, data: Data, rng: Stream) -> tuple[Weights, None]:
        """One local training from the received weights."""
        w = minimise(self.model.loss, order.params, data, rng, self.config.local)        # [C1]
        return Weights(w), None                                                          # [C2]
