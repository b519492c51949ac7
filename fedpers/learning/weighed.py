"""The loss of a model on samples that count differently."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.core.rng import Stream
from fedpers.learning.local_training import minimise_from, minimise_weighed
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig, OptimizerState


@dataclass(frozen=True)
class WeightedLoss:
    """1/B Σ_i q_i l_i over a batch of B samples, for `minimise` on the client's samples.

    It is an object and no closure, so that a kernel can train on it.
    """

    model: Model
    q: Tensor  # [n] of the client's samples, in their order

    def __call__(self, w: Params, data: Data) -> Tensor:
        """On all samples at once."""
        losses = self.model.sample_losses(self.model(w, data.x), data.y)
        return (losses * self.q * data.mask).sum() / data.num

    def minimise(
        self, w: Params, opt: OptimizerState, data: Data, rng: Stream, cfg: LocalConfig, lr: Any
    ) -> tuple[Params, OptimizerState]:
        """By the kernel for dense networks, else by autograd."""
        found = minimise_weighed(self.model.loss, self.q, w, opt, data, rng, cfg, lr)
        if found is not None:
            return found
        numbered = Data(data.x, torch.arange(len(data), device=data.y.device), data.mask)
        return minimise_from(OfNumbered(self.model, self.q, data.y), w, opt, numbered, rng, cfg, lr)


@record("learning.OfNumbered")
class OfNumbered:
    """`WeightedLoss` on batches that have samples' numbers in place of y, so that each meets its own q."""

    model: Model
    q: Tensor  # [n] of all samples
    y: Tensor  # [n]

    def __call__(self, w: Params, batch: Data) -> Tensor:
        """On a batch."""
        losses = self.model.sample_losses(self.model(w, batch.x), self.y[batch.y])
        return (losses * self.q[batch.y] * batch.mask).sum() / batch.num
