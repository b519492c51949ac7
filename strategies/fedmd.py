"""FedMD: clients with unlike models learn from the mean of all their scores on samples that all know.

Li, Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop,
https://arxiv.org/abs/1910.03581.

    D_0: public samples, with labels or without; f_k(x): outputs of client k's model, logits for classes

    Server                                             Client k
    [S1] draw a set of m clients
    [S2] draw a subset d of D_0
    [S3] send d; D_0 to who is new             ---->   if it is new: [C1] w_k = local SGD on ℓ over D_0
                                                                     [C2] then over D_k
    [S4] f(x) = 1/m Σ_k f_k(x) for x in d      <----   [C3] send f_k(x) for x in d
    [S5] send d and f(x)                       ---->   [C4] w_k = local SGD on |f_k(x) - f(x)| over d
                                                       [C5] w_k = local SGD on ℓ over D_k, from there

Client k predicts with its own w_k.

Deviations from the paper: its text was not at hand beyond the abstract; steps and the loss of [C4], a mean
absolute error of logits, are those of the authors' code; here differences below 0.001 count by their squares.
There all clients are in every round, a start has 20 and 25 epochs that may end early, by test samples, and
steps are Adam's.
Reductions: without start and digest it is local training; with one client alone [C4] changes nothing.
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.clients.fedmd import FedMDConfig
from fedpers.core.errors import ConfigError
from fedpers.families.distillation import Ask, Digest, Known
from fedpers.learning.constants import digest_of
from fedpers.method import Data, Params, PersonalizedStrategy, Roster, Round, record

TASKS = ("classification", "binary", "multilabel", "regression")


@record
class State:
    """Who has begun; which D_0 that was on; the last round's consensus, for who looks at it."""

    begun: Tensor                         # [N] 1 or 0, in the roster's order
    known: str                            # digest of D_0
    rows: Tensor                          # [S] places of the last d in D_0
    consensus: Tensor                     # [S, K]


class FedMD(PersonalizedStrategy):
    """Averages scores; models stay where they are."""

    config: FedMDConfig
    not_robust = ""

    @cached_property
    def pool(self) -> Data:
        """D_0, where the run computes.

        Raises:
            ConfigError: there are no public samples.
        """
        if self.public is None:
            raise ConfigError("method=fedmd needs samples that all know: set data.public or data.public_file")
        return Data(*(part.to(self.plan.device) for part in vars(self.public).values()))

    @cached_property
    def digest(self) -> str:
        """Of D_0."""
        return digest_of({"x": self.pool.x, "y": self.pool.y})

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """Nobody has begun.

        Raises:
            ConfigError: the task has other outputs than one row a sample.
        """
        if (task := self.model.kind.name) not in TASKS:
            text = f"method fedmd averages one row of scores a sample, and the task is {task}"
            raise ConfigError(f"{text}; take data for {', '.join(TASKS)}, or another method")
        like, P = next(iter(params.values())), len(self.pool)
        S = min(self.config.subset or P, P)
        begun, consensus = like.new_zeros(len(roster.ids)), like.new_zeros(S, self.model.num_outputs)
        return State(begun, self.digest, torch.zeros(S, dtype=torch.int64), consensus)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round.

        Raises:
            ConfigError: D_0 is not the one that the run began with.
        """
        if s.known != self.digest:
            raise ConfigError("data.public_file: holds other samples than those that the run began with")
        D = self.pool
        selected = self.sample(rng)                                                      # [S1]
        rows = torch.from_numpy(rng.choice(len(D), len(s.rows), replace=False))          # [S2]
        x, K = D.x[rows.to(D.x.device)], self.model.num_outputs
        first, again = Ask(x, K, Known(D.x, D.y if len(D.y) else None)), Ask(x, K, None)
        told = yield {k: again if s.begun[self.row[k]] else first for k in selected}     # [S3]
        scores = [r.scores for r in told.values()]
        consensus = self.average([{"f": f} for f in scores])["f"]                        # [S4]
        yield dict.fromkeys(told, Digest(x, consensus))                                  # [S5]
        begun = s.begun.clone()
        begun[[self.row[k] for k in told]] = 1
        self.note(disagreement=float(torch.stack(scores).sub(consensus).abs().mean()))
        return State(begun, s.known, rows, consensus)

    def evaluation_message(self, s: State, k: int) -> None:
        """Clients predict with their own models."""
        return

    def explain(self, s: State) -> dict[str, Any]:
        """The last round's public samples, and the consensus on them."""
        return {"public_rows": s.rows.cpu().numpy(), "consensus": s.consensus.cpu().numpy()}
