"""Ditto on quadratics F_k(v) = a_k (v - c_k)² of one variable: closed forms."""


def stationary_global(a, c, n):
    """argmin of Σ n_k F_k."""
    return sum(n_k * a_k * c_k for n_k, a_k, c_k in zip(n, a, c, strict=True)) / sum(
        n_k * a_k for n_k, a_k in zip(n, a, strict=True)
    )


def stationary_personal(a_k, c_k, w, lam):
    """argmin of F_k(v) + λ/2 (v - w)²."""
    return (2 * a_k * c_k + lam * w) / (2 * a_k + lam)


def one_round(w, v, a, c, n, lam, lr):
    """(w, v) after one full-batch step of everybody; v is a list."""
    new_v = [vk - lr * (2 * ak * (vk - ck) + lam * (vk - w)) for vk, ak, ck in zip(v, a, c, strict=True)]
    steps = [n_k * lr * 2 * ak * (w - ck) for n_k, ak, ck in zip(n, a, c, strict=True)]
    return w - sum(steps) / sum(n), new_v
