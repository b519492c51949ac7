"""FedFomo, client half. The algorithm box is in strategies/fedfomo.py."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedpers.core.params import sq_dist, weighted_sum
from fedpers.families.disclosures import PEERS
from fedpers.families.peers.messages import Forward
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
    w: Tensor                             # [K]


@record
class ClientState:
    """The client's model before and after its last local training."""

    before: Params
    phi: Params


def keep_back(data: Data, fraction: float) -> tuple[Data, Data]:
    """(training, validation) part: evenly spaced samples are kept back, at least one."""
    place = torch.arange(1, len(data) + 1, device=data.mask.device).double() * fraction
    back = place.floor() > (place - fraction).floor()
    back[-1] |= ~back.any()
    return tuple(Data(data.x[i], data.y[i], data.mask[i]) for i in (~back, back))  # type: ignore


class FedFomoClient(PersonalizedClient):
    """Moves towards the models that do better on samples it keeps back, then trains."""

    config: FedFomoConfig
    disclosure = PEERS
    vectorized = False        # cuts its samples in two, by a number that differs among clients

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from the same initial model."""
        return ClientState(params, params)

    def answer(
        self, order: Forward, state: ClientState, data: Data, rng: Stream
    ) -> tuple[TrainedAndWeighed, ClientState]:
        """Weigh the models that came and the own one, combine them, train."""
        fit, kept = keep_back(data, self.config.valid_fraction)
        old, models = state.before, (state.phi, *order.models)
        now = self.model.loss(old, kept)
        gain = torch.stack([now - self.model.loss(phi, kept) for phi in models])
        far = torch.stack([sq_dist(phi, old).sqrt() if g > 0 else torch.ones_like(g)
                           for phi, g in zip(models, gain, strict=True)])
        w = (gain / far.clamp(min=1e-12)).double().clamp(min=0)                          # [C1]
        alone = torch.zeros_like(w).index_fill(0, torch.zeros(1, dtype=torch.int64), 1)
        w = torch.where(w.sum() > 0, w / w.sum(), alone)                                 # [C2]
        used = [(phi, v) for phi, v in zip(models, w.tolist(), strict=True) if v]
        phi = weighted_sum(*zip(*used, strict=True))                                     # [C3]
        new = minimise(self.model.loss, phi, fit, rng, self.config.local)                # [C4]
        row = torch.zeros_like(order.w).scatter(0, order.ids, w)
        return TrainedAndWeighed(new, row), ClientState(phi, new)                        # [C5]

    def personal(self, shared: None, state: ClientState) -> Params:
        """The client's own model."""
        return state.phi

    def work(self, order: Any, n: int) -> Work:
        """The local training; the samples kept back pass through old, own and received models."""
        kept = max(1, int(n * self.config.valid_fraction))
        return Work(self.config.local.work(max(1, n - kept)), forwards=(2 + len(order.models)) * kept)
