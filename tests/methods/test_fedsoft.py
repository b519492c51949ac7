"""FedSoft: every line of the method, its closed forms, and its reductions to other methods."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.checks.contract import CHECKS, make_case
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedsoft import ClientState, FedSoftClient, FedSoftConfig, Importance, LocalModel, Train
from fedpers.core.errors import ConfigError
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import FileStore, RamStore
from fedpers.families.clustered.messages import Centers
from fedpers.learning.model import build_model, initial_params
from fedpers.method import Data, LocalConfig, Plan, Stream
from fedpers.strategies.fedsoft import FedSoft, aggregation_weights
from tests.mixtures import blends, federation, isotropic, keep_importance, linear, part
from tests.oracles.fedsoft import fixed_point, full_round, importance, local_solution

SGD = LocalConfig(lr=0.05, epochs=2, batch_size=4)
FULL = {"sampling": "full", "solver": "exact"}


def tensors(array):
    """A center per row of `array`."""
    return tuple({"head.weight": torch.tensor(np.asarray(row))[None].double()} for row in array)


def arrays(params):
    """The inverse of `tensors`."""
    return np.stack([p["head.weight"][0].numpy() for p in params])


def start(cfg, model, fed, *, store=None, u=None, centers=None, kind=Cohort, **plan):
    """(strategy, grid) before round 1, in the given state; a given `u` is never estimated."""
    server = FedSoft(cfg, model, Plan(seed=3, dtype="float64", **plan))
    cohort = kind(FedSoftClient(cfg, model), fed, store or RamStore(), server.plan)
    grid = InProcessGrid(cohort)
    server.connect(grid)
    if u is not None:
        keep_importance(server, u)
    if centers is not None:
        server.state = replace(server.state, centers=centers)
    return server, grid


def client(model, **options):
    return FedSoftClient(FedSoftConfig(**options), model)


def estimate(centers):
    """The order to weigh these centers."""
    return Centers(tensors(centers))


class Listening(Cohort):
    """Remembers which orders were answered."""

    def handle(self, requests):
        self.seen = [*getattr(self, "seen", []), *requests]
        return super().handle(requests)


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "options", [{"K": 3}, {"K": 4, "optimizer_state": "reset", "tau": 1}], ids=["persist", "reset"]
)
def test_contract(check, options):
    local = LocalConfig(lr=0.01, epochs=1, optimizer="adam")
    check(make_case(FedSoft, FedSoftClient, FedSoftConfig(local=local, **options)))


# ---- estimation ---------------------------------------------------------------------------------


def test_importance_of_four_points_by_hand():
    """Targets 0, 1, 2, 10 at x = 1; centers predict 0 and 4: the first three are nearer to 0."""
    model = linear(1)
    data = part([[1.0]] * 4, [0.0, 1.0, 1.9, 10.0])
    reply, _ = client(model).answer(estimate([[0.0], [4.0]]), None, data, None)
    assert reply.u.tolist() == [0.75, 0.25] and float(reply.n) == 4
    reply, _ = client(model, sigma=1e-3).answer(estimate([[0.0], [99.0]]), None, data, None)
    assert reply.u.tolist() == [1.0, 1e-3]  # a zero share is exactly σ
    reply, _ = client(model).answer(estimate([[5.0], [5.0]]), None, data, None)
    assert reply.u.tolist() == [1.0, 1e-4]  # ties go to the first


def test_padding_does_not_count():
    data = part([[1.0]] * 4, [0.0, 1.0, 1.9, 10.0])
    data = Data(data.x, data.y, torch.tensor([1.0, 1.0, 0.0, 0.0]).double())
    reply, _ = client(linear(1)).answer(estimate([[0.0], [4.0]]), None, data, None)
    assert reply.u.tolist() == [1.0, 1e-4] and float(reply.n) == 2


@pytest.mark.parametrize("S", [2, 5])
def test_importance_and_aggregation_weights(S):
    rng = np.random.default_rng(S)
    theta, centers = rng.normal(size=(2, S, 3))
    data = blends(rng.dirichlet(np.ones(S), 6), theta, rng.integers(10, 30, 6), rng)
    sigma = 0.01
    model = linear(3)
    replies = [
        client(model, S=S, sigma=sigma).answer(estimate(centers), None, part(x, y), None)[0] for x, y in data
    ]
    u = torch.stack([r.u for r in replies])
    np.testing.assert_allclose(u, [importance(centers, x, y, sigma) for x, y in data], atol=1e-15)
    assert (u >= sigma).all()
    assert ((u.sum(1) >= 1 - 1e-12) & (u.sum(1) <= 1 + (S - 1) * sigma + 1e-12)).all()
    n = torch.tensor([float(len(y)) for _, y in data]).double()
    v = aggregation_weights(u, n)
    assert v.shape == (S, 6)
    np.testing.assert_allclose(v.sum(1), np.ones(S), rtol=1e-14)
    np.testing.assert_allclose(v[1], u[:, 1] * n / (u[:, 1] * n).sum(), rtol=1e-14)


def test_a_cluster_that_nobody_is_near_is_weighed_by_samples():
    v = aggregation_weights(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1.0, 3.0]))
    assert v.tolist() == [[0.25, 0.75], [0.25, 0.75]]


def test_misclassified_points_bias_the_weights_as_theorem_1_says():
    """Each point is on the wrong side with probability p: E u_s = (1-p) u_s + p (1 - u_s)."""
    rng, p, share, sigma = np.random.default_rng(0), 0.1, 0.3, 1e-4
    found = []
    for _ in range(200):
        first = np.arange(100) < share * 100
        near_first = first ^ (rng.random(100) < p)
        data = part(np.ones((100, 1)), np.where(near_first, 0.0, 4.0))
        reply, _ = client(linear(1), sigma=sigma).answer(estimate([[0.0], [4.0]]), None, data, None)
        found.append(float(reply.u[0]))
    assert np.mean(found) <= (1 - p) * share + p + sigma
    assert np.mean(found) == pytest.approx((1 - p) * share + p * (1 - share), abs=0.01)


@pytest.mark.parametrize("tau", [1, 2, 3])
def test_estimation_happens_every_tau_rounds_from_the_first(tau):
    fed = toy_federation(dtype=torch.float64)
    model = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
    server, grid = start(FedSoftConfig(K=3, tau=tau, local=SGD), model, fed, kind=Listening)
    before = server.state.u
    for t in range(1, 7):
        grid.cohort.seen = []
        server.start(grid, num_rounds=t)
        estimated = [r for r in grid.cohort.seen if isinstance(r.order, Centers)]
        trained = [r for r in grid.cohort.seen if isinstance(r.order, Train)]
        assert len(estimated) == (6 if (t - 1) % tau == 0 else 0)
        assert len({r.k for r in trained}) == len(trained) > 0  # once each
        if not estimated:
            assert torch.equal(server.state.u, before)
        for r in trained:
            assert torch.equal(r.order.u, server.state.u[r.k])
        before = server.state.u


# ---- the local problem --------------------------------------------------------------------------


def test_a_step_follows_the_gradient_of_equation_4():
    """One SGD step: w - η (∇f + λ(ūw - c̄)), where Σ u is not 1; by autograd of Eq. 4 as printed."""
    rng = np.random.default_rng(1)
    model = build_model("mlp", input_shape=(3,), num_outputs=2, task="classification", hidden=[4])
    w, *centers = ({k: v.double() for k, v in model.init(s).items()} for s in range(4))
    data = Data(
        torch.tensor(rng.normal(size=(7, 3))), torch.tensor([0, 1, 1, 0, 1, 0, 0]), torch.ones(7).double()
    )
    u, lam = torch.tensor([0.5, 0.4, 0.3]).double(), 0.7
    leaf = {k: v.clone().requires_grad_() for k, v in w.items()}
    h = model.loss(leaf, data) + lam / 2 * sum(
        u_s * sum(((leaf[k] - c[k]) ** 2).sum() for k in c) for u_s, c in zip(u, centers, strict=True)
    )
    expected = dict(zip(leaf, torch.autograd.grad(h, leaf.values()), strict=True))
    one = LocalConfig(lr=0.1, steps=1, batch_size=0)
    me = client(model, S=3, lam=lam, local=one)
    with torch.no_grad():
        reply, memory = me.answer(
            Train(tuple(centers), u),
            ClientState(w, me.initial_state(w, data, None).opt),
            data,
            Stream(0, 1, 0),
        )
    for k in w:
        torch.testing.assert_close(reply.w[k], w[k] - 0.1 * expected[k], rtol=0, atol=1e-14)
        assert torch.equal(memory.w[k], reply.w[k])
    loss = {
        k: g - lam * (u.sum() * w[k] - sum(u_s * c[k] for u_s, c in zip(u, centers, strict=True)))
        for k, g in expected.items()
    }
    plain = {k: v.clone().requires_grad_() for k, v in w.items()}
    f = torch.autograd.grad(model.loss(plain, data), plain.values())
    for g, k in zip(f, w, strict=True):
        torch.testing.assert_close(loss[k], g, rtol=0, atol=1e-14)


def solve(data, u, centers, lam, **options):
    model = linear(data.x.shape[1])
    me = client(model, S=len(u), lam=lam, solver="exact", **options)
    order = Train(tensors(centers), torch.tensor(u).double())
    return me.answer(order, ClientState(None, None), data, None)[0].w["head.weight"][0].numpy()


def test_the_exact_solver_in_general_and_at_both_ends():
    rng = np.random.default_rng(2)
    x, y, centers, u = rng.normal(size=(20, 4)), rng.normal(size=20), rng.normal(size=(2, 4)), [0.7, 0.5]
    data = part(x, y)
    np.testing.assert_allclose(
        solve(data, u, centers, 0.8), local_solution(x, y, np.array(u), centers, 0.8), atol=1e-12
    )
    np.testing.assert_allclose(solve(data, u, centers, 0.0), np.linalg.lstsq(x, y, rcond=None)[0], atol=1e-12)
    cbar = (0.7 * centers[0] + 0.5 * centers[1]) / 1.2
    np.testing.assert_allclose(solve(data, u, centers, 1e9), cbar, atol=1e-7)


def test_many_adam_steps_end_near_the_exact_solution():
    rng = np.random.default_rng(3)
    x, y, centers = rng.normal(size=(20, 3)), rng.normal(size=20), rng.normal(size=(2, 3))
    me = client(linear(3), lam=1.0, local=LocalConfig(0.02, steps=1500, batch_size=0, optimizer="adam"))
    data, order = part(x, y), Train(tensors(centers), torch.tensor([0.3, 0.7]).double())
    memory = me.initial_state(tensors(np.zeros((1, 3)))[0], data, None)
    with torch.no_grad():
        w = me.answer(order, memory, data, Stream(0, 1, 0))[0].w
    np.testing.assert_allclose(w["head.weight"][0], solve(data, [0.3, 0.7], centers, 1.0), atol=1e-5)


@pytest.mark.parametrize(("begin", "expected"), [("own", 7.0), ("center_mix", (1 + 2 * 4) / 3)])
def test_where_the_local_solve_starts(begin, expected):
    """A rate of 0 leaves the start: the own model 7, or c̄/ū for centers 1, 4 and u = (0.4, 0.8)."""
    me = client(linear(1), local_init=begin, local=LocalConfig(lr=0.0, batch_size=0))
    order = Train(tensors([[1.0], [4.0]]), torch.tensor([0.4, 0.8]).double())
    memory = me.initial_state(tensors([[7.0]])[0], None, None)
    with torch.no_grad():
        reply, _ = me.answer(order, memory, part([[1.0]], [0.0]), Stream(0, 1, 0))
    assert float(reply.w["head.weight"]) == pytest.approx(expected)


def test_the_exact_solver_needs_linear_regression():
    fed = toy_federation()
    model = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
    with pytest.raises(ConfigError, match="linear regression"):
        start(FedSoftConfig(solver="exact"), model, fed)


@pytest.mark.parametrize("state", ["persist", "reset"])
def test_one_adam_lives_for_the_whole_run_or_for_a_round(state):
    """Against torch.optim.Adam, which sees λ's pull as part of the loss."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(10, 3)), rng.normal(size=10)
    cfg = FedSoftConfig(
        lam=0.5,
        sampling="full",
        optimizer_state=state,
        local=LocalConfig(0.01, epochs=3, batch_size=0, optimizer="adam"),
    )
    model = linear(3)
    server, grid = start(cfg, model, federation([(x, y)]), u=[[0.5, 0.5]])
    w = initial_params(model, server.plan)["head.weight"].clone().requires_grad_()
    optimizer = torch.optim.Adam([w], lr=0.01)
    for t in (1, 2):
        centers = arrays(server.state.centers)
        server.start(grid, num_rounds=t)
        if state == "reset":
            optimizer = torch.optim.Adam([w], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            pull = sum(0.5 * ((w[0] - torch.tensor(c)) ** 2).sum() for c in centers)
            (((torch.tensor(x) @ w[0] - torch.tensor(y)) ** 2).mean() + 0.25 * pull).backward()
            optimizer.step()
    memory = grid.cohort.store.states[0]
    torch.testing.assert_close(memory.w["head.weight"], w.detach(), rtol=0, atol=1e-13)
    assert (memory.opt is None) == (state == "reset")


# ---- selection and aggregation ------------------------------------------------------------------


def select(v, K, rng, **options):
    server = FedSoft(FedSoftConfig(K=K, **options), linear(1), Plan())
    server.roster = replace(server.roster, ids=tuple(range(len(v))))
    return server._select(np.asarray(v), rng)


def test_draws_follow_v_with_replacement_and_are_distinct_without():
    rng, v = np.random.default_rng(0), np.array([0.5, 0.3, 0.15, 0.05, 0.0])
    times = Counter()
    for _ in range(2000):
        group = select(v, 4, rng, sampling="with_replacement")
        assert sum(group.values()) == 4  # a client drawn twice weighs twice
        times.update({k: int(m) for k, m in group.items()})
    np.testing.assert_allclose([times[k] / 8000 for k in range(5)], v, atol=0.02)
    for _ in range(50):
        group = select(v, 3, rng)
        assert len(group) == 3 and set(group.values()) == {1.0} and 4 not in group


def test_first_draw_without_replacement_follows_v():
    rng, v = np.random.default_rng(1), np.array([0.6, 0.3, 0.1])
    first = Counter(next(iter(select(v, 1, rng))) for _ in range(4000))
    np.testing.assert_allclose([first[k] / 4000 for k in range(3)], v, atol=0.025)


def test_expected_union_of_two_uniform_draws_is_the_papers():
    """N(1 - (1 - K/N)^S) = 84 for N = 100, K = 60, S = 2."""
    rng, v = np.random.default_rng(2), np.full(100, 0.01)
    sizes = [len(select(v, 60, rng).keys() | select(v, 60, rng).keys()) for _ in range(300)]
    assert np.mean(sizes) == pytest.approx(84, abs=1)


def next_centers(u, models, **options):
    """The centers after one round in which client k answers models[k]."""
    fed = federation([(np.ones((2, 1)), np.ones(2))] * len(models))
    server, _ = start(FedSoftConfig(**options), linear(1), fed, u=u)
    going = server.round(server.state, 1, np.random.default_rng(0))
    orders = next(going)
    replies = {k: LocalModel({"head.weight": torch.tensor([[models[k]]]).double()}) for k in orders}
    with pytest.raises(StopIteration) as end:
        going.send(replies)
    return arrays(end.value.value.centers)[:, 0]


def test_the_server_keeps_what_clients_tell_and_of_those_that_do_not_what_it_had():
    """[S2]; before it heard of a client, u is 1/S and n what the client enrolled with."""
    fed = federation([(np.ones((2, 1)), np.ones(2))] * 3)
    server, _ = start(FedSoftConfig(S=2), linear(1), fed)
    going = server.round(server.state, 1, np.random.default_rng(0))
    assert list(next(going)) == [0, 1, 2]
    told = {0: ([0.25, 0.75], 7.0), 2: ([1.0, 0.0], 9.0)}
    orders = going.send({k: Importance(torch.tensor(u), torch.tensor(n)) for k, (u, n) in told.items()})
    models = {k: LocalModel({"head.weight": torch.ones(1, 1).double()}) for k in orders}
    with pytest.raises(StopIteration) as end:
        going.send(models)
    state = end.value.value
    assert state.u.tolist() == [[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]
    assert state.n.tolist() == [7, 2, 9]


def test_plain_mean_and_full_participation():
    """u = (1, 2, 3)/4 with equal n; client models 1, 10, 100."""
    u, w = np.array([[0.25, 0.0], [0.5, 0.0], [0.75, 1.0]]), [1.0, 10.0, 100.0]
    mean = next_centers(u, w, K=3, sampling="with_replacement")
    assert mean[1] == 100  # cluster 1 draws client 2 only
    assert next_centers(u[:, :1], w, S=1, K=3) == pytest.approx(111 / 3)
    assert next_centers(u, w, sampling="full") == pytest.approx([321 / 6, 100])
    alone = np.array([[0.25, 0.0], [0.5, 0.0], [0.75, 0.0]])
    assert next_centers(alone, w, sampling="full") == pytest.approx([321 / 6, 37])  # by n


def test_multiplicity_counts_in_the_plain_mean(monkeypatch):
    monkeypatch.setattr("fedpers.strategies.fedsoft.draw", lambda *a, **k: [0, 0, 2])
    found = next_centers(np.ones((3, 1)), [1.0, 10.0, 100.0], S=1, K=3, sampling="with_replacement")
    assert found == pytest.approx((1 + 1 + 100) / 3)


def test_everybody_without_replacement_makes_all_centers_equal():
    rng = np.random.default_rng(5)
    fed = federation(blends(rng.dirichlet([1, 1], 5), rng.normal(size=(2, 3)), [9, 12, 15, 20, 8], rng))
    server, grid = start(FedSoftConfig(K=5, solver="exact"), linear(3), fed)
    server.start(grid, num_rounds=1)
    mean = np.mean([m.w["head.weight"][0].numpy() for m in grid.cohort.store.states.values()], 0)
    np.testing.assert_allclose(arrays(server.state.centers), [mean, mean], atol=1e-13)


def test_without_a_number_sixty_percent_are_drawn_for_each_center():
    for N, K in ((100, 60), (11, 7), (1, 1)):
        assert len(select(np.full(N, 1 / N), None, np.random.default_rng(0))) == K


def test_more_draws_than_clients_is_a_mistake_with_a_remedy():
    server, grid = start(FedSoftConfig(K=7), linear(1), federation([(np.ones((2, 1)), np.ones(2))] * 3))
    with pytest.raises(Exception, match="only 3 have a positive probability"):
        server.start(grid, num_rounds=1)


# ---- theory -------------------------------------------------------------------------------------


def test_rounds_equal_the_numpy_restatement():
    rng = np.random.default_rng(6)
    data = blends(rng.dirichlet([1, 1, 1], 5), 2 * rng.normal(size=(3, 4)), [9, 12, 15, 20, 8], rng, 0.1)
    cfg = FedSoftConfig(S=3, tau=1, lam=0.6, sigma=0.01, solver="exact", sampling="full")
    server, grid = start(cfg, linear(4), federation(data))
    centers = arrays(server.state.centers)
    for t in (1, 2, 3):
        u = np.stack([importance(centers, x, y, 0.01) for x, y in data])
        centers, w = full_round(centers, u, data, 0.6)
        server.start(grid, num_rounds=t)
        np.testing.assert_allclose(arrays(server.state.centers), centers, atol=1e-10)
    found = np.stack([grid.cohort.store.states[k].w["head.weight"][0].numpy() for k in range(5)])
    np.testing.assert_allclose(found, w, atol=1e-10)


@pytest.mark.parametrize("lam", [0.3, 1.0, 10.0])
def test_fixed_point_and_contraction(lam):
    rng = np.random.default_rng(7)
    U, theta, n = rng.dirichlet([1, 1], 8), 3 * rng.normal(size=(2, 5)), rng.integers(10, 30, 8)
    fed = federation(isotropic(U @ theta, n, rng))
    server, grid = start(FedSoftConfig(lam=lam, **FULL), linear(5), fed, u=U)
    limit = fixed_point(U, n, theta, lam)
    error = np.abs(arrays(server.state.centers) - limit).max()
    for t in range(1, 200 if lam > 1 else 40):
        server.start(grid, num_rounds=t)
        new = np.abs(arrays(server.state.centers) - limit).max()  # rows of VU sum to 1
        assert new <= lam / (2 + lam) * error + 1e-12
        error = new
    np.testing.assert_allclose(arrays(server.state.centers), limit, atol=1e-9)


@pytest.mark.parametrize(("minority", "alpha"), [(0.1, 0.542), (0.3, 0.113)])
def test_two_mirrored_halves_reach_the_closed_form(minority, alpha):
    """Centers are m ± αd; α is 0.542 for 10:90 and 0.113 for 30:70 (λ = 1)."""
    rng = np.random.default_rng(8)
    theta = 3 * rng.normal(size=(2, 4))
    U = np.array([[minority, 1 - minority]] * 3 + [[1 - minority, minority]] * 3)
    fed = federation(isotropic(U @ theta, [12] * 6, rng))
    server, grid = start(FedSoftConfig(lam=1.0, **FULL), linear(4), fed, u=U)
    server.start(grid, num_rounds=40)
    m, d = theta.mean(0), (theta[0] - theta[1]) / 2
    q = 1 - 2 * minority
    exact = 2 * q * q / (2 + 1.0 * (1 - q * q))
    assert exact == pytest.approx(alpha, abs=1e-3)
    np.testing.assert_allclose(arrays(server.state.centers), [m + exact * d, m - exact * d], atol=1e-10)


def test_the_joint_objective_never_increases():
    """Theorem 5: Σ n_k h_k over half steps (models, then centers); fixed u, everybody, exact."""
    rng = np.random.default_rng(9)
    U, n, lam = rng.dirichlet([1, 1, 1], 7), rng.integers(6, 25, 7), 0.9
    data = blends(U, 2 * rng.normal(size=(3, 4)), n, rng, noise=0.5)
    cfg = FedSoftConfig(S=3, lam=lam, **FULL)
    server, grid = start(cfg, linear(4), federation(data), u=U)
    w = np.stack([initial_params(server.model, server.plan)["head.weight"][0].numpy()] * 7)

    def objective(w, c):
        fit = [np.mean((x @ w_k - y) ** 2) for (x, y), w_k in zip(data, w, strict=True)]
        far = ((w[:, None] - c[None]) ** 2).sum(2)
        return float(n @ (np.array(fit) + lam / 2 * (U * far).sum(1)))

    values = [objective(w, arrays(server.state.centers))]
    for t in range(1, 15):
        c = arrays(server.state.centers)
        server.start(grid, num_rounds=t)
        w = np.stack([grid.cohort.store.states[k].w["head.weight"][0].numpy() for k in range(7)])
        values += [objective(w, c), objective(w, arrays(server.state.centers))]
    assert all(b <= a + 1e-10 for a, b in itertools.pairwise(values))
    assert values[1] < values[0] and values[2] < values[1]


# ---- memory -------------------------------------------------------------------------------------


def test_personal_models_survive_rounds_without_selection_and_restarts(tmp_path):
    fed = toy_federation(num_clients=8, dtype=torch.float64)
    model = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
    cfg = FedSoftConfig(K=1, tau=2, local=LocalConfig(0.01, optimizer="adam"))
    store = FileStore(tmp_path, keep_rounds=10)
    server, grid = start(cfg, model, fed, store=store)
    common = initial_params(model, server.plan)
    for c in server.state.centers:
        assert not torch.equal(c["head.weight"], common["head.weight"])
    for t in range(1, 5):
        before = {k: grid.cohort.state(k, (t, 0)) for k in range(8)}
        sent = []
        plain = server._address

        def address(kind, t, orders, sent=sent, plain=plain):
            sent.append(orders)
            return plain(kind, t, orders)

        server._address = address
        server.start(grid, num_rounds=t)
        server._address = plain
        trained = {k for orders in sent for k, o in orders.items() if isinstance(o, Train)}
        grid = InProcessGrid(Cohort(FedSoftClient(cfg, model), fed, FileStore(tmp_path, 10), server.plan))
        for k in range(8):  # read back by a process started anew
            after = grid.cohort.state(k, (t + 1, 0))
            assert torch.equal(after.w["head.weight"], before[k].w["head.weight"]) == (k not in trained)
            assert torch.equal(after.opt.step, before[k].opt.step) == (k not in trained)


def test_a_client_never_seen_starts_from_the_common_model():
    fed = toy_federation(dtype=torch.float64)
    model = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
    server, grid = start(FedSoftConfig(K=2), model, fed)
    for k in range(6):
        memory = grid.cohort.state(k, (1, 0))
        assert torch.equal(memory.w["head.weight"], initial_params(model, server.plan)["head.weight"])


def test_bytes_up_are_one_model_a_participant_and_s_plus_1_numbers_in_an_estimation():
    fed = toy_federation(dtype=torch.float64)
    model = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
    for S in (2, 3):
        server, grid = start(FedSoftConfig(S=S, K=2, tau=2, local=SGD), model, fed)
        for t in (1, 2):
            server.start(grid, num_rounds=t)
            models = server.round_log.extra["participants"] * (15 + 3) * 8
            assert server.round_log.bytes_up == models + (6 * (S + 1) * 8 if t == 1 else 0)


def test_one_more_solve_before_predicting_leaves_no_trace():
    rng = np.random.default_rng(10)
    data = blends(rng.dirichlet([1, 1], 4), rng.normal(size=(2, 3)), [9, 12, 15, 20], rng, 0.3)
    cfg = FedSoftConfig(K=2, lam=1.0, solver="exact", predict="solved")
    server, grid = start(cfg, linear(3), federation(data))
    grid.cohort.client.splits = ("train", "test")
    server.start(grid, num_rounds=2)
    for k, (x, y) in enumerate(data):
        w = local_solution(x, y, server.state.u[k].numpy(), arrays(server.state.centers), 1.0)
        assert server.client_metrics["train_loss"][k] == pytest.approx(np.mean((x @ w - y) ** 2))
        own = grid.cohort.state(k, (9, 0)).w["head.weight"][0].numpy()
        before = server.client_metrics["train_loss_before"][k]
        assert before == pytest.approx(np.mean((x @ own - y) ** 2))


def test_centers_are_measured_on_the_hold_out_of_each_source():
    rng = np.random.default_rng(11)
    theta = rng.normal(size=(2, 3))
    x = rng.normal(size=(50, 3))
    fed = federation(
        blends(rng.dirichlet([1, 1], 4), theta, [9, 12, 15, 20], rng),
        holdout={f"source{s}": part(x, x @ theta[s]) for s in range(2)},
    )
    server, _grid = start(FedSoftConfig(K=2, solver="exact"), linear(3), fed)
    assert "center_metric" not in server.arrays()
    server.holdout = fed.holdout
    expected = [[np.mean((x @ (c - t)) ** 2) for t in theta] for c in arrays(server.state.centers)]
    np.testing.assert_allclose(server.arrays()["center_metric"], expected, rtol=1e-12)
    assert server.arrays()["importance"].shape == (4, 2)
    assert list(server.models(server.state)) == ["center_0", "center_1"]


def test_config_problems_are_named():
    problems = FedSoftConfig(S=0, K=0, tau=0, sigma=-1.0, lam=-0.1).check()
    assert [p.split("=")[0] for p in problems] == ["S", "K", "tau", "sigma", "lam"]
