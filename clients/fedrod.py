"""FedRoD, client half. The algorithm box is in strategies/fedrod.py."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedpers.core.params import zeros_like
from fedpers.families.disclosures import MODEL
from fedpers.families.global_model.client import Weights
from fedpers.learning.losses import SecondHead
from fedpers.method import (
    Data,
    LocalConfig,
    Model,
    Params,
    PersonalizedClient,
    Stream,
    Work,
    add,
    merge,
    minimise,
    record,
    split,
)

OWN = "own."         # before the names of the personal head, while both heads are trained
NOBODY = 1e-30       # stands for no sample of a class, whose logarithm must be finite


@dataclass(frozen=True)
class FedRoDConfig:
    """Hyper-parameters of FedRoD."""

    local: LocalConfig = field(default_factory=LocalConfig)


@record
class ClientState:
    """The personal head ψ_m; it never leaves the client."""

    own: Params


@dataclass(frozen=True)
class TwoHeads:
    """ℓ_BR of the generic head, plus ℓ_ER of both heads' sum, which moves the personal head alone."""

    model: Model
    log_counts: Tensor                    # [K] log n_c

    def __call__(self, w: Params, batch: Data) -> Tensor:
        z = self.model.body(w, batch.x)
        g = self.model.head(w, z)
        balanced = self.model.sample_losses(g + self.log_counts, batch.y)                # [C1]
        both = g.detach() + self.model.head(personal_head(w), z.detach())
        empirical = self.model.sample_losses(both, batch.y)                              # [C2]
        return ((balanced + empirical) * batch.mask).sum() / batch.num

    @property
    def beside(self) -> SecondHead:
        """For the kernel."""
        return SecondHead(OWN, self.log_counts)


def personal_head(w: Params) -> Params:
    """ψ by the names of the head."""
    return {k.removeprefix(OWN): v for k, v in w.items() if k.startswith(OWN)}


class FedRoDClient(PersonalizedClient):
    """Trains a generic model on a balanced loss, and a personal head on what is left."""

    config: FedRoDConfig
    disclosure = MODEL
    private = ("own",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Personal heads start at 0: whoever never trained predicts with the generic model."""
        return ClientState(zeros_like(split(params, self.model.is_head)[0]))

    def answer(
        self, order: Weights, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Weights, ClientState]:
        """One local training of body and both heads, each on its own loss."""
        counts = data.of_class(self.model.num_outputs).sum(0)
        loss = TwoHeads(self.model, counts.clamp(min=NOBODY).log())
        w = merge(order.params, {OWN + k: v for k, v in state.own.items()})
        w = minimise(loss, w, data, rng, self.config.local)                              # [C3]
        own = personal_head(w)                                                           # [C4]
        return Weights({k: w[k] for k in order.params}), ClientState(own)                # [C5]

    def personal(self, shared: Weights, state: ClientState) -> Params:
        """The generic body under the sum of both heads, which is a head."""
        head, body = split(shared.params, self.model.is_head)
        return body | add(head, state.own)

    def work(self, order: Any, n: int) -> Work:
        """As many sample gradients as the local training takes, each with one of the second head."""
        gradients = self.config.local.work(n)
        return Work(gradients, head_steps=gradients)
