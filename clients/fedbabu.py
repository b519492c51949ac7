"""FedBABU, client half. The algorithm box is in strategies/fedbabu.py."""

from dataclasses import dataclass, field
from typing import Any, Literal

from fedpers.core.bounds import bounds
from fedpers.families.disclosures import BODY
from fedpers.families.global_model.fine_tuning import fine_tune, tuning
from fedpers.families.split_models.parts import Part, cut
from fedpers.learning.losses import Frozen
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class FedBABUConfig:
    """Hyper-parameters of FedBABU."""

    head_init: Literal["default", "orthogonal"] = "default"
    finetune_epochs: int = 5              # τ_f: local epochs before a client predicts
    finetune: Literal["full", "head", "body"] = "full"           # what they train: all, the personal part
    finetune_lr: float = 0.0              # at which rate; 0: at local.lr, of that round
    local: LocalConfig = field(default_factory=LocalConfig)
    personal: Part = "head"               # what stays as it was drawn until a client fine-tunes

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, finetune_epochs=(0, None), finetune_lr=(0, None))


@record
class BodyAndHead:
    """The server's state and its order: the shared body and the fixed head."""

    theta: Params
    head: Params


@record
class TrainedBody:
    """Reply: the body."""

    theta: Params


class FedBABUClient(PersonalizedClient):
    """Trains the body under the fixed head; remembers nothing."""

    config: FedBABUConfig
    disclosure = BODY

    def answer(self, order: BodyAndHead, state: None, data: Data, rng: Stream) -> tuple[TrainedBody, None]:
        """One local training of the body."""
        loss = Frozen(self.model.loss, order.head)
        theta = minimise(loss, order.theta, data, rng, self.config.local)                # [C1]
        return TrainedBody(theta), None                                                  # [C2]

    def personal(self, shared: BodyAndHead, state: None) -> Params:
        """The received model, or what `adapt` made of it."""
        return shared.theta | shared.head

    @property
    def adapts(self) -> bool:
        """Whether clients fine-tune before they predict."""
        return self.config.finetune_epochs > 0

    def adapt(self, shared: BodyAndHead, state: None, data: Data, rng: Stream) -> tuple[BodyAndHead, None]:
        """Fine-tuning of the whole model, its head or its body."""
        h, whole = self.config, shared.theta | shared.head
        cfg = tuning(h.local, h.finetune_epochs, h.finetune_lr)
        tuned = fine_tune(self.model, whole, h.finetune, data, rng, cfg, h.personal)     # [C3]
        return BodyAndHead(*cut(self.model, tuned, h.personal)), None

    def local_model(self, order: BodyAndHead, reply: TrainedBody) -> BodyAndHead:
        """A participant predicts with the body it has just trained."""
        return BodyAndHead(reply.theta, order.head)

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
