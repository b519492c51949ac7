"""Expectation maximisation for the weights of a mixture whose components stay as they are."""

import torch
from torch import Tensor

STEPS = 50  # of `fit_weights`; each step raises the likelihood


def responsibilities(pi: Tensor, losses: Tensor) -> Tensor:
    """q [M, n], q_m ∝ π_m exp(-loss_m): which component made each sample.

    Args:
        pi: [M], on the simplex.
        losses: [M, n] of the samples under each component.
    """
    return torch.softmax(pi.log()[:, None] - losses, 0)


def fit_weights(pi: Tensor, losses: Tensor, mask: Tensor) -> Tensor:
    """The weights [M] that STEPS steps from `pi` come to; `mask` [n] is 0 for padding."""
    for _ in range(STEPS):
        pi = (responsibilities(pi, losses) * mask).sum(1) / mask.sum()
    return pi
