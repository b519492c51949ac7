"""FedAlt against a restatement, for a personal head and a personal body."""

import pytest

from fedpers.checks.contract import CHECKS
from fedpers.clients.fedalt import FedAltConfig
from fedpers.method import LocalConfig
from tests.methods.helpers import (
    assert_close,
    contract_case,
    doubles,
    initial_parts,
    network,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedalt import one_round


def full_batch(lr, steps):
    return LocalConfig(lr=lr, steps=steps, batch_size=0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract_with_a_personal_body(check):
    check(contract_case("fedalt", FedAltConfig("body")))


@pytest.mark.parametrize("personal", ["head", "body"])
def test_rounds_equal_a_numpy_restatement(personal):
    fed = doubles()
    model = network(fed, "mlp")
    cfg = FedAltConfig(personal, full_batch(0.4, 3), full_batch(0.2, 2))
    strategy, cohort = simulated("fedalt", cfg, fed, model, 3, seed=1)
    body, head = initial_parts(model, 1)
    shared, own = (body, head) if personal == "head" else (head, body)
    own = [own] * 6
    for _ in range(3):
        shared, own = one_round(shared, own, samples(fed), 0.4, 3, 0.2, 2, personal)
    assert_close(strategy.state.part, shared)
    for k in range(6):
        assert_close(cohort.store.states[k].own, own[k])


def test_without_steps_on_the_personal_part_it_stays():
    fed, cfg = doubles(), FedAltConfig("head", full_batch(0.4, 0), full_batch(0.2, 2))
    cfg = FedAltConfig("head", LocalConfig(epochs=0), cfg.u)
    model = network(fed, "mlp")
    _, cohort = simulated("fedalt", cfg, fed, model, 2, seed=1)
    assert_close(cohort.store.states[0].own, initial_parts(model, 1)[1], atol=0)


@pytest.mark.parametrize("personal", ["head", "body"])
def test_runs_on_digits(tmp_path, personal):
    assert smoke("fedalt", tmp_path, f"method.personal={personal}")["rounds"] == 3
