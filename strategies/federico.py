"""FedeRiCo: find your friends, personalised federated learning with the right collaborators.

Sui, Wen, Lau, Ross, Cresswell, "Find Your Friends: Personalized Federated Learning with the Right
Collaborators", https://arxiv.org/abs/2210.06597, Algorithm 1.

    Server: a mailbox, it has no model of its own      Client i, the owner of φ_i
                                                       [C1] draw φ_i
    [S1] with warmup=0: ask everyone for φ_i   ---->   (goes on at [C10])
    [S2] its first `warmup` rounds: nothing    ---->   [C2] φ_i = local training of φ_i; then [C10]
         then send i the φ_b, b in B_i, that   ---->   [C3] l_ib = loss of φ_b on D_i, b in A_i
         it wants (at first any M others)                   A_i = {i} ∪ B_i; other l_ij stay
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
φ_b + Σ_i w_ib (φ'_b - φ_b) / W_b (without the division: normalise=false); with W_b = 0 it stays, unasked.

Readings and deviations: docs/methods/federico.md. Reductions: M = 0 is local training; M = K-1 from
equal models is FedAvg with equal weights (steps) or FedSGD (grad, rate ηK).
"""

import numpy as np
import torch

from fedpers.clients.federico import FedeRiCoConfig
from fedpers.core.errors import ConfigError
from fedpers.core.serialization import num_bytes
from fedpers.families.peers.mailbox import PeerDirectory, collaborators
from fedpers.families.peers.messages import Join, Newcomer, Step, Support, sum_by_owner
from fedpers.families.peers.weights import above_threshold
from fedpers.method import Orders, Params, PersonalizedStrategy, Replies, Roster, Round


class FedeRiCo(PersonalizedStrategy):
    """Forwards models that are asked for and sums gradients per owner; averages nothing."""

    config: FedeRiCoConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> PeerDirectory:
        """An empty mailbox, uniform weights and any neighbours."""
        K = len(roster.ids)
        M = self.config.neighbours(K)
        if K < 1 or M >= K:
            raise ConfigError(f"method.num_neighbours={M}: must be below the {K} training clients")
        others = (np.delete(np.arange(K), i) for i in range(K))
        wanted = np.array([rng.permutation(o)[:M] for o in others]).reshape(K, M)
        w = torch.full((K, K), 1 / K, dtype=torch.float64, device=self.plan.device)
        return PeerDirectory({}, torch.from_numpy(wanted), w, params, torch.zeros(K, dtype=torch.int64))

    def round(self, s: PeerDirectory, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1; with M = 0 nothing is exchanged."""
        ids, M = self.roster.ids, s.wanted.shape[1]
        if M and not s.models and not self.config.warmup:
            s = s.published(self._rows((yield dict.fromkeys(ids, Join(s.start)))))       # [S1]
        sampled = self.sample(rng)
        told = s.orders([self.row[k] for k in sampled], self.config.warmup)
        orders: Orders = dict(zip(sampled, told, strict=True))
        came = yield orders                                                              # [S2]
        s, replies = self._heard(s, orders, came), collaborators(came)
        if M and replies:
            w = above_threshold(torch.stack([r.w for r in replies.values()]), self.config.w_min).tolist()
            sent = [(orders[k].ids, r.g, row) for (k, r), row in zip(replies.items(), w, strict=True)]
            sums = sum_by_owner(sent)                                                    # [S3]
            mass = [W for _, W in sums.values()]
            weights = dict(zip(sums, s.w.new_tensor(mass), strict=True))
            lost, always = orders.keys() - came.keys(), self.config.update == "grad"
            steps = {ids[b]: Step(G, weights[b]) for b, (G, W) in sums.items()
                     if ids[b] not in lost and (always or W)}
            s = s.published(self._rows((yield steps)))                                   # [S4] [S5]
            self.note(mass_min=min(mass) if len(mass) == len(ids) else 0.0, mass_max=max(mass))
        return s

    def _rows(self, replies: Replies) -> Replies:
        """The replies by places in the roster."""
        return {self.row[k]: r for k, r in replies.items()}

    def _heard(self, s: PeerDirectory, orders: Orders, came: Replies) -> PeerDirectory:
        """The weights and wishes of those that replied; columns for metrics.csv."""
        s, replies = s.came(self._rows(orders), self._rows(came)), collaborators(came)
        peers = (-torch.special.xlogy(s.w, s.w).sum(1)).exp()
        self.note(
            own_weight=float(s.w.diagonal().mean()), effective_peers=float(peers.mean()),
            models_ignored=sum(int(r.ignored) for r in replies.values()),
            all_to_all_bytes=len(s.w) * (2 * len(s.w) + 1) * num_bytes(s.start),
        )
        return s

    def evaluation_message(self, s: PeerDirectory, k: int) -> Support | Newcomer:
        """The models that client k gives weight to; all of them, if it never trains."""
        if k in self.unseen:
            return Newcomer(tuple(phi for _, phi in sorted(s.models.items())), s.w.new_ones(len(s.models)))
        return s.support(self.row[k], self.config.w_min)

    def explain(self, s: PeerDirectory) -> dict[str, np.ndarray]:
        """W: row i holds the weights of client i."""
        return {"collaboration": s.w.cpu().numpy()}

    def models(self, s: PeerDirectory) -> dict[str, Params]:
        """The models by their owners, as last published."""
        return {f"owner_{self.roster.ids[i]}": phi for i, phi in sorted(s.models.items())}
