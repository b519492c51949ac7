"""Do memberships that a method found agree with the truth, where the data know it?"""

from collections.abc import Mapping

import numpy as np


def as_shares(truth: np.ndarray) -> np.ndarray:
    """Shares [N, K]: as they are, or one-hot rows of group numbers [N]."""
    truth = np.asarray(truth)
    return truth if truth.ndim == 2 else np.eye(int(truth.max()) + 1)[truth]


def aligned(membership: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Columns of `membership` [N, K] in the order that fits `truth` [N, K'] best.

    Canonical models have no order of their own. There are max(K, K') columns; missing ones are 0.
    """
    from scipy.optimize import linear_sum_assignment

    found, true = _widen(membership, truth.shape[1]), _widen(truth, membership.shape[1])
    distance = np.abs(true[:, :, None] - found[:, None, :]).sum(0)
    return found[:, linear_sum_assignment(distance)[1]]


def recovery(membership: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Total variation [N] between found and true shares, ½ Σ_k |α_ik - c_ik|, after the best match.

    0 is perfect, 1 the worst. `truth` is shares [N, K] or group numbers [N]; of rows beyond those
    of `membership` (new clients) nothing is said.
    """
    shares = as_shares(truth)[: len(membership)]
    found = aligned(membership, shares)
    return np.abs(_widen(shares, found.shape[1]) - found).sum(1) / 2


def columns(arrays: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The column `recovery`, its mean over clients, where found and true memberships are there.

    What a method found is its array `membership`, or `importance` (rows of sum 1, but for a smoother).
    """
    true, found = (
        truth.get("membership", truth.get("group")),
        arrays.get("membership", arrays.get("importance")),
    )
    return {} if found is None or true is None else {"recovery": float(recovery(found, true).mean())}


def _widen(shares: np.ndarray, width: int) -> np.ndarray:
    return np.pad(shares, ((0, 0), (0, max(0, width - shares.shape[1]))))
