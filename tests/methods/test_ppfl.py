"""PPFL: restatements, reductions, both algorithms, and behaviour on small problems."""

import itertools
import logging
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.checks.contract import CHECKS, make_case, same
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig, Weights
from fedpers.clients.ppfl import PPFLClient, PPFLConfig
from fedpers.core.data import ClientData, Data, Federation
from fedpers.core.errors import ConfigError
from fedpers.core.serialization import num_bytes
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.families.mixtures.messages import (
    BothBlocks,
    MembershipBlock,
    MembershipGradient,
    Personal,
    ThetaBlock,
    TrainedTheta,
)
from fedpers.families.mixtures.simplex import laplacian
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig
from fedpers.method import Observer, Plan, Stream, Work
from fedpers.simulate import simulate
from fedpers.strategies.fedavg import FedAvg
from fedpers.strategies.ppfl import PPFL, State
from tests.oracles.ppfl import alternating_round

F64 = torch.float64
CLASSES = toy_federation(dtype=F64)
MLP = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4])
BINARY = toy_federation(task="binary", dtype=F64)
LOGISTIC = build_model("logistic", input_shape=(5,), num_outputs=1, task="binary", bias=False)
FULL = LocalConfig(lr=0.1, epochs=2, batch_size=0)


def config(**options):
    return PPFLConfig(**{"lam": 0.0, "local": FULL, **options})


def server(cfg, model=MLP, **plan):
    return PPFL(cfg, model, Plan(**{"seed": 2, "dtype": "float64", **plan}))


def run(cfg, fed=CLASSES, model=MLP, rounds=1, state=None, observer=None, **plan):
    """(strategy, cohort) after some rounds, from `state` if it is given."""
    strategy = server(cfg, model, **plan)
    cohort = Cohort(PPFLClient(cfg, model), fed, RamStore(), strategy.plan)
    if state is not None:
        strategy.state = state
    strategy.start(InProcessGrid(cohort), num_rounds=rounds, observer=observer)
    return strategy, cohort


def initial(cfg, fed=CLASSES, model=MLP):
    strategy = server(cfg, model)
    strategy.connect(InProcessGrid(Cohort(PPFLClient(cfg, model), fed, RamStore(), strategy.plan)))
    return strategy.state


def rows(seed, n, K):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(K), n))


def close(a, b, atol=1e-14):
    for x, y in zip(torch.utils._pytree.tree_leaves(a), torch.utils._pytree.tree_leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol)


# ---- the contract, for what the defaults do not reach --------------------------------------------

EVERYONE = Plan(seed=3, eval_every=2)
VARIANTS = {
    "networks": (dict(arch="output", canonical="model"), {}),
    "rbcd": (dict(algorithm="rbcd", output="random"), {"plan": EVERYONE}),
    "momentum": (dict(local=LocalConfig(momentum=0.9, keep_momentum=True)), {}),
    "new clients": (dict(membership_weighting="p"), {"plan": replace(EVERYONE, new_clients=2)}),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(variant, check):
    options, case = VARIANTS[variant]
    check(make_case(PPFL, PPFLClient, PPFLConfig(**options), **case))


# ---- one round, exactly --------------------------------------------------------------------------


SMALL = LocalConfig(lr=0.1, epochs=2, batch_size=4)


@pytest.mark.parametrize("weighting", ["none", "p"])
@pytest.mark.parametrize("name", ["linear", "logistic"])
@pytest.mark.parametrize("local", [FULL, SMALL], ids=["whole", "minibatches"])
def test_rounds_of_algorithm_3_are_the_numpy_restatement(local, name, weighting):
    """Four rounds among unequal clients, 4 of 6 a round, or all of them."""
    task = {"linear": "regression", "logistic": "binary"}[name]
    fed = toy_federation(task=task, dtype=F64)
    model = build_model(name, input_shape=(5,), num_outputs=1, task=task, bias=False)
    cfg = config(
        lam=0.03, affinity="ones", eta_2=0.7, floor=1e-3, membership_weighting=weighting, local=local
    )
    start = replace(initial(cfg, fed, model), C=rows(0, 6, 3))
    strategy = server(cfg, model, clients_per_round=4 if local is SMALL else None)
    strategy.state, drawn, sample = start, [], strategy.sample
    strategy.sample = lambda rng: drawn.append(sample(rng)) or drawn[-1]
    cohort = Cohort(PPFLClient(cfg, model), fed, RamStore(), strategy.plan)
    strategy.start(InProcessGrid(cohort), num_rounds=4)
    half = 2 if name == "linear" else 1  # the restatement has ½ (f - y)², ours has no ½
    data = [(d.x.numpy(), d.y.numpy().reshape(-1)) for d in (fed.client(k).train for k in range(6))]
    p = fed.num_train / fed.num_train.sum()
    theta, C = start.theta["head.weight"][:, 0].T.numpy(), start.C.numpy()
    assert [len(who) for who in drawn] == [4 if local is SMALL else 6] * 4
    for t, who in enumerate(drawn, 1):
        theta, C = alternating_round(
            theta,
            C,
            data,
            p,
            0.03 / half,
            np.ones((6, 6)),
            {i: batches(Stream(2, t, i), len(data[i][1]), local) for i in who},
            0.1 * half,
            0.7 * half,
            1e-3,
            "identity" if name == "linear" else "logistic",
            weighting == "p",
        )
    np.testing.assert_allclose(strategy.state.theta["head.weight"][:, 0].T, theta, rtol=0, atol=1e-13)
    np.testing.assert_allclose(strategy.state.C, C, rtol=0, atol=1e-13)


def batches(rng, n, local):
    """The rows of each local step."""
    if not local.batch_size:
        return [np.arange(n)] * local.epochs
    index, weight = rng.schedule(n, local.batch_size, local.epochs, local.steps)
    return [i[w > 0].numpy() for i, w in zip(index, weight, strict=True)]


def test_one_full_step_of_theta_is_a_gradient_step_on_the_weighted_loss():
    cfg = config(eta_2=0.0, local=LocalConfig(lr=0.3, epochs=1, batch_size=0))
    start = replace(initial(cfg), C=rows(1, 6, 3))
    strategy, _ = run(cfg, state=start)
    leaf = {k: v.clone().requires_grad_() for k, v in start.theta.items()}
    p = CLASSES.num_train / CLASSES.num_train.sum()
    loss = sum(p[k] * strategy.mixture.loss(leaf, CLASSES.client(k).train, start.C[k]) for k in range(6))
    for (k, v), g in zip(leaf.items(), torch.autograd.grad(loss, leaf.values()), strict=True):
        want = v.detach() - 0.3 * g
        torch.testing.assert_close(strategy.state.theta[k], want, rtol=0, atol=1e-14)


@pytest.mark.parametrize("arch", ["output", "parameter"])
@pytest.mark.parametrize("canonical", ["head", "model"])
def test_one_canonical_model_is_fedavg_bit_for_bit(arch, canonical):
    local = LocalConfig(lr=0.1, epochs=2, batch_size=4, momentum=0.9)
    plan = Plan(seed=5, clients_per_round=4)
    fed = toy_federation()
    cfg = PPFLConfig(num_canonical=1, arch=arch, canonical=canonical, local=local)
    ours, theirs = PPFL(cfg, MLP, plan), FedAvg(FedAvgConfig(local), MLP, plan)
    with autograd_only():  # a mixture has no kernel, which rounds otherwise
        simulate(ours, PPFLClient(cfg, MLP), fed, 4)
        simulate(theirs, FedAvgClient(FedAvgConfig(local), MLP), fed, 4)
    got = ours.models(ours.state)["canonical_0"]
    assert all(torch.equal(got[k], v) for k, v in theirs.state.params.items())
    assert torch.equal(ours.state.C, torch.ones(6, 1, dtype=F64))


def test_frozen_one_hot_memberships_are_clustered_fl_scaled_by_the_clusters_weight():
    cfg = config(eta_2=0.0, floor=0.0, canonical="model", num_canonical=2)
    groups = torch.tensor([0, 1, 0, 0, 1, 1])
    C = torch.nn.functional.one_hot(groups, 2).double()
    start = replace(initial(cfg), C=C)
    strategy, _ = run(cfg, state=start)
    p = CLASSES.num_train / CLASSES.num_train.sum()
    models = strategy.mixture.unstack(start.theta)
    client = FedAvgClient(FedAvgConfig(FULL), MLP)
    for j, new in enumerate(strategy.mixture.unstack(strategy.state.theta)):
        members = [i for i in range(6) if groups[i] == j]
        trained = {
            i: client.answer(Weights(models[j]), None, CLASSES.client(i).train, Stream(0, 1, i))[0]
            for i in members
        }
        share = sum(p[i] for i in members)
        for k, v in models[j].items():
            cluster = sum(p[i] / share * (trained[i].params[k] - v) for i in members)
            torch.testing.assert_close(new[k], v + share * cluster, rtol=0, atol=1e-14)
    assert torch.equal(strategy.state.C, C)


def test_sampled_clients_are_averaged_among_themselves_and_only_their_rows_move():
    cfg = config(lam=0.02, affinity="ones")
    start = replace(initial(cfg), C=rows(2, 6, 3))
    strategy = server(cfg)
    strategy.state, strategy.sample = start, lambda rng: [1, 4]
    cohort = Cohort(PPFLClient(cfg, MLP), CLASSES, RamStore(), strategy.plan)
    strategy.start(InProcessGrid(cohort), num_rounds=1)
    client = PPFLClient(cfg, MLP)
    a = 0.02 * (6 * start.C - start.C.sum(0))  # stale rows of the others are in it
    got = {
        i: client.answer(
            BothBlocks(start.theta, start.C[i], a[i], 1.0, cfg.eta_2),
            None,
            CLASSES.client(i).train,
            Stream(2, 1, i),
        )[0]
        for i in (1, 4)
    }
    n = CLASSES.num_train
    for k, v in strategy.state.theta.items():
        want = (n[1] * got[1].theta[k] + n[4] * got[4].theta[k]) / (n[1] + n[4])
        torch.testing.assert_close(v, want, rtol=0, atol=1e-14)
    close([strategy.state.C[i] for i in (1, 4)], [got[1].c, got[4].c])
    others = [0, 2, 3, 5]
    assert torch.equal(strategy.state.C[others], start.C[others])


def test_weighting_by_p_is_a_larger_rate_and_a_smaller_lambda():
    """none(eta, lam) = p(M eta, lam / M) for clients of one size."""
    fed = toy_federation(sizes=(12,), dtype=F64)
    common = {"affinity": "ones", "floor": 0.0}
    a, _ = run(config(eta_2=0.4, lam=0.06, **common), fed, rounds=3)
    b, _ = run(config(eta_2=2.4, lam=0.01, membership_weighting="p", **common), fed, rounds=3)
    close(a.state, b.state, 1e-13)


def test_canonical_models_that_are_alike_stay_alike():
    cfg = config(eta_2=5.0, lam=0.01, affinity="ones")
    start = initial(cfg)
    theta = {k: v[:1].expand_as(v).clone() if k.startswith("head") else v for k, v in start.theta.items()}
    strategy, _ = run(cfg, state=replace(start, theta=theta), rounds=5)
    torch.testing.assert_close(strategy.state.C, start.C, rtol=0, atol=1e-6)
    heads = strategy.state.theta["head.weight"]
    torch.testing.assert_close(heads, heads[:1].expand_as(heads), rtol=0, atol=1e-12)


def test_memory_is_momentum_or_nothing():
    _, cohort = run(config(), rounds=2)
    assert cohort.store.states == {}
    local = LocalConfig(lr=0.1, epochs=1, batch_size=0, momentum=0.9)
    kept, cohort = run(config(local=replace(local, keep_momentum=True)), rounds=2)
    assert all(m.state is None for m in cohort.store.states.values())
    assert all(float(m.optimisers[0].step) == 2 for m in cohort.store.states.values())
    fresh, _ = run(config(local=local), rounds=2)
    assert not torch.equal(kept.state.theta["head.weight"], fresh.state.theta["head.weight"])


def test_label_counts_are_asked_for_only_if_they_are_used():
    assert server(config(lam=0.1)).needs == ("label_counts",)
    assert server(config(lam=0.0)).needs == ()
    assert server(config(lam=0.1, affinity="ones")).needs == ()


def test_label_cosine_couples_clients_by_their_labels():
    cfg = config(lam=0.1)
    strategy = server(cfg)
    simulate(strategy, PPFLClient(cfg, MLP), CLASSES, 1)
    counts = torch.from_numpy(CLASSES.label_counts).double()
    W = torch.nn.functional.cosine_similarity(counts[:, None], counts[None], dim=2)
    C = rows(3, 6, 3)
    close(laplacian(strategy._affinity, C), (W.sum(1).diag() - W) @ C, 1e-13)


# ---- Algorithm 1 ---------------------------------------------------------------------------------


def test_algorithm_1_moves_one_block_a_round_as_often_as_rho_says():
    cfg = config(
        algorithm="rbcd",
        rho=0.3,
        lam=0.01,
        affinity="ones",
        local=LocalConfig(lr=0.05, steps=1, batch_size=4),
    )
    blocks, up = Counter(), {}

    class OptimalityGap(Observer):
        before = None

        def on_round(self, t, log):
            now = strategy.state
            moved = "".join(
                name
                for name, a, b in (("theta", now.theta, self.before.theta), ("C", now.C, self.before.C))
                if not same(a, b)
            )
            blocks[moved] += 1
            up.setdefault(moved, set()).add(log.bytes_up)
            self.before = now

    strategy, watch = server(cfg, eval_every=0), OptimalityGap()
    cohort = Cohort(PPFLClient(cfg, MLP), CLASSES, RamStore(), strategy.plan)
    strategy.connect(InProcessGrid(cohort))
    watch.before = strategy.state
    strategy.start(InProcessGrid(cohort), num_rounds=400, observer=watch)
    assert blocks.keys() == {"theta", "C"}
    assert abs(blocks["theta"] - 120) < 4 * np.sqrt(400 * 0.3 * 0.7)
    assert up["C"] == {6 * 3 * 8}  # K float64 numbers a client
    assert up["theta"] == {6 * num_bytes(TrainedTheta(strategy.state.theta))}


def test_the_block_of_memberships_is_the_mirror_step_of_equation_24():
    cfg = config(algorithm="rbcd", rho=0.0, lam=0.05, affinity="ones", membership_weighting="p", floor=0.0)
    start = replace(initial(cfg), C=rows(4, 6, 3))
    strategy, _ = run(cfg, state=start)
    p = torch.from_numpy(CLASSES.num_train / CLASSES.num_train.sum())
    C = start.C.clone().requires_grad_()
    penalty = 0.05 / 2 * (C[:, None] - C[None]).square().sum()
    losses = [strategy.mixture.loss(start.theta, CLASSES.client(i).train, C[i]) for i in range(6)]
    (G,) = torch.autograd.grad(sum(a * b for a, b in zip(p, losses, strict=True)) + penalty, C)
    weights = start.C * torch.exp(-0.5 * G)
    close(strategy.state.C, weights / weights.sum(1, keepdim=True), 1e-13)
    close(strategy.state.theta, start.theta, 0)


def test_the_block_of_parameters_is_algorithm_3_with_frozen_memberships():
    a, _ = run(config(algorithm="rbcd", rho=1.0), rounds=3)
    b, _ = run(config(eta_2=0.0, floor=0.0), rounds=3)
    close(a.state, b.state, 1e-14)


def test_memberships_may_be_weighed_by_a_minibatch():
    cfg = config(algorithm="rbcd", local=LocalConfig(batch_size=4))
    client, start, data = PPFLClient(cfg, MLP), initial(cfg), CLASSES.client(0).train
    order = MembershipBlock(start.theta, start.C[0], 1.0)
    with torch.no_grad():
        reply, _ = client.answer(order, None, data, Stream(0, 1, 0))
    assert isinstance(reply, MembershipGradient)
    chosen = Stream(0, 1, 0).schedule(12, 4, 1, 1)[0][0]
    part = Data(data.x[chosen], data.y[chosen], data.mask[chosen])
    close(reply.c, client.mixture.membership_gradient(start.theta, part, start.C[0]))
    assert client.work(order, 12) == Work(4)


def test_algorithm_1_refuses_partial_participation():
    with pytest.raises(ConfigError, match="clients_per_round=null"):
        run(config(algorithm="rbcd"), clients_per_round=3)


@pytest.mark.parametrize(
    "bad",
    [
        dict(rho=0.0),
        dict(rho=1.0),
        dict(eta_2=0.0),
        dict(eta_2=0.1, smoothness=(2.5, 0.0)),
        dict(eta_2=0.5, smoothness=(0.0, 4.0)),
    ],
)
def test_an_output_rule_without_positive_weights_is_refused(bad):
    assert PPFLConfig(**bad).check() == []
    (problem,) = PPFLConfig(algorithm="rbcd", output="random", **bad).check()
    assert "eq. 16" in problem


def test_the_output_rule_is_algorithm_1s():
    (problem,) = PPFLConfig(output="random").check()
    assert problem == "output=random: is Algorithm 1's rule, so it needs algorithm=rbcd"


def test_the_output_is_an_earlier_iterate_and_is_what_clients_get():
    cfg = config(algorithm="rbcd", output="random")
    seen = [initial(cfg)]

    class OptimalityGap(Observer):
        def on_round(self, t, log):
            seen.append(strategy.state)

    strategy = server(cfg)
    strategy.start(
        InProcessGrid(Cohort(PPFLClient(cfg, MLP), CLASSES, RamStore(), strategy.plan)),
        num_rounds=6,
        observer=OptimalityGap(),
    )
    assert strategy.state.kept.total == pytest.approx(6 * 0.5 * 0.5)  # six times η ρ_h
    kept = strategy.state.kept.value
    match = [t for t, s in enumerate(seen) if same(s.C, kept.C) and same(s.theta, kept.theta)]
    assert match
    assert match[0] < 6  # one of the iterates 0 .. T-1
    close(strategy.evaluation_message(strategy.state, 2), Personal(kept.theta, kept.C[2]), 0)
    close(torch.from_numpy(strategy.explain(strategy.state)["membership"]), kept.C, 0)


# ---- costs ---------------------------------------------------------------------------------------


def test_messages_carry_one_backbone_and_k_heads():
    fed = toy_federation()
    model = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4])
    strategy = PPFL(PPFLConfig(lam=0.0, num_canonical=4), model, Plan(seed=1))
    simulate(strategy, PPFLClient(strategy.config, model), fed, 1)
    body, head, c = 4 * (5 * 4 + 4), 4 * (4 * 3 + 3), 8 * 4
    assert strategy.round_log.bytes_up == 6 * (body + 4 * head + c)
    assert strategy.round_log.bytes_down == 6 * (body + 4 * head + 2 * c)


@pytest.mark.parametrize(
    ("options", "factor", "in_c"),
    [
        ({}, 1, Work(10)),  # made of the gradient in the mixed parameters
        ({"arch": "output"}, 1, Work(forwards=10)),  # outputs are enough
        ({"arch": "output", "canonical": "model"}, 3, Work(forwards=30)),
        ({"canonical": "model"}, 1, Work(10)),
    ],
)
def test_gradients_counted_are_those_of_whole_networks(options, factor, in_c):
    client = PPFLClient(config(**options), MLP)
    order = initial(client.config)
    one, in_theta = order.C[0], Work(factor * 20)  # 2 epochs
    assert client.work(BothBlocks(order.theta, one, one, 1.0, 0.5), 10) == in_c.plus(in_theta)
    assert client.work(ThetaBlock(order.theta, one), 10) == in_theta
    assert client.work(MembershipBlock(order.theta, one, 1.0), 10) == in_c


# ---- new clients ---------------------------------------------------------------------------------


def test_new_clients_never_train_and_find_their_group():
    fed = groups(M=12, K=2, seed=0)
    cfg = config(
        num_canonical=2, eta_2=0.5, new_steps=200, local=LocalConfig(lr=0.05, epochs=5, batch_size=0)
    )
    asked = set()

    class Watching(Cohort):
        def handle(self, requests):
            asked.update((r.k, r.header.kind) for r in requests)
            return super().handle(requests)

    strategy = server(cfg, LINEAR, new_clients=4, eval_every=0)
    cohort = Watching(PPFLClient(cfg, LINEAR), fed, RamStore(), strategy.plan)
    strategy.start(InProcessGrid(cohort), num_rounds=300)
    assert {k for k, kind in asked if kind == "train"} == set(range(8))
    assert {k for k, kind in asked if kind == "evaluate"} == set(range(12))
    assert strategy.state.C.shape == (8, 2)
    table = strategy.client_metrics
    assert table["new_num"].tolist() == [0] * 8 + [20] * 4
    assert table["test_num"].tolist() == [20] * 8 + [0] * 4
    assert np.isnan(table["new_loss"][:8]).all()
    assert np.isnan(table["test_loss"][8:]).all()
    assert (table["new_loss"][8:] < 0.05).all()  # noise has variance 0.01
    assert (table["new_loss_before"][8:] > 10 * table["new_loss"][8:]).all()
    assert (table["test_loss"][:8] < 0.05).all()


@pytest.mark.parametrize("options", [{}, {"arch": "output", "canonical": "model"}])
def test_fine_tuning_is_mirror_steps_from_the_last_membership(options):
    """By plain gradients of the loss in c; models, messages and the server's C stay as without."""
    cfg = config(eta_2=0.4, **options)
    plain, _ = run(cfg, rounds=2, clients_per_round=3)
    tuned, _ = run(replace(cfg, finetune_steps=3), rounds=2, clients_per_round=3)
    assert torch.equal(plain.state.C, tuned.state.C)
    before, after = tuned.client_metrics["test_loss_before"], tuned.client_metrics["test_loss"]
    np.testing.assert_allclose(before, plain.client_metrics["test_loss"], rtol=1e-12)
    mixture, theta = plain.mixture, plain.state.theta
    for k in plain.roster.ids:
        data, c = CLASSES.client(k), plain.state.C[plain.row[k]]
        for _ in range(3):
            g = torch.func.grad(lambda c, d=data.train: mixture.loss(theta, d, c))(c)
            c = c * torch.exp(-0.4 * g)
            c = c / c.sum()
        assert after[k] == pytest.approx(float(mixture.loss(theta, data.test, c)), rel=1e-6)
        assert abs(after[k] - before[k]) > 1e-5


# ---- behaviour on small problems -----------------------------------------------------------------

LINEAR = build_model("linear", input_shape=(5,), num_outputs=1, task="regression", bias=False)


def groups(M, K, seed, n=100, d=5):
    """Linear regressions in K groups: coefficients N(0, 4 I), noise 0.1."""
    rng = np.random.default_rng([seed, 9])
    beta = 2 * rng.normal(size=(K, d))
    parts = []
    for i in range(M):
        x = torch.from_numpy(rng.normal(size=(n + 40, d)))
        y = x @ torch.from_numpy(beta[i % K])[:, None] + 0.1 * torch.from_numpy(rng.normal(size=(n + 40, 1)))
        one = torch.ones(n + 40, dtype=F64)
        parts.append(
            ClientData(
                *(Data(x[s], y[s], one[s]) for s in (slice(0, n), slice(n, n + 20), slice(n + 20, None)))
            )
        )
    sizes = np.full(M, n)
    return Federation(
        "groups",
        M,
        (d,),
        1,
        "regression",
        parts.__getitem__,
        sizes,
        np.full(M, 20),
        np.zeros((M, 0)),
        {"group": np.arange(M) % K},
    )


def fit(fed, K, seed, rounds, eta_theta, eta_c, **options):
    """Algorithm 3 from canonical models N(0, ¼ I); rates are those of ½ (f - y)²."""
    local = LocalConfig(lr=eta_theta / 2, epochs=options.pop("E", 5), batch_size=0)
    cfg = config(num_canonical=K, eta_2=eta_c / 2, local=local, **options)
    rng = np.random.default_rng([seed, 4])
    theta = {"head.weight": torch.from_numpy(0.5 * rng.normal(size=(K, 1, 5)))}
    C = torch.full((fed.num_clients, K), 1 / K, dtype=F64)
    strategy, _ = run(cfg, fed, LINEAR, rounds, State(theta, C), seed=seed, eval_every=0)
    return strategy


def loss(strategy, fed):
    """Mean ½ (f - y)² on the training data."""
    s = strategy.state
    each = [strategy.mixture.loss(s.theta, fed.client(k).train, s.C[k]) for k in range(fed.num_clients)]
    return float(sum(each)) / len(each) / 2


@pytest.mark.parametrize(("seed", "eta_c"), [(0, 0.1), (1, 0.5)])
def test_two_hard_groups_are_recovered(seed, eta_c):
    fed = groups(8, 2, seed)
    strategy = fit(fed, 2, seed, 300, 0.05, eta_c)
    chosen = strategy.state.C.argmax(1)
    assert loss(strategy, fed) < 0.02
    assert torch.equal(chosen == chosen[0], torch.arange(8) % 2 == 0)


@pytest.mark.slow
def test_three_groups_are_fitted():
    """By the loss: linear canonical models may lie outside the hull of the true ones."""
    fed = groups(12, 3, 1)
    assert loss(fit(fed, 3, 1, 800, 0.1, 0.1), fed) < 0.02


@pytest.mark.slow
def test_with_too_many_canonical_models_groups_still_do_not_share_one():
    fed = groups(12, 3, 2)
    strategy = fit(fed, 6, 2, 600, 0.1, 0.1)
    assert loss(strategy, fed) < 0.02
    assert len(set(strategy.state.C[:3].argmax(1).tolist())) == 3


def smoothness(fed, theta, lam, p):
    """(L_1, L_2) of section 5.3, doubled as our squared error has no ½; W is all ones."""
    grams = [d.x.T @ d.x / len(d) for d in (fed.client(k).train for k in range(fed.num_clients))]
    first = max(float(torch.linalg.eigvalsh(g).max()) for g in grams)
    W = theta["head.weight"][:, 0]
    second = max(float((W @ g @ W.T).abs().max()) for g in grams)
    return 2 * first, 2 * p * second + 2 * lam * fed.num_clients


def test_the_objective_never_rises_half_step_by_half_step():
    fed, lam = groups(8, 3, 3, n=40), 0.01
    state = None
    weigh = lambda C: C.sum(0, keepdim=True).expand_as(C)  # noqa: E731

    def F(theta, C, strategy):
        each = [strategy.mixture.loss(theta, fed.client(k).train, C[k]) for k in range(8)]
        return float(sum(each) / 8 + lam * (C * laplacian(weigh, C)).sum())

    values = []
    for _ in range(120):
        L_1, L_2 = smoothness(fed, state.theta, lam, 1 / 8) if state else (10.0, 10.0)
        cfg = config(
            eta_2=1 / L_2,
            lam=lam,
            affinity="ones",
            floor=0.0,
            membership_weighting="p",
            local=LocalConfig(lr=1 / (16 * L_1), epochs=1, batch_size=0),
        )
        strategy, _ = run(cfg, fed, LINEAR, state=state, eval_every=0)
        if state:
            values.append(F(state.theta, strategy.state.C, strategy))
        state = strategy.state
        values.append(F(state.theta, state.C, strategy))
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(values))
    assert values[-1] < 0.9 * values[0]


def spread(strategy):
    C = strategy.state.C
    return float((C[:, None] - C[None]).square().sum())


def test_a_larger_lambda_pulls_memberships_together_up_to_consensus():
    fed = groups(8, 2, 4)
    found = [
        spread(fit(fed, 2, 4, 100, 0.05, eta, lam=lam, affinity="ones"))
        for lam, eta in ((0.0, 0.1), (0.3, 0.1), (3.0, 0.01), (1e3, 1e-4))
    ]
    assert found[0] > 10
    assert found == sorted(found, reverse=True)
    assert found[-1] < 1e-3


def watched(cfg, fed, model, rounds, **plan):
    """What theorem 1 or 2 measures, before each round."""
    values = []

    class Watching(Observer):
        def on_round(self, t, log):
            values.append(log.extra["stationarity"])

    run(replace(cfg, stationarity=True), fed, model, rounds, observer=Watching(), eval_every=0, **plan)
    return values


def test_average_stationarity_falls_with_the_length_of_the_run():
    cfg = config(num_canonical=2, eta_2=0.05, local=LocalConfig(lr=0.02, epochs=1, batch_size=0))
    values = watched(cfg, groups(8, 2, 5), LINEAR, 400)
    averages = [np.mean(values[:T]) for T in (25, 50, 100, 200, 400)]
    assert all(b < 0.75 * a for a, b in itertools.pairwise(averages))


@pytest.mark.parametrize("algorithm", ["alternating", "rbcd"])
def test_stationarity_is_the_measure_of_the_theorems(algorithm):
    """By full gradients, whatever the local steps: minibatches, momentum, several epochs, few clients."""
    local = LocalConfig(lr=0.2, epochs=3, batch_size=4, momentum=0.9)
    few = {} if algorithm == "rbcd" else {"clients_per_round": 2}
    cfg = config(
        algorithm=algorithm, eta_2=0.3, lam=0.02, affinity="ones", floor=0.0, local=local, stationarity=True
    )
    start = replace(initial(cfg), C=rows(6, 6, 3))
    strategy, _ = run(cfg, state=start, **few)
    p = CLASSES.num_train / CLASSES.num_train.sum()
    C = start.C.clone().requires_grad_()
    f = [strategy.mixture.loss(start.theta, CLASSES.client(k).train, C[k]) for k in range(6)]
    (g,) = torch.autograd.grad(sum(f) + 0.01 * (C[:, None] - C[None]).square().sum(), C)
    new = (start.C * torch.exp(-0.3 * g)) / (start.C * torch.exp(-0.3 * g)).sum(1, keepdim=True)
    leaf = {k: v.clone().requires_grad_() for k, v in start.theta.items()}
    at = start.C if algorithm == "rbcd" else new
    F = sum(p[k] * strategy.mixture.loss(leaf, CLASSES.client(k).train, at[k]) for k in range(6))
    slope = sum(float(v.square().sum()) for v in torch.autograd.grad(F, leaf.values()))
    want = slope + float((start.C - new).abs().sum() / 0.3) ** 2
    assert strategy.round_log.extra["stationarity"] == pytest.approx(want, rel=1e-12)


def test_to_measure_moves_nothing():
    a, _ = run(config(lam=0.02, affinity="ones"), rounds=3)
    b, _ = run(config(lam=0.02, affinity="ones", stationarity=True), rounds=3)
    close(a.state, b.state, 0)
    assert "stationarity" not in a.round_log.extra


def test_a_warning_names_an_affinity_that_is_not_convex(tmp_path, caplog):
    np.save(tmp_path / "w.npy", 1 - np.eye(6))
    cfg = config(lam=0.01, affinity="given", affinity_file=str(tmp_path / "w.npy"))
    with caplog.at_level(logging.WARNING, "fedpers"):
        run(cfg)
    assert "positive semi-definite" in caplog.text
    assert config(affinity_file="w.npy").check() == ["affinity_file=w.npy: needs affinity=given"]


def test_memberships_that_stay_uniform_are_said_once(caplog):
    """The method's main failure: a mirror step too small to leave 1/K."""
    strategy, _ = run(config(eta_2=1e-6), rounds=21)
    said = [r.message for r in caplog.records if "memberships still near 1/K" in r.message]
    assert said == ["memberships still near 1/K after 20 rounds: raise method.eta_2=1e-06"]
    assert strategy.round_log.extra["entropy"] == pytest.approx(1, abs=1e-6)
    caplog.clear()
    strategy, _ = run(config(eta_2=20.0), rounds=21)
    assert not [r for r in caplog.records if "memberships" in r.message]
    p = strategy.state.C
    assert strategy.round_log.extra["entropy"] == pytest.approx(
        float(-(p * p.log()).sum(1).mean() / np.log(3))
    )
