"""pFedMe, client half. The algorithm box is in strategies/pfedme.py."""

from dataclasses import dataclass, field, replace
from typing import Any

from fedpers.core.bounds import bounds
from fedpers.core.params import blend
from fedpers.core.rng import FixedBatch
from fedpers.families.disclosures import MODEL
from fedpers.families.global_model.client import Weights
from fedpers.learning.losses import proximal
from fedpers.learning.minibatches import where_any
from fedpers.learning.training_round import cannot_keep
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class PFedMeConfig:
    """Hyper-parameters of pFedMe, with the paper's letters."""

    lam: float = 15.0                     # λ: 1/λ is how far personal models may go
    eta: float = 0.005                    # η: rate of w_i
    K: int = 5                            # K: gradient steps for θ_i on a minibatch
    beta: float = 1.0                     # β: how far the server goes towards the mean
    local: LocalConfig = field(default_factory=LocalConfig)      # minibatches (R), rate of θ_i

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = cannot_keep(self.local, "pFedMe solves a problem of its own for every minibatch")
        return found + bounds(self, lam=(0, None), eta=(0, None), K=(1, None), beta=(0, None))


@record
class ClientState:
    """The personal model θ_i; it never leaves the client."""

    theta: Params


class PFedMeClient(PersonalizedClient):
    """Steps down the Moreau envelope of its loss."""

    config: PFedMeConfig
    disclosure = MODEL
    private = ("theta",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Personal models start from the initial global one."""
        return ClientState(params)

    def answer(
        self, order: Weights, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Weights, ClientState]:
        """R steps on the envelope, each with its own proximal problem."""
        h, w, theta, n = self.config, order.params, order.params, len(data)
        rows, weight = rng.schedule(n, h.local.batch_size or n, h.local.epochs, h.local.steps)
        for batch in zip(rows, weight, strict=True):                                     # [C1]
            found = self._proximal_point(w, data, FixedBatch(rng, *batch))               # [C2]
            theta = where_any(rng, batch[1], found, theta)
            w = blend(w, found, h.eta * h.lam)                                           # [C3]
        return Weights(w), ClientState(theta)                                            # [C4] [C5]

    def _proximal_point(self, w: Params, data: Data, batch: FixedBatch) -> Params:
        near_w = proximal(self.model.loss, self.config.lam, w)
        steps = replace(self.config.local, steps=self.config.K, batch_size=batch.size)
        return minimise(near_w, w, data, batch, steps)

    def personal(self, shared: Any, state: ClientState) -> Params:
        """The personal model of the client's last visit."""
        return state.theta

    def work(self, order: Any, n: int) -> int:
        """K gradients of every minibatch."""
        return self.config.K * self.config.local.work(n)
