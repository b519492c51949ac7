"""The strategy base: real Flower, partition ids, failures, evaluation."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from fedpers.app.build import assemble
from fedpers.checks.contract import make_case
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.clients.fedsoft import Importance
from fedpers.config import compose, registry
from fedpers.core.errors import ConfigError, ReplyError
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.runner import RunnerConfig
from fedpers.families.clustered.messages import Centers
from fedpers.flower.roster import Roster, Shifted, rows_of
from fedpers.flower.strategy import PersonalizedStrategy
from fedpers.flower.validation import shape_problem
from fedpers.method import Observer, Plan
from fedpers.strategies.fedavg import FedAvg
from tests.test_contract import case as contract_case


def case(**plan):
    return make_case(FedAvg, FedAvgClient, FedAvgConfig(), plan=Plan(seed=1, clients_per_round=3, **plan))


def test_both_halves_are_flowers():
    assert issubclass(PersonalizedStrategy, Strategy)
    assert issubclass(FedAvgClient, NumPyClient)


def test_flowers_own_loop_drives_a_strategy_too():
    ours, theirs = case(), case()
    a, b = ours.server(), theirs.server()
    a.start(InProcessGrid(ours.cohort()), num_rounds=2)
    result = Strategy.start(b, InProcessGrid(theirs.cohort()), ArrayRecord(), num_rounds=2)
    assert all(torch.equal(a.state.params[k], b.state.params[k]) for k in a.state.params)
    assert set(result.evaluate_metrics_clientapp) == {1, 2}


def test_a_seated_client_is_a_numpy_client():
    from fedpers.core.serialization import pack, unpack

    c = case()
    cohort, server = c.cohort(), c.server()
    server.connect(InProcessGrid(cohort))
    client = cohort.client.at(cohort, 2)
    skeleton, arrays = pack(server.evaluation_message(server.state, 2))
    header = {"t": 1, "e": 0, "skeleton": skeleton}
    out, n, metrics = client.fit(arrays, header)
    assert n == int(c.federation.num_train[2])
    assert unpack(metrics["skeleton"], out).params.keys() == server.state.params.keys()
    loss, n_test, columns = client.evaluate(arrays, header)
    assert (n_test, columns["test_num"]) == (6, 6.0)
    assert loss == columns["test_loss"]
    assert client.get_properties({}) == {"partition-id": 2, "num-examples": n}


def test_sampling_is_by_partition_and_depends_on_seed_and_round_only():
    server = case().server()
    server.connect(InProcessGrid(case().cohort()))
    draw = lambda seed: server.sample(np.random.default_rng(seed))  # noqa: E731
    assert draw(0) == draw(0) == sorted(draw(0))
    assert len(draw(0)) == 3
    counts = np.bincount(np.concatenate([draw(s) for s in range(400)]), minlength=6)
    assert np.all(np.abs(counts - 200) < 5 * np.sqrt(400 * 0.25))


def test_bernoulli_participation_has_the_right_rate():
    server = case(participation="bernoulli").server()
    server.connect(InProcessGrid(case().cohort()))
    sizes = [len(server.sample(np.random.default_rng(s))) for s in range(400)]
    assert abs(np.mean(sizes) - 3) < 5 * np.sqrt(6 * 0.25 / 400)
    assert len(set(sizes)) > 2


def test_a_range_of_participants_draws_each_size_as_often():
    server = case(participation="range", least_per_round=2).server()
    server.connect(InProcessGrid(case().cohort()))
    drawn = [server.sample(np.random.default_rng(s)) for s in range(400)]
    sizes = [len(d) for d in drawn]
    assert set(sizes) == {2, 3}
    assert abs(sizes.count(2) - 200) < 5 * np.sqrt(400 * 0.25)
    assert all(d == sorted(set(d)) for d in drawn)


@pytest.mark.parametrize(
    "overrides",
    [
        ["participation=range", "clients_per_round=3", "least_per_round=4"],
        ["participation=range", "least_per_round=0"],
    ],
)
def test_a_range_without_sense_is_refused(overrides):
    with pytest.raises(ConfigError, match=r"least_per_round=\d: must be"):
        compose.load(overrides)


OTHERS = ("fedsoft", "central")  # draw in a way of their own
DRAWS = [n for n, m in registry.METHODS.items() if not m.strategy_class().takes_all and n not in OTHERS]


@pytest.mark.parametrize("name", DRAWS)
def test_a_round_for_which_nobody_is_drawn_counts_and_changes_nothing(name, monkeypatch):
    c = contract_case(name)
    server, cohort = c.server(), c.cohort()
    server.start(InProcessGrid(cohort), num_rounds=1)
    before = server.state
    monkeypatch.setattr(PersonalizedStrategy, "sample", lambda self, rng: [])
    server.start(InProcessGrid(cohort), num_rounds=2)
    assert server.state is before
    assert server.rounds_done == 2


class Broken(Cohort):
    def handle(self, requests):
        flat = [r.k % 2 == 0 and r.header.kind == "train" for r in requests]
        answers = super().handle(requests)
        return [RuntimeError("out of battery") if f else a for f, a in zip(flat, answers, strict=True)]


def test_a_failure_raises_by_default_and_is_counted_if_skipped():
    c = make_case(FedAvg, FedAvgClient, FedAvgConfig(), plan=Plan(seed=1))
    server = c.server()
    first = r"client 0 failed in round 1: RuntimeError: out of battery \(3 clients"
    with pytest.raises(ReplyError, match=first):
        server.start(InProcessGrid(c.cohort(Broken)), num_rounds=1)
    tolerant = c.server(failures="skip")
    tolerant.start(InProcessGrid(c.cohort(Broken)), num_rounds=1)
    assert tolerant.round_log.failures == 3


def test_no_reply_at_all_is_an_error_even_if_failures_are_skipped():
    class Dead(Cohort):
        def handle(self, requests):
            return [RuntimeError("gone") for _ in requests]

    c = case()
    with pytest.raises(ReplyError, match="gone"):
        c.server(failures="skip").start(InProcessGrid(c.cohort(Dead)), num_rounds=1)


class Watching(Observer):
    def __init__(self):
        self.rounds, self.evaluations, self.done = [], [], []

    def on_round(self, t, log):
        self.rounds.append((t, log.gradient_evals))

    def on_evaluation(self, t, clients, arrays):
        self.evaluations.append((t, clients))

    def after_round(self, t):
        self.done.append(t)


def test_evaluation_every_few_rounds_and_after_the_last():
    c, seen = case(eval_every=2), Watching()
    c.server().start(InProcessGrid(c.cohort()), num_rounds=5, observer=seen)
    assert [t for t, _ in seen.evaluations] == [2, 4, 5]
    assert seen.done == [1, 2, 3, 4, 5]
    table = seen.evaluations[-1][1]
    assert table["partition_id"].tolist() == list(range(6))
    assert set(table) >= {"test_num", "test_loss", "test_accuracy", "valid_num", "valid_loss"}


def test_evaluation_of_a_fixed_sample():
    c, seen = case(eval_clients=2), Watching()
    c.server().start(InProcessGrid(c.cohort()), num_rounds=2, observer=seen)
    ids = [table["partition_id"].tolist() for _, table in seen.evaluations]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 2


def test_participants_are_assessed_right_after_their_local_work():
    """PFLEGO's published protocol: this round's participants, before the server's step."""
    c, seen = case(eval_protocol="participants_local"), Watching()
    server, cohort = c.server(), c.cohort()
    server.start(InProcessGrid(cohort), num_rounds=1, observer=seen)
    ((_, table),) = seen.evaluations
    assert len(table["partition_id"]) == 3
    k = int(table["partition_id"][0])
    fresh, again = c.server(), c.cohort()
    grid = InProcessGrid(again)
    fresh.connect(grid)
    start = fresh.evaluation_message(fresh.state, k)
    from fedpers.core.rng import Stream

    reply, _ = again.client.answer(start, None, again.data(k).train, Stream(1, 1, k))
    loss = c.model.loss(reply.params, again.data(k).test)
    assert table["test_loss"][0] == pytest.approx(float(loss), rel=1e-6)


def test_initial_arrays_replace_the_models_own():
    c = case()
    zeros = ArrayRecord({k: torch.zeros_like(v) for k, v in c.model.init(0).items()})
    server = c.server()
    server.connect(InProcessGrid(c.cohort()), zeros)
    assert all(not v.any() for v in server.state.params.values())


def test_one_misshapen_first_reply_is_skipped_alone():
    """It must not become the example that the good replies are compared with."""
    from dataclasses import replace

    class Misshapen(Cohort):
        def _one(self, request, state):
            answer = super()._one(request, state)
            if request.k == 0 and request.header.kind == "train":
                spoilt = {k: v.reshape(-1)[:1] for k, v in answer.body.params.items()}
                return replace(answer, body=type(answer.body)(spoilt))
            return answer

    c = make_case(FedAvg, FedAvgClient, FedAvgConfig(), plan=Plan(seed=1, failures="skip"))
    server = c.server()
    server.start(InProcessGrid(c.cohort(Misshapen, runner=RunnerConfig("loop"))), num_rounds=1)
    assert server.round_log.failures == 1


@pytest.mark.parametrize("ids", [range(3), (1, 4, 6)])
def test_samples_are_those_of_the_client_of_that_number(ids):
    """Of clients on devices some numbers may be missing."""
    strategy = FedAvg(FedAvgConfig(), None, Plan())
    strategy.roster, strategy.row = Roster(ids, torch.tensor([5.0, 7.0, 9.0]), {}), rows_of(ids)
    assert [strategy.num_examples(k) for k in ids] == [5, 7, 9]


def test_numbers_that_are_only_shifted_are_a_mapping_like_any_other():
    there = Shifted(2, 3, 10)
    assert dict(there) == {2: 12, 3: 13, 4: 14} and len(there) == 3
    assert there.get(5) is None and 1 not in there
    assert dict(rows_of((3, 4, 5))) == {3: 0, 4: 1, 5: 2}
    assert rows_of((3, 5)) == {3: 0, 5: 1} and rows_of(()) == {}


@pytest.mark.parametrize(
    "override", ["fedsoft", "fedprox method.sampling=proportional", "fedsoft method.sampling=full"]
)
def test_bernoulli_participation_is_refused_where_the_method_draws_by_itself(override):
    small = ["data=synthetic_fedsoft", "model=linear", "data.num_clients=3", "participation=bernoulli"]
    with pytest.raises(ConfigError, match="participation=bernoulli: method="):
        assemble(compose.load([*small, *f"method={override}".split()]))


def test_an_order_says_which_shapes_it_expects():
    order, wrong = Centers(({"w": torch.zeros(1)},) * 3), Importance(torch.zeros(2), torch.tensor(4.0))
    assert shape_problem(order, wrong, None) == "u has shape (2,), expected (3,)"
    assert shape_problem(order, Importance(torch.zeros(3), torch.tensor(4.0)), None) is None
