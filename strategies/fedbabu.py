"""FedBABU: federated averaging of the body under a head that is never trained.

Oh, Kim, Yun, "FedBABU: Towards Enhanced Representation for Federated Image Classification",
ICLR 2022, https://arxiv.org/abs/2106.06042, Algorithm 1.

    Server                                             Client k
    [S1] draw a head once; it is the same for all, for ever
    [S2] draw a set of r clients
    [S3] send the body θ and the head          ---->   [C1] θ_k = local SGD on f_k(., head) from θ
    [S4] θ = Σ_k n_k θ_k / Σ_k n_k             <----   [C2] send θ_k
                                                       to be evaluated:
                                                       [C3] fine-tune the whole model on own data

Deviations from the paper: none. `head_init: orthogonal` is what others use who compare with it.
Reductions: with clients of equal size it is FedRep without head steps.
"""

import numpy as np
import torch

from fedpers.clients.fedbabu import BodyAndHead, FedBABUConfig
from fedpers.families.split_models.parts import check_part, cut
from fedpers.method import Params, PersonalizedStrategy, Roster, Round


class FedBABU(PersonalizedStrategy):
    """Averages bodies, weighted by numbers of samples."""

    weighs_by_samples = True
    config: FedBABUConfig
    not_robust = ""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> BodyAndHead:
        """The model's initial body and head, or a head with orthogonal rows."""
        check_part(self.model, params, "method.personal", self.config.personal)
        theta, head = cut(self.model, params, self.config.personal)
        if self.config.head_init == "orthogonal":
            head = {k: _orthogonal(v, rng) if self.model.is_head(k) else v for k, v in head.items()}
        return BodyAndHead(theta, head)                                                  # [S1]

    def round(self, s: BodyAndHead, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S2]
        w = yield dict.fromkeys(selected, s)                                             # [S3]
        n = [self.num_examples(k) for k in w]
        return BodyAndHead(self.average([w[k].theta for k in w], n, s.theta), s.head)    # [S4]

    def evaluation_message(self, s: BodyAndHead, k: int) -> BodyAndHead:
        """The whole model."""
        return s

    def models(self, s: BodyAndHead) -> dict[str, Params]:
        """The model before fine-tuning."""
        return {"global": s.theta | s.head}


def _orthogonal(like: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Orthonormal rows (columns, if there are more rows); biases are 0."""
    if like.dim() < 2:
        return torch.zeros_like(like)
    normal = rng.standard_normal(tuple(like.shape))
    q, r = np.linalg.qr(normal.T if len(normal) < normal.shape[1] else normal)
    q = q * np.sign(np.diag(r))
    return torch.from_numpy(np.ascontiguousarray(q.T if q.shape != like.shape else q)).to(like)
