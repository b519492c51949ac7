"""FedFomo, client half. The algorithm box is in strategies/fedfomo.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.items import ModelBatch
from fedpers.core.vmap import together
from fedpers.families.disclosures import PEERS
from fedpers.families.peers.messages import Candidates
from fedpers.families.peers.weights import distances, sums_of_used
from fedpers.learning.kernels.scoring import losses_of_each
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, Work, minimise, record


@dataclass(frozen=True)
class FedFomoConfig:
    """Hyper-parameters of FedFomo."""

    num_neighbours: int = 5               # M: models that a client receives a round
    epsilon: float = 0.3                  # ε: probability of uniform neighbours
    valid_fraction: float = 0.2           # of the training samples, kept for the weights
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return [f"{n}={getattr(self, n)}: must be in {what}" for n, what, good in (
            ("num_neighbours", "0, 1, ...", self.num_neighbours >= 0),
            ("epsilon", "[0, 1]", 0 <= self.epsilon <= 1),
            ("valid_fraction", "(0, 1)", 0 < self.valid_fraction < 1)) if not good]


@record
class TrainedAndWeighed:
    """Reply: the client's model after its training, and the weights it gave."""

    phi: Params
    w: Tensor                             # [1+M] to its own model first; 0 beyond those that came


@record
class ClientState:
    """The client's model before and after its last local training."""

    before: Params
    phi: Params


@lru_cache(256)               # for clients of so many sizes
def rows_kept(n: int, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """(rows to train on, rows to validate on) of n samples; the latter are evenly spaced, at least one.

    A single sample serves for both.
    """
    if n == 1:
        return np.arange(1), np.arange(1)
    place = np.arange(1, n + 1) * fraction
    back = np.floor(place) > np.floor(place - fraction)
    back[-1] |= not back.any()
    return np.flatnonzero(~back), np.flatnonzero(back)


def keep_back(data: Data, fraction: float) -> tuple[Data, Data]:
    """(training, validation) part of each client's samples."""
    return data.part(lambda n: rows_kept(n, fraction)[0]), data.part(lambda n: rows_kept(n, fraction)[1])


class FedFomoClient(PersonalizedClient):
    """Moves towards models with a lower loss on the samples that it keeps for validation, then trains."""

    config: FedFomoConfig
    disclosure = PEERS
    apart = True              # the models that come are more than what is made of them

    @property
    def vectorized(self) -> bool:  # type: ignore[override]
        """Not with momentum that is kept: it would be apart like the models."""
        return not self.config.local.keep_momentum

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from the same initial model."""
        return ClientState(params, params)

    def answer(
        self, order: Candidates, state: ClientState, data: Data, rng: Stream
    ) -> tuple[TrainedAndWeighed, ClientState]:
        """Compute weights of the received models and the own one, combine them, then train."""
        fit, kept = keep_back(data, self.config.valid_fraction)
        phi, row = together(self._combined, order, state, kept.apart)
        new = minimise(self.model.loss, phi, fit, rng, self.config.local)                # [C4]
        return TrainedAndWeighed(new, row), ClientState(phi, new)                        # [C5]

    def _combined(
        self, orders: Sequence[Candidates], states: Sequence[ClientState], kept: Sequence[Data]
    ) -> tuple[Params, Tensor]:
        """(mixtures, [C, 1+M] weights) of C clients, stacks, by their samples that were kept back."""
        groups = [(s.before, s.phi, *o.models) for s, o in zip(states, orders, strict=True)]
        models = ModelBatch([phi for group in groups for phi in group])
        losses = losses_of_each(self.model.loss, models, kept)
        gain = (losses[:, :1] - losses[:, 1:]).cpu().numpy()
        w = np.maximum(gain / np.maximum(distances(models, gain), 1e-12), 0)             # [C1]
        total, given = w.sum(1, keepdims=True), np.zeros((len(w), orders[0].weights))
        given[:, 0] = 1                                                # where none is better
        w = np.divide(w, total, out=given[:, :w.shape[1]], where=total > 0)              # [C2]
        return sums_of_used(models, w), torch.from_numpy(given).to(losses.device)        # [C3]

    def personal(self, shared: None, state: ClientState) -> Params:
        """The client's own model."""
        return state.phi

    def work(self, order: Any, n: int) -> Work:
        """The local training; the samples kept back pass through old, own and received models."""
        kept = max(1, int(n * self.config.valid_fraction))
        return Work(self.config.local.work(max(1, n - kept)), forwards=(2 + len(order.models)) * kept)
