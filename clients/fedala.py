"""FedALA, client half. The algorithm box is in strategies/fedala.py."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.bounds import above, bounds
from fedpers.core.params import between, rows_of
from fedpers.core.vmap import one_by_one
from fedpers.families.disclosures import MODEL
from fedpers.families.global_model.client import Weights
from fedpers.families.split_models.upper_layers import mix, problem_of, upper
from fedpers.learning.between import passes_between
from fedpers.learning.kernels.scoring import losses_of
from fedpers.learning.losses import Loss
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, Work, minimise, record

WINDOW, MOST = 10, 100      # passes of the first learning: whose losses are compared after one more, at most


@dataclass(frozen=True)
class FedALAConfig:
    """Hyper-parameters of FedALA, with the paper's letters."""

    eta: float = 1.0                      # η: learning rate of W_i
    share: float = 0.8                    # s: share of the local samples that W_i is learnt on
    layers: int = 1                       # p: layers, from the head down, that are mixed
    threshold: float = 0.1                # W_i is settled when losses of 10 passes spread less
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        range_of = bounds(self, eta=(0, None), share=(None, 1), layers=(1, None))
        return [*range_of, *above(self, share=0, threshold=0)]


@record
class ClientState:
    """The client's own model, its weights of aggregation, and how often it has trained."""

    own: Params
    W: Params                             # of the mixed layers, entries in [0, 1]
    visits: int                           # before this round: 0, 1, or 2 for more
    passes: Tensor                        # scalar, of the last learning of W_i


def converged(losses: list[float], threshold: float) -> bool:
    """Whether the last losses, of more than those, spread less than this."""
    return len(losses) > WINDOW and bool(np.std(losses[-WINDOW:]) < threshold)


class FedALAClient(PersonalizedClient):
    """Mixes the received model into its own by learned weights, one for each parameter, then trains."""

    config: FedALAConfig
    disclosure = MODEL
    private = ("W",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """The initial model; the received one replaces it entirely in the first round."""
        W = {k: torch.ones_like(params[k]) for k in upper(params, self.config.layers)}
        return ClientState(params, W, 0, data.mask.new_zeros(()))

    def answer(
        self, order: Weights, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Weights, ClientState]:
        """Learn the weights, mix, train."""
        W, passes = state.W, torch.zeros_like(state.passes)
        if self.config.eta and state.visits:           # at first there is no own model to mix with
            W, passes = self._learn(order.params, state, data, rng)
        start = mix(state.own, order.params, W)                                          # [C3]
        new = minimise(self.model.loss, start, data, rng, self.config.local)             # [C4]
        return Weights(new), ClientState(new, W, min(state.visits + 1, 2), passes)       # [C5]

    def _learn(self, shared: Params, state: ClientState, data: Data, rng: Stream) -> tuple[Params, Tensor]:
        """(W_i, passes) after one pass over some samples; the first time, after as many as it takes."""
        first, some = state.visits == 1, rng.some(data, self.config.share)               # [C1]
        loss, drawn = problem_of(self.model, shared, state.W, some, often=first)
        tried = self._passes(loss, shared, state, drawn, rng, WINDOW + 1 if first else 1)
        if not first:
            return rows_of(tried)[-1], torch.ones_like(state.passes)
        losses, after = losses_of(loss, between(state.own, shared, tried), drawn), rows_of(tried)[-1]
        return one_by_one(self._settle, losses, shared, replace(state, W=after), some.apart, rng.apart)

    def _settle(self, losses: Tensor, shared: Params, state: ClientState, some: Data, rng: Stream) -> Any:
        """(W_i, passes) of one client when its loss has settled, from `losses` [p] of the p passes so far."""
        found, least = losses.tolist(), self.config.threshold
        if not converged(found, least):
            loss, some = problem_of(self.model, shared, state.W, some)
        while len(found) < MOST and not converged(found, least):
            tried = self._passes(loss, shared, state, some, rng, 1)
            found += losses_of(loss, between(state.own, shared, tried), some).tolist()
            state = replace(state, W=rows_of(tried)[-1])
        return state.W, torch.full_like(state.passes, len(found))

    def _passes(self, loss: Loss, shared: Params, state: ClientState, some: Data, rng: Stream, n: int) -> Any:
        h = self.config
        return passes_between(loss, state.own, shared, state.W, some, rng, h.local, h.eta, n)    # [C2]

    def personal(self, shared: Weights, state: ClientState) -> Params:
        """The client's own model."""
        return state.own

    def work(self, order: Weights, n: int, passes: int = 1) -> Work:
        """The local training, and passes that learn W_i: a gradient of some samples each, and their loss if
        there are several; features are computed once."""
        h, local = self.config, self.config.local.work(n)
        once = max(1, int(h.share * n)) if h.eta and passes else 0
        samples = passes * once
        if all(map(self.model.is_head, upper(order.params, self.config.layers))):
            return Work(local, forwards=once, head_steps=samples)
        return Work(local + samples, forwards=samples if passes > 1 else 0)

    def work_done(self, order: Weights, reply: Any, kept: ClientState, n: int) -> Work:
        """`work` with the passes that were made: none in the first visit, many in the second."""
        return self.work(order, n, int(kept.passes))
