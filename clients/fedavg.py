"""FedAvg, client half. The algorithm box is in strategies/fedavg.py."""

from dataclasses import dataclass, field
from typing import Literal

from fedpers.families.global_model.client import GlobalModelClient, Weights
from fedpers.families.global_model.fine_tuning import fine_tune, tuning
from fedpers.method import Data, LocalConfig, Stream, bounds, minimise


@dataclass(frozen=True)
class FedAvgConfig:
    """Hyper-parameters of FedAvg."""

    local: LocalConfig = field(default_factory=LocalConfig)
    finetune_epochs: int = 0              # local epochs before a client predicts; > 0 is FedAvg+
    finetune: Literal["full", "head", "head_full"] = "full"      # what they train: all, the last
                                          # layer, or the last layer and then all
    finetune_lr: float = 0.0              # at which rate; 0: at local.lr, of that round

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, finetune_epochs=(0, None), finetune_lr=(0, None))


@dataclass(frozen=True)
class FedAvgFTConfig(FedAvgConfig):
    """FedAvg+ by a name of its own, for comparisons."""

    finetune_epochs: int = 5              # local epochs before a client predicts


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
        """Fine-tuning for `finetune_epochs` (in each of two phases, if the head comes first)."""
        h = self.config
        cfg = tuning(h.local, h.finetune_epochs, h.finetune_lr)
        return Weights(fine_tune(self.model, shared.params, h.finetune, data, rng, cfg)), None
