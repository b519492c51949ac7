"""FedALA against a restatement, and as FedAvg."""

import numpy as np
import pytest
import torch

from fedpers.clients.fedala import FedALAConfig, mix, upper
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig, Stream, split
from tests.methods.helpers import (
    assert_close,
    chosen,
    config,
    doubles,
    initial_parts,
    network,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedala import fedala_round

FED = doubles()
MODEL = network(FED, "mlp")
PLAN = {"seed": 1, "clients_per_round": 3}


@pytest.mark.parametrize("threshold", [0.1, 1e-3])
def test_rounds_equal_a_numpy_restatement(threshold):
    """Of W a client's second visit learns until it settles, later ones in one pass."""
    cfg = FedALAConfig(2.0, 0.7, 1, threshold, LocalConfig(lr=0.3, epochs=3, batch_size=0))
    server, cohort = simulated("fedala", cfg, FED, MODEL, 6, **PLAN)
    data, (body, head) = samples(FED), initial_parts(MODEL, 1)
    clients = {i: (head, {k: np.ones_like(v) for k, v in head.items()}, 0) for i in range(6)}
    for t in range(1, 7):
        drawn = {}
        for i in chosen(server, t):
            n = len(data[i][1])
            drawn[i] = Stream(1, t, i).generator.permutation(n)[: int(0.7 * n)]
        body, head = fedala_round(body, head, clients, data, drawn, 0.3, 3, 2.0, threshold)
    assert max(visits for _, _, visits in clients.values()) > 2
    phi, theta = split(server.state.params, MODEL.is_head)
    assert_close(theta, body, 1e-12)
    assert_close(phi, head, 1e-12)
    for i, state in cohort.store.states.items():
        assert_close(state.W, clients[i][1], 1e-12)
        assert_close(split(state.own, MODEL.is_head)[0], clients[i][0], 1e-12)
    assert any((state.W["head.weight"] < 0.999).any() for state in cohort.store.states.values())


def test_without_learning_it_is_fedavg():
    """Up to rounding: FedAvg's clients are trained as one stack."""
    local, plan = LocalConfig(lr=0.3, epochs=2, batch_size=4), {"seed": 5, "clients_per_round": 4}
    ours, _ = simulated("fedala", FedALAConfig(eta=0.0, local=local), FED, MODEL, 3, **plan)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), FED, MODEL, 3, **plan)
    for name, value in theirs.state.params.items():
        torch.testing.assert_close(ours.state.params[name], value, rtol=0, atol=1e-13)


def test_mixing_takes_whole_models_at_its_ends():
    rng = np.random.default_rng(0)
    own, shared = (
        {k: torch.from_numpy(rng.normal(size=v.shape)) for k, v in MODEL.init(0).items()} for _ in range(2)
    )
    assert same(mix(own, shared, {k: torch.ones_like(v) for k, v in own.items()}), shared)
    assert same(mix(own, shared, {k: torch.zeros_like(v) for k, v in own.items()}), own)
    part = mix(own, shared, {"head.bias": torch.zeros_like(own["head.bias"])})
    assert torch.equal(part["head.bias"], own["head.bias"])
    assert torch.equal(part["head.weight"], shared["head.weight"])


def test_layers_are_counted_from_the_head():
    model = build_model("lenet", input_shape=(1, 28, 28), num_outputs=3, task="classification")
    params = model.init(0)
    assert upper(params, 1) == ["head.weight", "head.bias"]
    assert upper(params, 2) == ["dense2.weight", "dense2.bias", "head.weight", "head.bias"]
    assert upper(params, 99) == list(params)


@pytest.mark.parametrize(
    "values", [{"eta": -1.0}, {"share": 0.0}, {"share": 1.5}, {"layers": 0}, {"threshold": 0.0}]
)
def test_what_it_cannot_be(values):
    (line,) = FedALAConfig(**values).check()
    assert line.startswith(f"{next(iter(values))}=")


def test_runs_on_digits(tmp_path):
    assert smoke("fedala", tmp_path)["rounds"] == 3
