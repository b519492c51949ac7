"""FedProto: clients share the mean features of their classes, and no model.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across Heterogeneous
Clients", AAAI 2022, https://arxiv.org/abs/2105.00243, Algorithm 1.

    C_j: global prototype of class j; z = f(x), the features; D_ij: client i's samples of class j

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send all C_j                          ---->   [C1] R = 1/|B| Σ_B ‖z - C_y‖² / M, over samples
                                                            whose class has a prototype
                                                       [C2] w_i = local SGD on ℓ + λ R from its w_i
                                                       [C3] C_ij = mean of z over D_ij
    [S3] C_j = Σ_i |D_ij| C_ij / Σ_i |D_ij|    <----   [C4] send C_ij and |D_ij|; keep w_i
         over those who have class j

Deviations from the paper: Eq. 6 prints one more factor, 1 over the number of clients with class j,
which would shrink prototypes towards 0; it is left out. R is taken sample by sample, as in the authors'
code, where Eq. 7 prints the distance of the means. Clients predict with their own head; the paper
also predicts by the nearest prototype. A class that nobody drawn has keeps its last prototype.
Reductions: λ = 0 is local training bit for bit.
"""

from typing import Any

import numpy as np

from fedpers.clients.fedproto import FedProtoConfig
from fedpers.families.prototypes import Prototypes
from fedpers.learning.classes import check_classes
from fedpers.method import Params, PersonalizedStrategy, Roster, Round


class FedProto(PersonalizedStrategy):
    """Averages prototypes; models stay where they are."""

    config: FedProtoConfig
    not_robust = "a class may be known to few clients, none of which could be outvoted"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> Prototypes:
        """No class has a prototype yet.

        Raises:
            ConfigError: the data have no classes.
        """
        check_classes(self.model, "fedproto shares a prototype of each class")
        return Prototypes.none(self.model, next(iter(params.values())))

    def round(self, s: Prototypes, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        replies = yield dict.fromkeys(selected, s)                                       # [S2]
        return s.renewed(list(replies.values()))                                         # [S3]

    def evaluation_message(self, s: Prototypes, k: int) -> None:
        """Clients predict with their own models."""
        return

    def explain(self, s: Prototypes) -> dict[str, Any]:
        """The prototypes and how many samples each stands for."""
        return {"prototypes": s.C.cpu().numpy(), "prototype_samples": s.n.cpu().numpy()}
