"""FedProto, client half. The algorithm box is in strategies/fedproto.py."""

from dataclasses import dataclass, field

from fedpers.families.prototypes import PrototypeClient
from fedpers.method import LocalConfig, bounds


@dataclass(frozen=True)
class FedProtoConfig:
    """Hyper-parameters of FedProto."""

    lam: float = 1.0                      # λ: pull of the global prototypes
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, lam=(0, None))


class FedProtoClient(PrototypeClient):
    """Trains its own model near the mean prototypes of all clients."""

    config: FedProtoConfig
