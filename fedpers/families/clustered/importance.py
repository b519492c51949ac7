"""Importance weights of clients for centers: what they weigh in a mean, and signs that centers collapse."""

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedpers.core.params import Params, mean, sq_dist


def aggregation_weights(u: Tensor, n: Tensor) -> Tensor:
    """v [S, N], rows of sum 1, v_sk = u_ks n_k / Σ_j u_js n_j; by n alone for a cluster nobody is near.

    Args:
        u: [N, S] importance of each center for each client.
        n: [N] numbers of samples.
    """
    mass = u.T * n
    total = mass.sum(1, keepdim=True)
    return torch.where(total > 0, mass / total, n / n.sum())


def flattening(K: int, N: int) -> None:
    """Log that K of N draws without replacement flatten the weights; a warning if nothing is left."""
    text = "method.K=%d of %d clients without replacement: the nearer K is to N, the more alike the centers"
    logging.getLogger("fedpers").log(logging.WARNING if K >= N else logging.INFO, text, K, N)


def foreign_shares(u: Tensor, groups: Sequence[Mapping[int, float]]) -> list[float]:
    """For each center the share of its mean that other centers' samples make: 1 - Σ_k p_k u_ks / Σ_s' u_ks'.

    Args:
        u: [N, S].
        groups: for each center {row of u: weight p_k in its mean, up to a factor}.
    """
    shares = (u / u.sum(1, keepdim=True)).tolist()
    own = [
        sum(p * shares[k][s] for k, p in group.items()) / sum(group.values())
        for s, group in enumerate(groups)
    ]
    return [1 - share for share in own]


def separation(centers: Sequence[Params], models: Sequence[Params]) -> float:
    """The least distance of two centers over the clients' spread √mean ‖w_k - w̄‖²; near 0 they are one.

    nan where there is nothing to compare: one center, or models without spread.
    """
    pairs = [sq_dist(a, b) for i, a in enumerate(centers) for b in centers[:i]]
    middle = mean(models)
    spread = sum(float(sq_dist(w, middle)) for w in models) / len(models)
    return (float(min(pairs)) / spread) ** 0.5 if pairs and spread > 0 else float("nan")


def signs_of_collapse(
    u: Tensor, groups: Sequence[Mapping[int, float]], centers: Sequence[Params], models: Sequence[Params]
) -> dict[str, float]:
    """Columns of a round that tell, without any hold-out sample, whether the centers become one."""
    columns = {f"foreign_{s}": share for s, share in enumerate(foreign_shares(u, groups))}
    largest = float(u.max(1).values.mean())
    return {"importance_max": largest, "separation": separation(centers, models), **columns}
