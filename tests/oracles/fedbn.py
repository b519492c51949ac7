"""FedBN restated on one hidden ReLU layer whose biases stand for the normalisation: full-batch steps."""

from tests.oracles.blocks import average, descend


def fedbn_round(shared, own, data, chosen, rate, steps):
    """One round; shared is {"body": w, "head": w}, each of `own` {"body": b, "head": b}. Returns both."""
    own, sent = list(own), []
    for k in chosen:
        body, head = ({"w": shared[part], "b": own[k][part]} for part in ("body", "head"))
        body, head = descend(body, head, *data[k], rate, rate, steps)
        own[k] = {"body": body["b"], "head": head["b"]}
        sent.append({"body": body["w"], "head": head["w"]})
    return average(sent, [1.0] * len(sent)), own
