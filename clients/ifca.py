"""IFCA, client half. The algorithm box is in strategies/ifca.py."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedpers.core.bounds import bounds
from fedpers.core.params import combine
from fedpers.families.clustered.centers import center_losses
from fedpers.method import (
    ClientData,
    Data,
    LocalConfig,
    Params,
    PersonalizedClient,
    Stream,
    grad,
    minimise,
    record,
)


@dataclass(frozen=True)
class IFCAConfig:
    """Hyper-parameters of IFCA."""

    S: int = 2                                           # k: number of clusters
    averaging: Literal["model", "gradient"] = "model"
    gamma: float = 0.1                                   # γ: server's rate, averaging=gradient
    weighting: Literal["uniform", "samples"] = "uniform"
    local: LocalConfig = field(default_factory=LocalConfig)      # averaging=model: τ steps, γ

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, S=(1, None), gamma=(0, None))


@record
class Centers:
    """Order: all cluster models, and the cluster that the client was last seen in."""

    centers: tuple[Params, ...]
    identity: Tensor         # [S] one-hot; equal shares for a client not seen yet


@record
class Update:
    """Reply: the cluster identity, and its model after local training or its gradient."""

    identity: Tensor         # [S] one-hot
    update: Params


class IFCAClient(PersonalizedClient):
    """Joins the cluster whose model fits its data best, and trains only that one."""

    config: IFCAConfig

    def answer(
        self, order: Centers, state: None, data: Data, rng: Stream
    ) -> tuple[Update, None]:
        """The identity and one local training, or one gradient."""
        identity = self._identity(order.centers, data)                                   # [C1]
        w = combine(order.centers, identity)
        if self.config.averaging == "model":
            update = minimise(self.model.loss, w, data, rng, self.config.local)          # [C2]
        else:
            update = grad(self.model.loss)(w, data)                                      # [C3]
        return Update(identity, update), None                                            # [C4]

    def _identity(self, centers: tuple[Params, ...], data: Data) -> Tensor:
        """The center of least mean loss, one-hot; ties go to the first."""
        totals = (center_losses(self.model, centers, data) * data.mask).sum(1)
        return one_hot(totals.argmin(), len(centers)).to(data.mask)

    def predict(self, shared: Centers, state: None, x: Tensor) -> Tensor:
        """The model of the client's cluster; the mean of all outputs before it has one."""
        outputs = [self.model(c, x) for c in shared.centers]
        return torch.einsum("s,snk->nk", shared.identity, torch.stack(outputs))

    def assess(
        self, shared: Centers, state: None, data: ClientData, rng: Stream
    ) -> dict[str, Tensor]:
        """As always, in the cluster that fits the training data best by now."""
        now = replace(shared, identity=self._identity(shared.centers, data.train))
        return PersonalizedClient.assess(self, now, state, data, rng)

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes, or one pass."""
        return self.config.local.work(n) if self.config.averaging == "model" else n
