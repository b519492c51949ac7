"""FedFomo: personalised federated learning with first order model optimisation.

Zhang, Sapra, Fidler, Yeung, Alvarez, ICLR 2021, https://arxiv.org/abs/2012.08565.

    Server                                             Client i
    [S1] S_i: M others for each client; with
         probability ε any, else those of the
         largest affinity p_ij
    [S2] send i the models φ_j, j in S_i       ---->   on samples kept back from training:
                                                       [C1] w_j = max(0, (L_i(φ°_i) - L_i(φ_j))
                                                            / ‖φ_j - φ°_i‖), j in S_i ∪ {i}
                                                       [C2] w = w / Σ_j w_j
                                                       [C3] φ°_i = φ°_i + Σ_j w_j (φ_j - φ°_i)
                                                       [C4] φ_i = local training from φ°_i
    [S3] p_i = p_i + w_i, keep φ_i             <----   [C5] send φ_i, w_i

φ°_i is the client's model before its last local training.

Deviations: if no model does better than φ°_i, all weights being 0, the client goes on from its own
φ_i rather than from φ°_i.
Reductions: M = 0 is local training on the samples that are not kept back.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpers.clients.fedfomo import FedFomoConfig
from fedpers.families.peers.messages import Candidates
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """Models as they were last sent, by the place of their client in the roster."""

    mailbox: dict[int, Params]
    affinity: Tensor                     # [K, K] p_ij: weights summed over the rounds
    w: Tensor                            # [K, K] weights as last sent


class FedFomo(PersonalizedStrategy):
    """Sends each client the models that had the largest weights for it so far."""

    config: FedFomoConfig
    not_robust = "its server takes no mean; clients weigh the models of others themselves"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The state before any client has sent a model."""
        K = len(roster.ids)
        zeros = torch.zeros(K, K, dtype=torch.float64, device=self.plan.device)
        return State({}, zeros, zeros)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round."""
        chosen = self._choose(s, [self.row[k] for k in self.sample(rng)], rng)           # [S1]
        asked = {self.roster.ids[row[0]]: row for row in chosen}
        M = self.config.num_neighbours
        replies = yield {k: Candidates(tuple([s.mailbox[j] for j in others]), 1 + M)     # [S2]
                         for k, (_, *others) in asked.items()}
        sent = torch.tensor([self.row[k] for k in replies], device=self.plan.device)
        given = self._given([asked[k] for k in replies], [reply.w for reply in replies.values()])
        w, affinity = s.w.index_copy(0, sent, given), s.affinity.index_add(0, sent, given)  # [S3]
        mailbox = s.mailbox | {self.row[k]: reply.phi for k, reply in replies.items()}
        self.note(own_weight=float(w.trace()) / len(w))
        return replace(s, mailbox=mailbox, affinity=affinity, w=w)

    def _choose(self, s: State, rows: list[int], rng: np.random.Generator) -> list[list[int]]:
        """Each client, and M others that have sent a model; equal affinities in random order."""
        drawn = rng.random((len(rows), len(s.w) + 1))
        noise, explores = drawn[:, :-1], drawn[:, -1:] < self.config.epsilon
        rank = np.where(explores, 0.0, s.affinity.cpu().numpy()[rows])
        away = np.ones(len(s.w), dtype=bool)
        away[list(s.mailbox)] = False
        rank[:, away], rank[np.arange(len(rows)), rows] = -1, -1                         # behind all others
        orders, M = np.lexsort((noise, -rank)), self.config.num_neighbours
        return [[i, *order[:min(M, len(s.mailbox) - (i in s.mailbox))]]
                for i, order in zip(rows, orders[:, :M].tolist(), strict=True)]

    def _given(self, asked: list[list[int]], w: list[Tensor]) -> Tensor:
        """[R, K] the weights w [1+M] of R clients by whom they were given to; what is 0 fills up to M."""
        given = torch.stack(w)
        R, width = given.shape
        whose = torch.tensor([row + row[:1] * (width - len(row)) for row in asked], device=given.device)
        return given.new_zeros(R, len(self.roster.ids)).scatter_add(1, whose, given)

    def evaluation_message(self, s: State, k: int) -> None:
        """None: clients predict with their own models."""
        return

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """The last weights (row i: given by client i), and their sums over the rounds."""
        return {"collaboration": s.w.cpu().numpy(), "affinity": s.affinity.cpu().numpy()}
