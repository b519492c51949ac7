"""FedTGP, client half. The algorithm box is in strategies/fedtgp.py."""

from dataclasses import dataclass, field

from fedpers.families.prototypes import PrototypeClient
from fedpers.method import LocalConfig, above, bounds


@dataclass(frozen=True)
class FedTGPConfig:
    """Hyper-parameters of FedTGP, with the paper's letters."""

    lam: float = 1.0                      # λ: pull of the global prototypes
    tau: float = 100.0                    # τ: the largest margin
    server_lr: float = 0.01               # η_S: rate of the server's training
    server_epochs: int = 100              # S: passes over what clients sent
    server_batch: int = 10                # prototypes of a step
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = bounds(self, lam=(0, None), tau=(0, None), server_epochs=(1, None), server_batch=(1, None))
        return [*found, *above(self, server_lr=0)]


class FedTGPClient(PrototypeClient):
    """Trains its own model near prototypes that the server has trained apart."""

    config: FedTGPConfig
