"""FedeRiCo: find your friends, personalised federated learning with the right collaborators.

Sui, Wen, Lau, Ross, Cresswell, "Find Your Friends: Personalized Federated Learning with the Right
Collaborators", https://arxiv.org/abs/2210.06597, Algorithm 1.

    Server: a mailbox, it has no model of its own      Client i, the owner of φ_i
                                                       [C1] draw φ_i
    [S1] before all: ask everyone for φ_i      ---->   (goes on at [C9])
    [S2] send i the φ_b it wants, b in B_i     ---->   [C2] l_ib = loss of φ_b on D_i, b in A_i
         (at first any M others)                            A_i = {i} ∪ B_i; other l_ij stay
                                                       [C3] L̂_ij = (1-β) L̂_ij + β l_ij for all j
                                                       [C4] w_i = softmax_j(-L̂_ij)
                                                       [C5] g_ib = w_ib ∇_φb l_ib, b in A_i
                                                       [C6] B_i: any M others with probability ε,
                                                            else the M of largest w_ij
    [S3] G_b = Σ_{i: b in A_i} g_ib            <----   [C7] send g_ib for b in A_i, and B_i
    [S4] send G_i to its owner                 ---->   [C8] φ_i = φ_i - η G_i, or Adam on G_i
    [S5] keep φ_i for those who want it        <----   [C9] send φ_i

Client i predicts Σ_j w_ij h_φj(x). `mode: em` is the exact algorithm: B_i is everybody else and
L̂_ij = Σ_t l_ij, the posterior if Π^(t) = w^(t). `update: steps` (default) trains φ_b locally to
φ'_b instead: g_ib = w_ib φ'_b is sent, and φ_b becomes φ_b + Σ_i w_ib (φ'_b - φ_b).

Readings and deviations: docs/methods/federico.md. Reductions: M = 0 is local training; M = K-1 from
equal models is FedAvg with equal weights (steps) or FedSGD (grad, rate ηK).
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpers.clients.federico import FedeRiCoConfig
from fedpers.core.errors import ConfigError
from fedpers.core.serialization import num_bytes
from fedpers.families.peers.messages import Forward, Join, Newcomer, Published, Step, Support, sum_by_owner
from fedpers.method import Orders, Params, PersonalizedStrategy, Replies, Roster, Round, record


@record
class State:
    """The mailbox. Peers are numbered by their place in the roster."""

    mailbox: dict[int, Params]           # φ_j as last published by its owner
    wanted: Tensor                       # [K, M] B_i
    w: Tensor                            # [K, K] w_ij as last heard
    start: Params                        # where all models start with start=common


class FedeRiCo(PersonalizedStrategy):
    """Forwards models that are asked for and sums gradients per owner; averages nothing."""

    config: FedeRiCoConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """An empty mailbox, uniform weights and any neighbours."""
        K = len(roster.ids)
        M = K - 1 if self.config.mode == "em" else self.config.num_neighbours
        if K < 1 or M >= K:
            raise ConfigError(f"method.num_neighbours={M}: must be below the {K} training clients")
        others = (np.delete(np.arange(K), i) for i in range(K))
        wanted = np.array([rng.permutation(o)[:M] for o in others]).reshape(K, M)
        w = torch.full((K, K), 1 / K, dtype=torch.float64, device=self.plan.device)
        return State({}, torch.from_numpy(wanted), w, params)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        ids, M, mailbox = self.roster.ids, s.wanted.shape[1], dict(s.mailbox)
        if M and not mailbox:
            joined = yield dict.fromkeys(ids, Join(s.start))                             # [S1]
            mailbox = {self.row[k]: reply.phi for k, reply in joined.items()}
        orders: Orders = {k: self._order(s, mailbox, self.row[k]) for k in self.sample(rng)}
        replies = yield orders                                                           # [S2]
        for k in [k for k, r in replies.items() if isinstance(r, Published)]:
            mailbox[self.row[k]] = replies.pop(k).phi
        s = self._heard(replace(s, mailbox=mailbox), replies)
        if M and replies:
            sums = sum_by_owner((orders[k].ids, r.g, r.w) for k, r in replies.items())   # [S3]
            well = [b for b in sums if ids[b] in replies or ids[b] not in orders]
            published = yield {ids[b]: Step(*sums[b]) for b in well}                     # [S4]
            new = {self.row[k]: r.phi for k, r in published.items()}
            s = replace(s, mailbox=mailbox | new)                                        # [S5]
        return s

    def _order(self, s: State, mailbox: dict[int, Params], i: int) -> Forward | Join:
        if s.wanted.shape[1] and i not in mailbox:     # it was not there when all were asked
            return Join(s.start)
        there = [b for b in s.wanted[i].tolist() if b in mailbox]
        ids = torch.tensor([i, *there], device=self.plan.device)
        return Forward(ids, tuple(mailbox[b] for b in there), s.w[i])

    def _heard(self, s: State, replies: Replies) -> State:
        """The weights and wishes of those that replied; columns for metrics.csv."""
        w, wanted = s.w.clone(), s.wanted.clone()
        for i, reply in ((self.row[k], reply) for k, reply in replies.items()):
            w[i], wanted[i] = reply.w, reply.wanted
        peers = (-torch.special.xlogy(w, w).sum(1)).exp()
        self.note(
            own_weight=float(w.diagonal().mean()), effective_peers=float(peers.mean()),
            models_ignored=sum(int(r.ignored) for r in replies.values()),
            all_to_all_bytes=len(w) * (2 * len(w) + 1) * num_bytes(s.start),
        )
        return replace(s, w=w, wanted=wanted)

    def evaluation_message(self, s: State, k: int) -> Support | Newcomer:
        """The models that client k gives weight to; all of them, if it never trains."""
        there = sorted(s.mailbox)
        if k in self.unseen:
            return Newcomer(tuple(s.mailbox[j] for j in there), s.w.new_ones(len(there)))
        i = self.row[k]
        heavy = s.w[i] >= s.w[i].max().clamp(max=self.config.w_min)
        others = [j for j in there if j != i and heavy[j]]
        ids = torch.tensor([i, *others], device=self.plan.device)
        return Support(ids, tuple(s.mailbox[j] for j in others))

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """W: row i holds the weights of client i."""
        return {"collaboration": s.w.cpu().numpy()}
