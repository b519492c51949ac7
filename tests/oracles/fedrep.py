"""FedRep, full batch: head steps, body steps, plain mean of bodies."""

from tests.oracles.blocks import average, descend


def one_round(phi, heads, data, rate, steps_head, steps_body):
    """(phi, heads)."""
    heads = [descend(phi, h, x, y, 0, rate, steps_head)[1] for h, (x, y) in zip(heads, data, strict=True)]
    bodies = [descend(phi, h, x, y, rate, 0, steps_body)[0] for h, (x, y) in zip(heads, data, strict=True)]
    return average(bodies, [1] * len(bodies)), heads
