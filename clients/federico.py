"""FedeRiCo, client half. The algorithm box is in strategies/federico.py."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedpers.core.rng import SameBatches
from fedpers.families.disclosures import PEERS
from fedpers.families.peers.messages import Forward, Newcomer, Published, Step, WeightedGradients
from fedpers.families.peers.weights import (
    Peer,
    draw_peers,
    new_peer,
    no_scores,
    owner_step,
    posterior,
    predict,
    reweighed,
    score,
    weighted,
)
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, bounds, grad, minimise


@dataclass(frozen=True)
class FedeRiCoConfig:
    """Hyper-parameters of FedeRiCo, with the paper's letters."""

    mode: Literal["sampled", "em"] = "sampled"          # em: all-to-all, losses added up
    num_neighbours: int = 3                             # M
    epsilon: float = 0.3                                # ε: probability of uniform neighbours
    beta: float = 0.6                                   # β: weight of the NEW loss
    loss: Literal["mean", "sum"] = "mean"               # l_ij: κ times the mean loss, or the sum
    kappa: float = 1.0                                  # κ
    unseen: Literal["mask", "zero"] = "mask"            # models that i never tried
    update: Literal["steps", "grad"] = "steps"          # local training, or one full gradient
    local: LocalConfig = field(default_factory=lambda: LocalConfig(0.01, batch_size=50, optimizer="adam"))
    owner: Literal["sgd", "adam"] = "sgd"               # update=grad: the owner's optimiser
    eta: float = 0.01                                   # update=grad: η, the owner's rate
    normalise: bool = False                             # divide what comes by max(1, Σ_j w_ji)
    start: Literal["independent", "common"] = "independent"     # the φ_i before round 1
    average: Literal["probabilities", "logits"] = "probabilities"
    w_min: float = 1e-3                                 # smaller weights do not predict

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = bounds(self, num_neighbours=(0, None), kappa=(0, None), eta=(0, None))
        return found + bounds(self, epsilon=(0, 1), beta=(0, 1), w_min=(0, 1))


class FedeRiCoClient(PersonalizedClient):
    """Owns a model; tries those of others, trains those that explain its data, mixes outputs."""

    config: FedeRiCoConfig
    disclosure = PEERS

    def initial_state(self, params: Params, data: Data, rng: Stream) -> Peer:
        """A model of its own for every client, unless all are to start alike."""
        phi = params if self.config.start == "common" else self.model.init(rng.integer_seed())   # [C1]
        return new_peer(phi, params, self._owner or LocalConfig())

    @property
    def _owner(self) -> LocalConfig | None:
        h = self.config
        return LocalConfig(lr=h.eta, optimizer=h.owner) if h.update == "grad" else None

    def answer(self, order: Any, state: Peer, data: Data, rng: Stream) -> tuple[Any, Peer]:
        """Publish, try and train what was asked for, or step with what came."""
        if isinstance(order, Forward):
            return self._train(order, state, data, rng)
        if isinstance(order, Step):
            state = owner_step(state, order, self._owner, self.config.normalise)         # [C8]
        elif self.config.start == "common":
            state = replace(state, phi=order.phi)
        return Published(state.phi), state                                               # [C9]

    def _train(self, order: Forward, state: Peer, data: Data, rng: Stream) -> tuple[Any, Peer]:
        h, models, batches = self.config, (state.phi, *order.models), SameBatches(rng)
        losses = torch.stack([self._score(phi, data) for phi in models])                 # [C2]
        beta, mask = (None, False) if h.mode == "em" else (h.beta, h.unseen == "mask")
        s = reweighed(state.scores or no_scores(order.w), order.ids, losses, beta, mask) # [C3] [C4]
        w = s.w.gather(0, order.ids)
        g = tuple(weighted(self._work_on(phi, data, batches), v)
                  for v, phi in zip(w, models, strict=True))                             # [C5]
        M = len(s.w) - 1 if h.mode == "em" else h.num_neighbours
        wanted = draw_peers(s.w + 2.0 * ~s.seen if mask else s.w, order.ids[0], M, h.epsilon, rng)   # [C6]
        state = replace(state, scores=s)
        if M == 0:                                     # nobody to send to: the step is due now
            state, g = owner_step(state, Step(g[0], w[0]), self._owner, h.normalise), ()
        return WeightedGradients(g, s.w, wanted, (~torch.isfinite(losses)).sum()), state         # [C7]

    def _score(self, phi: Params, data: Data) -> Tensor:
        kappa = self.config.kappa if self.config.loss == "mean" else None
        return score(self.model, phi, data, kappa)

    def _work_on(self, phi: Params, data: Data, batches: Stream) -> Params:
        """The gradient of l_i in φ_b, or φ_b after local training."""
        if self.config.update == "steps":
            return minimise(self.model.loss, phi, data, batches, self.config.local)
        return grad(self._score)(phi, data)

    def predict(self, shared: Any, state: Peer, x: Tensor) -> Tensor:
        """The mixture of the supporting models under the client's weights."""
        return predict(self.model, state, shared, x, self.config.average)

    def adapts_to(self, shared: Any) -> bool:
        """A client that never trained weighs the models before it predicts."""
        return isinstance(shared, Newcomer) and len(shared.models) > 0

    def adapt(self, shared: Any, state: Peer, data: Data, rng: Stream) -> tuple[Any, Peer]:
        """A newcomer's weights, from its training data."""
        losses = torch.stack([self._score(phi, data) for phi in shared.models])
        return Newcomer(shared.models, posterior(losses, torch.isfinite(losses))), state

    def work(self, order: Any, n: int) -> int:
        """Local training, or one full gradient, of each model that was tried."""
        once = self.config.local.work(n) if self.config.update == "steps" else n
        return (1 + len(order.models)) * once if isinstance(order, Forward) else 0
