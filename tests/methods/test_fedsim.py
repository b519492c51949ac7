"""FedSim: one rate for both parts is FedPer or LG-FedAvg; two rates against a restatement."""

import pytest

from fedpers.checks.contract import CHECKS
from fedpers.clients.fedsim import FedSimConfig
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.method import LocalConfig
from tests.methods.helpers import (
    assert_close,
    config,
    contract_case,
    doubles,
    initial_parts,
    network,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedsim import one_round


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract_with_a_personal_body(check):
    check(contract_case("fedsim", FedSimConfig("body", ratio=2.0)))


@pytest.mark.parametrize(("personal", "name"), [("head", "fedper"), ("body", "lgfedavg")])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@autograd_only()
def test_one_rate_is_fedper_or_lgfedavg_bit_for_bit(personal, name, optimizer):
    fed = doubles()
    local = LocalConfig(lr=0.1, epochs=2, batch_size=4, optimizer=optimizer)
    model, plan = network(fed, "mlp"), {"seed": 5, "clients_per_round": 4}
    ours, here = simulated("fedsim", FedSimConfig(personal, local=local), fed, model, 3, **plan)
    start = {"head_init": "common"} if name == "fedper" else {}
    theirs, there = simulated(name, config(name, local=local, **start), fed, model, 3, **plan)
    assert same(ours.state.part, theirs.state.part)
    for k, memory in there.store.states.items():
        assert same(here.store.states[k].own, memory.own)


@pytest.mark.parametrize("ratio", [0.25, 3.0])
def test_two_rates_equal_a_numpy_restatement(ratio):
    fed = doubles()
    model = network(fed, "mlp")
    cfg = FedSimConfig("head", ratio, LocalConfig(lr=0.2, steps=3, batch_size=0))
    strategy, cohort = simulated("fedsim", cfg, fed, model, 3, seed=1)
    theta, head = initial_parts(model, 1)
    heads = [head] * 6
    for _ in range(3):
        theta, heads = one_round(theta, heads, samples(fed), 0.2 * ratio, 0.2, 3)
    assert_close(strategy.state.part, theta)
    for k in range(6):
        assert_close(cohort.store.states[k].own, heads[k])


def test_two_rates_and_adam_are_refused():
    assert "needs optimizer=sgd" in FedSimConfig(ratio=2.0, local=LocalConfig(optimizer="adam")).check()[0]
    assert "must be above 0" in FedSimConfig(ratio=0.0).check()[0]


def test_runs_on_digits(tmp_path):
    assert smoke("fedsim", tmp_path, "method.ratio=2")["rounds"] == 3
