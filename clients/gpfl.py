"""GPFL, client half. The algorithm box is in strategies/gpfl.py."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.params import sq_norm
from fedpers.families.disclosures import PART
from fedpers.families.split_models.client import SharedPart
from fedpers.method import (
    Data,
    LocalConfig,
    Model,
    Params,
    PersonalizedClient,
    Stream,
    bounds,
    merge,
    minimise,
    record,
    split,
)

EMBEDDINGS = "gce"                        # the name of E, [K, M], among the shared parameters
VALVE = ("cov.gamma.", "cov.beta.")       # before the names of the two halves of V
TINY = 1e-16                              # a square of a length below which a gradient is 0


@dataclass(frozen=True)
class GPFLConfig:
    """Hyper-parameters of GPFL, with the paper's letters."""

    lam: float = 0.01                     # λ: weight of the distance to the global embeddings
    mu: float = 0.0                       # μ: L2 penalty of E and V
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, lam=(0, None), mu=(0, None))


@record
class ClientState:
    """The personal head, and what p_i is made of; neither leaves the client."""

    head: Params
    share: Tensor                         # [K] n_c / n


def valve(w: Params, z: Tensor, u: Tensor) -> Tensor:
    """V(z, u) of features z [n, M] under a condition u [M]."""
    gamma, beta = (_half(w, name, u) for name in VALVE)
    return ((gamma + 1) * z + beta).relu()                                               # [C2]


def _half(w: Params, name: str, u: Tensor) -> Tensor:
    hidden = F.linear(u, w[name + "weight"], w[name + "bias"]).relu()
    return F.layer_norm(hidden, hidden.shape, w[name + "scale"], w[name + "shift"])


def unit(a: Tensor) -> Tensor:
    """Rows of length 1; those that are 0 stay."""
    return a * a.square().sum(1, keepdim=True).clamp(min=TINY).rsqrt()


@dataclass(frozen=True)
class BothSides:
    """The loss of the personal side, plus those of the generic one."""

    model: Model
    h: GPFLConfig
    given: Tensor                         # [K, M] E° as received
    share: Tensor                         # [K]

    def __call__(self, w: Params, batch: Data) -> Tensor:
        z, of_class = self.model.body(w, batch.x), batch.of_class(len(self.given))
        personal = valve(w, z, self.share @ self.given)                                  # [C1]
        generic = valve(w, z, self.given.mean(0))
        angles = torch.log_softmax(unit(generic) @ unit(w[EMBEDDINGS]).T, 1)
        away = (generic - of_class @ self.given).square().sum(1).clamp(min=TINY).sqrt()
        sides = self.h.lam * (away * batch.mask).sum() - (angles * of_class).sum()       # [C4]
        own = self.model.head_loss(w, personal, batch)                                   # [C3]
        added = {k: v for k, v in w.items() if k == EMBEDDINGS or k.startswith(VALVE)}
        return own + sides / batch.num + self.h.mu / 2 * sq_norm(added)


class GPFLClient(PersonalizedClient):
    """Trains body, embeddings and valve for all, and a head on features turned to its own classes."""

    config: GPFLConfig
    disclosure = PART
    private = ("head", "share")
    reply_is_shared = True

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All heads start alike."""
        counts = data.of_class(max(self.model.num_outputs, 2)).sum(0)
        return ClientState(split(params, self.model.is_head)[0], counts / data.num)

    def answer(
        self, order: SharedPart, state: ClientState, data: Data, rng: Stream
    ) -> tuple[SharedPart, ClientState]:
        """One local training of all parts together."""
        loss = BothSides(self.model, self.config, order.part[EMBEDDINGS], state.share)
        w = minimise(loss, merge(order.part, state.head), data, rng, self.config.local)  # [C5]
        head, part = split(w, self.model.is_head)
        return SharedPart(part), ClientState(head, state.share)                          # [C6]

    def predict(self, shared: SharedPart, state: ClientState, x: Tensor) -> Tensor:
        """The head's outputs at the features as the client's own classes turn them."""
        w = shared.part
        z = valve(w, self.model.body(w, x), state.share @ w[EMBEDDINGS])
        return self.model.head(state.head, z)

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
