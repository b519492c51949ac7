"""FedDBE against a restatement, as FedAvg, and the means that it asks for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.clients.feddbe import Debiased, FedDBEClient, FedDBEConfig, ModelAndMean
from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.method import LocalConfig, Stream, split
from tests.methods.helpers import (
    assert_close,
    chosen,
    config,
    doubles,
    initial_parts,
    network,
    quadratics,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.feddbe import feddbe_round, first_mean

FED = doubles()
MODEL = network(FED, "mlp")
PLAN = {"seed": 1, "clients_per_round": 3}


@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_rounds_equal_a_numpy_restatement(mu):
    """Three of six unequal clients a round; the running mean has three batches a round."""
    cfg = FedDBEConfig(20.0, mu, LocalConfig(lr=0.2, epochs=3, batch_size=0))
    server, cohort = simulated("feddbe", cfg, FED, MODEL, 5, **PLAN)
    (body, head), data = initial_parts(MODEL, 1), samples(FED)
    common, biases = first_mean(body, head, data, 0.2, 3), [np.zeros(MODEL.num_features)] * 6
    for t in range(1, 6):
        now = chosen(server, t)
        body, head, biases = feddbe_round(body, head, biases, data, now, common, 0.2, 3, 20.0, mu)
    phi, theta = split(server.state.params, MODEL.is_head)
    assert_close(theta, body, 1e-12)
    assert_close(phi, head, 1e-12)
    np.testing.assert_allclose(server.state.z, common, rtol=0, atol=1e-13)
    for i, state in cohort.store.states.items():
        np.testing.assert_allclose(state.bias, biases[i], rtol=0, atol=1e-12)
    assert max(np.abs(b).max() for b in biases) > 0.01


def test_the_running_mean_of_minibatches_is_the_sum_of_their_means():
    """Of batches of 4, 4 and 1 samples: μ Σ_b (1 - μ)^(B - b) m_b, which the loss of the last one holds."""
    cfg = FedDBEConfig(mu=0.25)
    x, w = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 5))), MODEL.init(0)
    w = {k: v.double() for k, v in w.items()}
    y, ones = torch.zeros(9, dtype=torch.int64), torch.ones(9, dtype=torch.float64)
    z, loss = MODEL.body(w, x), Debiased(MODEL, cfg, x.new_zeros(4), x.new_zeros(4))
    for rows in (slice(0, 4), slice(4, 8), slice(8, 9)):
        batch = Data(x[rows], y[rows], ones[rows])
        loss = replace(loss, before=loss.running(z[rows], batch))
    means = [z[:4].mean(0), z[4:8].mean(0), z[8]]
    expected = sum(0.25 * 0.75 ** (2 - b) * m for b, m in enumerate(means))
    torch.testing.assert_close(loss.before, expected, rtol=0, atol=1e-14)


def test_on_features_that_nobody_can_shift_it_is_fedavg():
    """A head that is 0 gives memories no gradient in the first step, and κ is 0."""
    local, zeros = LocalConfig(lr=0.3, epochs=1, batch_size=0), network(FED, init="zeros")
    ours, cohort = simulated("feddbe", FedDBEConfig(0.0, 1.0, local), FED, zeros, 1, **PLAN)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), FED, zeros, 1, **PLAN)
    assert all(not m.bias.any() for m in cohort.store.states.values())
    for name, value in theirs.state.params.items():
        torch.testing.assert_close(ours.state.params[name], value, rtol=0, atol=1e-14)


def test_a_client_predicts_at_its_shifted_features():
    server, cohort = simulated("feddbe", FedDBEConfig(local=LocalConfig(lr=0.5)), FED, MODEL, 3)
    w, test = server.state.params, FED.client(1).test
    outputs = MODEL.head(w, MODEL.body(w, test.x) + cohort.store.states[1].bias)
    loss = MODEL.sample_losses(outputs, test.y).mean()
    assert server.client_metrics["test_loss"][1] == pytest.approx(float(loss), rel=1e-12)
    assert float(loss) != pytest.approx(float(MODEL.sample_losses(MODEL(w, test.x), test.y).mean()), rel=1e-6)


def test_everybody_is_asked_once_before_the_first_round():
    counts = []
    for rounds in (1, 3):
        server, _ = simulated("feddbe", FedDBEConfig(), FED, MODEL, rounds, **PLAN)
        counts.append(server.exchanges)
    assert counts == [2, 1]


def test_momentum_is_kept_between_rounds_and_not_from_the_question():
    """The first round's training starts without; with all clients in both rounds the second does not."""
    ends = []
    for kept in (False, True):
        cfg = FedDBEConfig(local=LocalConfig(lr=0.1, batch_size=4, momentum=0.5, keep_momentum=kept))
        ends.append([simulated("feddbe", cfg, FED, MODEL, rounds)[0].state for rounds in (1, 2)])
    (first, second), (same_first, other_second) = ends
    assert same(first.params, same_first.params) and torch.equal(first.z, same_first.z)
    assert not same(second.params, other_second.params)


def test_a_round_in_which_nobody_is_drawn_keeps_the_means():
    """With chance 1/6 each of six clients, some first round has none."""
    plan = {"clients_per_round": 1, "participation": "bernoulli"}
    for seed in range(30):
        server, _ = simulated("feddbe", FedDBEConfig(), FED, MODEL, 1, seed=seed, **plan)
        if not chosen(server, 1):
            break
    start = {k: v.double() for k, v in MODEL.init(seed).items()}
    assert not chosen(server, 1) and server.state.z.any()
    assert all(torch.equal(v, start[k]) for k, v in server.state.params.items())


def test_the_regularisation_brings_a_client_s_mean_to_the_global_one():
    data, start = FED.client(0).train, {k: v.double() for k, v in MODEL.init(0).items()}
    common, away = MODEL.body(start, FED.client(3).train.x).mean(0), []
    for kappa in (0.0, 50.0):
        cfg = FedDBEConfig(kappa, 1.0, LocalConfig(lr=0.05, epochs=100, batch_size=0))
        client = FedDBEClient(cfg, MODEL)
        state = client.initial_state(start, data, Stream(0, 1, 0))
        reply, _ = client.answer(ModelAndMean(start, common), state, data, Stream(0, 1, 0))
        away.append(float((MODEL.body(reply.params, data.x).mean(0) - common).norm()))
    assert away[1] < 0.1 * away[0]


def test_regressions_are_taken_and_a_head_without_bias_is_refused():
    fed = quadratics([1.0, 2.0], [3.0, 4.0], [3, 5])
    server, _ = simulated("feddbe", FedDBEConfig(), fed, network(fed, "linear"), 2)
    assert np.isfinite(server.client_metrics["test_loss"]).all()
    with pytest.raises(ConfigError, match=r"method feddbe folds .* model\.bias=false"):
        simulated("feddbe", FedDBEConfig(), fed, network(fed, "linear", bias=False), 1)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kappa": -1.0}, "kappa=-1"),
        ({"mu": 0.0}, "mu=0"),
        ({"mu": 1.5}, "mu=1.5"),
        ({"mu": 0.5, "local": LocalConfig(momentum=0.9, keep_momentum=True)}, "local.keep_momentum=true"),
    ],
)
def test_what_it_cannot_be(values, named):
    (line,) = FedDBEConfig(**values).check()
    assert line.startswith(named)


def test_runs_on_digits(tmp_path):
    assert smoke("feddbe", tmp_path, "method.mu=0.5")["rounds"] == 3
