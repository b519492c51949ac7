"""The mean features of a model on clients' samples, and the question for them."""

from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import record


@record("global_model.MeanWanted")
class MeanWanted:
    """Order: train this model on your samples, and tell the mean of its features; keep nothing."""

    params: Params
    M: int  # features

    @property
    def expects(self) -> dict[str, tuple[int, ...]]:
        """The shape of the answer."""
        return {"z": (self.M,)}


@record("global_model.FeatureMean")
class FeatureMean:
    """Reply: the mean feature vector."""

    z: Tensor  # [M]


def mean_of(z: Tensor, data: Data) -> Tensor:
    """[M] the mean of features z [n, M] over the samples that are no padding."""
    return (z * data.mask[:, None]).sum(0) / data.num
