"""FedCP, client half. The algorithm box is in strategies/fedcp.py."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedpers.families.disclosures import PART_AND_HEAD
from fedpers.families.split_models.client import SharedPart
from fedpers.families.split_models.policy import direction, joint, log_odds, mmd, parted
from fedpers.learning.draws import uniform
from fedpers.method import (
    Data,
    LocalConfig,
    Model,
    Params,
    PersonalizedClient,
    Stream,
    Work,
    blend,
    bounds,
    merge,
    minimise,
    record,
    split,
)


@dataclass(frozen=True)
class FedCPConfig:
    """Hyper-parameters of FedCP, with the paper's letters."""

    lam: float = 1.0                      # λ: weight of MMD, which keeps features near the received body's
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        split_up = self.lam and self.local.micro_batch
        why = "MMD compares the samples of a minibatch; set it to 0"
        found = [f"local.micro_batch={self.local.micro_batch}: {why}"] if split_up else []
        return bounds(self, lam=(0, None)) + found


@record
class ClientState:
    """The personal head."""

    own: Params


@dataclass(frozen=True)
class Policed:
    """The loss of both heads under a noisy policy, and λ MMD of features and those of the received body."""

    model: Model
    lam: float
    given: Params                         # as received: frozen
    v: Tensor                             # [M]

    def __call__(self, w: Params, batch: Data) -> Tensor:
        own, z = split(w, self.model.is_head)[0], self.model.body(w, batch.x)
        s = (log_odds(w, z, self.v) + torch.logit(uniform(z)).to(z)).sigmoid()           # [C2]
        loss = self.model.head_loss(joint(own, self.given), parted(z, s), batch)         # [C3]
        if not self.lam:
            return loss
        before = self.model.body(self.given, batch.x).detach()
        return loss + self.lam * mmd(z, before, batch.mask)                              # [C4]


class FedCPClient(PersonalizedClient):
    """Trains body, policy and a head of its own, beside the received head, which stays as it is."""

    config: FedCPConfig
    draws = True
    disclosure = PART_AND_HEAD

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All heads start alike."""
        return ClientState(split(params, self.model.is_head)[0])

    def answer(
        self, order: SharedPart, state: ClientState, data: Data, rng: Stream
    ) -> tuple[SharedPart, ClientState]:
        """One local training of body, policy and personal head together."""
        head, rest = split(order.part, self.model.is_head)
        loss = Policed(self.model, self.config.lam, order.part, direction(state.own))    # [C1]
        w = minimise(loss, merge(rest, state.own), data, rng, self.config.local)         # [C5]
        own, rest = split(w, self.model.is_head)
        sent = merge(rest, blend(head, own, 0.5))                                        # [C6]
        return SharedPart({k: sent[k] for k in order.part}), ClientState(own)

    def local_model(self, order: SharedPart, reply: SharedPart) -> SharedPart:
        """What was trained, beside the head that was received."""
        head = split(order.part, self.model.is_head)[0]
        return SharedPart(reply.part | head)

    def predict(self, shared: SharedPart, state: ClientState, x: Tensor) -> Tensor:
        """The sum of both heads' outputs, under a policy without noise."""
        w, z = shared.part, self.model.body(shared.part, x)
        s = log_odds(w, z, direction(state.own)).sigmoid()
        return self.model.head(joint(state.own, w), parted(z, s))

    def work(self, order: Any, n: int) -> Work:
        """As many sample gradients as the local training takes, each beside features of the received body."""
        gradients = self.config.local.work(n)
        return Work(gradients, forwards=gradients if self.config.lam else 0)
