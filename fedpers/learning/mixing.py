"""One prediction of several models under weights: a mixture of likelihoods, or of values."""

from torch import Tensor

from fedpers.core.tasks import averaged
from fedpers.learning.model import Model


def mixture(model: Model, outputs: Tensor, weights: Tensor, average: str = "probabilities") -> Tensor:
    """Outputs [n, K] whose loss is that of Σ_j w_j out_j, from outputs [J, n, K], weights [J].

    Probabilities are averaged for classes, tokens and labels (the result is their logarithm, or log-odds);
    values are averaged for regression and for average="logits".
    """
    return averaged(outputs, weights) if average == "logits" else model.kind.mixed(outputs, weights)
