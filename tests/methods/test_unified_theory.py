"""What the papers' analyses rest on: unbiasedness, variance, one-step progress, bookkeeping."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedpers.core.errors import ConfigError
from fedpers.core.params import add, scale, sub
from fedpers.core.rng import Stream
from fedpers.core.serialization import pack, unpack
from fedpers.engines.cohort import Cohort
from fedpers.families.unified.client import batches
from fedpers.families.unified.messages import Anchor, Block, Iterate
from fedpers.families.unified.objective import Constants
from fedpers.families.unified.optimum import solve
from fedpers.families.unified.step_sizes import ACDRates, acd_rates, coordinate_rates, lsgd_step
from tests.oracles.unified import run as oracle
from tests.unified import (
    CLASSES,
    COORDINATE,
    Script,
    W,
    blocks,
    federation,
    flat,
    logistic,
    make,
    objective_of,
    ridge,
    rounds,
)

SCALARS = {"lam": 0.7, "mu": 0.05}


def given(js):
    """Samples of these indices, on every client."""
    return lambda order, data, rng: batches(data, torch.as_tensor((np.asarray(js) + 0.5) / data.num)[:, None])


class Drawn:
    """A client's stream that gives these uniform numbers."""

    def __init__(self, u):
        self.u = u

    def uniform(self, count):
        assert count == len(self.u)
        return self.u


def point(rng, fed):
    return {W: torch.tensor(rng.normal(size=(1, *fed.input_shape)))}


def full(f, fed, w, betas):
    """∇F: (w-block, [β-blocks])."""
    both = [f.grads(w, b, fed.client(m).train) for m, b in enumerate(betas)]
    return sum(flat(g) for g, _ in both) / f.M, [flat(g) / f.M for _, g in both]


def sample(fed, m, j):
    data = fed.client(m).train
    return type(data)(data.x[j : j + 1], data.y[j : j + 1], data.mask[:1])


# ---- estimators ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mx2", "mt2", "apfl2"])
@pytest.mark.parametrize("anchor", [False, True])
def test_block_gradients_are_unbiased_and_their_variance_is_bounded(name, anchor):
    """Over all coins and samples; the variance is at most 2·script L·D_F(v, x) (Lemma 15)."""
    fed, rng, n, M = logistic(M=2, n=3), np.random.default_rng(0), 3, 2
    strategy, _, grid = make("asvrcd", fed, objective=name, alpha=0.3, **SCALARS)
    rounds(strategy, grid, 1)
    f, p = objective_of(strategy), strategy.state.rates.p_w
    w, v = point(rng, fed), point(rng, fed)
    b, c = ([point(rng, fed) for _ in range(M)] for _ in range(2))
    G = full(f, fed, v, c) if anchor else (np.zeros(3), [np.zeros(3)] * M)
    mean, second = np.zeros(3 * (M + 1)), 0.0
    target = np.concatenate([full(f, fed, w, b)[0], *full(f, fed, w, b)[1]])
    for zeta, *js in itertools.product((0, 1), *[range(n)] * M):
        probability = (p if zeta else 1 - p) / n**M
        parts = [sample(fed, m, j) for m, j in enumerate(js)]
        g_w, g_b = G[0].copy(), [g.copy() for g in G[1]]
        for m, d in enumerate(parts):
            if zeta:
                g_w += flat(f.grad_w(w, b[m], d)) / (p * M)
                g_w -= anchor * flat(f.grad_w(v, c[m], d)) / (p * M)
            else:
                g_b[m] = g_b[m] + flat(f.grad_beta(w, b[m], d)) / ((1 - p) * M)
                g_b[m] -= anchor * flat(f.grad_beta(v, c[m], d)) / ((1 - p) * M)
        g = np.concatenate([g_w, *g_b])
        mean += probability * g
        second += probability * ((g - target) ** 2).sum()
    np.testing.assert_allclose(mean, target, atol=1e-12)
    if anchor:
        with torch.no_grad():

            def value(w, b):
                return sum(float(f.value(w, b[m], fed.client(m).train)) for m in range(M)) / M

            inner = sum(
                float((target[i * 3 : i * 3 + 3] * flat(sub(x, y))).sum())
                for i, (x, y) in enumerate(zip([v, *c], [w, *b], strict=True))
            )
            bregman = value(v, c) - value(w, b) - inner
        cL = 1 / (4 * strategy.state.rates.eta)
        assert second <= 2 * cL * bregman * (1 + 1e-9)


def test_joint_convexity_bounds_the_hessian_by_its_blocks():
    """Lemma 16: H <= 2 diag(L_x I, L_y I)."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        root = rng.normal(size=(5, 5))
        H = root @ root.T
        L_x, L_y = np.linalg.eigvalsh(H[:2, :2])[-1], np.linalg.eigvalsh(H[2:, 2:])[-1]
        bound = 2 * np.diag([L_x] * 2 + [L_y] * 3)
        assert np.linalg.eigvalsh(bound - H)[0] >= -1e-9


@pytest.mark.parametrize("p_w", [None, 0.2, 0.8])
@pytest.mark.parametrize("name", ["mx2", "mt2"])
def test_acd_makes_progress_in_every_step(name, p_w):
    """The expected Lyapunov value falls by 1-θ, from any y and z."""
    from fedpers.clients.acd import descend, drift, middle

    fed, rng = ridge(), np.random.default_rng(1)
    strategy, _, grid = make("acd", fed, objective=name, lam=0.7, p_w=p_w)
    rounds(strategy, grid, 1)
    f, h, M = objective_of(strategy), strategy.state.rates, 4
    parts = [fed.client(m).train for m in range(M)]
    best = solve(f, parts, {W: torch.zeros(1, 3).double()})
    q = (h.L_w / h.p_w**2, h.L_b / (1 - h.p_w) ** 2)

    def potential(w, betas):
        F = sum(float(f.value(w.y, b.y, d)) for b, d in zip(betas, parts, strict=True)) / M
        far = q[0] * np.square(flat(sub(w.z, best.w))).sum() + q[1] * sum(
            np.square(flat(sub(b.z, o))).sum() for b, o in zip(betas, best.betas, strict=True)
        )
        return (F - best.value) / h.theta**2 + far / (2 * (1 - h.theta))

    worst = 0.0
    for size in (0.1, 1.0, 10.0):
        for _ in range(30):
            near = lambda o, size=size: add(o, {W: torch.tensor(rng.normal(size=(1, 3)))}, size)  # noqa: E731
            w = Block(near(best.w), near(best.w))
            betas = [Block(near(o), near(o)) for o in best.betas]
            x, x_b = middle(w, h), [middle(b, h) for b in betas]
            g = scale({W: sum(f.grad_w(x, b, d)[W] for b, d in zip(x_b, parts, strict=True))}, 1 / M)
            step_w = potential(
                descend(w, x, g, h.p_w, h.L_w, h), [drift(b, xb, h) for b, xb in zip(betas, x_b, strict=True)]
            )
            moved = [
                descend(b, xb, scale(f.grad_beta(x, xb, d), 1 / M), 1 - h.p_w, h.L_b, h)
                for b, xb, d in zip(betas, x_b, parts, strict=True)
            ]
            step_b = potential(drift(w, x, h), moved)
            after = h.p_w * step_w + (1 - h.p_w) * step_b
            worst = max(worst, after / potential(w, betas) / (1 - h.theta))
    assert worst <= 1 + 1e-9


def test_rates_of_the_papers_table():
    """Section 6.3: cL' = 1, μ'/(3M) with μ' = 0.01, M = 20, n = 100."""
    rows = [
        (0.0750, 0.0750, 0.500, 0.8333, 0.1179, 1.7678, 0.999705),
        (0.0250, 0.0750, 0.250, 1.2500, 0.2041, 1.5309, 0.999745),
        (0.0505, 0.0405, 0.555, 1.3736, 0.1436, 2.3911, 0.999601),
        (0.0125, 0.0625, 0.1667, 1.6667, 0.2887, 1.4434, 0.999759),
    ]
    for cL_w, cL_b, p, eta, theta_1, gamma, nu in rows:
        h = coordinate_rates(Constants(0.01 / 60, cL_w, cL_b, cL_w, cL_b), 100)
        found = [h.p_w, h.eta, h.theta_1, h.gamma, h.nu]
        np.testing.assert_allclose(found, [p, eta, theta_1, gamma, nu], rtol=6e-4)
        assert h.theta == min(0.8, 1 / h.eta) and h.rho == h.p_w / 100
    h = acd_rates(Constants(0.01, 0.5, 2.0, 1.0, 1.0))
    assert h.theta**2 / (1 - h.theta) == pytest.approx(h.nu, rel=1e-12)
    assert h.nu == pytest.approx(0.01 / (0.5**0.5 + 2**0.5) ** 2)
    with pytest.raises(ConfigError):
        acd_rates(Constants(0.0, 1.0, 1.0, 1.0, 1.0))
    assert lsgd_step(Constants(0.1, 1.0, 2.0, 1.0, 1.0), 1) == 1 / 8


# ---- trajectories --------------------------------------------------------------------------------


@pytest.mark.parametrize("make_fed", [ridge, logistic])
@pytest.mark.parametrize("name", COORDINATE)
def test_trajectory_is_the_oracles(name, make_fed, monkeypatch):
    """A few rounds with given coins and common sample indices, against plain NumPy loops."""
    fed, n = make_fed(), len(make_fed().client(0).train)
    strategy, cohort, grid = (
        make(name, fed, rho=0.2, **SCALARS) if (name != "scd") else make(name, fed, **SCALARS)
    )
    control = name in ("svrcd", "asvrcd")
    rng = np.random.default_rng(5)
    for t in range(1, 7):
        T, zeta, refresh = int(rng.integers(0, 4)), True, bool(rng.integers(0, 2))
        if control and t % 3 == 0:
            zeta, refresh = False, True
        coins = [1.0, 1.0] * T if control else [1.0] * T
        coins += [float(not zeta)] + [float(not refresh)] * control
        js = rng.integers(0, n, T + 1)
        steps = locals().get("steps", [])
        steps += [(False, False, [j] * 4) for j in js[:T]]
        steps += [(zeta, refresh and control, [js[T]] * 4)]
        cohort.client.samples = given(js)
        rounds(strategy, grid, t, Script(coins), monkeypatch)
    xs = [fed.client(m).train.x.numpy() for m in range(4)]
    ys = [fed.client(m).train.y.numpy().astype(float) for m in range(4)]
    zero = np.zeros(3), np.zeros((4, 3))
    h = SimpleNamespace(**vars(strategy.state.rates))
    w, betas = oracle(name, xs, ys, fed.task, 0.7, h, steps, *zero)
    found_w, found_b = blocks(strategy, cohort)
    np.testing.assert_allclose(flat(found_w), w, atol=1e-12)
    np.testing.assert_allclose(np.stack([flat(b) for b in found_b]), betas, atol=1e-12)
    assert np.abs(w).max() > 1e-4


@pytest.mark.parametrize("name", [*COORDINATE, "acd"])
def test_iterations_of_one_call_are_those_of_many(name):
    """T β-iterations at once, and one at a time with w moved by the server in between (float64)."""
    fed = logistic(n=6)
    strategy, cohort, grid = make(name, fed, **SCALARS)
    strategy.config = replace(strategy.config, max_local=50)
    rounds(strategy, grid, 3)
    s, client, data = strategy.state, cohort.client, fed.client(1).train
    memory, u = cohort.state(1, (99, 0)), torch.rand(6, dtype=torch.float64)

    def order(w, T, w_step):
        return Iterate(w, T, w_step, False, s.rates, 4, None, {}, {})

    def server(w, T):
        """What the server makes of w in T β-iterations."""
        fake = replace(s, w=w)
        strategy.next_event = lambda *a, **k: order(w, T, False)
        steps = strategy.iterate(fake, None)
        next(steps)
        try:
            steps.send({})
        except StopIteration as done:
            return done.value.w

    with torch.no_grad():
        reply, whole = client.answer(order(s.w, 5, True), memory, data, Drawn(u))
        w, step = s.w, memory
        for i in range(5):
            _, step = client.answer(order(w, 1, False), step, data, Drawn(u[i : i + 1]))
            w = server(w, 1)
        last, step = client.answer(order(w, 0, True), step, data, Drawn(u[5:]))
    assert pack(step)[0] == pack(whole)[0]
    for one, other in ((step, whole), (reply, last), (server(s.w, 5), w)):
        for a, b in zip(pack(one)[1], pack(other)[1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", CLASSES)
def test_what_travels(name):
    """Up, d_0 numbers of each client an event; β in no message; anchors and steps together."""
    fed, sent = ridge(M=5, d=3), []

    class Watching(Cohort):
        def handle(self, requests):
            answers = super().handle(requests)
            sent.extend((r.order, a.body) for r, a in zip(requests, answers, strict=True))
            return answers

    options = {"rho": 0.3} if name in ("svrcd", "asvrcd") else {}
    strategy, cohort, grid = make(name, fed, **SCALARS, **options)
    watching = Watching(cohort.client, fed, cohort.store, cohort.plan)
    grid.cohort = watching
    rounds(strategy, grid, 12)
    for order, reply in sent:
        numbers = sum(
            v.numel() for v in [*getattr(reply, "g", {}).values(), *getattr(reply, "g_v", {}).values()]
        )
        if isinstance(order, Iterate):
            assert numbers == 3 * (order.w_step + order.refresh)
        elif isinstance(order, Anchor):
            assert numbers == 3
    secret = [v for m in range(5) for x in vars(cohort.state(m, (99, 0))).values() for v in x.values()]
    told = [
        t
        for both in sent
        for part in both
        for t in torch.utils._pytree.tree_leaves(part)
        if isinstance(t, torch.Tensor) and t.shape == secret[0].shape
    ]
    assert not any(torch.equal(a, b) for a in told for b in secret if bool(b.any()))


@pytest.mark.parametrize("name", ["acd", *COORDINATE])
def test_counters_follow_their_law(name):
    """Communications are binomial: p_w, or 1-(1-p_w)(1-ρ) with anchors; 4 standard deviations."""
    options = {"rho": 0.1} if name in ("svrcd", "asvrcd") else {}
    strategy, _, grid = make(name, ridge(M=2, n=2), **SCALARS, **options)
    rounds(strategy, grid, 400)
    c, h = strategy.state.counts, strategy.state.rates
    first = 1 if options else 0
    p = 1 - (1 - h.p_w) * (1 - options.get("rho", 0.0))
    sd = (p * (1 - p) * c.iterations) ** 0.5
    assert c.communications - first == 400  # a round is a communication
    assert abs(400 - p * c.iterations) < 4 * sd
    if name == "acd":
        assert c.w_grads == 400 and c.beta_grads == c.iterations - 400
        assert c.beta_sample_grads == 2 * c.beta_grads and c.w_sample_grads == 0  # mx2: no data
    elif not options:
        assert c.beta_sample_grads == c.iterations - 400 and c.w_grads == 0


def test_state_survives_a_restart_in_mid_run():
    whole, _cohort, grid = make("asvrcd", logistic(), **SCALARS, rho=0.2)
    rounds(whole, grid, 9)
    first, half, grid = make("asvrcd", logistic(), **SCALARS, rho=0.2)
    rounds(first, grid, 4)
    second, rest, grid = make("asvrcd", logistic(), **SCALARS, rho=0.2)
    second.state, second.rounds_done = unpack(*pack(first.state)), 4
    for k, memory in half.store.states.items():
        rest.store.states[k] = unpack(*pack(memory))
    rounds(second, grid, 9)
    same = zip(pack(whole.state)[1], pack(second.state)[1], strict=True)
    assert all(np.array_equal(a, b) for a, b in same)


# ---- reductions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1, 3])
def test_lsgd_without_a_private_block_is_local_sgd(tau):
    """Equal weights, bitwise against an independent loop."""
    fed = ridge(M=3, n=4)
    strategy, cohort, grid = make("lsgd", fed, objective="fl", tau=tau, eta=0.05, batch_size=2)
    rounds(strategy, grid, 4)
    w = torch.zeros(1, 3).double()
    for t in range(1, 5):
        ends = []
        for m in range(3):
            data, own = fed.client(m).train, w.clone()
            u = Stream(0, t, m, 0).uniform(tau, 2).double()  # the step is given: no constants are asked for
            for j in (u * 4).long():
                own = own.requires_grad_()
                loss = ((data.x[j] @ own[0] - data.y[j]) ** 2).mean()
                (g,) = torch.autograd.grad(loss, own)
                own = (own - 0.05 * g).detach()
            ends.append(own)
        w = sum(ends) / 3
    np.testing.assert_allclose(flat(blocks(strategy, cohort)[0]), w[0].numpy(), atol=1e-15)


def test_scd_without_a_private_block_is_parallel_sgd(monkeypatch):
    fed = ridge(M=3, n=4)
    strategy, cohort, grid = make("scd", fed, objective="fl")
    w = torch.zeros(3).double()
    for t, j in enumerate([2, 0, 3], 1):
        cohort.client.samples = given([j])
        rounds(strategy, grid, t, Script([0.99]), monkeypatch)
        assert strategy.state.rates.p_w == 1
        data = [fed.client(m).train for m in range(3)]
        g = sum(2 * (d.x[j] @ w - d.y[j]) * d.x[j] for d in data) / 3
        w = w - strategy.state.rates.eta * g
    np.testing.assert_allclose(flat(blocks(strategy, cohort)[0]), w.numpy(), atol=1e-14)


def test_acd_without_a_private_block_is_accelerated_gradient_descent():
    fed = ridge(M=3)
    strategy, cohort, grid = make("acd", fed, objective="fl", l2=0.1)
    rounds(strategy, grid, 6)
    h = strategy.state.rates
    assert isinstance(h, ACDRates) and h.p_w == 1
    parts = [fed.client(m).train for m in range(3)]
    y = z = np.zeros(3)
    for _ in range(6):
        x = (1 - h.theta) * y + h.theta * z
        g = sum(2 * d.x.numpy().T @ (d.x.numpy() @ x - d.y.numpy()) / 6 for d in parts) / 3 + 0.1 * x
        y = x - g / h.L_w
        z = (z + h.nu / h.theta * x - g / (h.theta * h.L_w)) / (1 + h.nu / h.theta)
    np.testing.assert_allclose(flat(blocks(strategy, cohort)[0]), y, atol=1e-13)


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_shared_is_independent_clients(name):
    """objective=full: no communication, and a client's way does not depend on the others."""
    a, b = ridge(M=2, seed=1), ridge(M=2, seed=2)
    mixed = federation([a.client(0).train.x, b.client(1).train.x], [a.client(0).train.y, b.client(1).train.y])
    options = {"objective": "full", "mu": 0.05, "L": 20.0, "cL": 60.0}
    options |= {"max_local": 7} if name != "lsgd" else {}
    ends = []
    for fed in (a, mixed):
        strategy, cohort, grid = make(name, fed, **options)
        rounds(strategy, grid, 3)
        assert strategy.state.counts.communications == 0
        assert strategy.round_log.bytes_up == 0
        ends.append([flat(x) for x in blocks(strategy, cohort)[1]])
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    assert np.abs(ends[0][1] - ends[1][1]).max() > 1e-3


def test_a_step_of_independent_acd_clients_does_not_depend_on_their_number():
    for M in (2, 5):
        strategy, cohort, grid = make("acd", ridge(M=M), objective="full", max_local=1)
        rounds(strategy, grid, 1)
        d = ridge(M=M).client(0).train
        g = 2 * d.x.T @ (0 - d.y) / 6
        most = max(
            float(np.linalg.eigvalsh(2 * x.x.T @ x.x / 6)[-1])
            for x in (ridge(M=M).client(m).train for m in range(M))
        )
        np.testing.assert_allclose(flat(blocks(strategy, cohort)[1][0]), -g / most, atol=1e-13)


def test_no_penalty_is_nothing_shared():
    """MX2 with λ = 0: w stays, and the β's go as without it."""
    ends = []
    for options in ({"objective": "mx2", "lam": 0.0}, {"objective": "full"}):
        strategy, cohort, grid = make("scd", logistic(), **options, mu=0.05, max_local=9)
        rounds(strategy, grid, 3)
        ends.append([flat(b) for b in blocks(strategy, cohort)[1]])
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-15)


def test_sharing_everything_is_one_model_at_a_smaller_step():
    """WS2 without a private part: u moves as w of FL with η/M."""
    ends = []
    for options in ({"objective": "ws2", "private": "none", "eta": 0.3}, {"objective": "fl", "eta": 0.3 / 4}):
        strategy, cohort, grid = make("lsgd", ridge(), **options, batch_size=0, tau=2)
        rounds(strategy, grid, 3)
        ends.append(flat(objective_of(strategy).shared(blocks(strategy, cohort)[0])))
    np.testing.assert_allclose(*ends, atol=1e-13)


def test_a_change_of_p_w_keeps_the_step_inside_the_bound():
    c = Constants(0.01, 1.0, 2.0, 3.0, 5.0)
    for p in (0.1, 0.375, 0.9):
        h = coordinate_rates(c, 10, p_w=p)
        assert h.eta == pytest.approx(1 / (8 * max(3 / p, 5 / (1 - p))))
