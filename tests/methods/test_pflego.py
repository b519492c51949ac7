"""PFLEGO: exactness, unbiasedness, cost and descent (float64)."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.pflego import ClientState, PFLEGOClient, PFLEGOConfig, TakeSteps
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.learning.model import build_model
from fedpers.method import Plan, Stream, Work
from fedpers.simulate import simulate
from fedpers.strategies.pflego import PFLEGO
from tests.oracles.pflego import pflego_round

FED = toy_federation(num_clients=4, sizes=(12, 7, 15, 9), dtype=torch.float64)
MODEL = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4])
BODY = ("w", "b")


def run(rounds=1, fed=FED, model=MODEL, chosen=None, **options):
    """(strategy, cohort) after some rounds; `chosen` forces the participants."""
    plan_keys = {k: options.pop(k) for k in ("clients_per_round", "participation") if k in options}
    cfg = PFLEGOConfig(
        **{"tau": 1, "beta": 0.1, "rho": 0.2, "server_optimizer": "sgd", "adapt_steps": 0, **options}
    )
    strategy = PFLEGO(cfg, model, Plan(seed=2, dtype="float64", **plan_keys))
    if chosen is not None:
        strategy.sample = lambda rng: list(chosen)
    return strategy, simulate(strategy, PFLEGOClient(cfg, model), fed, rounds)


def initial(fed=FED, model=MODEL, **options):
    """(theta, heads) before round 1."""
    cfg = PFLEGOConfig(**options)
    strategy = PFLEGO(cfg, model, Plan(seed=2, dtype="float64"))
    cohort = Cohort(PFLEGOClient(cfg, model), fed, RamStore(), strategy.plan)
    strategy.connect(InProcessGrid(cohort))
    return strategy.state.part, [cohort.state(k, (1, 0)).head for k in range(fed.num_clients)]


def numpy_body(theta):
    weight = next(v for k, v in theta.items() if k.endswith("weight"))
    bias = next(v for k, v in theta.items() if k.endswith("bias"))
    return {"w": weight.numpy(), "b": bias.numpy()}


def objective(theta, heads, fed=FED, model=MODEL):
    """L(θ, W) = Σ α_i l_i as one autograd graph."""
    n = [len(fed.client(k).train) for k in range(fed.num_clients)]
    losses = [model.loss(theta | h, fed.client(k).train) for k, h in enumerate(heads)]
    return sum(n_k / sum(n) * loss for n_k, loss in zip(n, losses, strict=True))


def full_gradient(theta, heads):
    """∇L over θ and all heads at once."""
    theta = {k: v.clone().requires_grad_() for k, v in theta.items()}
    heads = [{k: v.clone().requires_grad_() for k, v in h.items()} for h in heads]
    inputs = [*theta.values(), *(v for h in heads for v in h.values())]
    flat = iter(torch.autograd.grad(objective(theta, heads), inputs))
    return {k: next(flat) for k in theta}, [{k: next(flat) for k in h} for h in heads]


def test_one_full_round_is_one_exact_gradient_step():
    theta, heads = initial()
    g_theta, g_heads = full_gradient(theta, heads)
    strategy, cohort = run()
    norm = sum(float((g**2).sum()) for g in g_theta.values()) ** 0.5
    assert strategy.round_log.extra["gradient_norm"] == pytest.approx(norm, rel=1e-12)
    for k, v in theta.items():
        torch.testing.assert_close(strategy.state.part[k], v - 0.2 * g_theta[k], rtol=0, atol=1e-14)
    for i, head in enumerate(heads):
        for k, v in head.items():
            got = cohort.store.states[i].head[k]
            torch.testing.assert_close(got, v - 0.2 * g_heads[i][k], rtol=0, atol=1e-14)


def test_heads_of_unequal_width_are_exact_too():
    """Clients with their own label sets have K_i outputs each."""
    theta, heads = initial()
    heads = [{k: v[: 2 + i % 2] for k, v in h.items()} for i, h in enumerate(heads)]
    data = [(FED.client(k).train.x, FED.client(k).train.y % (2 + k % 2)) for k in range(4)]
    client = PFLEGOClient(PFLEGOConfig(tau=1, rho=0.2), MODEL)
    total = float(FED.num_train.sum())
    for i, (x, y) in enumerate(data):
        part = replace(FED.client(i).train, x=x, y=y)
        gradient, memory = client.answer(
            TakeSteps(theta, 1.0, total), ClientState(heads[i]), part, Stream(0, 1, i)
        )
        leaf = {k: v.clone().requires_grad_() for k, v in heads[i].items()}
        loss = len(y) / total * MODEL.loss(theta | leaf, part)
        for (k, v), g in zip(leaf.items(), torch.autograd.grad(loss, leaf.values()), strict=True):
            torch.testing.assert_close(memory.head[k], (v - 0.2 * g).detach(), rtol=0, atol=1e-14)
        assert gradient.theta.keys() == theta.keys()


def test_the_papers_head_step_lacks_alpha():
    """Algorithm 1's literal step moves each head 1/α_i times as far; θ is the same."""
    theta, heads = initial()
    exact, paper = run(), run(head_step="paper")
    total = FED.num_train.sum()
    for k in theta:
        torch.testing.assert_close(exact[0].state.part[k], paper[0].state.part[k], rtol=0, atol=0)
    for i, head in enumerate(heads):
        for k, v in head.items():
            moved = (paper[1].store.states[i].head[k] - v) * (FED.num_train[i] / total)
            expected = exact[1].store.states[i].head[k] - v
            torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("tau", "exact", "chosen"), [(1, True, (0, 1, 2, 3)), (4, True, (0, 2)), (4, False, (3,))]
)
def test_equals_the_numpy_restatement(tau, exact, chosen):
    theta, heads = initial()
    data = [(FED.client(k).train.x.numpy(), FED.client(k).train.y.numpy()) for k in range(4)]
    plain = [{"w": h["head.weight"].numpy(), "b": h["head.bias"].numpy()} for h in heads]
    want_theta, want_heads = pflego_round(numpy_body(theta), plain, data, chosen, tau, 0.1, 0.2, exact)
    strategy, cohort = run(
        tau=tau, head_step="exact" if exact else "paper", chosen=chosen, clients_per_round=len(chosen)
    )
    got = numpy_body(strategy.state.part)
    for k in BODY:
        np.testing.assert_allclose(got[k], want_theta[k], rtol=0, atol=1e-13)
    for i in chosen:
        head = cohort.store.states[i].head
        np.testing.assert_allclose(head["head.weight"].numpy(), want_heads[i]["w"], rtol=0, atol=1e-13)
        np.testing.assert_allclose(head["head.bias"].numpy(), want_heads[i]["b"], rtol=0, atol=1e-13)
    assert set(cohort.store.states) == set(chosen)  # the others' heads were not touched


def steps(chosen, **options):
    """(θ's displacement, heads' displacements) of one round with the given participants."""
    theta, heads = initial()
    strategy, cohort = run(chosen=chosen, **options)
    moved = [
        {k: cohort.store.states[i].head[k] - h[k] if i in chosen else 0 * h[k] for k in h}
        for i, h in enumerate(heads)
    ]
    return {k: strategy.state.part[k] - theta[k] for k in theta}, moved


def averaged(subsets, weights, **options):
    total_theta, total_heads = None, None
    for chosen, weight in zip(subsets, weights, strict=True):
        d_theta, d_heads = steps(chosen, **options)
        flat = torch.cat([v.reshape(-1) for v in d_theta.values()])
        flat_heads = torch.cat([v.reshape(-1) for h in d_heads for v in h.values()])
        total_theta = weight * flat + (0 if total_theta is None else total_theta)
        total_heads = weight * flat_heads + (0 if total_heads is None else total_heads)
    return total_theta, total_heads


def expected_step():
    g_theta, g_heads = full_gradient(*initial())
    return (
        -0.2 * torch.cat([v.reshape(-1) for v in g_theta.values()]),
        -0.2 * torch.cat([v.reshape(-1) for h in g_heads for v in h.values()]),
    )


def test_the_step_is_unbiased_over_all_subsets_of_fixed_size():
    subsets = list(itertools.combinations(range(4), 2))
    got = averaged(subsets, [1 / 6] * 6, clients_per_round=2)
    for a, b in zip(got, expected_step(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_the_step_is_unbiased_under_bernoulli_participation():
    pi = 0.5
    subsets = [c for r in range(5) for c in itertools.combinations(range(4), r)]
    weights = [pi ** len(c) * (1 - pi) ** (4 - len(c)) for c in subsets]
    got = averaged(subsets, weights, clients_per_round=2, participation="bernoulli")
    for a, b in zip(got, expected_step(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_realised_scale_uses_the_replies_that_came():
    """I over |received| is what planned participation of that size would use."""
    a, _ = run(chosen=(0, 2), clients_per_round=3, scale="realised")
    b, _ = run(chosen=(0, 2), clients_per_round=2)
    for k, v in a.state.part.items():
        torch.testing.assert_close(v, b.state.part[k], rtol=0, atol=1e-15)


def test_with_a_range_of_participants_the_scale_is_that_of_the_round():
    """I/r_t, which is unbiased whatever size was drawn: as if so many were always drawn."""
    a, _ = run(chosen=(0, 2), clients_per_round=3, participation="range")
    b, _ = run(chosen=(0, 2), clients_per_round=2)
    assert all(torch.equal(v, b.state.part[k]) for k, v in a.state.part.items())


class Counting:
    """A body that counts its forward and backward passes."""

    def __init__(self, network):
        self.network, self.forwards, self.backwards = network, 0, 0
        self.init, self.softmax_head, self.piecewise = network.init, network.softmax_head, network.piecewise

    def __call__(self, params, x):
        self.forwards += 1
        out = self.network(params, x)
        if out.requires_grad:
            out.register_hook(self._back)
        return out

    def _back(self, grad):
        self.backwards += 1


@pytest.mark.parametrize(("tau", "forwards"), [(1, 1), (2, 2), (5, 2), (50, 2)])
def test_cost_is_two_forwards_and_one_backward_whatever_tau(tau, forwards):
    counting = Counting(MODEL.network)
    model = replace(MODEL, network=counting)
    theta, heads = initial()
    client = PFLEGOClient(PFLEGOConfig(tau=tau), model)
    with torch.no_grad():
        client.answer(
            TakeSteps(theta, 1.0, 43.0), ClientState(heads[0]), FED.client(0).train, Stream(0, 1, 0)
        )
    assert (counting.forwards, counting.backwards) == (forwards, 1)


def test_head_gradient_from_cached_features_is_the_closed_form():
    theta, heads = initial()
    data = FED.client(0).train
    F = MODEL.body(theta, data.x)
    from fedpers.learning.gradients import grad

    g = grad(MODEL.head_loss)(heads[0], F, data)
    P = torch.softmax(MODEL.head(heads[0], F), 1) - torch.nn.functional.one_hot(data.y, 3)
    torch.testing.assert_close(g["head.weight"], P.T @ F / len(data), rtol=0, atol=1e-15)
    fresh = grad(lambda h, th: MODEL.loss(th | h, data))(heads[0], theta)
    torch.testing.assert_close(g["head.weight"], fresh["head.weight"], rtol=0, atol=1e-15)


def test_the_bodys_gradient_is_taken_before_the_last_head_step():
    """Updating the head first, as block coordinate methods do, gives another gradient."""
    theta, heads = initial()
    data, total = FED.client(0).train, 43.0
    client = PFLEGOClient(PFLEGOConfig(tau=1, rho=0.5, head_step="paper"), MODEL)
    reply, memory = client.answer(TakeSteps(theta, 1.0, total), ClientState(heads[0]), data, Stream(0, 1, 0))
    leaf = {k: v.clone().requires_grad_() for k, v in theta.items()}
    same = torch.autograd.grad(MODEL.loss(leaf | heads[0], data), leaf.values())
    after = torch.autograd.grad(MODEL.loss(leaf | memory.head, data), leaf.values())
    for got, here, there in zip(reply.theta.values(), same, after, strict=True):
        torch.testing.assert_close(got, here, rtol=0, atol=1e-14)
        assert not torch.allclose(got, there)


def test_head_steps_descend_below_the_smoothness_bound():
    theta, heads = initial()
    data = FED.client(0).train
    F = MODEL.body(theta, data.x)
    ones = torch.cat([F, torch.ones(len(F), 1, dtype=F.dtype)], 1)
    beta = 2 / float(torch.linalg.eigvalsh(ones.T @ ones / len(F)).max())
    losses = []
    for tau in range(2, 12):
        client = PFLEGOClient(PFLEGOConfig(tau=tau, beta=beta, rho=0.0), MODEL)
        _, memory = client.answer(TakeSteps(theta, 1.0, 43.0), ClientState(heads[0]), data, Stream(0, 1, 0))
        losses.append(float(MODEL.head_loss(memory.head, F, data)))
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(losses))


def test_full_participation_converges_to_a_stationary_point():
    strategy, cohort = run(rounds=500, rho=1.0)
    heads = [cohort.store.states[i].head for i in range(4)]
    start = full_gradient(*initial())[0]
    end = full_gradient(strategy.state.part, heads)[0]
    size = lambda g: float(sum((v**2).sum() for v in g.values()))  # noqa: E731
    assert size(end) < 1e-3 * size(start)


def test_without_a_server_rate_the_body_stays_and_heads_are_regressions():
    theta, _ = initial()
    strategy, _ = run(rounds=2, rho=0.0, tau=3)
    assert all(torch.equal(v, theta[k]) for k, v in strategy.state.part.items())


def test_server_adam_is_torchs():
    theta, heads = initial()
    leaf = {k: v.clone().requires_grad_() for k, v in theta.items()}
    optimizer = torch.optim.Adam(leaf.values(), lr=0.2)
    strategy, _ = run(rounds=1, server_optimizer="adam")
    objective(leaf, heads).backward()
    optimizer.step()
    for k, v in strategy.state.part.items():
        torch.testing.assert_close(v, leaf[k].detach(), rtol=0, atol=1e-12)


def test_uniform_head_initialisation():
    _, heads = initial(head_init="uniform01")
    values = torch.cat([v.reshape(-1) for h in heads for v in h.values()])
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    assert not torch.equal(heads[0]["head.weight"], heads[1]["head.weight"])


def test_a_model_without_a_body_is_one_regression_a_client():
    model = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
    strategy, cohort = run(rounds=2, model=model, tau=3)
    assert strategy.state.part == {}
    assert set(cohort.store.states) == {0, 1, 2, 3}


@pytest.mark.parametrize("exact", [True, False])
def test_rounds_with_adam_equal_the_numpy_restatement(exact):
    """Five rounds, two of four unequal clients in each; Adam's moments and steps last from round to round."""
    theta, heads = initial()
    data = [(FED.client(k).train.x.numpy(), FED.client(k).train.y.numpy()) for k in range(4)]
    plain = [{"w": h["head.weight"].numpy(), "b": h["head.bias"].numpy()} for h in heads]
    rounds, body = [(0, 2), (1, 2), (0, 3), (0, 2), (1, 3)], numpy_body(theta)
    m, v = ({k: np.zeros_like(x) for k, x in body.items()} for _ in range(2))
    for t, chosen in enumerate(rounds, 1):
        moved, plain = pflego_round(body, plain, data, chosen, 3, 0.1, 0.2, exact)
        G = {k: (body[k] - moved[k]) / 0.2 for k in body}
        m = {k: 0.9 * m[k] + 0.1 * G[k] for k in G}
        v = {k: 0.999 * v[k] + 0.001 * G[k] ** 2 for k in G}
        unbiased = {k: (m[k] / (1 - 0.9**t), v[k] / (1 - 0.999**t)) for k in G}
        body = {k: body[k] - 0.2 * a / (np.sqrt(b) + 1e-8) for k, (a, b) in unbiased.items()}
    cfg = PFLEGOConfig(tau=3, rho=0.2, head_step="exact" if exact else "paper", adapt_steps=0)
    strategy = PFLEGO(cfg, MODEL, Plan(seed=2, dtype="float64", clients_per_round=2))
    turns = iter(rounds)
    strategy.sample = lambda rng: list(next(turns))
    cohort = simulate(strategy, PFLEGOClient(cfg, MODEL), FED, 5)
    got = numpy_body(strategy.state.part)
    for k in BODY:
        np.testing.assert_allclose(got[k], body[k], rtol=0, atol=1e-9)  # Adam divides by small numbers
    for i in range(4):
        np.testing.assert_allclose(
            cohort.store.states[i].head["head.weight"].numpy(), plain[i]["w"], atol=1e-9
        )


def test_heads_are_drawn_one_a_client():
    _, heads = initial()
    weights = [h["head.weight"] for h in heads]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(weights, 2))
    _, alike = initial(head_init="common")
    assert all(torch.equal(h["head.weight"], alike[0]["head.weight"]) for h in alike)


def test_the_personal_model_is_the_whole_body_and_the_clients_own_head():
    theta, heads = initial()
    order = TakeSteps(theta, 1.0, 43.0)
    whole = PFLEGOClient(PFLEGOConfig(tau=7), MODEL).personal(order, ClientState(heads[1]))
    assert whole.keys() == theta.keys() | heads[1].keys()
    assert all(whole[k] is v for k, v in (theta | heads[1]).items())


@pytest.mark.parametrize(("tau", "expected"), [(1, Work(12)), (7, Work(12, forwards=12, head_steps=72))])
def test_work_is_one_gradient_of_the_body_whatever_tau(tau, expected):
    order = TakeSteps(initial()[0], 1.0, 43.0)
    assert PFLEGOClient(PFLEGOConfig(tau=tau), MODEL).work(order, 12) == expected


def test_head_steps_before_a_prediction_are_steps_on_the_newest_body():
    theta, heads = initial()
    client = PFLEGOClient(PFLEGOConfig(beta=0.3, adapt_steps=4), MODEL)
    data, order = FED.client(1).train, TakeSteps(theta, 1.0, 43.0)
    assert client.adapts
    assert not PFLEGOClient(PFLEGOConfig(adapt_steps=0), MODEL).adapts
    shared, state = client.adapt(order, ClientState(heads[1]), data, Stream(0, 1, 1))
    head = {k: v.clone() for k, v in heads[1].items()}
    for _ in range(4):
        leaf = {k: v.requires_grad_() for k, v in head.items()}
        g = torch.autograd.grad(MODEL.loss(theta | leaf, data), leaf.values())
        head = {k: (v - 0.3 * d).detach() for (k, v), d in zip(leaf.items(), g, strict=True)}
    assert shared is order
    for k, v in head.items():
        torch.testing.assert_close(state.head[k], v, rtol=0, atol=1e-13)
