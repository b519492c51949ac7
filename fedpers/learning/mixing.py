"""One prediction of several models under weights: a mixture of likelihoods, or of values."""

import torch
from torch import Tensor

from fedpers.learning.model import Model


def mixture(model: Model, outputs: Tensor, weights: Tensor, average: str = "probabilities") -> Tensor:
    """Outputs [n, K] whose loss is that of Σ_j w_j out_j, from outputs [J, n, K], weights [J].

    Probabilities are averaged for classes (the result is their logarithm, or log-odds where the
    task is binary); values are averaged for regression and for average="logits".
    """
    w = weights.to(outputs.dtype).reshape(-1, 1, 1)
    if model.task == "regression" or average == "logits":
        return (w * outputs).sum(0)
    log_w = w.log()
    if model.task == "binary":
        yes, no = (torch.nn.functional.logsigmoid(sign * outputs) for sign in (1, -1))
        return torch.logsumexp(log_w + yes, 0) - torch.logsumexp(log_w + no, 0)
    return torch.logsumexp(log_w + torch.log_softmax(outputs, -1), 0)
