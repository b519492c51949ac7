"""L2SGD+: its messages, and its local steps in one call. They are SAGA's, with a pull that stays."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.learning.kernels.programs import Draw
from fedpers.learning.kernels.recurrent import Recurrence, steps_with_table
from fedpers.learning.sample_gradients import Factors, SampleGradients


@record("l2sgd.Run")
class Run:
    """Order: make T local steps and send your model, if it is to be averaged."""

    T: int
    average: bool
    M: int
    x: Params  # shape of the reply


@record("l2sgd.Average")
class Average:
    """Order: step towards the mean of all models."""

    mean: Params
    M: int


@record("l2sgd.Models")
class Models:
    """Reply: the client's model x_m ({} if it was not asked for)."""

    x: Params


def saga_steps(
    table: SampleGradients,
    rates: tuple[float, float],
    models: Sequence[Params],
    J: Params,
    block: Any,
    draw: Draw,
) -> tuple[Params, Params, Params] | None:
    """(x, 1/n Σ_i J_i, J) after local steps; None without a kernel, and nothing is drawn.

    Args:
        table: how J is kept; there are kernels for `Factors`.
        rates: η/M and p.
        models: x, 1/n Σ_i J_i and Ψ.
        J: each sample's last gradient.
        block, draw: as in `steps_recurrent`, of one sample a step.
    """
    if not isinstance(table, Factors):
        return None
    how, ends = recurrence(*rates, len(next(iter(J.values())))), torch.eye(2, 3, dtype=torch.float64)
    found = steps_with_table(table.model.loss, how, models, ends, block, draw, J)
    return found and (*found[0], found[1])  # type: ignore[return-value]


@cache
def recurrence(rate: float, p: float, n: int) -> Recurrence:
    """How a step moves x, 1/n Σ_i J_i and Ψ of a client of n samples; J_j stands for a second gradient."""
    x, mean, psi = unit = torch.eye(3, dtype=torch.float64)
    moves = unit - rate * x.outer(mean + psi)
    points, signs = torch.stack([x, 0 * x]), unit.new_tensor([1, -1])
    return Recurrence(moves, points, signs, mean / n - rate / (1 - p) * x)
