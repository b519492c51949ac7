"""The features of a client's samples under a fixed body, for training a head on them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.learning.local_training import minimise, minimise_by_kernel, minimise_from, minimise_then_grad
from fedpers.learning.losses import Frozen
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig, OptimizerState


@dataclass(frozen=True)
class Features:
    """φ(x; body) of a client's samples, computed once however many steps a head takes on them.

    A kernel computes them in the call in which it trains the head; torch, when somebody reads `data`.
    """

    model: Model
    body: Params
    samples: Data

    @cached_property
    def data(self) -> Data:
        """The samples with their features [n, M] for inputs."""
        return self.samples.with_inputs(self.model.body(self.body, self.samples.x))

    def loss(self, head: Params) -> Tensor:
        """The mean loss under a head, a scalar."""
        return self.model.features_loss(head, self.data)

    def fit(self, head: Params, rng: Stream, cfg: LocalConfig) -> Params:
        """The head after local training.

        The same steps as with a fresh pass through the body each time, since a sample's features depend on
        nothing but the sample and the body.
        """
        return minimise(_OfHead(self), head, self.samples, rng, cfg)

    def fit_then_grad(self, head: Params, rng: Stream, cfg: LocalConfig) -> tuple[Params, Params] | None:
        """The head after plain steps on all samples, and the gradient in head and body there.

        None where no kernel makes both of one pass through the body; see `minimise_then_grad`.
        """
        loss = Frozen(self.model.loss, self.body)
        return minimise_then_grad(loss, head, self.samples, rng, cfg)


@dataclass(frozen=True)
class _OfHead:
    """The loss that `minimise` is given: it trains itself (`OwnTraining`)."""

    features: Features

    def __call__(self, head: Params, batch: Data) -> Tensor:
        return Frozen(self.features.model.loss, self.features.body)(head, batch)

    def minimise(
        self, head: Params, opt: OptimizerState, data: Data, rng: Stream, cfg: LocalConfig, lr: Any
    ) -> tuple[Params, OptimizerState]:
        """Train on the samples if a kernel keeps their features, else on the features."""
        own = self.features
        found = minimise_by_kernel(Frozen(own.model.loss, own.body), head, opt, data, rng, cfg, lr)
        return found or minimise_from(own.model.features_loss, head, opt, own.data, rng, cfg, lr)
