"""FedeRiCo: the exact algorithm, the reductions, the routing, the mailbox when a client fails."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from fedpers.app.run import execute
from fedpers.checks.case import close
from fedpers.checks.contract import CHECKS, make_case, workers_change_nothing
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.clients.federico import FedeRiCoClient, FedeRiCoConfig
from fedpers.clients.local import LocalClient, LocalTrainingConfig
from fedpers.config import compose
from fedpers.core.data import ClientData, Data, Federation
from fedpers.core.errors import ConfigError
from fedpers.core.serialization import num_bytes
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.memory.row_store import RowStore
from fedpers.families.peers import weights
from fedpers.families.peers.messages import Alone, Forward, Join, Published, Step, WeightedGradients
from fedpers.learning.kernels import native
from fedpers.learning.model import build_model, initial_params
from fedpers.method import LocalConfig, Observer, Plan
from fedpers.results import checkpoint
from fedpers.simulate import simulate
from fedpers.strategies.fedavg import FedAvg
from fedpers.strategies.federico import FedeRiCo
from fedpers.strategies.local import Local
from tests.oracles.federico import federico

FED = toy_federation(num_clients=5, sizes=(12, 9, 15, 11), dtype=torch.float64)
EVEN = toy_federation(num_clients=6, sizes=(12,), dtype=torch.float64)
MODEL = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
MLP = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4])
LETTER = {"warmup": 0, "normalise": False, "kappa": 1.0, "w_min": 0.0}  # Algorithm 1 to the letter
EM = {"num_neighbours": "all", "memory": "sum"}  # the exact algorithm
GRAD = {"update": "grad", "loss": "sum", "eta": 0.01}
SMALL = LocalConfig(lr=0.05, batch_size=4, optimizer="adam")
CONFIGS = {
    "batches": FedeRiCoConfig(local=SMALL),
    "alone": FedeRiCoConfig(num_neighbours=0, local=SMALL),
    "em": FedeRiCoConfig(**EM, update="grad", loss="sum", eta=0.001),
    "adam": FedeRiCoConfig(update="grad", owner="adam"),
    "options": FedeRiCoConfig(normalise=False, unseen="zero", start="common", warmup=0),
}


@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c is not workers_change_nothing], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("name", CONFIGS)
def test_contract(check, name):
    check(make_case(FedeRiCo, FedeRiCoClient, CONFIGS[name]))


class Recording(Cohort):
    """Keeps all messages; clients in `down[t]` do not train in round t."""

    down: ClassVar[dict] = {}

    def __init__(self, *args):
        super().__init__(*args)
        self.log = []

    def handle(self, requests):
        training = requests[0].header.kind == "train"
        gone = [training and r.k in self.down.get(r.header.t, ()) for r in requests]
        found = iter(super().handle([r for r, g in zip(requests, gone, strict=True) if not g]))
        answers = [RuntimeError("gone") if g else next(found) for g in gone]
        if training:
            self.log += [
                (r.header.t, r.k, r.order, getattr(a, "body", None))
                for r, a in zip(requests, answers, strict=True)
            ]
        return answers


class History(Observer):
    """(W, [φ_i]) after every round."""

    def __init__(self):
        self.rounds = []

    def on_round(self, t, log):
        memories = self.cohort.store.states
        self.rounds.append((self.strategy.state.w, [memories[k].phi for k in sorted(memories)]))


def run(rounds, fed=FED, model=MODEL, down=None, memories=None, plan=None, history=None, **options):
    """(strategy, cohort, config) after some rounds, float64."""
    cfg = FedeRiCoConfig(**(LETTER | options))
    strategy = FedeRiCo(cfg, model, replace(Plan(seed=2, dtype="float64"), **(plan or {})))
    store = RamStore()
    store.states = dict(memories or {})
    cohort = Recording(FedeRiCoClient(cfg, model), fed, store, strategy.plan)
    cohort.down = down or {}
    if history:
        history.strategy, history.cohort = strategy, cohort
    strategy.start(InProcessGrid(cohort), num_rounds=rounds, observer=history)
    return strategy, cohort, cfg


def initial(fed=FED, model=MODEL, **options):
    cfg = FedeRiCoConfig(**options)
    plan = Plan(seed=2, dtype="float64")
    cohort = Cohort(FedeRiCoClient(cfg, model), fed, RamStore(), plan)
    return [cohort.state(k, (1, 0)) for k in range(fed.num_clients)]


def plain(phi):
    return {"w": phi["head.weight"].numpy(), "b": phi["head.bias"].numpy()}


def arrays(fed):
    return [(d.x.numpy(), d.y.numpy()) for d in (fed.client(k).train for k in range(fed.num_clients))]


def asked(cohort):
    """[round][client] -> B_i, from the messages; None for one that trains alone."""
    found = {}
    for t, k, order, _ in cohort.log:
        if isinstance(order, Forward | Alone):
            alone = isinstance(order, Alone)
            found.setdefault(t, {})[k] = None if alone else order.ids.tolist()[1:]
    return [found[t] for t in sorted(found)]


# ---- Algorithm 1 --------------------------------------------------------------------------------


RESTATED = {  # name: (options, those of the restatement); ε = 0, so that neighbours follow the weights
    "letter": ({**GRAD, "beta": 0.6}, {}),
    "zero": ({**GRAD, "beta": 0.3, "unseen": "zero", "num_neighbours": 1}, {"mask": False}),
    "current": ({**GRAD, "beta": 1.0, "num_neighbours": 4}, {}),
    "adam": ({**GRAD, "owner": "adam", "eta": 0.05, "warmup": 1}, {"adam": True, "eta": 0.05}),
    "mean": ({**GRAD, "loss": "mean", "kappa": 7.0}, {"kappa": 7.0}),
    "steps": ({"kappa": 7.0, "normalise": True, "warmup": 2}, {"kappa": 7.0, "lr": 0.3, "normalise": True}),
    "overshoot": ({"kappa": 7.0}, {"kappa": 7.0, "lr": 0.3}),
}


@pytest.mark.parametrize("few", [None, 4])
@pytest.mark.parametrize("name", RESTATED)
def test_equals_the_numpy_restatement(name, few):
    """Six rounds of unequal clients, all or 4 of 5 a round."""
    options, restated = RESTATED[name]
    options = {"num_neighbours": 2, "epsilon": 0.0, "local": LocalConfig(lr=0.3, batch_size=0)} | options
    strategy, cohort, cfg = run(6, plan={"clients_per_round": few}, **options)
    start = [plain(m.phi) for m in initial(**options)]
    restated = {"eta": 0.01, "warmup": cfg.warmup, **restated}
    phis, W, last, average = federico(start, arrays(FED), asked(cohort), cfg.beta, **restated)
    np.testing.assert_allclose(strategy.explain(strategy.state)["collaboration"], W, atol=1e-12)
    for i, phi in enumerate(phis):
        memory = cohort.store.states[i]
        np.testing.assert_allclose(memory.scores.last, last[i], rtol=1e-9)
        np.testing.assert_allclose(memory.scores.average, average[i], rtol=1e-9)
        for part, value in plain(memory.phi).items():
            np.testing.assert_allclose(value, phi[part], rtol=1e-9, atol=1e-11)
        assert all(torch.equal(memory.phi[n], strategy.state.models[i][n]) for n in memory.phi)


def test_neighbours_by_chance_do_not_follow_the_weights():
    """ε = 1: whoever is asked for does not follow the weights."""
    _, cohort, cfg = run(6, num_neighbours=1, epsilon=1.0, **GRAD)
    start = [plain(m.phi) for m in initial(**GRAD)]
    with pytest.raises(AssertionError):
        federico(start, arrays(FED), asked(cohort), cfg.beta, 0.01)


def test_a_weight_of_exactly_w_min_is_worth_a_training():
    client = FedeRiCoClient(FedeRiCoConfig(w_min=0.25, local=LocalConfig(batch_size=0)), MODEL)
    w = torch.tensor([0.25 - 1e-9, 0.5, 0.25, 0.0], dtype=torch.float64)
    order = Forward(torch.tensor([2, 0, 1]), ({}, {}), w)
    done = client.work_done(order, WeightedGradients((), w, torch.tensor([0]), torch.tensor(0)), None, 8)
    assert 3 * done.gradients == 2 * client.work(order, 8).gradients > 0
    assert weights.above_threshold(w, 0.25).tolist() == [0.0, 0.5, 0.25, 0.0]


def test_a_model_without_weight_is_not_trained_and_not_counted():
    """Weights below w_min train nothing: the others are as if these models had not come."""
    noise = torch.Generator().manual_seed(0)
    far = {
        k: replace(m, phi={n: v + 50.0 * torch.randn(v.shape, generator=noise, dtype=v.dtype)
                           for n, v in m.phi.items()})
        for k, m in enumerate(initial())
    }  # fmt: skip
    options = {"num_neighbours": 4, "kappa": 1.0, "local": LocalConfig(lr=0.1, batch_size=0)}
    strategy, cohort, _ = run(1, memories=far, w_min=0.05, **options)
    sent = used = 0
    for _, k, order, reply in cohort.log:
        if isinstance(order, Forward):
            for b, g in zip(order.ids.tolist(), reply.g, strict=True):
                nothing = all(bool((v == 0).all()) for v in g.values())
                assert nothing == bool(reply.w[b] < 0.05)
                used += 0 if nothing else int(FED.num_train[k])
                sent += int(FED.num_train[k])
    assert strategy.round_log.gradient_evals == used < sent
    log = strategy.round_log.extra
    W = strategy.state.w
    mass = torch.where(W >= 0.05, W, 0.0).sum(0)
    assert log["mass_min"] == pytest.approx(float(mass.min())) and log["mass_max"] == pytest.approx(
        float(mass.max())
    )


def test_a_stack_skips_models_without_weight_and_nothing_else_changes(monkeypatch):
    """Three rounds of unequal clients in the kernel: bit for bit what training all models gives."""
    fed = toy_federation(num_clients=5, sizes=(12, 9, 15, 11))
    model = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4])
    empty, trained = [], native.train

    def watched(plan, given, parts, index, weight):
        empty.extend((weight == 0).flatten(1).all(1).tolist())
        return trained(plan, given, parts, index, weight)

    monkeypatch.setattr(native, "train", watched)

    def phis():
        options = {"num_neighbours": 3, "w_min": 0.2, "kappa": 3.0, "warmup": 1}
        _, cohort, _ = run(4, fed=fed, model=model, plan={"dtype": "float32"}, **options)
        return [cohort.store.states[k].phi for k in range(5)]

    fast = phis()
    assert 0 < sum(empty) < len(empty)
    monkeypatch.setattr(weights, "MaskedStream", lambda batches, wanted: batches)
    empty.clear()
    slow = phis()
    assert empty and not any(empty)
    for a, b in zip(fast, slow, strict=True):
        assert all(torch.equal(a[k], b[k]) for k in a)


def test_warm_up_trains_alone_and_tries_nobody():
    """One round of it is one round of local training, and nothing of it is in the losses."""
    local = LocalConfig(lr=0.1, batch_size=4)
    strategy, cohort, _ = run(1, model=MLP, start="common", warmup=1, local=local)
    own = LocalTrainingConfig(local)
    alone = simulate(Local(own, MLP, Plan(seed=2, dtype="float64")), LocalClient(own, MLP), FED, 1)
    for k in range(5):
        mine, theirs = cohort.store.states[k], alone.store.states[k].params
        assert mine.scores is None and all(torch.equal(mine.phi[n], theirs[n]) for n in theirs)
    assert torch.equal(strategy.state.w, torch.eye(5, dtype=torch.float64))
    assert not any(isinstance(order, Forward | Join) for _, _, order, _ in cohort.log)


def test_models_are_those_of_their_owners():
    strategy, cohort, _ = run(2, num_neighbours=2)
    for k in range(5):
        phi = strategy.models(strategy.state)[f"owner_{k}"]
        assert all(torch.equal(v, cohort.store.states[k].phi[n]) for n, v in phi.items())


def test_models_start_independently_or_alike():
    phis = [m.phi["head.weight"] for m in initial()]
    assert all(not torch.equal(a, b) for i, a in enumerate(phis) for b in phis[:i])
    assert all(
        torch.equal(a.phi["head.weight"], b.phi["head.weight"])
        for a in initial(start="common")
        for b in initial(start="common")
    )


# ---- the exact algorithm ------------------------------------------------------------------------


def losses(phis, fed=FED):
    """L_ij, the sum over client i's samples of model j's loss."""
    data = [fed.client(k).train for k in range(fed.num_clients)]
    return torch.stack([torch.stack([MODEL.loss(phi, d) * len(d) for phi in phis]) for d in data])


def objective(prior, L):
    """F = -Σ_i log Σ_j Π_ij exp(-L_ij)."""
    return float(-torch.logsumexp(prior.log() - L, 1).sum())


def test_em_never_increases_the_objective_in_200_exact_steps():
    cfg = {**EM, "update": "grad", "loss": "sum", "eta": 1e-3}
    K, history = FED.num_clients, History()
    run(200, history=history, plan={"eval_every": 0}, **cfg)
    prior, phis = torch.full((K, K), 1 / K, dtype=torch.float64), [m.phi for m in initial(**cfg)]
    trace, total = [], torch.zeros(K, K, dtype=torch.float64)
    for w, after in history.rounds:
        L = losses(phis)
        total += L
        posterior = torch.softmax(prior.log() - L, 1)  # E-step, and M-step of Π
        torch.testing.assert_close(w, posterior, atol=1e-9, rtol=0)
        torch.testing.assert_close(w, torch.softmax(-total, 1), atol=1e-9, rtol=0)
        trace.append(objective(prior, L))
        assert objective(posterior, L) <= trace[-1] + 1e-9  # these alone
        prior, phis = posterior.clamp(min=1e-300), after
    trace.append(objective(prior, losses(phis)))
    assert max(np.diff(trace)) <= 1e-9 and trace[-1] < trace[0] - 1


def test_any_other_prior_explains_the_weights_worse():
    rng = np.random.default_rng(0)
    w = rng.dirichlet(np.ones(4), 6)
    other = rng.dirichlet(np.ones(4), (500, 6))
    assert ((w * np.log(other)).sum(-1) <= (w * np.log(w)).sum(-1)).all()


def test_what_is_sent_is_the_gradient_of_the_log_likelihood():
    """d/dφ_j of -log Σ_j exp(-L_ij) is w_ij ∇L_ij (prior uniform)."""
    _, cohort, _ = run(1, **EM, update="grad", loss="sum", eta=1e-3)
    start = [m.phi for m in initial(**EM)]
    for _, k, order, reply in cohort.log:
        if not isinstance(order, Forward):
            continue
        leaves = [{n: v.clone().requires_grad_() for n, v in phi.items()} for phi in start]
        data = FED.client(k).train
        L = torch.stack([MODEL.loss(phi, data) * len(data) for phi in leaves])
        flat = [v for phi in leaves for v in phi.values()]
        wanted = torch.autograd.grad(-torch.logsumexp(-L, 0), flat)
        by_owner = dict(zip(order.ids.tolist(), reply.g, strict=True))
        got = [v for j in range(len(start)) for v in by_owner[j].values()]
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("T", [9, 36, 144])
def test_the_rates_of_theorem_3_1(T):
    """With η = a/√T the mean of ‖∇F‖² is O(1/√T), that of what Π gains at least 0 and O(T^(-3/4)).

    F is at least 0 and a step of such rates takes at least η/2 ‖∇F‖² from it; so both have constants.
    """
    eta, K, history = 0.01 / T**0.5, FED.num_clients, History()
    cfg = {**EM, "update": "grad", "loss": "sum", "eta": eta}
    run(T, history=history, plan={"eval_every": 0}, **cfg)
    prior, phis = torch.full((K, K), 1 / K, dtype=torch.float64), [m.phi for m in initial(**cfg)]
    start, slopes, gains = objective(prior, losses(phis)), [], []
    for w, after in history.rounds:
        L = losses(phis)
        gains.append(objective(prior, L) - objective(w, L))
        moved = (((a[n] - b[n]) / eta) ** 2 for a, b in zip(phis, after, strict=True) for n in a)
        slopes.append(float(sum(v.sum() for v in moved)))
        prior, phis = w.clamp(min=1e-300), after
    assert min(gains) >= -1e-9 and 0 < np.mean(gains) <= start * T**-0.75
    assert 0 < np.mean(slopes) <= 2 * start / 0.01 * T**-0.5


# ---- reductions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_without_neighbours_it_is_local_training_bit_for_bit(optimizer, dtype):
    local = LocalConfig(lr=0.05, epochs=2, batch_size=4, optimizer=optimizer)
    fed = FED if dtype == "float64" else toy_federation(num_clients=5, sizes=(12, 9, 15, 11))
    plan = Plan(seed=2, dtype=dtype)
    strategy, cohort, _ = run(
        6, fed=fed, model=MLP, num_neighbours=0, start="common", local=local, plan={"dtype": dtype}
    )
    own = LocalTrainingConfig(local)
    alone = Local(own, MLP, plan)
    other = simulate(alone, LocalClient(own, MLP), fed, 6)
    for k in range(fed.num_clients):
        mine, theirs = cohort.store.states[k], other.store.states[k].params
        assert all(torch.equal(mine.phi[n], theirs[n]) for n in theirs)
        assert mine.scores.w.tolist() == [float(j == k) for j in range(5)]
    for n, v in alone.client_metrics.items():  # local training's is measured by a kernel
        np.testing.assert_allclose(strategy.client_metrics[n], v, rtol=1e-5 if dtype == "float32" else 0)
    own = strategy.client_metrics["own_accuracy"]
    np.testing.assert_array_equal(own, strategy.client_metrics["test_accuracy"])


def test_one_gradient_without_neighbours_is_local_gradient_descent_bit_for_bit():
    _, cohort, _ = run(5, model=MLP, num_neighbours=0, start="common", update="grad", eta=0.1)
    own = LocalTrainingConfig(LocalConfig(lr=0.1, batch_size=0))
    other = simulate(Local(own, MLP, Plan(seed=2, dtype="float64")), LocalClient(own, MLP), FED, 5)
    for k, memory in other.store.states.items():
        assert all(torch.equal(v, cohort.store.states[k].phi[n]) for n, v in memory.params.items())


def test_one_client_is_local_training():
    one = toy_federation(num_clients=1, dtype=torch.float64)
    strategy, cohort, _ = run(3, fed=one, **EM, loss="sum", update="grad", eta=0.01, start="common")
    own = LocalTrainingConfig(LocalConfig(lr=0.01 * 12, batch_size=0))
    other = simulate(Local(own, MODEL, Plan(seed=2, dtype="float64")), LocalClient(own, MODEL), one, 3)
    for n, v in other.store.states[0].params.items():
        torch.testing.assert_close(cohort.store.states[0].phi[n], v, rtol=0, atol=1e-13)
    assert strategy.state.w.tolist() == [[1.0]]


def test_sharp_weights_on_oneself_are_local_training():
    """With κ so large that each w_i is one-hot, whoever is in B_i learns nothing from i."""
    local = LocalConfig(lr=0.05, batch_size=4)
    own = LocalTrainingConfig(local)
    start = simulate(Local(own, MLP, Plan(seed=2, dtype="float64")), LocalClient(own, MLP), FED, 30)
    phis = [start.store.states[k].params for k in range(5)]
    memories = {k: replace(m, phi=phis[k]) for k, m in enumerate(initial(model=MLP))}
    strategy, cohort, _ = run(1, model=MLP, kappa=1e7, local=local, memories=memories)
    assert torch.equal(strategy.state.w, torch.eye(5, dtype=torch.float64))
    for k in range(5):
        order = next(r for t, i, o, r in cohort.log if isinstance(o, Forward) and i == k)
        assert all(torch.equal(v, order.g[0][n]) for n, v in cohort.store.states[k].phi.items())


def test_all_to_all_from_equal_models_is_fedsgd_for_ever():
    """Each round is a step of rate η n / K on the pooled mean loss, for all owners to the bit."""
    strategy, _, _ = run(60, model=MLP, num_neighbours=4, start="common", plan={"eval_every": 0}, **GRAD)
    data = [FED.client(k).train for k in range(5)]
    phi = {n: v.clone() for n, v in initial_params(MLP, Plan(seed=2, dtype="float64")).items()}
    for _ in range(60):
        phi = {n: v.requires_grad_() for n, v in phi.items()}
        total = sum(MLP.loss(phi, d) * len(d) for d in data)
        g = torch.autograd.grad(total, list(phi.values()))
        phi = {n: (v - 0.01 / 5 * d).detach() for (n, v), d in zip(phi.items(), g, strict=True)}
    for n, v in phi.items():
        torch.testing.assert_close(strategy.state.models[0][n], v, rtol=1e-9, atol=1e-11)
    assert_all_alike(strategy, 5)


def assert_all_alike(strategy, K):
    mailbox, w = strategy.state.models, strategy.state.w
    assert all(torch.equal(mailbox[0][n], phi[n]) for phi in mailbox.values() for n in phi)
    assert (w == w[0, 0]).all() and abs(float(w[0, 0]) - 1 / K) < 1e-15


def test_all_to_all_from_equal_models_is_fedavg_for_ever():
    local = LocalConfig(lr=0.3, epochs=3, batch_size=0)
    strategy, _, _ = run(
        40, fed=EVEN, model=MLP, num_neighbours=5, start="common", local=local, plan={"eval_every": 0}
    )
    cfg = FedAvgConfig(local)
    average = FedAvg(cfg, MLP, Plan(seed=2, dtype="float64"))
    simulate(average, FedAvgClient(cfg, MLP), EVEN, 40)
    for n, v in average.state.params.items():
        torch.testing.assert_close(strategy.state.models[0][n], v, rtol=1e-9, atol=1e-11)
    assert_all_alike(strategy, 6)


def test_equal_models_stay_equal_in_minibatches_and_single_precision():
    fed = toy_federation(num_clients=6, sizes=(12,))
    local = LocalConfig(lr=0.05, batch_size=5, optimizer="adam")
    strategy, _, _ = run(
        30,
        fed=fed,
        model=MLP,
        num_neighbours=5,
        start="common",
        kappa=10.0,
        local=local,
        plan={"dtype": "float32", "eval_every": 0},
    )
    assert_all_alike(strategy, 6)


def test_a_model_that_nobody_uses_stays_where_it_is():
    """One client's labels are turned round, so that nobody gives its bad model any weight."""
    noise = torch.Generator().manual_seed(0)
    far = {
        k: replace(
            m,
            phi={
                n: v + (100.0 if k == 3 else 0) * torch.randn(v.shape, generator=noise, dtype=v.dtype)
                for n, v in m.phi.items()
            },
        )
        for k, m in enumerate(initial())
    }
    strategy, cohort, _ = run(3, **EM, memories=far, **GRAD)
    assert (strategy.state.w[:, 3] == 0).all()
    assert all(torch.equal(v, far[3].phi[n]) for n, v in cohort.store.states[3].phi.items())


def test_renaming_clients_permutes_everything():
    perm = [3, 0, 4, 1, 2]
    renamed = replace(
        FED, client=lambda k: FED.client(perm[k]), num_train=FED.num_train[perm], num_test=FED.num_test[perm]
    )
    first = dict(enumerate(initial()))
    moved = {k: first[p] for k, p in enumerate(perm)}
    a, left, _ = run(5, num_neighbours=4, memories=first, **GRAD)
    b, right, _ = run(5, num_neighbours=4, fed=renamed, memories=moved, **GRAD)
    torch.testing.assert_close(b.state.w, a.state.w[perm][:, perm], rtol=1e-9, atol=1e-12)
    for k, p in enumerate(perm):
        for n, v in left.store.states[p].phi.items():
            torch.testing.assert_close(right.store.states[k].phi[n], v, rtol=1e-9, atol=1e-12)


# ---- the mailbox --------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["grad", "steps"])
def test_the_mailbox_never_mixes_owners(update):
    """From the messages alone: what is forwarded, what is summed for whom, who takes the step."""
    _, cohort, _ = run(5, update=update, num_neighbours=2, loss="sum", epsilon=1.0)
    published, wanted, sums = {}, {}, {}
    for t, k, order, reply in cohort.log:
        if isinstance(order, Forward):
            ids = order.ids.tolist()
            assert ids[0] == k and ids[1:] == wanted.get(k, ids[1:]) and len(ids) == 3
            for b, phi in zip(ids[1:], order.models, strict=True):
                assert all(torch.equal(phi[n], published[b][n]) for n in phi)
            for b, g in zip(ids, reply.g, strict=True):
                sums.setdefault((t, b), []).append((g, reply.w[b]))
            wanted[k] = reply.wanted.tolist()
        elif isinstance(order, Step):
            came = sums.pop((t, k))
            for n, v in order.G.items():
                torch.testing.assert_close(v, sum(g[n] for g, _ in came), rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(order.weight, sum(w for _, w in came))
        if isinstance(reply, Published):
            published[k] = reply.phi
    assert not sums and len(published) == 5


@pytest.mark.parametrize("update", ["grad", "steps"])
def test_owners_of_models_without_weight_are_asked_only_where_a_step_moves_them(update):
    """One of five tries three others; on a gradient of 0 Adam's moments still move a model."""
    plan = {"clients_per_round": 1}
    adam = {"owner": "adam"} if update == "grad" else {}
    strategy, cohort, _ = run(6, update=update, num_neighbours=3, w_min=0.2, epsilon=1.0, plan=plan, **adam)
    mass, asked, idle = {}, {}, 0
    for t, k, order, reply in cohort.log:
        if isinstance(order, Forward):
            w = reply.w[order.ids]
            for b, v in zip(order.ids.tolist(), torch.where(w >= 0.2, w, 0.0).tolist(), strict=True):
                mass.setdefault(t, {})[b] = mass.get(t, {}).get(b, 0.0) + v
        elif isinstance(order, Step):
            asked.setdefault(t, set()).add(k)
            assert float(order.weight) == pytest.approx(mass[t][k])
    for t, came in mass.items():
        heavy = {b for b, v in came.items() if v}
        assert asked[t] == (set(came) if update == "grad" else heavy)
        idle += len(came) - len(heavy)
    assert idle > 0
    last = [mass[6].get(b, 0.0) for b in range(5)]
    assert strategy.round_log.extra["mass_min"] == pytest.approx(min(last))
    assert strategy.round_log.extra["mass_max"] == pytest.approx(max(last))
    few = run(2, update=update, num_neighbours=3, plan=plan)[0].round_log.extra  # one of five is not there
    assert few["mass_min"] == 0 < few["mass_max"]


@pytest.mark.parametrize("M", [0, 1, 4])
def test_messages_are_counted(M):
    """Down: M models and one sum a client; up: M+1 gradients and one model. Nothing without M."""
    strategy, _, _ = run(2, num_neighbours=M)
    size = num_bytes(initial_params(MODEL, strategy.plan))
    log, K = strategy.round_log, 5
    few = K * (8 * (M + 1) + 8 * K + 8)  # ids, weights, the sum of weights
    assert 0 <= log.bytes_down - K * size * (M + 1 if M else 0) <= few
    assert 0 <= log.bytes_up - K * size * (M + 2 if M else 0) <= K * (8 * K + 8 * M + 8)
    assert log.extra["all_to_all_bytes"] == K * (2 * K + 1) * size
    assert log.gradient_evals == (M + 1) * int(FED.num_train.sum())


def test_a_client_that_fails_for_some_rounds_does_not_stop_its_neighbours():
    options = {"num_neighbours": 4, "epsilon": 0.0, **GRAD}
    strategy, cohort, _ = run(2, plan={"failures": "skip"}, down={3: {1}, 4: {1}}, **options)
    before, grid = cohort.store.states[1], InProcessGrid(cohort)
    w = strategy.state.w.clone()
    for t in (3, 4):
        strategy.start(grid, num_rounds=t)
        assert strategy.round_log.failures == 1  # asked once, then left alone
        assert torch.equal(strategy.state.w[1], w[1]) and cohort.store.states[1] is before
        forwarded = [
            dict(zip(o.ids.tolist()[1:], o.models, strict=True))
            for u, k, o, r in cohort.log
            if u == t and isinstance(o, Forward) and r is not None
        ]
        assert len(forwarded) == 4
        assert all(torch.equal(f[1][n], v) for f in forwarded for n, v in before.phi.items())
    assert not torch.equal(strategy.state.w[0], w[0])
    strategy.start(grid, num_rounds=5)
    assert strategy.round_log.failures == 0 and cohort.store.states[1] is not before


def test_a_client_that_comes_late_joins_when_it_is_there():
    strategy, cohort, _ = run(4, num_neighbours=4, plan={"failures": "skip"}, down={1: {2}, 2: {2}})
    ids = {
        t: [len(o.ids) for u, _, o, r in cohort.log if u == t and isinstance(o, Forward) and r]
        for t in (1, 2, 3, 4)
    }
    assert ids == {1: [4] * 4, 2: [4] * 4, 3: [4] * 4, 4: [5] * 5}
    joins = [(t, k) for t, k, o, _ in cohort.log if isinstance(o, Join)]
    assert joins == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 2), (2, 2), (3, 2)]
    assert len(strategy.state.models) == 5


def test_a_ragged_reply_is_still_checked_part_by_part():
    from fedpers.flower.validation import shape_problem

    w, g = torch.ones(3), {"a": torch.zeros(2)}
    like = WeightedGradients((g, g), w, torch.ones(1), torch.zeros(()))
    assert shape_problem(None, replace(like, g=(g,)), like) is None
    assert "shape" in shape_problem(None, replace(like, g=({"a": torch.zeros(3)},)), like)
    assert "shape" in shape_problem(None, replace(like, w=torch.ones(2)), like)


def test_too_many_neighbours_are_an_error():
    with pytest.raises(ConfigError, match="num_neighbours=5: must be below the 5"):
        run(1, num_neighbours=5)
    assert len(FedeRiCoConfig(epsilon=2, beta=-1, kappa=-1, warmup=-1).check()) == 4


# ---- predictions --------------------------------------------------------------------------------


def test_a_client_predicts_with_the_weighted_probabilities_of_all_it_has():
    strategy, cohort, _ = run(3, w_min=0.0, num_neighbours=4)
    client, x = cohort.client, FED.client(0).test.x
    for k in range(5):
        shared, memory = strategy.evaluation_message(strategy.state, k), cohort.store.states[k]
        got = client.predict(shared, memory, x).exp()
        phis = [cohort.store.states[j].phi for j in range(5)]
        want = sum(w * MODEL(phi, x).softmax(1) for w, phi in zip(memory.scores.w, phis, strict=True))
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(got.sum(1), torch.ones(len(x), dtype=torch.float64))


def test_what_the_own_model_alone_would_do_is_measured_beside_the_mixture():
    strategy, cohort, _ = run(3, num_neighbours=4)
    for k, row in enumerate(strategy.client_metrics["partition_id"].astype(int)):
        test, phi = FED.client(row).test, cohort.store.states[row].phi
        found = {n: strategy.client_metrics[n][k] for n in ("own_loss", "own_accuracy", "test_loss")}
        assert found["own_loss"] == pytest.approx(float(MODEL.loss(phi, test)), rel=1e-6)
        right = (MODEL(phi, test.x).argmax(1) == test.y).double().mean()
        assert found["own_accuracy"] == pytest.approx(float(right))
        assert found["own_loss"] != found["test_loss"]


def test_small_weights_are_left_out_and_the_rest_is_renormalised():
    strategy, cohort, _ = run(3, w_min=0.15, num_neighbours=4, kappa=3.0)
    w = strategy.state.w[2]
    kept = [j for j in range(5) if w[j] >= 0.15]
    shared = strategy.evaluation_message(strategy.state, 2)
    assert sorted(shared.ids.tolist()) == sorted({2, *kept}) and len(kept) < 5
    x = FED.client(2).test.x
    ids = shared.ids.tolist()
    want = sum(w[j] * MODEL(cohort.store.states[j].phi, x).softmax(1) for j in ids) / w[ids].sum()
    got = cohort.client.predict(shared, cohort.store.states[2], x).exp()
    torch.testing.assert_close(got, want)


def test_a_newcomer_weighs_the_models_by_its_own_losses():
    fed = toy_federation(num_clients=7, sizes=(40,), dtype=torch.float64)
    local = LocalConfig(lr=0.1, batch_size=10, optimizer="adam")
    strategy, cohort, _ = run(15, fed=fed, kappa=3.0, local=local, plan={"new_clients": 2})
    assert set(cohort.store.states) == {0, 1, 2, 3, 4}
    for k in (5, 6):
        data = fed.client(k)
        shared = strategy.evaluation_message(strategy.state, k)
        adapted, _ = cohort.client.adapt(shared, cohort.state(k, (16, 0)), data.train, None)
        loss = torch.stack([MODEL.loss(phi, data.train) for phi in shared.models])
        torch.testing.assert_close(adapted.w, torch.softmax(-3 * loss, 0))
        mates = torch.tensor([j % 2 == k % 2 for j in range(5)])
        assert adapted.w[mates].sum() > mates.double().mean() + 0.1
    after, before = (strategy.client_metrics[n][5:] for n in ("new_loss", "new_loss_before"))
    assert (after < before).all()


# ---- behaviour ----------------------------------------------------------------------------------


def label_groups(groups, K=8, dim=20, classes=10, n=60, seed=0):
    """Gaussian classes; each client draws from one of disjoint groups of labels."""
    rng = np.random.default_rng([seed, 5])
    centres = rng.normal(size=(classes, dim)) * 2.5 / np.sqrt(dim)
    labels, group = np.array_split(rng.permutation(classes), groups), np.arange(K) % groups
    parts = []
    for k in range(K):
        y = rng.choice(labels[group[k]], n + 50)
        x = centres[y] + rng.normal(size=(n + 50, dim))
        cuts = (slice(0, n), slice(n, n + 10), slice(n + 10, None))
        parts.append(
            ClientData(
                *(
                    Data(
                        torch.from_numpy(x[c]),
                        torch.from_numpy(y[c]),
                        torch.ones(len(y[c]), dtype=torch.float64),
                    )
                    for c in cuts
                )
            )
        )
    return Federation(
        "groups",
        K,
        (dim,),
        classes,
        "classification",
        parts.__getitem__,
        np.full(K, n),
        np.full(K, 40),
        np.zeros((K, classes)),
        {"group": group},
    )


@pytest.mark.parametrize("groups", [2, 4])
def test_it_beats_local_and_fedavg_and_weights_find_the_own_group(groups):
    fed, plan = label_groups(groups), Plan(seed=2, dtype="float64", eval_every=0)
    model = build_model("logistic", input_shape=(20,), num_outputs=10, task="classification")
    local = LocalConfig(lr=0.01, batch_size=20, optimizer="adam")
    strategy, _, _ = run(50, fed=fed, model=model, kappa=3.0, local=local, plan={"eval_every": 0})
    alone = Local(LocalTrainingConfig(local), model, plan)
    simulate(alone, LocalClient(LocalTrainingConfig(local), model), fed, 50)
    average = FedAvg(FedAvgConfig(local), model, plan)
    simulate(average, FedAvgClient(FedAvgConfig(local), model), fed, 50)
    ours, own, one = (s.client_metrics["test_accuracy"].mean() for s in (strategy, alone, average))
    assert ours > max(own, one) and (groups == 2 or own > one + 0.02)
    group = torch.from_numpy(fed.truth["group"])
    w, mates = strategy.state.w, group[:, None] == group
    assert float((w * mates).sum(1).mean()) > 1.4 / groups  # 1 / groups: nothing found
    assert float(w.diagonal().mean()) < 0.5  # and not by working alone


def test_added_losses_are_sharper_than_averaged_ones_and_beta_makes_weights_change_faster():
    def moves(**options):
        cfg = {"num_neighbours": 4, "kappa": 5.0, "local": LocalConfig(lr=0.1, batch_size=0), **options}
        strategy, cohort, _ = run(1, **cfg)
        total, w = 0.0, strategy.state.w
        for t in range(2, 6):
            strategy.start(InProcessGrid(cohort), num_rounds=t)
            total, w = total + float((strategy.state.w - w).abs().sum()), strategy.state.w
        return total, float(-torch.special.xlogy(w, w).sum(1).mean())

    slow, fast = moves(beta=0.1)[0], moves(beta=0.9)[0]
    assert slow < fast
    assert moves(**EM)[1] < moves(beta=0.6)[1]


@pytest.mark.ray
def test_ray_equals_inprocess(tmp_path):
    """Three kinds of orders a round, models of others in them: the same state and traffic."""
    options = [
        "method=federico",
        "data.num_clients=4",
        "method.num_neighbours=2",
        "seed=4",
        "rounds=3",
        "checkpoint_every=3",
    ]
    execute(compose.load(options), tmp_path / "inprocess")
    execute(compose.load([*options, "engine=ray"]), tmp_path / "ray")
    (_, ours), (_, theirs) = (
        checkpoint.load(tmp_path / name, RowStore(tmp_path / "inprocess" / "memory") if keep else None)
        for name, keep in (("inprocess", True), ("ray", False))
    )
    assert close(ours, theirs)
    first, second = (pd.read_csv(tmp_path / name / "metrics.csv") for name in ("inprocess", "ray"))
    for column in ("bytes_up", "bytes_down", "gradient_evals", "own_weight", "accuracy"):
        np.testing.assert_allclose(first[column], second[column], rtol=1e-5)
