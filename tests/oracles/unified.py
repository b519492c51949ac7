"""MX2 on linear or logistic regressions, and its optimisers, restated in NumPy with plain loops.

A step is (block, refresh, sample of each client); F = 1/M Σ f_m, u = w/√M.
"""

import numpy as np


def slope(xs, ys, m, b, task, j=None):
    """∇f'_m(b), or of its sample j."""
    x, y = (xs[m], ys[m]) if j is None else (xs[m][j : j + 1], ys[m][j : j + 1])
    z = x @ b
    d = 2 * (z - y) if task == "regression" else 1 / (1 + np.exp(-z)) - y
    return x.T @ d / len(y)


def optimum(A, c, lam, Lam=0.0):
    """(u*, β*) of MX2 (Lam = 0) or MT2 for f'_m(b) = ½(b-c_m)ᵀA_m(b-c_m)."""
    _M, d = c.shape
    R = [np.linalg.inv(a + lam * np.eye(d)) for a in A]
    left = sum(Lam * a + lam * np.eye(d) - lam**2 * r for a, r in zip(A, R, strict=True))
    right = sum(Lam * a @ b + lam * r @ a @ b for a, r, b in zip(A, R, c, strict=True))
    u = np.linalg.solve(left, right)
    return u, np.stack([r @ (a @ b + lam * u) for a, r, b in zip(A, R, c, strict=True)])


def run(method, xs, ys, task, lam, h, steps, w, beta):
    """(w_y, β_y) after the steps; `h` has p_w, eta, theta, theta_1, gamma, nu as attributes."""
    M, s = len(xs), len(xs) ** -0.5
    grad_w = lambda w, b: s * lam * (s * w - b).mean(0)  # noqa: E731

    def grad_b(m, w, b, j=None):
        return (slope(xs, ys, m, b[m], task, j) + lam * (b[m] - s * w)) / M

    each = lambda w, b, j: np.stack([grad_b(m, w, b, j[m]) for m in range(M)])  # noqa: E731
    whole = lambda w, b: (grad_w(w, b), each(w, b, [None] * M))  # noqa: E731
    y, z, v = (w, beta), (w, beta), (w, beta)
    G = whole(*v)
    control = method in ("svrcd", "asvrcd")
    for on_w, refresh, j in steps:
        t1, t2 = {"asvrcd": (h.theta_1, 0.5), "ascd": (h.theta, 0.0)}.get(method, (0.0, 0.0))
        x = tuple(t1 * c + t2 * b + (1 - t1 - t2) * a for a, c, b in zip(y, z, v, strict=True))
        p = h.p_w if on_w else 1 - h.p_w
        fresh = (grad_w(*x), each(*x, j))
        at_v = (grad_w(*v), each(*v, j))
        i = 0 if on_w else 1
        g = [G[0], G[1]] if control else [0 * w, 0 * beta]
        g[i] = (fresh[i] - at_v[i]) / p + G[i] if control else fresh[i] / p
        new_y = [a - h.eta * b for a, b in zip(x, g, strict=True)]
        new_z = [h.nu * c + (1 - h.nu) * a - h.gamma * b for c, a, b in zip(z, x, g, strict=True)]
        if not control:
            new_y[1 - i], new_z[1 - i] = y[1 - i], z[1 - i]
        old = y
        y, z = tuple(new_y), tuple(new_z)
        if control and refresh:
            v = old
            G = whole(*v)
    return y
