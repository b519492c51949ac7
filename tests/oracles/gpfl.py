"""GPFL restated in NumPy: the loss alone; its derivatives are taken by complex steps of 1e-40.

Names of parameters are those of a flat dict: w, b (one hidden ReLU layer), H, c (head), E, and of
each half of the valve W, B, S (scale), T (shift) with 0 or 1 behind.
"""

import numpy as np


def relu(a):
    return a * (a.real > 0)


def valve(p, z, u):
    """V(z, u)."""
    made = []
    for i in "01":
        a = relu(p["W" + i] @ u + p["B" + i])
        centred = a - a.mean()
        made.append(p["S" + i] * centred / np.sqrt((centred**2).mean() + 1e-5) + p["T" + i])
    return relu((made[0] + 1) * z + made[1])


def outputs(p, x, given, share):
    """What a client's head says."""
    return valve(p, relu(x @ p["w"].T + p["b"]), share @ given) @ p["H"].T + p["c"]


def log_softmax(a):
    return a - np.log(np.exp(a).sum(1, keepdims=True))


def loss(p, x, y, given, share, lam, mu):
    """F and the penalty."""
    rows, z = np.arange(len(y)), relu(x @ p["w"].T + p["b"])
    own = -log_softmax(outputs(p, x, given, share))[rows, y].mean()
    g = valve(p, z, given.mean(0))
    length = lambda a: np.sqrt((a**2).sum(1))  # noqa: E731
    cosine = (g @ p["E"].T) / np.outer(length(g), length(p["E"]))
    added = [v for k, v in p.items() if k not in ("w", "b", "H", "c")]
    penalty = mu / 2 * sum((v**2).sum() for v in added)
    return own - log_softmax(cosine)[rows, y].mean() + lam * length(g - given[y]).mean() + penalty


def train(p, x, y, share, rate, steps, lam, mu):
    """The parameters after full-batch steps."""
    given = p["E"]
    for _ in range(steps):
        new = {k: v.copy() for k, v in p.items()}
        for name, value in p.items():
            for place in np.ndindex(value.shape):
                moved = value.astype(complex)
                moved[place] += 1e-40j
                slope = loss(p | {name: moved}, x, y, given, share, lam, mu).imag / 1e-40
                new[name][place] -= rate * slope
        p = new
    return p
