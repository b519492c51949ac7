"""FedAS, client half. The algorithm box is in strategies/fedas.py."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpers.core.params import sq_norm
from fedpers.families.disclosures import WEIGHED_PART
from fedpers.families.split_models.client import SharedPart
from fedpers.learning.classes import class_means
from fedpers.learning.minibatches import where_any
from fedpers.method import (
    Data,
    LocalConfig,
    Model,
    Params,
    PersonalizedClient,
    Stream,
    Work,
    bounds,
    grad,
    minibatches,
    minimise,
    record,
    split,
)


@dataclass(frozen=True)
class FedASConfig:
    """Hyper-parameters of FedAS."""

    align: LocalConfig = field(default_factory=lambda: LocalConfig(lr=0.01, batch_size=16))  # of f alone
    local: LocalConfig = field(default_factory=LocalConfig)      # of f and h_i together
    fisher_batch: int = 10                # b: samples behind each squared gradient

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, fisher_batch=(1, None))


@record
class Trained:
    """Reply: the body after local training, and what it weighs in the mean."""

    part: Params
    fisher: Tensor                        # F_i, scalar
    ranges: ClassVar = {"fisher": (0, None)}


@record
class ClientState:
    """The model of the client's last visit; its head never leaves the client."""

    head: Params
    body: Params
    came: int                             # 1: it has been drawn before


@dataclass(frozen=True)
class Alignment:
    """The distance of features to the client's own means, class by class."""

    model: Model
    means: Tensor                         # [K, M]

    def __call__(self, f: Params, batch: Data) -> Tensor:
        of_class = batch.of_class(len(self.means))
        away = (self.model.body(f, batch.x) - of_class @ self.means).square().mean(1)
        return (of_class.T @ away / of_class.sum(0).clamp(min=1)).sum()                  # [C2]


class FedASClient(PersonalizedClient):
    """Moves the received body to the features that its head knows, then trains both."""

    config: FedASConfig
    disclosure = WEIGHED_PART
    private = ("head",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from the same model."""
        return ClientState(*split(params, self.model.is_head), 0)

    def answer(
        self, order: SharedPart, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Trained, ClientState]:
        """Align the body, train the model, measure the Fisher information."""
        h, f = self.config, order.part
        if h.align.lr:
            K = max(self.model.num_outputs, 2)
            means, _ = class_means(self.model, state.body, data, K)                      # [C1]
            f = minimise(Alignment(self.model, means), f, data, rng, h.align)
        w = minimise(self.model.loss, f | state.head, data, rng, h.local)                # [C3]
        head, body = split(w, self.model.is_head)
        return Trained(body, self._fisher(w, data, rng)), ClientState(head, body, 1)     # [C5] [C6]

    def _fisher(self, w: Params, data: Data, rng: Stream) -> Tensor:
        """F_i, a scalar."""
        total = data.mask.new_zeros(())
        for batch in minibatches(data, rng, LocalConfig(batch_size=self.config.fisher_batch)):
            more = sq_norm(grad(self.model.loss)(w, batch))
            total = total + where_any(rng, batch.mask, more, torch.zeros_like(more))     # [C4]
        return total

    def personal(self, shared: SharedPart, state: ClientState) -> Params:
        """The model of the last visit; before the first one, the shared body under the initial head."""
        return (state.body if state.came else shared.part) | state.head

    def work(self, order: Any, n: int) -> Work:
        """Gradients of both trainings and of the Fisher information, a pass for the means."""
        h = self.config
        align = h.align.work(n) if h.align.lr else 0
        return Work(align + h.local.work(n) + n, forwards=n if align else 0)
