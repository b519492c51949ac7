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
    """Columns about what a method found, where the data know the truth.

    `recovery`: mean over clients, of memberships, or of importance weights. Of weights that clients give to
    each other's models: the weight on the own group by owner and by user, and how many were taken over.
    """
    true, found = truth.get("membership", truth.get("group")), {}
    shares = arrays.get("membership", arrays.get("importance"))
    if shares is not None and true is not None:
        found["recovery"] = float(recovery(shares, true).mean())
    group = truth.get("group")
    if "collaboration" in arrays and group is not None and np.ndim(group) == 1:
        W = arrays["collaboration"]
        owners = np.asarray(group)[: len(W)]
        users = user_group(W, owners)
        for name, columns_of in (("own_group_weight", owners), ("own_group_weight_by_user", users)):
            found[name] = float((W * (owners[:, None] == columns_of)).sum(1).mean())
        found["takeovers"] = float((users != owners).sum())
    return found


def user_group(W: np.ndarray, group: np.ndarray) -> np.ndarray:
    """[K] the group that gives each model the most weight in all; its owner's if none gives more.

    Args:
        W: [K, K], row i the weights that client i gives.
        group: [K] numbers.
    """
    group = np.asarray(group)
    given = np.stack([W[group == g].sum(0) for g in np.unique(group)])  # [groups, K]
    own = given[np.searchsorted(np.unique(group), group), np.arange(len(group))]
    return np.where(given.max(0) > own, np.unique(group)[given.argmax(0)], group)


def _widen(shares: np.ndarray, width: int) -> np.ndarray:
    return np.pad(shares, ((0, 0), (0, max(0, width - shares.shape[1]))))
