"""FedPAC: a shared body whose features are aligned, and heads combined by how alike clients' features are.

Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
ICLR 2023, https://arxiv.org/abs/2306.11867.

    body f, head g_i, z = f(x); M features; C_c: global prototype of class c; n_ic: client i's samples
    of class c, p_c = n_ic / n_i

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send f, g_i, all C_c                  ---->   [C1] H_i = [p_c mean of z over class c]_c,
                                                            V_i = (mean of ‖z‖² - ‖H_i‖²) / n_i
                                                       [C2] g_i = local SGD on ℓ in the head alone
                                                       [C3] f_i = local SGD on ℓ + λ R in the body alone,
                                                            R = 1/|B| Σ_B ‖z - C_y‖² / M
                                                       [C4] C_ic = mean of z over class c
    [S3] f = Σ_i n_i f_i / Σ_i n_i             <----   [C5] send f_i, g_i, C_ic, n_ic, H_i, V_i
    [S4] C_c = Σ_i n_ic C_ic / Σ_i n_ic
    [S5] α_i = argmin Σ_j α_j² V_j + ‖H_i - Σ_j α_j H_j‖² over the simplex, j among those of the round
    [S6] g_i = Σ_j α_ij g_j

Client i predicts with f and its g_i.

Deviations from the paper: its text was not at hand beyond the abstract; this follows the authors' code, but
that [S5] is solved exactly (there: by a general solver, weights below 0.001 cut off), and that a class
without a global prototype is left out of R (there: the client's own one of before stands in for it).
Reductions: with λ = 0 and one client a round it is FedRep.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from fedpers.clients.fedpac import BodyAndHead, FedPACConfig, Train
from fedpers.families.prototypes import Prototypes
from fedpers.learning.classes import check_classes
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record, split, weighted_sum


@record
class State:
    """The shared body, the prototypes, and the head of each client that has one, by its place."""

    part: Params
    prototypes: Prototypes
    start: Params                         # the head of whoever was never drawn
    heads: dict[int, Params]


def combination(i: int, H: np.ndarray, V: np.ndarray) -> np.ndarray:
    """α_i [r], exactly: over the simplex α'Pα is least where u / Σu is, for the u ≥ 0 that is nearest to
    0 = Bu, 1 = Σu, with B'B = P (Lawson and Hanson, 1974, Chapter 23).

    Args:
        i: whose weights.
        H: [r, K M] of the clients of a round.
        V: [r]
    """
    away = H - H[i]
    P = np.diag(V) + away @ away.T
    if not (size := np.trace(P)):
        return np.eye(len(V))[i]
    value, vector = np.linalg.eigh(P / size)
    B = np.sqrt(value.clip(min=0))[:, None] * vector.T
    u = nnls(np.vstack([B, np.ones(len(V))]), np.append(np.zeros(len(V)), 1.0))[0]
    return np.asarray(u / u.sum())


class FedPAC(PersonalizedStrategy):
    """Averages bodies and prototypes, and combines a head for each client of the round."""

    config: FedPACConfig
    not_robust = "its server combines a head for each client by distances, and prototypes by class"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The model's initial parameters, and no prototype.

        Raises:
            ConfigError: the data have no classes.
        """
        check_classes(self.model, "fedpac shares a prototype of each class")
        head, body = split(params, self.model.is_head)
        return State(body, Prototypes.none(self.model, next(iter(params.values()))), head, {})

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round."""
        selected = self.sample(rng)                                                      # [S1]
        told = yield {k: Train(s.part, self._head(s, k), s.prototypes) for k in selected}  # [S2]
        replies, n = list(told.values()), [self.num_examples(k) for k in told]
        part = self.average([r.part for r in replies], n, s.part)                        # [S3]
        prototypes = s.prototypes.renewed([r.prototypes for r in replies])               # [S4]
        H = np.stack([r.H.double().cpu().numpy().ravel() for r in replies])
        V = np.array([float(r.V) for r in replies])
        alpha = [combination(i, H, V) for i in range(len(replies))]                      # [S5]
        heads = [weighted_sum([r.head for r in replies], a.tolist()) for a in alpha]     # [S6]
        self.round_log.pairs = len(replies) ** 2
        self.note(own_weight=float(np.mean([a[i] for i, a in enumerate(alpha)])))
        new = dict(zip([self.row[k] for k in told], heads, strict=True))
        return replace(s, part=part, prototypes=prototypes, heads=s.heads | new)

    def _head(self, s: State, k: int) -> Params:
        return s.heads.get(self.row[k], s.start) if k in self.row else s.start

    def evaluation_message(self, s: State, k: int) -> BodyAndHead:
        """The body, and the client's head; one that was never drawn has the initial one."""
        return BodyAndHead(s.part, self._head(s, k))

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """The prototypes, and how many samples each stands for."""
        p = s.prototypes
        return {"prototypes": p.C.cpu().numpy(), "prototype_samples": p.n.cpu().numpy()}
