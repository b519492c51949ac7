"""Clients that would be late train for as many epochs as fit: against plain loops, in every engine."""

import numpy as np
import pytest
import torch

from fedpers.app.build import assemble
from fedpers.checks.case import Case, run, same
from fedpers.config import compose, registry
from fedpers.core.errors import ConfigError
from fedpers.core.plan import Plan
from fedpers.core.systems import Systems, SystemsConfig
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.ray_grid import open_requests, seal_requests
from fedpers.engines.runner import RunnerConfig
from fedpers.flower import messages
from fedpers.flower.clock import Clock
from fedpers.flower.messages import Header, Request, open_arrays
from fedpers.learning.flops import flops_of
from fedpers.method import LocalConfig
from tests.methods.helpers import arrays, batches, chosen, config, doubles, network

FED = doubles()
EPOCHS = (3, 1, 2, 3, 2, 1)  # that each client has time for, of 3
RATE, MU, SIZE, SEED = 0.2, 0.4, 4, 5
DECLARED = sorted(name for name, row in registry.METHODS.items() if row.partial_work)


def clock(tmp_path, case, client, epochs):
    """Devices that a second is enough for so many epochs on, and half of one more; bytes take no time."""
    each = flops_of(case.model, case.federation.input_shape).of(1, 1, 0)
    speeds = [(e + 0.5) * each * n / 1e9 for e, n in zip(epochs, case.federation.num_train, strict=True)]
    rows = "".join(f"{k},{speed!r},1e15,1e15\n" for k, speed in enumerate(map(float, speeds)))
    (tmp_path / "t.csv").write_text("client,gflops,mbit_down,mbit_up\n" + rows)
    told = SystemsConfig("table", path=str(tmp_path / "t.csv"), deadline_s=1.0, partial=True)
    systems = Systems(told, len(epochs), 0)
    flops = flops_of(case.model, case.federation.input_shape).of
    return Clock(systems, flops, client=client, counts=case.federation.num_train)


def played(case, systems, runner="auto", kind=Cohort):
    """(server, cohort) after the case's rounds; `systems` makes the clock, of the client."""
    workers = 2 if runner == "workers" else 1
    cohort = case.cohort(kind, runner=RunnerConfig("auto" if workers > 1 else runner, workers=workers))
    server = case.server()
    server.clock = systems(cohort.client)
    try:
        server.start(InProcessGrid(cohort), num_rounds=case.rounds)
    finally:
        cohort.close()
    return server, cohort


def case_of(name, cfg, rounds=3, **plan):
    row, plan = registry.METHODS[name], {"seed": SEED, "dtype": "float64", "eval_every": 0, **plan}
    net = network(FED)
    return Case(row.strategy_class(), row.client_class(), cfg, FED, net, Plan(**plan), rounds)


# ---- against a plain loop ---------------------------------------------------------------------------


def trained(w, data, schedule, mu=0.0, drift=None):
    """Softmax regression by SGD on f(v) + μ/2 ‖v - w‖² - ⟨drift, v⟩; w is {w: [K, d], b: [K]}."""
    (x, y), v = data, {k: a.copy() for k, a in w.items()}
    for i in schedule:
        logits = x[i] @ v["w"].T + v["b"]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(i)), y[i]] -= 1
        g = {"w": p.T @ x[i] / len(i), "b": p.mean(0)}
        v = {k: v[k] - RATE * (g[k] + mu * (v[k] - w[k]) - (0 if drift is None else drift[k])) for k in v}
    return v


def data_of(k):
    part = FED.client(k).train
    return part.x.numpy(), part.y.numpy()


def averaging_round(w, clients, t, mu):
    """FedAvg's, or FedProx's: the mean by samples of what each has after its own number of epochs."""
    found, n = [], [len(data_of(k)[1]) for k in clients]
    for k, size in zip(clients, n, strict=True):
        found.append(trained(w, data_of(k), batches(SEED, t, k, size, SIZE, EPOCHS[k]), mu))
    return {a: sum(size * v[a] for size, v in zip(n, found, strict=True)) / sum(n) for a in w}


def scaffold_round(w, c, own, clients, t):
    """Option II: each divides by the number of its own steps."""
    moved, changed = [], []
    for k in clients:
        schedule = batches(SEED, t, k, len(data_of(k)[1]), SIZE, EPOCHS[k])
        v = trained(w, data_of(k), schedule, drift={a: own[k][a] - c[a] for a in w})
        new = {a: own[k][a] - c[a] + (w[a] - v[a]) / (len(schedule) * RATE) for a in w}
        moved.append({a: v[a] - w[a] for a in w})
        changed.append({a: new[a] - own[k][a] for a in w})
        own[k] = new
    return (
        {a: w[a] + sum(d[a] for d in moved) / len(clients) for a in w},
        {a: c[a] + sum(d[a] for d in changed) / len(own) for a in w},
    )


class Bundled(Cohort):
    """Each exchange as an actor of Ray is sent it."""

    def handle(self, requests):
        sent, _ = open_requests(seal_requests(requests, [None] * len(requests)), "cpu")
        return super().handle(sent)


WAYS = {"loop": ("loop", Cohort), "stack": ("stack", Cohort), "workers": ("workers", Cohort)}
WAYS["bundles"] = ("stack", Bundled)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold"])
def test_rounds_with_some_clients_equal_a_plain_loop(name, way, tmp_path):
    """Three rounds of four of six clients, who make 3, 1, 2, 3, 2 and 1 of 3 epochs."""
    options = {"mu": MU} if name == "fedprox" else {}
    cfg = config(name, local=LocalConfig(lr=RATE, epochs=3, batch_size=SIZE), **options)
    case = case_of(name, cfg, clients_per_round=4)
    server, _ = played(case, lambda client: clock(tmp_path, case, client, EPOCHS), *WAYS[way])
    w = arrays(case.model.init(SEED))
    c = {a: np.zeros_like(v) for a, v in w.items()}
    own = [c] * len(EPOCHS)
    for t in (1, 2, 3):
        if name == "scaffold":
            w, c = scaffold_round(w, c, own, chosen(server, t), t)
        else:
            w = averaging_round(w, chosen(server, t), t, options.get("mu", 0.0))
    found = arrays(server.state.x if name == "scaffold" else server.state.params)
    for a, value in w.items():
        np.testing.assert_allclose(found[a], value, rtol=0, atol=1e-13)
    asked = chosen(server, 3)
    log, sizes = server.round_log, {k: len(data_of(k)[1]) for k in asked}
    assert log.gradient_evals == sum(EPOCHS[k] * n for k, n in sizes.items())
    assert log.extra["partial"] == sum(EPOCHS[k] < 3 for k in asked) and log.extra["late"] == 0
    slowest = max(EPOCHS[k] / (EPOCHS[k] + 0.5) for k in asked)
    assert log.extra["virtual_seconds"] == pytest.approx(slowest)


def test_messages_tell_each_client_its_own(monkeypatch):
    monkeypatch.setattr(messages, "Message", lambda content, node, kind: content)
    order = {"w": torch.zeros(2)}
    requests = [Request(k, order, Header("train", 1, passes=p)) for k, p in enumerate((0, 2, 0))]
    told = messages.request_messages(requests, {0: 7, 1: 8, 2: 9})
    assert [Header.of(open_arrays(content)[1]).passes for content in told] == [0, 2, 0]
    assert told[0] is told[2]


# ---- every method that bears it ---------------------------------------------------------------------


@pytest.mark.parametrize("counts", ["epochs", "steps"])
@pytest.mark.parametrize("name", DECLARED)
def test_if_all_are_told_two_of_three_it_is_a_run_of_two(name, counts):
    """Model, states and cost of clients that are all alike, with time for five sixths of their training."""
    row, alike = registry.METHODS[name], doubles(sizes=(8,))
    plan = Plan(seed=3, clients_per_round=4, dtype="float64")

    def case(number):
        cfg = config(name, local=LocalConfig(lr=0.1, batch_size=0, **{counts: number}))
        return Case(row.strategy_class(), row.client_class(), cfg, alike, network(alike, "mlp"), plan, 2)

    def devices(**told):
        systems = Systems(SystemsConfig("drawn", spread=0, mbit_up=1e15, mbit_down=1e15, **told), 6, 0)
        flops = flops_of(case(3).model, alike.input_shape).of
        return lambda client: Clock(systems, flops, client=client, counts=alike.num_train)

    whole, _ = played(case(3), devices())
    deadline = whole.round_log.extra["virtual_seconds"] * 2.5 / 3
    found, cohort = played(case(3), devices(partial=True, deadline_s=deadline))
    wanted, theirs = run(case(2))
    assert found.round_log.extra["partial"] == 4 and found.round_log.extra["late"] == 0
    assert same(found.state, wanted.state)
    assert found.round_log.gradient_evals == wanted.round_log.gradient_evals > 0
    assert found.round_log.head_steps == wanted.round_log.head_steps
    states, others = ([c.state(k, (9, 0)) for k in range(6)] for c in (cohort, theirs))
    assert same(states, others)


def test_who_has_no_time_for_one_epoch_makes_one_and_is_late(tmp_path):
    case = case_of("fedavg", config("fedavg", local=LocalConfig(epochs=3)), rounds=1)
    server, _ = played(case, lambda client: clock(tmp_path, case, client, (3, 0.2, 3, 3, 3, 3)))
    log = server.round_log
    assert log.extra["late"] == 1 and log.extra["partial"] == 1
    assert log.gradient_evals == sum(3 * len(data_of(k)[1]) for k in range(6)) - 2 * len(data_of(1)[1])


def test_a_method_that_is_not_known_to_bear_it_refuses():
    words = ["systems=drawn", "systems.deadline_s=1", "systems.partial=true", "model=logistic"]
    for name in ("pflego", "fedrep", "central"):
        said = rf"systems.partial=true method={name}: it is not known to bear"
        with pytest.raises(ConfigError, match=said):
            assemble(compose.load([f"method={name}", *words]), FED)


def test_without_a_deadline_there_is_nothing_to_be_done_before():
    with pytest.raises(ConfigError, match=r"systems.partial=true: there is no deadline"):
        compose.load(["method=fedavg", "systems=drawn", "systems.partial=true"])
