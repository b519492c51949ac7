"""FedAvg, client half. The algorithm box is in strategies/fedavg.py."""

from dataclasses import dataclass, field, replace

from fedpers.families.global_model.client import GlobalModelClient, Weights
from fedpers.method import Data, LocalConfig, Stream, bounds, minimise


@dataclass(frozen=True)
class FedAvgConfig:
    """Hyper-parameters of FedAvg."""

    local: LocalConfig = field(default_factory=LocalConfig)
    finetune_epochs: int = 0              # local epochs before a client predicts; > 0 is FedAvg+

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, finetune_epochs=(0, None))


class FedAvgClient(GlobalModelClient):
    """Trains the received model and sends it back; remembers nothing."""

    config: FedAvgConfig

    def answer(self, order: Weights, state: None, data: Data, rng: Stream) -> tuple[Weights, None]:
        """One local training from the received weights."""
        w = minimise(self.model.loss, order.params, data, rng, self.config.local)        # [C1]
        return Weights(w), None                                                          # [C2]

    @property
    def adapts(self) -> bool:
        """Whether clients fine-tune before they predict (FedAvg+)."""
        return self.config.finetune_epochs > 0

    def adapt(self, shared: Weights, state: None, data: Data, rng: Stream) -> tuple[Weights, None]:
        """Fine-tuning for `finetune_epochs`."""
        cfg = replace(self.config.local, epochs=self.config.finetune_epochs, steps=0)
        return Weights(minimise(self.model.loss, shared.params, data, rng, cfg)), None
