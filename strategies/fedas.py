"""FedAS: the received body is first moved to the features that a client's head knows; Fisher weights.

Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024, pages
11986 to 11995.

    body f, z = f(x); M features; head h_i; f°_i, h_i: client i's model of its last visit; c: a class;
    ∇ℓ(B): gradient in f and h_i of the mean loss of batch B

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send f                                ---->   [C1] C_ic = mean of f°_i(x) over its class c
                                                       [C2] f = local SGD, in f alone, on Σ_c mean over
                                                            the batch's class c of ‖z - C_ic‖² / M
                                                       [C3] (f_i, h_i) = local SGD on ℓ from (f, h_i)
                                                       [C4] F_i = Σ_B ‖∇ℓ(B)‖², batches of b samples
    [S3] f = Σ_i F_i f_i / Σ_i F_i             <----   [C5] send f_i, F_i
                                                       [C6] keep f_i, h_i

Client i predicts with its f_i and h_i; one that was never drawn, with f under the initial head.

Deviations from the paper: its text was not at hand beyond the abstract; this follows the authors' code, but
that a last batch of fewer than b samples counts, and for what a client predicts with that was never drawn
(there: with the initial body).
Reductions: without [C2], and with clients of equal F_i, its body is FedPer's.
"""

from typing import Any

import numpy as np

from fedpers.clients.fedas import FedASConfig, SharedPart
from fedpers.learning.classes import check_classes
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, split


class FedAS(PersonalizedStrategy):
    """Averages bodies, weighted by the Fisher information that clients tell."""

    config: FedASConfig
    not_robust = "its server weighs clients by numbers that they tell of themselves"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> SharedPart:
        """The body of the initial model.

        Raises:
            ConfigError: the data have no classes.
        """
        check_classes(self.model, "fedas aligns the features of each class")
        return SharedPart(split(params, self.model.is_head)[1])

    def round(self, s: SharedPart, t: int, rng: np.random.Generator) -> Round:
        """One round."""
        selected = self.sample(rng)                                                      # [S1]
        told = yield dict.fromkeys(selected, s)                                          # [S2]
        F = np.array([float(r.fisher) for r in told.values()])
        if not F.any():                                # no gradient is left: none is better than another
            F = np.ones_like(F)
        self.note(fisher_least=F.min() / F.sum(), fisher_most=F.max() / F.sum())
        return SharedPart(self.average([r.part for r in told.values()], F.tolist(), s.part))   # [S3]

    def evaluation_message(self, s: SharedPart, k: int) -> Any:
        """The shared body, for clients that were never drawn."""
        return s
