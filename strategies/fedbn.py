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

import numpy as np

from fedpers.clients.fedbn import FedBNConfig
from fedpers.core.errors import ConfigError
from fedpers.families.split_models.client import SharedPart, cut
from fedpers.families.split_models.strategy import SplitStrategy
from fedpers.method import Params, Roster


class FedBN(SplitStrategy):
    """Averages what does not normalise."""

    config: FedBNConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> SharedPart:
        """The shared layers of the initial model.

        Raises:
            ConfigError: no parameter of the model is private.
        """
        shared, own = cut(self.model, params, self.config.private)
        if not own:
            raise ConfigError(
                f"method.private={self.config.private}: model '{self.model.name}' has no such parameter, and "
                f"FedBN would be FedAvg; take a model that normalises (model=resnet18_gn), or name "
                f"what is to stay private: {', '.join(params)}"
            )
        return SharedPart(shared)

    def weight(self, k: int) -> float:
        """All alike: the mean is plain."""
        return 1.0
