"""FedSoft restated for linear regression without intercept, mean squared error, exact solves."""

import numpy as np


def importance(centers, x, y, sigma):
    """u_k [S] of one client; centers [S, d]."""
    losses = (x @ centers.T - y[:, None]) ** 2
    u = np.zeros(len(centers))
    for row in losses:
        u[int(np.argmin(row))] += 1 / len(y)
    return np.where(u < sigma, sigma, u)


def local_solution(x, y, u, centers, lam):
    """argmin_w of 1/n ‖Xw - y‖² + λ/2 Σ_s u_s ‖w - c_s‖², as one stacked least-squares problem."""
    rows = [x / np.sqrt(len(y))] + [np.sqrt(lam / 2 * u_s) * np.eye(x.shape[1]) for u_s in u]
    right = [y / np.sqrt(len(y))] + [np.sqrt(lam / 2 * u_s) * c for u_s, c in zip(u, centers, strict=True)]
    return np.linalg.lstsq(np.vstack(rows), np.concatenate(right), rcond=None)[0]


def full_round(centers, u, data, lam):
    """(centers, client models) after a round with everybody; u [N, S]."""
    n = np.array([len(y) for _, y in data])
    w = np.stack([local_solution(x, y, u_k, centers, lam) for (x, y), u_k in zip(data, u, strict=True)])
    v = (u * n[:, None]).T
    return v / v.sum(1, keepdims=True) @ w, w


def fixed_point(U, n, theta, lam, h=2.0):
    """The limit of full rounds if client k's risk is h/2 ‖w - (Uθ)_k‖²."""
    V = (U * n[:, None]).T
    V = V / V.sum(1, keepdims=True)
    S = len(theta)
    return np.linalg.solve(np.eye(S) - lam / (h + lam) * V @ U, h / (h + lam) * V @ U @ theta)
