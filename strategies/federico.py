"""FedeRiCo: find your friends, personalised federated learning with the right collaborators.

Sui, Wen, Lau, Ross, Cresswell, "Find Your Friends: Personalized Federated Learning with the Right
Collaborators", https://arxiv.org/abs/2210.06597, Algorithm 1.

    Server: a mailbox, it has no model of its own      Client i, the owner of φ_i
                                                       [C1] draw φ_i
    [S1] with warmup=0: ask everyone for φ_i   ---->   (goes on at [C10])
         with warmup: its first rounds alone   ---->   [C2] φ_i = local training of φ_i ([C10])
    [S2] send i the φ_b it wants, b in B_i     ---->   [C3] l_ib = loss of φ_b on D_i, b in A_i
         (at first any M others)                            A_i = {i} ∪ B_i; other l_ij stay
                                                       [C4] L̂_ij = (1-β) L̂_ij + β l_ij for all j
                                                       [C5] w_i = softmax_j(-L̂_ij)
                                                       [C6] g_ib = w_ib ∇_φb l_ib, b in A_i
                                                       [C7] B_i: any M others with probability ε,
                                                            else the M of largest w_ij
    [S3] G_b = Σ_{i: b in A_i} g_ib            <----   [C8] send g_ib for b in A_i, and B_i
    [S4] send G_i to its owner                 ---->   [C9] φ_i = φ_i - η G_i, or Adam on G_i
    [S5] keep φ_i for those who want it        <----   [C10] send φ_i

Client i predicts Σ_j w_ij h_φj(x). The exact algorithm is `num_neighbours=all memory=sum`: B_i is
everybody else and L̂_ij = Σ_t l_ij, the posterior if Π^(t) = w^(t). `update: steps` (default) trains φ_b
locally to φ'_b instead: g_ib = w_ib φ'_b is sent, and with W_b = Σ_i w_ib the model φ_b becomes
φ_b + Σ_i w_ib (φ'_b - φ_b) / W_b (without the division: normalise=false).

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
from fedpers.families.peers.messages import (
    Alone,
    Forward,
    Join,
    Newcomer,
    Published,
    Step,
    Support,
    WeightedGradients,
    sum_by_owner,
)
from fedpers.families.peers.weights import heavy
from fedpers.method import Orders, Params, PersonalizedStrategy, Replies, Roster, Round, record


@record
class State:
    """The mailbox. Peers are numbered by their place in the roster."""

    mailbox: dict[int, Params]           # φ_j as last published by its owner
    wanted: Tensor                       # [K, M] B_i
    w: Tensor                            # [K, K] w_ij as last heard
    start: Params                        # where all models start with start=common
    alone: Tensor                        # [K] rounds in which each has trained alone


class FedeRiCo(PersonalizedStrategy):
    """Forwards models that are asked for and sums gradients per owner; averages nothing."""

    config: FedeRiCoConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """An empty mailbox, uniform weights and any neighbours."""
        K = len(roster.ids)
        M = self.config.neighbours(K)
        if K < 1 or M >= K:
            raise ConfigError(f"method.num_neighbours={M}: must be below the {K} training clients")
        others = (np.delete(np.arange(K), i) for i in range(K))
        wanted = np.array([rng.permutation(o)[:M] for o in others]).reshape(K, M)
        w = torch.full((K, K), 1 / K, dtype=torch.float64, device=self.plan.device)
        return State({}, torch.from_numpy(wanted), w, params, torch.zeros(K, dtype=torch.int64))

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1; with M = 0 nothing is exchanged."""
        ids, M = self.roster.ids, s.wanted.shape[1]
        if M and not s.mailbox and not self.config.warmup:
            s = self._published(s, (yield dict.fromkeys(ids, Join(s.start))))            # [S1]
        orders: Orders = {k: self._order(s, self.row[k]) for k in self.sample(rng)}
        came = yield orders                                                              # [S1] [S2]
        s, replies, lost = self._sorted(s, orders, came)
        s = self._heard(s, replies)
        if M and replies:
            sums = sum_by_owner((orders[k].ids, r.g, heavy(r.w, self.config.w_min))
                                for k, r in replies.items())                             # [S3]
            steps = {ids[b]: Step(*sums[b]) for b in sums if ids[b] not in lost}
            s = self._published(s, (yield steps))                                        # [S4] [S5]
            self._note_mass(sums)
        return s

    def _order(self, s: State, i: int) -> Forward | Alone | Join:
        """What client i is to do: models it asked for, or what brings it into the mailbox."""
        new, exchanges = i not in s.mailbox, s.wanted.shape[1] > 0
        if exchanges and s.alone[i] < self.config.warmup:
            return Alone(s.mailbox.get(i, s.start))
        if exchanges and new:                          # it was not there when all were asked
            return Join(s.start)
        there = [b for b in s.wanted[i].tolist()
                 if b in s.mailbox and s.alone[b] >= self.config.warmup]
        ids = torch.tensor([i, *there], device=self.plan.device)
        return Forward(ids, tuple(s.mailbox[b] for b in there), s.w[i])

    def _published(self, s: State, replies: Replies) -> State:
        return replace(s, mailbox=s.mailbox | {self.row[k]: r.phi for k, r in replies.items()})

    def _sorted(
        self, s: State, orders: Orders, came: Replies
    ) -> tuple[State, dict[int, WeightedGradients], set[int]]:
        """(state, replies of those that collaborated, clients that did not answer).

        Whoever trained alone or came late is in the mailbox from now on.
        """
        own = {k: r for k, r in came.items() if isinstance(r, Published)}
        s, alone, w = self._published(s, own), s.alone.clone(), s.w.clone()
        for i in (self.row[k] for k in own if isinstance(orders[k], Alone)):
            alone[i] += 1
            w[i] = torch.nn.functional.one_hot(torch.tensor(i), len(w))
        replies = {k: r for k, r in came.items() if k not in own}
        return replace(s, alone=alone, w=w), replies, orders.keys() - came.keys()

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

    def _note_mass(self, sums: dict[int, tuple[Params, Tensor]]) -> None:
        """Columns: W_j, the weight that a model's training of this round has in all, least and most."""
        mass = [float(sums[b][1]) if b in sums else 0.0 for b in range(len(self.roster.ids))]
        self.note(mass_min=min(mass), mass_max=max(mass))

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

    def models(self, s: State) -> dict[str, Params]:
        """The models by their owners, as last published."""
        return {f"owner_{self.roster.ids[i]}": phi for i, phi in sorted(s.mailbox.items())}
