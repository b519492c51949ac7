"""IFCA, client half. The algorithm box is in strategies/ifca.py."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedpers.core.bounds import bounds
from fedpers.families.clustered.centers import nearest_center, pick
from fedpers.families.clustered.messages import Centers
from fedpers.families.disclosures import CLUSTER
from fedpers.families.starts import Start
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, Work, grad, minimise, record


@dataclass(frozen=True)
class IFCAConfig:
    """Hyper-parameters of IFCA."""

    S: int = 2                                           # k: number of clusters
    averaging: Literal["model", "gradient"] = "model"
    gamma: float = 0.1                                   # γ: server's rate, averaging=gradient
    weighting: Literal["uniform", "samples"] = "uniform"
    local: LocalConfig = field(default_factory=LocalConfig)      # averaging=model: τ steps, γ
    start: Start = "seeds"                               # how the models start apart

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, S=(1, None), gamma=(0, None))


@record
class ClusterModel:
    """What a client predicts with: the model of the cluster that it has chosen."""

    params: Params


@record
class Choice:
    """Reply: the cluster identity, and its model after local training or its gradient."""

    identity: Tensor         # [S] one-hot
    update: Params
    ranges: ClassVar = {"identity": "simplex"}


class IFCAClient(PersonalizedClient):
    """Joins the cluster whose model fits its data best, and trains only that one."""

    config: IFCAConfig
    disclosure = CLUSTER

    def answer(
        self, order: Centers, state: None, data: Data, rng: Stream
    ) -> tuple[Choice, None]:
        """The identity and one local training, or one gradient."""
        j = nearest_center(self.model, order.centers, data)
        identity = (torch.arange(len(order.centers), device=j.device) == j).to(data.mask)    # [C1]
        w = pick(order.centers, j)
        if self.config.averaging == "model":
            update = minimise(self.model.loss, w, data, rng, self.config.local)          # [C2]
        else:
            update = grad(self.model.loss)(w, data)                                      # [C3]
        return Choice(identity, update), None                                            # [C4]

    def choose(self, shared: Centers, state: None, data: Data) -> ClusterModel:
        """The model that fits the training data best by now, whatever cluster the client was last in."""
        return ClusterModel(pick(shared.centers, nearest_center(self.model, shared.centers, data)))

    def predict(self, shared: ClusterModel, state: None, x: Tensor) -> Tensor:
        """The outputs of the client's cluster's model."""
        return self.model(shared.params, x)

    def work(self, order: Any, n: int) -> Work:
        """As many sample gradients as the local training takes, or one pass; each model's losses before."""
        gradients = self.config.local.work(n) if self.config.averaging == "model" else n
        return Work(gradients, forwards=len(order.centers) * n)
