"""Which part of a model is a client's own, by word or by pattern, in every method that cuts models."""

import pytest

from fedpers.checks.contract import CHECKS
from fedpers.clients.pflego import PFLEGOConfig
from fedpers.core.errors import ConfigError
from fedpers.families.split_models.parts import cut
from fedpers.method import LocalConfig, Stream
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
)
from tests.oracles.blocks import average, descend, sizes
from tests.oracles.pflego import gradients

FED = doubles()
MODEL = network(FED, "mlp")
LOCAL = LocalConfig(lr=0.3, epochs=1, batch_size=4)


@pytest.mark.parametrize("method", ["fedper", "lgfedavg", "fedalt", "fedsim"])
@pytest.mark.parametrize(
    "personal, own",
    [
        ("head", {"head.weight", "head.bias"}),
        ("body", {"dense1.weight", "dense1.bias"}),
        (["*.bias"], {"dense1.bias", "head.bias"}),
        (["dense1.weight", "head.*"], {"dense1.weight", "head.weight", "head.bias"}),
    ],
)
def test_the_part_stays_and_all_else_is_shared(method, personal, own):
    server, cohort = simulated(method, config(method, personal=personal), FED, MODEL, 2, clients_per_round=4)
    assert server.state.part.keys() == MODEL.init(0).keys() - own
    assert all(state.own.keys() == own for state in cohort.store.states.values())
    assert not all(
        same(state.own, cut(MODEL, MODEL.init(0), personal)[1]) for state in cohort.store.states.values()
    )


@pytest.mark.parametrize("method", ["fedper", "lgfedavg", "fedsim"])
def test_one_part_is_one_algorithm(method):
    """With one rate these methods differ in what is a client's own alone."""
    chosen = {"personal": ["dense1.*"], "local": LOCAL}
    ours, mine = simulated(method, config(method, **chosen), FED, MODEL, 3, clients_per_round=4)
    theirs, other = simulated("lgfedavg", config("lgfedavg", local=LOCAL), FED, MODEL, 3, clients_per_round=4)
    assert same(ours.state.part, theirs.state.part)
    assert all(same(mine.store.states[k].own, state.own) for k, state in other.store.states.items())


@pytest.mark.parametrize(
    "personal, message",
    [
        (["dense1.weigth"], "'dense1.weigth' fits no parameter.*dense1.weight, dense1.bias"),
        ([], "fits no parameter"),
        ("norms", "personal=norms: model 'mlp' has no normalisation"),
        ("adapters", "personal=adapters: model 'mlp' has no adapters"),
    ],
)
@pytest.mark.parametrize("method", ["fedper", "lgfedavg", "fedalt", "fedsim"])
def test_a_part_that_is_not_there_is_refused(method, personal, message):
    with pytest.raises(ConfigError, match=message):
        simulated(method, config(method, personal=personal), FED, MODEL, 1, clients_per_round=4)


NEW = ["fedrep", "fedbabu", "pflego", "fedrecon"]


def full_batch(lr, steps):
    return LocalConfig(lr=lr, steps=steps, batch_size=0)


def own_of(state):
    return state.own if hasattr(state, "own") else state.head


def settings(method, personal):
    ways = {
        "fedrep": {"head": full_batch(0.4, 3), "body": full_batch(0.2, 2)},
        "fedrecon": {"head": full_batch(0.4, 3), "body": full_batch(0.2, 2), "start": "kept", "rho": 0.7},
        "pflego": {"tau": 4, "beta": 0.3, "rho": 0.2, "server_optimizer": "sgd", "adapt_steps": 0},
    }
    return config(method, personal=personal, **ways[method])


def restated(method, shared, own, data):
    """One round with a personal body `own` under a shared head, both of one hidden layer, in NumPy."""
    if method == "pflego":
        return swapped_pflego(shared, own, data, 4, 0.3, 0.2)
    ends, kept = [], []
    for theta, (x, y) in zip(own, data, strict=True):
        theta, _ = descend(theta, shared, x, y, 0.4, 0, 3)
        _, end = descend(theta, shared, x, y, 0, 0.2, 2)
        kept.append(theta)
        ends.append(end)
    mean = average(ends, [1] * len(ends) if method == "fedrep" else sizes(data))
    rho = 1.0 if method == "fedrep" else 0.7
    return {k: shared[k] + rho * (mean[k] - shared[k]) for k in shared}, kept


def swapped_pflego(head, bodies, data, tau, beta, rho):
    """Algorithm 1 with everybody in every round, by Eq. 5, where the body is a client's own."""
    total, new, bodies = sum(sizes(data)), dict(head), list(bodies)
    for i, (x, y) in enumerate(data):
        bodies[i], _ = descend(bodies[i], head, x, y, beta, 0, tau - 1)
        g_head, g_body = gradients(bodies[i], head, x, y)
        alpha = len(y) / total
        bodies[i] = {k: v - rho * alpha * g_body[k] for k, v in bodies[i].items()}
        new = {k: v - rho * alpha * g_head[k] for k, v in new.items()}
    return new, bodies


@pytest.mark.parametrize("method", ["fedrep", "pflego", "fedrecon"])
def test_rounds_with_a_personal_body_equal_a_restatement(method):
    server, cohort = simulated(method, settings(method, "body"), FED, MODEL, 3, seed=1)
    body, shared = initial_parts(MODEL, 1)
    own = [body] * 6
    for _ in range(3):
        shared, own = restated(method, shared, own, samples(FED))
    assert_close(server.state.part, shared)
    for k in range(6):
        assert_close(own_of(cohort.store.states[k]), own[k])


def test_fedbabu_trains_all_but_the_part_and_fine_tunes_the_part():
    """With everybody and full batches: gradient descent on the head under a body that stays as drawn."""
    cfg = config("fedbabu", personal="body", local=full_batch(0.3, 2), finetune="head", finetune_epochs=2)
    server, cohort = simulated("fedbabu", cfg, FED, MODEL, 2, seed=1)
    body, head = initial_parts(MODEL, 1)
    for _ in range(2):
        ends = [descend(body, head, x, y, 0, 0.3, 2)[1] for x, y in samples(FED)]
        head = average(ends, sizes(samples(FED)))
    assert_close(server.state.theta, head)
    assert_close(server.state.head, body, atol=0)
    data = FED.client(2).train
    tuned, _ = cohort.client.adapt(server.state, None, data, Stream(1, 9, 2))
    x, y = samples(FED)[2]
    assert_close(tuned.head, descend(body, head, x, y, 0.3, 0, 2)[0])
    assert_close(tuned.theta, head)


@pytest.mark.parametrize("method", NEW)
@pytest.mark.parametrize(("word", "patterns"), [("head", ["head.*"]), ("body", ["dense1.*"])])
def test_a_word_is_its_patterns(method, word, patterns):
    ends = []
    for personal in (word, patterns):
        server, cohort = simulated(
            method, config(method, personal=personal), FED, MODEL, 2, clients_per_round=4
        )
        shared = server.state.theta if method == "fedbabu" else server.state.part
        ends.append((shared, {k: own_of(s) for k, s in cohort.store.states.items()}))
    assert same(ends[0][0], ends[1][0])
    assert all(same(own, ends[1][1][k]) for k, own in ends[0][1].items())


@pytest.mark.parametrize("method", ["fedrep", "pflego", "fedrecon"])
def test_own_parts_of_any_pattern_stay(method):
    cfg = config(method, personal=["*.bias"])
    server, cohort = simulated(method, cfg, FED, MODEL, 2, clients_per_round=4)
    assert server.state.part.keys() == {"dense1.weight", "head.weight"}
    assert all(own_of(s).keys() == {"dense1.bias", "head.bias"} for s in cohort.store.states.values())


@pytest.mark.parametrize("method", NEW)
def test_parts_that_are_not_there_are_refused(method):
    for personal, message in ((["dense1.weigth"], "'dense1.weigth' fits no"), ("adapters", "no adapters")):
        with pytest.raises(ConfigError, match=message):
            simulated(method, config(method, personal=personal), FED, MODEL, 1, clients_per_round=4)


def test_what_is_told_of_heads_needs_heads():
    assert "report=true: tells of heads" in "".join(PFLEGOConfig(personal="body", report=True).check())
    with pytest.raises(ConfigError, match="own_classes=true: needs a head that is each client's own"):
        simulated("fedrep", config("fedrep", personal="body", own_classes=True), FED, MODEL, 1)


@pytest.mark.parametrize("method", NEW)
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract_with_a_personal_body(method, check):
    check(contract_case(method, config(method, personal="body")))
