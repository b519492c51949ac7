"""FedeRiCo, client half. The algorithm box is in strategies/federico.py."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpers.core.rng import SameBatches
from fedpers.families.disclosures import PEERS
from fedpers.families.peers.client import PeerClient
from fedpers.families.peers.config import FedeRiCoConfig
from fedpers.families.peers.messages import Alone, Forward, Join, Newcomer, Published, Step, WeightedGradients
from fedpers.families.peers.weights import (
    Peer,
    above_threshold,
    draw_peers,
    gradient_step,
    model_step,
    new_peer,
    no_scores,
    of_weight,
    posterior,
    predict,
    ranks,
    reweighed,
    score,
    weighted,
)
from fedpers.method import Data, Params, Stream, Work, grad, minimise_each


class FedeRiCoClient(PeerClient):
    """Owns a model; scores others' models on its data, trains those that fit, and mixes their outputs."""

    config: FedeRiCoConfig
    disclosure = PEERS

    def initial_state(self, params: Params, data: Data, rng: Stream) -> Peer:
        """A model for each client, drawn separately unless `start` is `common`."""
        phi = params if self.config.start == "common" else self.model.init_trained(rng.integer_seed())  # [C1]
        return new_peer(phi, params, self.config.owner_optimiser)

    def answer(self, order: Any, state: Peer, data: Data, rng: Stream) -> tuple[Any, Peer]:
        """Send the own model, train it alone, score and train received models, or take the owner's step."""
        if isinstance(order, Forward):
            return self._collaborate(order, state, data, rng)
        if isinstance(order, Join | Alone) and self.config.start == "common":
            state = replace(state, phi=order.phi)
        if isinstance(order, Alone):
            own = self._work_on([state.phi], data, [rng])[0]
            state = self._step(state, own, data.mask.new_ones((), dtype=torch.float64))  # [C2]
        if isinstance(order, Step):
            state = self._step(state, order.G, order.weight)                             # [C9]
        return Published(state.phi), state                                               # [C10]

    def _collaborate(self, order: Forward, state: Peer, data: Data, rng: Stream) -> tuple[Any, Peer]:
        h, models, batches = self.config, (state.phi, *order.models), SameBatches(rng)
        beta, mask = h.beta if h.memory == "average" else None, h.unseen == "mask"
        losses = self._scores_of(models, data)                                           # [C3]
        s = reweighed(state.scores or no_scores(order.w), order.ids, losses, beta, mask) # [C4] [C5]
        w = above_threshold(s.w.gather(0, order.ids), h.w_min)
        g = self._shares(w, models, data, batches)                                       # [C6]
        M = h.neighbours(len(s.w))
        wanted = draw_peers(ranks(s, mask), order.ids[0], M, h.epsilon, rng)             # [C7]
        state = replace(state, scores=s)
        if M == 0:                                     # nobody to send to: the step is due now
            state, g = self._step(state, g[0], w[0]), ()
        return WeightedGradients(g, s.w, wanted, (~torch.isfinite(losses)).sum()), state         # [C8]

    def _scores_of(self, models: tuple[Params, ...], data: Data) -> Tensor:
        return score(self.model, models, data, self.config.kappa if self.config.loss == "mean" else None)

    def _loss(self, phi: Params, data: Data) -> Tensor:
        """What a gradient step is on: κ decides how sharp weights are, not how long a step is."""
        return score(self.model, (phi,), data, 1.0 if self.config.loss == "mean" else None)[0]

    def _shares(self, w: Tensor, models: tuple[Params, ...], data: Data, rng: Stream) -> tuple[Params, ...]:
        """w_b times what was learnt from φ_b; without weight nothing is learnt."""
        rngs = of_weight(w, rng)
        learnt = self._work_on([models[b] for b in rngs], data, list(rngs.values()))
        return weighted((dict(enumerate(models)) | dict(zip(rngs, learnt, strict=True))).values(), w)

    def _work_on(self, models: list[Params], data: Data, batches: list[Stream]) -> list[Params]:
        """The gradient of l_i in each φ_b, or each φ_b after local training."""
        if self.config.update == "steps":
            return minimise_each(self.model.loss, models, data, batches, self.config.local)
        return [grad(self._loss)(phi, data) for phi in models]

    def _step(self, state: Peer, came: Params, mass: Tensor) -> Peer:
        """The owner's step on a weighted sum of what was learnt."""
        if self.config.update == "grad":
            return gradient_step(state, came, self.config.owner_optimiser)
        return model_step(state, came, mass, self.config.normalise)

    def predict(self, shared: Any, state: Peer, x: Tensor) -> Tensor:
        """The mixture of the supporting models under the client's weights."""
        return predict(self.model, state, shared, x, self.config.average)

    def adapts_to(self, shared: Any) -> bool:
        """A client that never trained weighs the models before it predicts."""
        return isinstance(shared, Newcomer) and len(shared.models) > 0

    def adapt(self, shared: Any, state: Peer, data: Data, rng: Stream) -> tuple[Any, Peer]:
        """A newcomer's weights, from its training data."""
        losses = self._scores_of(shared.models, data)
        return Newcomer(shared.models, posterior(losses, torch.isfinite(losses))), state

    def work(self, order: Any, n: int) -> Work:
        """The loss of each model that is tried, then local training or one full gradient of it."""
        once = self.config.local.work(n) if self.config.update == "steps" else n
        tried = 1 + len(order.models) if isinstance(order, Forward) else 0
        return Work((tried + isinstance(order, Alone)) * once, forwards=tried * n)

    def work_done(self, order: Any, reply: Any, kept: Any, n: int) -> Work:
        """`work` without the gradients of models whose weight is below w_min."""
        most, used = self.work(order, n), [True]
        if isinstance(order, Forward):
            used = (reply.w[order.ids] >= self.config.w_min).tolist()
        return most._replace(gradients=sum(used) * most.gradients // len(used))
