"""Mean features of classes that clients share, and clients that train near those of all."""

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.core.rng import Stream
from fedpers.core.work import Work
from fedpers.families.disclosures import PROTOTYPES
from fedpers.flower.client import PersonalizedClient
from fedpers.learning.classes import class_means
from fedpers.learning.local_training import minimise
from fedpers.learning.losses import Pull
from fedpers.learning.model import Model


@record("fedproto.Prototypes")
class Prototypes:
    """A mean feature vector of each class."""

    C: Tensor  # [K, M]
    n: Tensor  # [K] samples behind each; 0 where there is no prototype
    ranges: ClassVar = {"n": (0, "samples")}

    @classmethod
    def none(cls, model: Model, like: Tensor) -> "Prototypes":
        """Of a model's classes, none of which has one yet."""
        K = max(model.num_outputs, 2)
        return cls(like.new_zeros(K, model.num_features), like.new_zeros(K))

    def renewed(self, sent: Sequence["Prototypes"]) -> "Prototypes":
        """Σ_i n_ic C_ic / Σ_i n_ic of those who have class c; where nobody has it, what was there."""
        n = torch.stack([p.n for p in sent]).double()
        C = torch.stack([p.C for p in sent]).double()
        total = n.sum(0)
        sums = (n.T[:, None] @ C.transpose(0, 1)).squeeze(1)  # of each class, over the clients
        mean = sums / total.clamp(min=1)[:, None]
        seen = total > 0
        kept = torch.where(seen[:, None], mean.to(self.C), self.C)
        return Prototypes(kept, torch.where(seen, total.to(self.n), self.n))


@dataclass(frozen=True)
class Regularised:
    """The loss, plus λ times the mean squared distance of features to their class's prototype."""

    model: Model
    lam: float
    prototypes: Prototypes

    def __call__(self, w: Params, batch: Data) -> Tensor:
        z, (near, given) = self.model.body(w, batch.x), self.of_classes(batch)
        away = (z - near).square().mean(1) * given
        return self.model.head_loss(w, z, batch) + self.lam * away.sum() / batch.num

    def of_classes(self, batch: Data) -> tuple[Tensor, Tensor]:
        """(prototype [n, M] of each sample's class, [n] 1 where there is one and no padding)"""
        of_class = batch.of_class(len(self.prototypes.n)) * (self.prototypes.n > 0)
        return of_class @ self.prototypes.C, of_class.sum(1)

    @property
    def beside(self) -> Pull:
        """For the kernel."""
        return Pull(self.lam, self.of_classes)


@record("fedproto.ClientState")
class ClientState:
    """The client's own model; it never leaves the client."""

    params: Params


class PrototypeClient(PersonalizedClient, ABC):
    """Trains its own model near common prototypes, and sends its own prototypes alone."""

    config: Any  # `lam`: the pull of the prototypes; `local`
    disclosure = PROTOTYPES
    private = ("params",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from the initial model of their architecture."""
        return ClientState(params)

    def answer(
        self, order: Prototypes, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Prototypes, ClientState]:
        """One local training of the own model, then the mean features of its classes."""
        h = self.config
        loss = Regularised(self.model, h.lam, order) if h.lam else self.model.loss  # [C1]
        w = minimise(loss, state.params, data, rng, h.local)  # [C2]
        C, n = class_means(self.model, w, data, len(order.n))  # [C3]
        return Prototypes(C, n), ClientState(w)  # [C4]

    def personal(self, shared: Prototypes | None, state: ClientState) -> Params:
        """The client's own model."""
        return state.params

    def work(self, order: Prototypes, n: int) -> Work:
        """As many sample gradients as the local training takes, and a pass forward for the prototypes."""
        return Work(self.config.local.work(n), forwards=n)
