"""FedProto, client half. The algorithm box is in strategies/fedproto.py."""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fedpers.families.disclosures import PROTOTYPES
from fedpers.learning.classes import class_means
from fedpers.learning.losses import Pull
from fedpers.method import (
    Data,
    LocalConfig,
    Model,
    Params,
    PersonalizedClient,
    Stream,
    Work,
    bounds,
    minimise,
    record,
)


@dataclass(frozen=True)
class FedProtoConfig:
    """Hyper-parameters of FedProto."""

    lam: float = 1.0                      # λ: pull of the global prototypes
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, lam=(0, None))


@record
class Prototypes:
    """The server's state, its order and a reply: a mean feature vector of each class."""

    C: Tensor                             # [K, M]
    n: Tensor                             # [K] samples behind each; 0 where there is no prototype
    ranges: ClassVar = {"n": (0, "samples")}


@record
class ClientState:
    """The client's own model; it never leaves the client."""

    params: Params


@dataclass(frozen=True)
class Regularised:
    """The loss, plus λ times the mean squared distance of features to their class's prototype."""

    model: Model
    lam: float
    prototypes: Prototypes

    def __call__(self, w: Params, batch: Data) -> Tensor:
        z, (near, given) = self.model.body(w, batch.x), self.of_classes(batch)
        away = (z - near).square().mean(1) * given                                       # [C1]
        return self.model.head_loss(w, z, batch) + self.lam * away.sum() / batch.num

    def of_classes(self, batch: Data) -> tuple[Tensor, Tensor]:
        """(prototype [n, M] of each sample's class, [n] 1 where there is one and no padding)"""
        of_class = batch.of_class(len(self.prototypes.n)) * (self.prototypes.n > 0)
        return of_class @ self.prototypes.C, of_class.sum(1)

    @property
    def beside(self) -> Pull:
        """For the kernel."""
        return Pull(self.lam, self.of_classes)


class FedProtoClient(PersonalizedClient):
    """Trains its own model near common prototypes, and sends its own prototypes alone."""

    config: FedProtoConfig
    disclosure = PROTOTYPES
    private = ("params",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from the same initial model."""
        return ClientState(params)

    def answer(
        self, order: Prototypes, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Prototypes, ClientState]:
        """One local training of the own model, then the mean features of its classes."""
        h = self.config
        loss = Regularised(self.model, h.lam, order) if h.lam else self.model.loss
        w = minimise(loss, state.params, data, rng, h.local)                             # [C2]
        C, n = class_means(self.model, w, data, len(order.n))                            # [C3]
        return Prototypes(C, n), ClientState(w)                                          # [C4]

    def personal(self, shared: Prototypes, state: ClientState) -> Params:
        """The client's own model."""
        return state.params

    def work(self, order: Prototypes, n: int) -> Work:
        """As many sample gradients as the local training takes, and a pass forward for the prototypes."""
        return Work(self.config.local.work(n), forwards=n)
