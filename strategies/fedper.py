"""FedPer: shared base layers, private head.

Arivazhagan, Aggarwal, Singh, Choudhary, 2019, https://arxiv.org/abs/1912.00818, Algorithms 1 and 2.

    Server                                             Client k
    [S1] draw a set of r clients
    [S2] send the base layers θ                ---->   [C1] (θ_k, W_k) = local SGD on f_k from (θ, W_k)
                                                       [C2] keep the head W_k
    [S3] θ = Σ_k n_k θ_k / Σ_k n_k             <----   [C3] send θ_k

Deviations from the paper: clients are sampled; the personal part is the last layer,
or what `personal` names.
Reductions: without a personal part it is FedAvg.
"""

from fedpers.clients.fedper import FedPerConfig
from fedpers.families.split_models.strategy import SplitStrategy


class FedPer(SplitStrategy):
    """Averages bodies, weighted by numbers of samples; heads stay where they are."""

    config: FedPerConfig
