"""Central training: all clients' samples in one place; what a federation is measured against from above.

    Server                                             Client k
    before the first round that a process runs:
    [S1] ask all clients                       ---->   [C1] send D_k, all training samples
    [S2] D = the D_k one after another         <----
    in every round:
    [S3] w = local SGD on f_D from w

In simulations only: devices refuse to send samples.

Deviations: none. Reductions: FedAvg with one client that has all samples.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedpers.clients.central import CentralConfig, Samples, SamplesWanted
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig, Weights
from fedpers.core.errors import ConfigError
from fedpers.core.samples import Exact
from fedpers.learning.training_round import answer
from fedpers.method import Data, Params, PersonalizedStrategy, Roster, Round, Stream, record


@record
class State:
    """The model, and what its optimiser keeps between rounds."""

    params: Params
    kept: Any                             # None, but with local.keep_momentum


class Central(PersonalizedStrategy):
    """Collects the samples once, and trains on them as FedAvg's only client would."""

    config: CentralConfig
    not_robust = "its server takes no mean"
    pool: Data | None = None              # D; a run that goes on asks for it again

    @cached_property
    def trainer(self) -> FedAvgClient:
        """FedAvg's only client."""
        return FedAvgClient(FedAvgConfig(self.config.local), self.model)

    @property
    def draws_itself(self) -> str:
        """It uses all clients' samples, whatever clients_per_round is."""
        return "trains on the samples of all clients in every round"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The model's initial parameters.

        Raises:
            ConfigError: participants are to be evaluated, or devices to be timed, and there are none.
        """
        if self.clock is not None:
            raise ConfigError("systems= method=central: no device trains, so that there is no time to "
                              "simulate; set systems=off")
        if self.plan.eval_protocol == "participants_local":
            raise ConfigError("eval_protocol=participants_local method=central: no client trains; "
                              "use eval_protocol=all_after")
        return State(params, None)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One local training on all samples."""
        if self.pool is None:
            told = yield {k: SamplesWanted(int(self.num_examples(k))) for k in self.roster.ids}     # [S1]
            self.pool = self._pooled(told)                                               # [S2]
        D, only = self.pool, Stream(self.plan.seed, t, 0)
        with torch.no_grad(), self.model.network.turn(D, only):
            reply, kept = answer(self.trainer, Weights(s.params), s.kept, D, only, t)    # [S3]
        cost = self.config.local.work(len(D))
        self.round_log.gradient_evals += cost
        self.round_log.body_forwards += cost
        return State(reply.params, kept)

    def _pooled(self, told: Mapping[int, Samples]) -> Data:
        fields = zip(*[(d.x, d.y, d.mask) for d in told.values()], strict=True)
        return (Exact if self.model.network.tracked else Data)(*map(torch.cat, fields))

    def evaluation_message(self, s: State, k: int) -> Weights:
        """The model."""
        return Weights(s.params)

    def models(self, s: State) -> dict[str, Params]:
        """The model."""
        return {"global": s.params}
