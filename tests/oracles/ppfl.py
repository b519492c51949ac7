"""PPFL restated in NumPy: linear and logistic canonical models, columns of theta [d, K]."""

import numpy as np


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def gradients(theta, c, x, y, link, prob=False):
    """(∇_theta, ∇_c) of the mean loss: ½(f - y)² for link "identity", logistic loss else."""
    n = len(y)
    if prob:  # eq. 11: probabilities are mixed
        S = sigmoid(x @ theta)
        q = np.clip(S @ c, 1e-7, 1 - 1e-7)
        u = (q - y) / (q * (1 - q))
        return x.T @ (u[:, None] * c * S * (1 - S)) / n, S.T @ u / n
    z = x @ theta @ c
    r = (z if link == "identity" else sigmoid(z)) - y
    return np.outer(x.T @ r, c) / n, theta.T @ x.T @ r / n


def mirror(c, g, eta, floor=0.0):
    c = c * np.exp(-eta * (g - g.min()))
    c = np.maximum(c / c.sum(), floor)
    return c / c.sum()


def alternating_round(theta, C, data, p, lam, W, batches, eta_1, eta_2, floor, link, weighted):
    """Algorithm 3 among the clients of `batches` {i: rows of each step}; returns (theta, C)."""
    L = np.diag(W.sum(1)) - W
    new_theta, new_C = np.zeros_like(theta), C.copy()
    for i, steps in batches.items():
        x, y = data[i]
        g = (p[i] if weighted else 1) * gradients(theta, C[i], x, y, link)[1]
        new_C[i] = mirror(C[i], g + 2 * lam * (L @ C)[i], eta_2, floor)
        w = theta
        for rows in steps:
            w = w - eta_1 * gradients(w, new_C[i], x[rows], y[rows], link)[0]
        new_theta += p[i] / sum(p[j] for j in batches) * w
    return new_theta, new_C
