"""Points of the probability simplex: the entropic mirror step, and Laplacians that couple rows.

Rows are in the last dimension. Everything is in float64: a membership is a product of many factors.
"""

import logging
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedpers.core.errors import ConfigError, DataError
from fedpers.core.vmap import all_at_once

log = logging.getLogger("fedpers")
PATIENCE = 20  # rounds after which memberships should have left 1/K

Affinity = Callable[[Tensor], Tensor]  # C [N, K] -> W C, for a symmetric W [N, N]


def mirror_step(c: Tensor, g: Tensor, eta: float, floor: float = 1e-6) -> Tensor:
    """argmin over the simplex of <g, c' - c> + KL(c' ‖ c)/eta, kept away from the border.

    That is c exp(-eta g) / <c, exp(-eta g)>, computed without overflow; then entries below `floor`
    are raised to it and the row is divided by its sum, because an entry of 0 would stay 0 for ever.
    So no entry is below floor / (1 + K floor), and one that was raised ends just below the floor.
    """
    return all_at_once(_mirror_steps, c, g, eta, floor)  # type: ignore[no-any-return]


def _mirror_steps(c: Tensor, g: Tensor, eta: float, floor: float) -> Tensor:
    c = torch.softmax(c.double().log() - eta * g.double(), -1)
    if floor > 0:
        c = c.clamp_min(floor)
        c = c / c.sum(-1, keepdim=True)
    return c


def spread(C: Tensor, t: int, eta: float) -> float:
    """Mean entropy of the rows over log K: 1 where nobody belongs anywhere; warns in round `PATIENCE`.

    Args:
        C: [N, K] after round t of mirror steps at rate `eta`.
    """
    K = C.shape[1]
    entropy = float(torch.special.entr(C).sum(1).mean()) / max(float(np.log(K)), 1e-12)
    if t == PATIENCE and K > 1 and entropy > 0.99:
        log.warning("memberships still near 1/K after %d rounds: raise method.eta_2=%s", t, eta)
    return entropy


def with_rows(C: Tensor, rows: Mapping[int, Tensor]) -> Tensor:
    """C with some rows replaced, by their number."""
    if not rows:
        return C
    index = torch.tensor(list(rows), device=C.device)
    return C.index_copy(0, index, torch.stack(list(rows.values())))


def laplacian(weigh: Affinity, C: Tensor, degrees: Tensor | None = None) -> Tensor:
    """L C for L = diag(W 1) - W: row i is Σ_j w_ij (c_i - c_j); <C, L C> = ½ Σ w_ij ‖c_i - c_j‖²

    Args:
        degrees: [N, 1] W 1, where it is known.
    """
    return (weigh(torch.ones_like(C[:, :1])) if degrees is None else degrees) * C - weigh(C)


def affinity(kind: str, num: int, told: Mapping[str, Tensor], file: str = "") -> Affinity:
    """W by name: label_cosine (of what clients told), ones, none, or given (in a file)."""
    if kind == "none":
        return torch.zeros_like
    if kind == "ones":
        return lambda C: C.sum(0, keepdim=True).expand_as(C)
    if kind == "given":
        return given_affinity(read_matrix(file, num))
    return cosine_affinity(told["label_counts"])


def cosine_affinity(counts: Tensor) -> Affinity:
    """w_ij = cosine of rows i and j of `counts` [N, classes]; W [N, N] is never formed."""
    if counts.shape[1] == 0:
        raise ConfigError("affinity=label_cosine needs class labels; use ones, none or given")
    rows = counts.double()
    unit = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return lambda C: unit.to(C) @ (unit.to(C).T @ C)


def given_affinity(W: Tensor) -> Affinity:
    """The affinity of a matrix [N, N]; warns if it is not positive semi-definite.

    Raises:
        ConfigError: it is not symmetric, or has a negative entry.
    """
    W = W.double()
    if not torch.allclose(W, W.T, rtol=0, atol=1e-8) or not bool((W >= 0).all()):
        raise ConfigError("the given affinity must be symmetric, with no negative entry or NaN")
    if float(torch.linalg.eigvalsh(W).min()) < -1e-8:
        log.warning(
            "the given affinity is not positive semi-definite, so steps may go uphill; "
            "adding to its diagonal changes nothing else"
        )
    return lambda C: W.to(C) @ C


def read_matrix(file: str, num: int) -> Tensor:
    """The affinity matrix in a .npy file.

    Raises:
        DataError: it cannot be read, or does not have a row and a column for each client.
    """
    try:
        W = torch.from_numpy(np.load(file, allow_pickle=False))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"affinity_file={file}: is not a readable .npy matrix ({error})") from error
    if W.shape != (num, num):
        raise DataError(
            f"affinity_file={file}: has shape {tuple(W.shape)}, must be {(num, num)}: "
            "a row and a column for each client by partition id"
        )
    return W
