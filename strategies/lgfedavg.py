"""LG-FedAvg: private representation layers, shared head (FedLG in some papers' tables).

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act Globally:
Federated Learning with Local and Global Representations", 2020, https://arxiv.org/abs/2001.01523,
Algorithm 1.

    Server                                             Client m
    [S1] draw a set of r clients
    [S2] send the global part g                ---->   [C1] (l_m, g_m) = SGD on f_m from (l_m, g)
                                                       [C2] keep the representation l_m
    [S3] g = Σ_m n_m g_m / Σ_m n_m             <----   [C3] send g_m

Deviations from the paper: the local part is everything but the last layer; local losses on the
representation (self-supervised, adversarial) and the ensemble for new clients are left out; nothing
is pre-trained, while the paper's experiments start from rounds of FedAvg.
Reductions: without a body (logistic regression) it is FedAvg.
"""

from fedpers.clients.lgfedavg import LGFedAvgConfig
from fedpers.families.split_models.strategy import SplitStrategy


class LGFedAvg(SplitStrategy):
    """Averages heads, weighted by numbers of samples; bodies stay where they are."""

    config: LGFedAvgConfig
