"""FedSim, full batch, with a rate for each part."""

from tests.oracles.blocks import average, descend, sizes


def one_round(theta, heads, data, rate_v, rate_u, steps):
    """(theta, heads) with a personal head."""
    ends = [descend(theta, h, x, y, rate_u, rate_v, steps) for h, (x, y) in zip(heads, data, strict=True)]
    return average([th for th, _ in ends], sizes(data)), [h for _, h in ends]
