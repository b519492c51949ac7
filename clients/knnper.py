"""kNN-Per, client half. The algorithm box is in strategies/knnper.py."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedpers.families.global_model.client import GlobalModelClient, Weights
from fedpers.learning.classes import distances
from fedpers.method import Data, LocalConfig, Model, Params, Stream, above, bounds, minimise, record

FAR = 1e30                                # the distance of what is nobody's neighbour
FLOOR = 1e-30                             # stands for a probability of 0, whose logarithm must be finite
ROWS = 1024                               # samples whose neighbours are looked for at a time
GRID = torch.arange(11).double() / 10     # the λ_m that a client tries


@dataclass(frozen=True)
class KNNPerConfig:
    """Hyper-parameters of kNN-Per, with the paper's letters."""

    k: int = 10                           # k: neighbours
    lam: float | None = None              # λ_m: weight of the neighbours; null: each client finds its own
    sigma: float = 1.0                    # σ: distance at which a neighbour counts 1/e
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return [*bounds(self, k=(1, None), lam=(0, 1)), *above(self, sigma=0)]


@record
class WithMemory:
    """The global model beside the client's samples, which are looked up by their features."""

    params: Params
    samples: Data
    lam: Tensor                           # scalar, λ_m


@dataclass(frozen=True)
class Neighbours:
    """What the k nearest of a client's samples say of the classes of others."""

    model: Model
    h: KNNPerConfig
    z: Tensor                             # [n, M] features of the samples
    of_class: Tensor                      # [n, C]
    mask: Tensor                          # [n]

    def votes(self, z: Tensor, own: bool = False) -> Tensor:
        """[m, C] p_kNN at features z [m, M]; `own`: these are the samples, and each left out for itself."""
        places = torch.arange(len(z), device=z.device)
        parts = zip(z.split(ROWS), places.split(ROWS), strict=True)
        return torch.cat([self._votes(part, place if own else None) for part, place in parts])

    def _votes(self, z: Tensor, place: Tensor | None) -> Tensor:
        far = torch.where(self.mask > 0, distances(z, self.z), FAR)
        if place is not None:
            far = torch.where(place[:, None] == torch.arange(len(self.z), device=z.device), FAR, far)
        near, who = far.topk(min(self.h.k, len(self.z)), 1, largest=False)               # [C3]
        w = torch.softmax(-near / self.h.sigma, 1) * (near < FAR)                        # [C4]
        return (w[:, :, None] * self.of_class[who]).sum(1)


class KNNPerClient(GlobalModelClient):
    """Trains as in FedAvg; predicts with the global model and the nearest of its own samples."""

    config: KNNPerConfig

    def answer(self, order: Weights, state: None, data: Data, rng: Stream) -> tuple[Weights, None]:
        """One local training from the received weights."""
        w = minimise(self.model.loss, order.params, data, rng, self.config.local)        # [C1]
        return Weights(w), None                                                          # [C2]

    @property
    def adapts(self) -> bool:
        """Clients always look up their samples."""
        return True

    def adapt(self, shared: Weights, state: None, data: Data, rng: Stream) -> tuple[WithMemory, None]:
        """The model with the memory, and λ_m."""
        given = self.config.lam
        lam = self._best(shared.params, data) if given is None else data.like.new_tensor(given)
        return WithMemory(shared.params, data, lam), None

    def _best(self, w: Params, data: Data) -> Tensor:
        """The λ_m under which the client's samples, each left out for itself, are likeliest."""
        known = self._known(w, data)
        right, given = known.of_class, self._given(w, known.z)
        p_knn, p = ((q * right).sum(1) for q in (known.votes(known.z, own=True), given))
        tried = [((1 - lam) * p + lam * p_knn).clamp(min=FLOOR).log() for lam in GRID.tolist()]
        return GRID.to(p)[(torch.stack(tried) * data.mask).sum(1).argmax()]              # [C5]

    def _known(self, w: Params, data: Data) -> Neighbours:
        classes = max(self.model.num_outputs, 2)
        z, of_class = self.model.body(w, data.x), data.of_class(classes)
        return Neighbours(self.model, self.config, z, of_class, data.mask)

    def _given(self, w: Params, z: Tensor) -> Tensor:
        """[m, C] the probabilities that the model's head gives."""
        return self.model.predictions(self.model.head(w, z))

    def personal(self, shared: Any, state: None) -> Params | None:  # type: ignore[override]
        """The global model where it stands alone; a model with a memory is none."""
        return shared.params if isinstance(shared, Weights) else None

    def predict(self, shared: Any, state: None, x: Tensor) -> Tensor:
        """log(λ p_kNN + (1 - λ) p), of a binary task log-odds."""
        if isinstance(shared, Weights):
            return self.model(shared.params, x)
        w, z = shared.params, self.model.body(shared.params, x)
        votes = self._known(w, shared.samples).votes(z)
        mixed = shared.lam * votes + (1 - shared.lam) * self._given(w, z)                # [C6]
        log_p = mixed.clamp(min=FLOOR).log()
        return log_p[:, 1:] - log_p[:, :1] if self.model.kind.one_output else log_p
