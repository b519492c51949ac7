"""Bundles of clients behind a few nodes: same bits as one client a message, failures by name."""

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedpers.app import backends as engines
from fedpers.app.build import assemble, encode_config
from fedpers.app.client_app import fleet_app
from fedpers.bench.app_grid import AppGrid
from fedpers.checks.case import same
from fedpers.config import compose
from fedpers.config.run_config import EngineConfig
from fedpers.core.errors import FedpersError, ReplyError
from fedpers.core.serialization import SMALL, stack_equals, unstack
from fedpers.engines import ray_grid
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.ray_grid import (
    BUNDLE,
    BUNDLE_BYTES,
    RayCohort,
    RayGrid,
    open_answers,
    open_requests,
    seal_answers,
    seal_requests,
    serve,
)
from fedpers.flower.internals import begin_run
from fedpers.flower.messages import Answer, Header, Request, error_reply
from tests.test_contract import METHODS, case

HEADER = Header("train", 2, 1)


def grid_of(app, federation, actors=3, nodes=2, kind=AppGrid, store=None):
    """The clients of a federation behind some nodes of an app, as engine=ray has them."""
    inner = kind(app, nodes)
    return RayGrid(RayCohort(inner, inner.get_node_ids(), actors, federation, store or RamStore(), "cpu"))


def app_of(cohort, seen=None):
    app = ClientApp()

    @app.train(BUNDLE.partition(".")[2])
    def bundle(message, context):
        if seen is not None:
            seen.append([r.k for r in open_requests(message.content, "cpu")[0]])
        return Message(serve(cohort, message.content), reply_to=message)

    return app


@pytest.mark.parametrize("name", METHODS)
def test_bundles_change_no_bit(name):
    """State, metrics and what was counted, of every method."""
    plain, bundled, c = case(name).server(), case(name).server(), case(name)
    here, states, seen = c.cohort(), RamStore(), []
    plain.start(InProcessGrid(here), num_rounds=c.rounds)
    bundled.start(grid_of(app_of(c.cohort(), seen), c.federation, store=states), num_rounds=c.rounds)
    assert same(plain.state, bundled.state)
    assert plain.round_log.bytes_down == bundled.round_log.bytes_down
    assert plain.round_log.gradient_evals == bundled.round_log.gradient_evals
    for column, values in plain.client_metrics.items():
        np.testing.assert_array_equal(values, bundled.client_metrics[column])
    assert here.store.states.keys() == states.states.keys()
    assert all(same(m, states.states[k]) for k, m in here.store.states.items())
    assert max(map(len, seen)) > 1  # clients did share a message


def test_the_app_of_engine_ray():
    """From a configuration to what clients remember, without Ray: the same end as in process."""
    cfg = compose.load(["method=fedper", "data.num_clients=6", "rounds=3", "clients_per_round=4"])
    one, other = assemble(cfg), assemble(cfg)
    cohort = Cohort(one.client, one.federation, RamStore(), one.plan)
    one.strategy.start(InProcessGrid(cohort), num_rounds=3)
    app, states = fleet_app(encode_config(cfg)), RamStore()
    other.strategy.start(grid_of(app, other.federation, store=states), num_rounds=3)
    assert same(one.strategy.state, other.strategy.state)
    assert cohort.store.states and cohort.store.states.keys() == states.states.keys()
    assert all(same(states.states[k], m) for k, m in cohort.store.states.items())


def test_an_order_that_many_get_is_sent_once():
    shared, own = {"w": torch.ones(5, 5)}, [{"c": torch.full((3,), float(k))} for k in range(4)]
    requests = [Request(k, {"shared": shared["w"], **own[k % 2]}, HEADER) for k in range(4)]
    requests.append(Request(9, requests[0].order, HEADER._replace(kind="evaluate")))
    states = [{"head": torch.full((7,), float(k))} for k in range(3)] + [None, None]
    content = seal_requests(requests, states)
    assert sum(a.size for a in content["arrays"].to_numpy_ndarrays()) == 25 + 2 * 3 + 2 * 5 + 3 * 7
    opened, remembered = open_requests(content, "cpu")
    assert same(remembered, tuple(states))
    assert [r.k for r in opened] == [0, 1, 2, 3, 9]
    assert [r.header for r in opened] == [r.header for r in requests]
    assert all(same(a.order, b.order) for a, b in zip(opened, requests, strict=True))
    assert opened[0].order["shared"] is opened[3].order["shared"]
    assert opened[0].order["c"] is opened[2].order["c"] is opened[4].order["c"]


def test_answers_and_failures_travel_together():
    answers = [
        Answer({"test_loss": 0.5}, 7, 0),
        ValueError("boom"),
        Answer((torch.arange(3),), 2, 8, stack=5),
    ]
    kept = [None, None, {"head": torch.ones(2)}]
    (first, second, third), (*nothing, new) = zip(
        *open_answers(seal_answers(answers, kept), "cpu"), strict=True
    )
    assert nothing == [None, None] and same(new, kept[2])
    assert first == answers[0]
    assert second == "ValueError: boom"
    assert (third.num_examples, third.work, third.stack) == (2, 8, 0)  # stacks have numbers in one process
    assert torch.equal(third.body[0], torch.arange(3))


def test_small_equal_arrays_are_rows_of_one():
    small = [np.full((2, 3), i, np.float32) for i in range(4)]
    large = [np.zeros(SMALL + 1, np.uint8), np.ones(SMALL + 1, np.uint8)]
    arrays = [small[0], large[0], small[1].astype(np.float64), *small[2:], large[1], np.float32(4)[None]]
    blocks, which = stack_equals(arrays)
    assert sorted(len(b) for b in blocks) == [1, 1, 1, 1, 3]
    back = unstack(blocks, which)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(arrays, back, strict=True))
    assert [a.dtype for a in arrays] == [b.numpy().dtype for b in back]
    assert stack_equals([]) == ([], [])


def test_a_failing_client_is_named_and_the_others_go_on():
    c = case("fedavg")

    class Failing(Cohort):
        def handle(self, requests):
            answers = super().handle(requests)
            return [OSError("disk") if r.k == 2 else a for r, a in zip(requests, answers, strict=True)]

    server = c.server(clients_per_round=None)
    with pytest.raises(ReplyError, match="client 2 failed in round 1: OSError: disk"):
        server.start(grid_of(app_of(c.cohort(Failing)), c.federation), num_rounds=1)
    lenient = c.server(clients_per_round=None, failures="skip")
    lenient.start(grid_of(app_of(c.cohort(Failing)), c.federation), num_rounds=1)
    assert lenient.round_log.failures == 2  # in training, and in evaluation


def test_a_dead_node_takes_its_bundle_along():
    app, c = ClientApp(), case("fedavg")

    @app.train(BUNDLE.partition(".")[2])
    def dies(message, context):
        raise MemoryError("actor died")

    with pytest.raises(ReplyError, match=r"client 0 failed in round 1: .*actor died.*\(6 clients failed\)"):
        c.server(clients_per_round=None).start(grid_of(app, c.federation), num_rounds=1)


@pytest.mark.parametrize("lost", ["ActorDiedError", "ActorUnavailableError", "NodeDiedError"])
def test_a_bundle_whose_actor_died_is_asked_again_with_the_same_states(monkeypatch, lost):
    """What the dead actor had made is dropped, so nothing is applied twice: the bits of a quiet run."""
    monkeypatch.setattr(ray_grid, "AGAIN_S", 0.0)
    c, died = case("pflego"), []
    quiet, shaken, here, states = c.server(), c.server(), c.cohort(), RamStore()
    quiet.start(InProcessGrid(here), num_rounds=c.rounds)
    app, cohort = ClientApp(), c.cohort()

    @app.train(BUNDLE.partition(".")[2])
    def bundle(message, context):
        answer = serve(cohort, message.content)
        if len(died) < 3 and open_requests(message.content, "cpu")[0][0].header.t == 2:
            died.append(1)
            reason = f"<class 'ray.exceptions.{lost}'>:<'gone'>"
            return error_reply(message, reason)
        return Message(answer, reply_to=message)

    shaken.start(grid_of(app, c.federation, store=states), num_rounds=c.rounds)
    assert len(died) == 3 and same(quiet.state, shaken.state)
    assert all(same(m, states.states[k]) for k, m in here.store.states.items())


def test_no_reply_in_time():
    class Silent(AppGrid):
        def pull_messages(self, message_ids):
            return []

    c = case("fedavg")
    server = c.server(clients_per_round=None)
    with pytest.raises(ReplyError, match=r"client 0 failed in round 1: no reply"):
        server.start(grid_of(app_of(c.cohort()), c.federation, kind=Silent), num_rounds=1, timeout=0.02)


def test_an_exchange_without_orders_sends_nothing():
    c = case("fedavg")
    server = c.server()
    server.connect(grid_of(app_of(c.cohort()), c.federation))
    nothing = server.transport.address(Header("train", 1), {}, server.round_log)
    assert list(server.transport.send(nothing)) == []


def test_bundles_are_balanced_and_not_too_large():
    federation = case("fedavg").federation
    large = {"w": torch.empty(BUNDLE_BYTES // 2, dtype=torch.uint8)}
    shares = lambda order, n, state=None: RayCohort(None, [5], n, federation, None, "cpu")._shares(  # noqa: E731
        [Request(k, order, HEADER) for k in range(6)], [state] * 6
    )
    assert len(shares({"w": torch.ones(3)}, 2)) == 2
    assert len(shares({"w": torch.ones(3)}, 50)) == 6
    assert [len(s) for s in shares(large, 1)] == [2, 2, 2]
    assert sorted(i for s in shares(large, 2) for i in s) == list(range(6))
    assert len(shares(None, 1)) == 1
    assert [len(s) for s in shares(None, 1, large)] == [2, 2, 2]


@pytest.mark.parametrize(("chunk", "count"), [(1, 6), (2, 3), (4, 2), (100, 2), (None, 2)])
def test_the_clients_of_a_message_can_be_chosen(chunk, count):
    federation = case("fedavg").federation
    fleet = RayCohort(None, [5], 2, federation, None, "cpu", chunk)
    shares = fleet._shares([Request(k, {"w": torch.ones(3)}, HEADER) for k in range(6)], [None] * 6)
    assert len(shares) == count
    assert sorted(i for s in shares for i in s) == list(range(6))


def test_a_grid_inside_flowers_run_keeps_its_identity(monkeypatch):
    """Messages of a strategy must carry the run of the grid below, or Flower refuses them."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, None)
    begin_run(3)
    assert TaskIdentity.run_id == 3
    c = case("fedavg")
    grid_of(app_of(c.cohort()), c.federation)
    assert (TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id) == (3, 3, 3)


@pytest.mark.parametrize(
    ("engine", "there", "count"),
    [
        ({"num_cpus": 1}, {"CPU": 16.0}, 16),
        ({"num_cpus": 3}, {"CPU": 16.0}, 5),
        ({"num_cpus": 1, "num_gpus": 0.25}, {"CPU": 16.0, "GPU": 2.0}, 8),
        ({"num_cpus": 2}, {"CPU": 1.0}, 1),  # Flower says what is wrong
    ],
)
def test_as_many_bundles_as_flower_makes_actors(monkeypatch, engine, there, count):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: there)
    assert engines._actors(EngineConfig("ray", **engine)) == count


def test_ray_that_never_comes_is_not_waited_for_forever(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(FedpersError, match="Ray did not start within 0 s"):
        engines._actors(EngineConfig("ray"), patience=0)
