"""FedMD against a restatement, what it reduces to, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.clients.fedmd import FedMDClient, FedMDConfig
from fedpers.clients.local import LocalTrainingConfig
from fedpers.core.aggregation import AggregationConfig
from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.rng import server_rng
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.families.distillation import Ask, Digest, Distance, Known
from fedpers.method import LocalConfig, Plan, Stream
from fedpers.strategies.fedmd import FedMD
from tests.methods.helpers import (
    assert_close,
    doubles,
    initial_parts,
    network,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles import fedmd as oracle

FED = doubles(classes=5, sizes=(15, 9, 12))
MODEL = network(FED, "mlp")
LOCAL, DIGEST = LocalConfig(lr=0.2, epochs=2, batch_size=4), LocalConfig(lr=0.3, epochs=2, batch_size=3)
FULL = LocalConfig(lr=0.2, epochs=2, batch_size=0)
NO_DIGEST = LocalConfig(epochs=0)


def known(n, seed=5):
    """n public samples of other rules than any client's."""
    rng = np.random.default_rng(seed)
    x, y = torch.from_numpy(rng.normal(size=(n, 5))), torch.from_numpy(rng.integers(0, 5, n))
    return Data(x, y, torch.ones(n, dtype=torch.float64))


def rows(stream, n, cfg):
    """The minibatches that a stream gives next."""
    index, weight = stream.schedule(n, cfg.batch_size, cfg.epochs, 0)
    return [i[w > 0].numpy() for i, w in zip(index, weight, strict=True)]


def assert_model(params, model, atol=1e-12):
    head = {k: v for k, v in params.items() if MODEL.is_head(k)}
    assert_close({k: v for k, v in params.items() if k not in head}, model[0], atol)
    assert_close(head, model[1], atol)


@pytest.mark.parametrize("labelled", [True, False])
def test_rounds_equal_a_restatement(labelled):
    """Three of six unequal clients a round, new ones in several rounds; minibatches that are not full."""
    D = known(15)  # as many as the largest client has
    public = D if labelled else Data(D.x, D.y[:0], D.mask)
    cfg, start = FedMDConfig(7, 3, DIGEST, LOCAL), replace(LOCAL, epochs=3)
    plan = {"seed": 1, "clients_per_round": 3}
    strategy, cohort = simulated("fedmd", cfg, replace(FED, public=public), MODEL, 4, **plan)
    models, x, y = [initial_parts(MODEL, 1)] * 6, D.x.numpy(), D.y.numpy()
    begun, data, met = set(), samples(FED), []
    for t in range(1, 5):
        rng = server_rng(1, t)
        now = strategy.sample(rng)
        d = rng.choice(15, 7, replace=False)
        for k in set(now) - begun:
            stream, own = Stream(1, t, k, 0), data[k]
            if labelled:
                models[k] = oracle.train(models[k], x, y, oracle.labels, 0.2, rows(stream, 15, start))
            models[k] = oracle.train(models[k], *own, oracle.labels, 0.2, rows(stream, len(own[1]), start))
        scores = [oracle.outputs(models[k], x[d]) for k in now]
        f = sum(scores) / len(now)
        for k in now:
            stream, own = Stream(1, t, k, 1), data[k]
            models[k] = oracle.train(models[k], x[d], f, oracle.consensus, 0.3, rows(stream, 7, DIGEST))
            models[k] = oracle.train(models[k], *own, oracle.labels, 0.2, rows(stream, len(own[1]), LOCAL))
        met.append(len(set(now) - begun))
        begun |= set(now)
    assert met[0] == 3 and any(met[1:]) and sum(met) < 12
    np.testing.assert_allclose(strategy.state.consensus, f, rtol=0, atol=1e-12)
    assert strategy.state.rows.tolist() == d.tolist()
    apart = np.mean([abs(each - f) for each in scores])
    assert strategy.round_log.extra["disagreement"] == pytest.approx(apart, rel=1e-9)
    assert set(cohort.store.states) == begun
    for k, state in cohort.store.states.items():
        assert_model(state.params, models[k])


def test_the_distance_is_the_mean_absolute_error_and_smooth_at_0():
    model = network(FED, "logistic")
    w = {k: torch.zeros_like(v).double() for k, v in model.init(0).items()}
    batch = Data(
        torch.ones(2, 5).double(),
        torch.tensor([[2.0, -1, 0, 0, 0], [0, 0, 0, 0, 7]]).double(),
        torch.tensor([1.0, 0.0]).double(),
    )
    assert float(Distance(model)(w, batch)) == pytest.approx((2 + 1 - 2 * 0.0005) / 5)
    bias = torch.full((5,), 1e-9).double()
    near = Data(batch.x, torch.zeros(2, 5).double(), torch.ones(2).double())
    slope = torch.func.grad(lambda b: Distance(model)(w | {"head.bias": b}, near))(bias)
    torch.testing.assert_close(slope, torch.full((5,), 1e-6 / 5).double(), rtol=1e-6, atol=0)


def test_without_start_and_digest_it_is_local_training():
    cfg, plan = FedMDConfig(0, 0, NO_DIGEST, FULL), {"seed": 2, "clients_per_round": 4}
    _, ours = simulated("fedmd", cfg, FED, MODEL, 3, **plan)
    _, other = simulated("local", LocalTrainingConfig(FULL), FED, MODEL, 3, **plan)
    assert ours.store.states.keys() == other.store.states.keys()
    for k, state in ours.store.states.items():
        assert same(state.params, other.store.states[k].params)


def test_a_client_alone_learns_nothing_from_itself():
    one = doubles(num_clients=1, classes=5)
    _, ours = simulated("fedmd", FedMDConfig(0, 2, DIGEST, FULL), one, MODEL, 3, seed=2)
    _, other = simulated("fedmd", FedMDConfig(0, 2, NO_DIGEST, FULL), one, MODEL, 3, seed=2)
    for name, value in ours.store.states[0].params.items():
        torch.testing.assert_close(value, other.store.states[0].params[name], rtol=0, atol=1e-11)


def heard(rounds, **plan):
    """(strategy, [(client, order, reply)] of each exchange) of full-batch clients and 30 public samples."""
    told = []

    class Listening(Cohort):
        def handle(self, requests):
            answers = super().handle(requests)
            told.append([(r.k, r.order, a.body) for r, a in zip(requests, answers, strict=True)])
            return answers

    plan = Plan(**{"seed": 3, "dtype": "float64", "eval_every": 0, **plan})
    strategy = FedMD(FedMDConfig(6, 1, DIGEST, FULL), MODEL, plan)
    strategy.public = known(30)
    cohort = Listening(FedMDClient(strategy.config, MODEL), FED, RamStore(), plan)
    strategy.start(InProcessGrid(cohort), num_rounds=rounds)
    return strategy, told


def test_all_clients_are_sent_the_same_samples_and_only_scores_come_back():
    """d and the consensus are alike for all; who has begun is not sent D_0 again."""
    strategy, told = heard(3, clients_per_round=4)
    begun, subsets = set(), []
    for asked, digested in zip(told[:6:2], told[1:6:2], strict=True):
        d = asked[0][1].x
        subsets.append(d)
        assert [k for k, *_ in asked] == [k for k, *_ in digested]
        for k, order, reply in asked:
            assert isinstance(order, Ask) and torch.equal(order.x, d) and reply.scores.shape == (6, 5)
            assert (order.known is None) == (k in begun)
            assert order.known is None or torch.equal(order.known.x, strategy.public.x)
        f = torch.stack([reply.scores for *_, reply in asked]).mean(0)
        for _, order, reply in digested:
            assert isinstance(order, Digest) and torch.equal(order.x, d) and not vars(reply)
            torch.testing.assert_close(order.consensus, f, rtol=0, atol=1e-13)
        begun |= {k for k, *_ in asked}
    assert not torch.equal(subsets[0], subsets[1])
    assert all((d[:, None] == strategy.public.x).all(2).any(1).all() for d in subsets)


def test_what_it_costs_is_counted():
    """Per client: a start is E_0 (P + n) gradients; then S passes, and the epochs of digest and training."""
    client, data = FedMDClient(FedMDConfig(0, 3, DIGEST, LOCAL), MODEL), known(11)
    x = data.x[:7]
    assert client.work(Ask(x, 5, None), 9) == (0, 7, 0)
    assert client.work(Ask(x, 5, Known(data.x, data.y)), 9) == (3 * (11 + 9), 7, 0)
    assert client.work(Ask(x, 5, Known(data.x, None)), 9) == (3 * 9, 7, 0)
    assert client.work(Digest(x, torch.zeros(7, 5)), 9) == (2 * 7 + 2 * 9, 0, 0)


def test_robust_means_stand_in_for_the_consensus():
    strategy, told = heard(1, clients_per_round=3, aggregation=AggregationConfig("median"))
    middle = torch.stack([reply.scores for *_, reply in told[0]]).median(0).values
    torch.testing.assert_close(strategy.state.consensus, middle, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("public", "text"),
    [
        (None, "method=fedmd needs samples that all know: set data.public or data.public_file"),
        (known(8, seed=6), "data.public_file: holds other samples than those that the run began with"),
    ],
)
def test_a_run_is_not_gone_on_with_on_other_samples(public, text):
    strategy, cohort = simulated("fedmd", FedMDConfig(local=FULL), replace(FED, public=known(8)), MODEL, 1)
    again = FedMD(strategy.config, MODEL, strategy.plan)
    again.state, again.rounds_done, again.public = strategy.state, 1, public
    with pytest.raises(ConfigError, match=text):
        again.start(InProcessGrid(cohort), num_rounds=2)


def test_bad_values_are_refused():
    soft = LocalConfig(label_smoothing=0.1, class_weights=(1.0, 2.0))
    found = FedMDConfig(-1, -1, soft).check()
    assert len(found) == 4
    assert "digest.label_smoothing=0.1: a consensus is no class; leave it out" in found


def test_runs_on_digits(tmp_path):
    assert smoke("fedmd", tmp_path)["rounds"] == 3
