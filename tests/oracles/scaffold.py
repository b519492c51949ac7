"""SCAFFOLD with option II restated in NumPy: one hidden ReLU layer, full-batch steps."""

from tests.oracles.pflego import gradients


def scaffold_round(x, c, own, data, chosen, rate, steps, eta_g):
    """One round; x, c and each of `own` are (body, head), dicts of arrays. Returns (x, c, own)."""
    own, moved, changed = list(own), [], []
    for i in chosen:
        y = x
        for _ in range(steps):
            g_head, g_body = gradients(*y, *data[i])
            y = combine(lambda a, g, ci, cs: a - rate * (g - ci + cs), y, (g_body, g_head), own[i], c)
        new = combine(lambda ci, cs, a, b: ci - cs + (a - b) / (steps * rate), own[i], c, x, y)
        moved.append(combine(lambda b, a: b - a, y, x))
        changed.append(combine(lambda b, a: b - a, new, own[i]))
        own[i] = new
    for dx in moved:
        x = combine(lambda a, d: a + eta_g * d / len(chosen), x, dx)
    for dc in changed:
        c = combine(lambda a, d: a + d / len(data), c, dc)
    return x, c, own


def combine(f, *models):
    """f on the arrays at the same place of several (body, head)."""
    return tuple({k: f(*(m[part][k] for m in models)) for k in models[0][part]} for part in (0, 1))
