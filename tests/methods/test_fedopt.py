"""FedAvgM, FedAdam and FedYogi against a restatement, and as FedAvg."""

import pytest
import torch

from fedpers.clients.fedopt import FedAdamConfig, FedAvgMConfig, FedYogiConfig
from fedpers.method import LocalConfig, split
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
from tests.oracles import fedopt
from tests.oracles.blocks import descend

LOCAL = LocalConfig(lr=0.3, epochs=2, batch_size=0)
FED = doubles()
MODEL = network(FED, "mlp")
PLAN = {"seed": 1, "clients_per_round": 4}


def restated(strategy, rounds, step, tau=0.0):
    """(body, head) after some rounds; `step` is the server's, of one part."""
    data = samples(FED)
    parts = [fedopt.start(part, tau) for part in initial_parts(MODEL, 1)]
    for t in range(1, rounds + 1):
        clients = chosen(strategy, t)
        new = [descend(parts[0][0], parts[1][0], *data[k], 0.3, 0.3, 2) for k in clients]
        n = [len(data[k][1]) for k in clients]
        parts = [step(*part, [both[i] for both in new], n) for i, part in enumerate(parts)]
    return parts[0][0], parts[1][0]


def compare(strategy, body, head):
    ours = split(strategy.state.params, MODEL.is_head)
    assert_close(ours[1], body, 1e-12)
    assert_close(ours[0], head, 1e-12)


def test_rounds_of_fedavgm_equal_a_numpy_restatement():
    strategy, _ = simulated("fedavgm", FedAvgMConfig(0.7, 0.6, LOCAL), FED, MODEL, 4, **PLAN)
    compare(strategy, *restated(strategy, 4, lambda *a: fedopt.momentum_step(*a, 0.7, 0.6)))


@pytest.mark.parametrize(("name", "kind"), [("fedadam", FedAdamConfig), ("fedyogi", FedYogiConfig)])
def test_rounds_of_the_adaptive_ones_equal_a_numpy_restatement(name, kind):
    cfg = kind(eta=0.05, beta1=0.8, beta2=0.7, tau=0.02, local=LOCAL)
    strategy, _ = simulated(name, cfg, FED, MODEL, 4, **PLAN)
    step = lambda *a: fedopt.adaptive_step(*a, cfg.rule, 0.05, 0.8, 0.7, 0.02)  # noqa: E731
    compare(strategy, *restated(strategy, 4, step, 0.02))


def test_without_momentum_it_is_fedavg_bit_for_bit():
    local = LocalConfig(lr=0.3, epochs=2, batch_size=4)
    ours, _ = simulated("fedavgm", FedAvgMConfig(1.0, 0.0, local), FED, MODEL, 3, **PLAN)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), FED, MODEL, 3, **PLAN)
    assert same(ours.state.params, theirs.state.params)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_with_a_fixed_second_moment_it_is_fedavg(name):
    cfg = config(name, eta=0.2, beta1=0.0, beta2=1.0, tau=0.1, local=LOCAL)
    ours, _ = simulated(name, cfg, FED, MODEL, 3, **PLAN)
    theirs, _ = simulated("fedavg", config("fedavg", local=LOCAL), FED, MODEL, 3, **PLAN)
    for k, value in theirs.state.params.items():
        torch.testing.assert_close(ours.state.params[k], value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("values", [{"eta": 0.0}, {"beta": 1.0}, {"beta": -0.1}])
def test_what_fedavgm_cannot_be(values):
    (line,) = FedAvgMConfig(**values).check()
    assert line.startswith(f"{next(iter(values))}=")


@pytest.mark.parametrize("values", [{"eta": 0.0}, {"tau": 0.0}, {"beta1": 1.0}, {"beta2": 1.5}])
def test_what_fedadam_cannot_be(values):
    (line,) = FedAdamConfig(**values).check()
    assert line.startswith(f"{next(iter(values))}=")


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi"])
def test_runs_on_digits(name, tmp_path):
    assert smoke(name, tmp_path)["rounds"] == 3
