"""FedBN: federated averaging of all layers but those that normalise.

Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, https://arxiv.org/abs/2102.07623, Algorithm 1.

    Server                                             Client k
    [S1] draw a set of r clients
    [S2] send the layers that do not normalise ---->   [C1] w_k = local SGD on f_k, from these and
                                                            its own normalisation
                                                       [C2] keep the normalisation of w_k
    [S3] their mean, 1/r Σ_k                   <----   [C3] send the other layers

Deviations from the paper: clients are sampled, where all take part in the paper.
Reductions: where nothing is private it is FedAvg for clients of equal size; with the head private,
FedPer for such clients.
"""

from fedpers.clients.fedbn import FedBNConfig
from fedpers.families.split_models.strategy import SplitStrategy


class FedBN(SplitStrategy):
    """Averages all parameters except those of normalisation layers."""

    config: FedBNConfig
    part_key = "private"

    def weight(self, k: int) -> float:
        """The same for every client: the mean is unweighted."""
        return 1.0
