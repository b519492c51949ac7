"""FedCP: a policy tells, for each sample, which of its features a personal head sees and which a shared one.

Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedCP: Separating Feature Information for Personalized Federated
Learning via Conditional Policy", KDD 2023, https://arxiv.org/abs/2307.01217.

    body f, z = f(x) [M]; shared head h; personal head h_i, of weights W_i [K, M]; policy Θ (CPN), 2 M outputs
    Θ(c) = ReLU(LayerNorm(linear(c))); f° : the body as received

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send f, h, Θ                          ---->   [C1] v = Σ_k (W_i)_k, c = z ⊙ v / ‖v‖
                                                       [C2] (a, b) = Θ(c), s = e^(a+g) / (e^(a+g) + e^(b+g')),
                                                            r = 1 - s; g, g' from Gumbel's distribution
                                                       [C3] F = ℓ(h_i(s ⊙ z) + h(r ⊙ z), y)
                                                       [C4]     + λ MMD²(f(x), f°(x)), kernel
                                                            Σ_σ e^(-‖z - z'‖² / 2σ), of a minibatch
                                                       [C5] local SGD on F in f, Θ and h_i; h, v and f° stay
    [S3] mean of f_i, Θ_i, h'_i by n_i         <----   [C6] send f_i, Θ_i, h'_i = (h + h_i) / 2; keep h_i

Client i predicts with h_i(s ⊙ z) + h(r ⊙ z), g = g' = 0.

Deviations from the paper: its text was not at hand beyond the abstract, the figures and the authors' talk;
this is the method as the authors' code has it, but that predictions have no noise (there: as in training),
that v is of the personal head from the first round on (there: random numbers in a client's first round), and
that all clients predict with the last h and Θ (there: those of the last round that they took part in).
Reductions: λ = 0 and h_i = h: before the first training the policy changes nothing.
"""

import numpy as np
import torch

from fedpers.clients.fedcp import FedCPConfig, SharedPart
from fedpers.families.split_models.policy import POLICY
from fedpers.families.split_models.strategy import SplitStrategy
from fedpers.learning.classes import check_features
from fedpers.learning.layers import linear_start
from fedpers.method import Params, Roster


class FedCP(SplitStrategy):
    """Averages bodies, policies and means of heads, weighted by numbers of samples."""

    config: FedCPConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> SharedPart:
        """The whole initial model, and a policy as torch's layers start.

        Raises:
            ConfigError: the model has features of each token.
        """
        check_features(self.model, "fedcp compares and separates features of samples")
        M, like = self.model.num_features, next(iter(params.values()))
        linear = linear_start(M, 2 * M, True, [int(rng.integers(2**31))])
        policy = {POLICY + name: value[0] for name, value in linear.items()}
        policy |= {POLICY + "scale": torch.ones(2 * M), POLICY + "shift": torch.zeros(2 * M)}
        return SharedPart(params | {k: v.to(like) for k, v in policy.items()})
