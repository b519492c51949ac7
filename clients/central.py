"""Central training, client half. The algorithm box is in strategies/central.py."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedpers.families.disclosures import SAMPLES
from fedpers.families.global_model.client import GlobalModelClient
from fedpers.method import Data, LocalConfig, Stream, record


@dataclass(frozen=True)
class CentralConfig:
    """Hyper-parameters of central training."""

    local: LocalConfig = field(default_factory=LocalConfig)      # of the server, on all samples


@record
class SamplesWanted:
    """Order: send all your training samples."""

    n: int                                # how many they are

    @property
    def expects(self) -> dict[str, tuple[int, ...]]:
        """The shape of the reply's `mask`: one entry for each sample."""
        return {"mask": (self.n,)}


@record
class Samples:
    """Reply: the fields of a client's `Data`."""

    free_rows = True                      # clients have unlike numbers of samples
    x: Tensor
    y: Tensor
    mask: Tensor


class CentralClient(GlobalModelClient):
    """Sends its data to the server, and predicts with the model that was trained on all clients' data."""

    config: CentralConfig
    vectorized = False                    # nothing is computed
    disclosure = SAMPLES
    read_only_orders = (SamplesWanted,)
    reply_is_shared = False

    def answer(self, order: SamplesWanted, state: None, data: Data, rng: Stream) -> tuple[Samples, None]:
        """All training samples."""
        return Samples(data.x, data.y, data.mask), None                                  # [C1]

    def work(self, order: Any, n: int) -> int:
        """None: the server trains."""
        return 0
