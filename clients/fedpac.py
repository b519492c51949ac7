"""FedPAC, client half. The algorithm box is in strategies/fedpac.py."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from fedpers.families.disclosures import HEAD_AND_PROTOTYPES
from fedpers.families.prototypes import Prototypes, Regularised
from fedpers.learning.classes import class_means
from fedpers.learning.features import Features
from fedpers.method import (
    Data,
    Frozen,
    LocalConfig,
    Params,
    PersonalizedClient,
    Stream,
    Work,
    bounds,
    minimise,
    record,
)


@dataclass(frozen=True)
class FedPACConfig:
    """Hyper-parameters of FedPAC, with the paper's letters."""

    lam: float = 1.0                      # λ: pull of the global prototypes on features
    head: LocalConfig = field(default_factory=LocalConfig)       # how the head is trained, first
    body: LocalConfig = field(default_factory=LocalConfig)       # how the body is trained under it

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, lam=(0, None))


@record
class BodyAndHead:
    """What a client predicts with: the shared body, and the head that was combined for it."""

    part: Params
    head: Params


@record
class Train:
    """Order: the same, and the global prototypes."""

    part: Params
    head: Params
    prototypes: Prototypes


@record
class Trained:
    """Reply: both parts after local training, the prototypes, and the statistics for the heads' weights."""

    part: Params
    head: Params
    prototypes: Prototypes
    H: Tensor                             # [K, M]
    V: Tensor                             # scalar
    ranges: ClassVar = {"V": (0, None)}


def _statistics(data: Data, K: int) -> tuple[Tensor, Tensor]:
    """(H, V) of features z, the inputs of `data`."""
    z, n = data.x, data.num
    H = data.of_class(K).T @ z / n
    squares = (z.square().sum(1) * data.mask).sum() / n
    return H, (squares - H.square().sum()).clamp(min=0) / n


class FedPACClient(PersonalizedClient):
    """Fits the head, then the body near the prototypes; remembers nothing."""

    config: FedPACConfig
    disclosure = HEAD_AND_PROTOTYPES

    def answer(self, order: Train, state: None, data: Data, rng: Stream) -> tuple[Trained, None]:
        """The statistics of the received body's features, and one round's local training."""
        h, K = self.config, len(order.prototypes.n)
        features = Features(self.model, order.part, data)
        H, V = _statistics(features.data, K)                                             # [C1]
        head = features.fit(order.head, rng, h.head)                                     # [C2]
        loss = Regularised(self.model, h.lam, order.prototypes) if h.lam else self.model.loss
        part = minimise(Frozen(loss, head), order.part, data, rng, h.body)               # [C3]
        sent = Prototypes(*class_means(self.model, part, data, K))                       # [C4]
        return Trained(part, head, sent, H, V), None                                     # [C5]

    def local_model(self, order: Train, reply: Trained) -> BodyAndHead:
        """Both parts as the client has just trained them."""
        return BodyAndHead(reply.part, reply.head)

    def personal(self, shared: BodyAndHead, state: None) -> Params:
        """The shared body under the combined head."""
        return shared.part | shared.head

    def work(self, order: Any, n: int) -> Work:
        """The body's gradients, the head's on features, and three passes forward for means of features."""
        return Work(self.config.body.work(n), forwards=3 * n, head_steps=self.config.head.work(n))
