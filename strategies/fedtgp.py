"""FedTGP: FedProto whose server trains the prototypes apart, where FedProto's takes their mean.

Zhang, Liu, Hua, Cao, "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024,
https://arxiv.org/abs/2401.03230.

    z = f(x), the features; D_ic: client i's samples of class c; P_c = A ReLU(B e_c + b) + a: global
    prototype of class c, of a trained vector e_c and two trained layers

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send all P_c (at first: none)         ---->   [C1] R = 1/|B| Σ_B ‖z - P_y‖² / M
                                                       [C2] w_i = local SGD on ℓ + λ R from its w_i
                                                       [C3] C_ic = mean of z over D_ic
    [S3] Q_c = plain mean of the C_ic,         <----   [C4] send C_ic, |D_ic|; keep w_i
         δ = min(τ, max_c min_c' ‖Q_c - Q_c'‖)
    [S4] S passes of SGD at rate η_S, in e, A, a, B, b, over all C_ic, on
         - log softmax_c(- ‖C_ic - P_c'‖ - δ [c' = c])

Client i predicts with its own w_i.

Deviations from the paper: its text was not at hand beyond the abstract; this follows the authors' library.
Clients predict with their own head (there: by the nearest prototype). δ is 0 where one class alone was sent.
Of |D_ic| the server asks no more than whether it is 0.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.clients.fedtgp import FedTGPConfig
from fedpers.families.prototypes import Prototypes
from fedpers.learning.classes import check_classes, distances
from fedpers.learning.layers import linear_start
from fedpers.method import Data, Params, PersonalizedStrategy, Roster, Round, grad, record

TINY = 1e-16                              # a square of a distance below which a gradient is 0


@record
class State:
    """What makes the prototypes, and whether it was trained yet: n is 0 until then."""

    maker: Params
    n: Tensor                             # [K] clients whose prototypes were seen so far


def made(w: Params) -> Tensor:
    """P [K, M]."""
    hidden = F.linear(w["vectors"], w["inner.weight"], w["inner.bias"]).relu()
    return F.linear(hidden, w["outer.weight"], w["outer.bias"])


def margin(C: Tensor, c: Tensor, tau: float) -> float:
    """δ of prototypes C [n, M] of the classes c [n]."""
    Q = torch.stack([C[c == label].mean(0) for label in c.unique()])
    if len(Q) == 1:
        return 0.0
    away = distances(Q, Q).fill_diagonal_(torch.inf)
    return min(tau, float(away.min(1).values.max()))                                     # [S3]


def apart(w: Params, batch: Data, delta: float) -> Tensor:
    """The loss of [S4]."""
    P = made(w)
    ways = (batch.x[:, None] - P).square().sum(2).clamp(min=TINY).sqrt()
    return F.cross_entropy(-ways - delta * F.one_hot(batch.y, len(P)).to(P), batch.y)


class FedTGP(PersonalizedStrategy):
    """Trains prototypes that lie apart; models stay where they are."""

    config: FedTGPConfig
    not_robust = "a class may be known to few clients, none of which could be outvoted"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """Vectors from a normal distribution, layers as torch's start.

        Raises:
            ConfigError: the data have no classes.
        """
        check_classes(self.model, "fedtgp shares a prototype of each class")
        K, M, like = max(self.model.num_outputs, 2), self.model.num_features, next(iter(params.values()))
        maker: Params = {"vectors": torch.from_numpy(rng.standard_normal((K, M)))}
        for name in ("inner.", "outer."):
            linear = linear_start(M, M, True, [int(rng.integers(2**31))])
            maker |= {name + part: value[0] for part, value in linear.items()}
        return State({k: v.to(like) for k, v in maker.items()}, like.new_zeros(K))

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round."""
        selected = self.sample(rng)                                                      # [S1]
        replies = yield dict.fromkeys(selected, self._sent(s))                           # [S2]
        has = torch.stack([r.n > 0 for r in replies.values()])
        C = torch.stack([r.C for r in replies.values()])[has]
        c = has.nonzero()[:, 1]
        w, h = s.maker, self.config
        delta = margin(C, c, h.tau)
        for _ in range(h.server_epochs):
            for rows in torch.from_numpy(rng.permutation(len(C))).to(C.device).split(h.server_batch):
                batch = Data(C[rows], c[rows], C.new_ones(len(rows)))
                g = grad(apart)(w, batch, delta)
                w = {k: v - h.server_lr * g[k] for k, v in w.items()}                    # [S4]
        self.note(margin=delta)
        return State(w, s.n + has.sum(0))

    def _sent(self, s: State) -> Prototypes:
        """All classes have a prototype once one was trained, seen or not."""
        return Prototypes(made(s.maker), torch.full_like(s.n, float(s.n.sum() > 0)))

    def evaluation_message(self, s: State, k: int) -> None:
        """Clients predict with their own models."""
        return

    def explain(self, s: State) -> dict[str, Any]:
        """The prototypes, and how many of clients' stand behind each."""
        return {"prototypes": made(s.maker).cpu().numpy(), "prototypes_seen": s.n.cpu().numpy()}
