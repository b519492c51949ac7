"""How fast the optimisers get where: rates, floors, and what heterogeneity does to them."""

import math

import numpy as np
import pytest
import torch

from fedpers.families.unified.optimum import solve
from fedpers.learning.gradients import grad
from tests.unified import W, blocks, flat, logistic, make, objective_of, quadratics, ridge, rounds, value

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(3)
TARGETS = RNG.normal(size=(4, 3))
LITERAL = {"beta_scale": "one", "reparametrise": False}  # quick on quadratics


def optimum(name, fed, **options):
    """F*, and the strategy's objective."""
    strategy, _, _grid = make(name, fed, **options)
    f = objective_of(strategy)
    parts = [fed.client(m).train for m in range(fed.num_clients)]
    return solve(f, parts, {W: torch.zeros(1, *fed.input_shape).double()})


def run_to(name, fed, eps, cap, seed=0, step=5, **options):
    """(counts when F - F* <= eps (F(0) - F*), or None), looking every `step` rounds."""
    best = optimum(name, fed, **options).value
    strategy, cohort, grid = make(name, fed, seed=seed, **options)
    gap = value(strategy, cohort) - best
    while strategy.rounds_done < cap:
        rounds(strategy, grid, strategy.rounds_done + step)
        if value(strategy, cohort) - best <= eps * gap:
            return strategy.state.counts
    return None


def gap_after(name, fed, upto, seed=0, **options):
    """F - F* after some rounds."""
    best = optimum(name, fed, **options).value
    strategy, cohort, grid = make(name, fed, seed=seed, **options)
    rounds(strategy, grid, upto)
    return value(strategy, cohort) - best


# ---- ACD -----------------------------------------------------------------------------------------


def test_acd_needs_no_more_iterations_than_its_theorem():
    fed, eps, counts = ridge(), 1e-8, []
    best = optimum("acd", fed)
    strategy, cohort, grid = make("acd", fed)
    rounds(strategy, grid, 1)
    h = strategy.state.rates
    far = sum(np.square(flat(b)).sum() for b in [best.w, *best.betas])
    start = sum(float(np.square(fed.client(m).train.y.numpy()).mean()) for m in range(4)) / 4
    mu = h.nu * (h.L_w**0.5 + h.L_b**0.5) ** 2
    potential = start - best.value + mu / 2 * far
    for seed in range(5):
        strategy, cohort, grid = make("acd", fed, seed=seed)
        while value(strategy, cohort) - best.value > eps:
            rounds(strategy, grid, strategy.rounds_done + 1)
        counts.append(strategy.state.counts.iterations)
    assert np.mean(counts) <= math.log(potential / eps) / h.theta


def test_acd_scales_with_the_root_of_the_condition_number():
    iterations = [
        np.mean(
            [
                run_to(
                    "acd", quadratics(TARGETS, [1.0, mu, mu]), 1e-8, 4000, seed, step=1, lam=1.0
                ).iterations
                for seed in (0, 1)
            ]
        )
        for mu in (1e-1, 1e-3)
    ]
    assert 5 < iterations[1] / iterations[0] < 15  # √100 = 10


def test_communications_scale_with_the_root_of_the_shared_blocks_constant():
    """MX2: L_w = λ/M and μ about μ'/(2M); λ a hundred times less, rounds about ten times less."""
    fed = quadratics(TARGETS, [1.0, 1e-2, 1e-2])
    found = [run_to("acd", fed, 1e-6, 4000, step=1, lam=lam).communications for lam in (10.0, 0.1)]
    assert 4 < found[0] / found[1] < 25
    less = [run_to("acd", fed, 1e-4, 4000, step=1, lam=lam).communications for lam in (1.0, 0.1, 0.01)]
    assert less[0] > less[1] > less[2]


def test_acd_does_not_feel_heterogeneity_and_local_sgd_does():
    """Quadratics of one Hessian: targets further apart change no relative accuracy of ACD."""
    counts = [run_to("acd", quadratics(TARGETS * s, 0.3), 1e-6, 2000, step=1).iterations for s in (1.0, 30.0)]
    assert counts[0] == counts[1]
    options = {"tau": 8, "batch_size": 0, "eta": 0.1, **LITERAL}
    floors = [gap_after("lsgd", quadratics(TARGETS * s, [1.0, 0.5, 0.3]), 150, **options) for s in (1.0, 3.0)]
    assert floors[1] / floors[0] == pytest.approx(9.0, rel=0.05)  # ζ*² is 9 times more


# ---- the stochastic coordinate methods --------------------------------------------------------------


SMALL = {"lam": 0.5, "l2": 0.3, "mu": None, "rho": 0.1}


def test_control_variates_go_where_the_others_stall():
    fed, floors = logistic(M=3, n=4, d=2), {}
    for name in ("scd", "ascd", "svrcd", "asvrcd"):
        options = {k: v for k, v in SMALL.items() if k != "rho" or name != "scd"}
        floors[name] = gap_after(name, fed, 450, **options)
    floors["lsgd"] = gap_after("lsgd", fed, 150, eta=0.5, lam=0.5, l2=0.3)
    assert abs(floors["svrcd"]) < 1e-10 and abs(floors["asvrcd"]) < 1e-10
    assert min(floors["scd"], floors["ascd"], floors["lsgd"]) > 1e-5


def test_without_the_samples_gradient_at_the_anchor_svrcd_stalls(monkeypatch):
    """The box as it is printed: biased, and the noise stays."""
    import fedpers.clients.svrcd as client

    monkeypatch.setattr(client, "sub", lambda a, b: a)
    assert gap_after("svrcd", logistic(M=3, n=4, d=2), 450, **SMALL) > 1e-6


@pytest.mark.parametrize("name", ["scd", "ascd"])
def test_one_sample_a_client_leaves_no_noise(name):
    """n = 1: the coordinate methods converge to the optimum without control variates."""
    fed = logistic(M=3, n=1, d=2)
    assert abs(gap_after(name, fed, 900, lam=0.5, l2=0.3)) < 1e-10


def test_asvrcd_within_its_bound_and_faster_than_svrcd_where_it_is_ill_conditioned():
    """Contraction 1 - ¼ min{ρ, √(ρμ/2L)}, with a factor 2; √κ against κ."""
    found = {}
    for l2 in (0.3, 0.01):
        fed = logistic(M=2, n=2, d=2, shift=0.5)
        options = {"lam": 0.5, "l2": l2, "mu": None, "rho": 0.25}
        strategy, _, grid = make("asvrcd", fed, **options)
        rounds(strategy, grid, 1)
        h, counts = strategy.state.rates, run_to("asvrcd", fed, 1e-6, 3000, step=10, **options)
        mu = (1 - h.nu) / h.gamma
        rate = min(h.rho, math.sqrt(h.rho * mu * 2 * h.eta)) / 4  # 1/(2L) = 2η
        assert counts.iterations <= 2 * math.log(1e6) / rate
        found[l2] = counts.iterations
    assert found[0.01] / found[0.3] < 6 * 2  # κ is about 30 times more
    slow = run_to("svrcd", fed, 1e-6, 1000, step=100, **options)
    assert slow is None or slow.iterations > found[0.01]


def test_anchors_at_p_beta_over_n_cost_fewer_samples_in_beta_where_its_block_is_steeper():
    """Theorem 9: n + √(n L_β/μ) samples in β with ρ = p_β/n; ρ = p_w/n sets anchors too seldom here."""
    fed, cost = logistic(M=2, n=8, d=2), {}
    for refresh in ("w", "beta"):
        options = {"lam": 0.02, "l2": 0.1, "refresh": refresh}
        found = [run_to("asvrcd", fed, 1e-6, 6000, seed, step=10, **options) for seed in (0, 1)]
        cost[refresh] = sum(c.beta_sample_grads for c in found)
    assert cost["beta"] < 0.7 * cost["w"]


# ---- LSGD ----------------------------------------------------------------------------------------


def test_the_beta_step_needs_its_1_over_M():
    fed = ridge(M=20, n=4, d=2)
    options = {"tau": 1, "batch_size": 0, "lam": 0.5}
    strategy, _, grid = make("lsgd", fed, **options)
    rounds(strategy, grid, 1)
    eta = strategy.state.rates.eta
    good = [gap_after("lsgd", fed, k, eta=eta, **options) for k in (40, 80, 120)]
    assert good[0] > good[1] > good[2]
    bad = [gap_after("lsgd", fed, k, eta=eta, beta_scale="one", **options) for k in (4, 8)]
    assert bad[1] > 10 * bad[0] > 0


def test_floor_of_local_steps():
    """Deterministic: proportional to η²(τ-1)²; no floor for identical clients."""
    fed = quadratics(TARGETS, [1.0, 0.5, 0.3])
    floor = lambda tau, eta: gap_after(  # noqa: E731
        "lsgd", fed, int(60 / eta / tau), tau=tau, eta=eta, batch_size=0, **LITERAL
    )
    assert floor(2, 0.1) / floor(2, 0.05) == pytest.approx(4, rel=0.15)
    small = [floor(tau, 0.05) for tau in (2, 4, 8)]
    assert small[1] / small[0] == pytest.approx(9, rel=0.2)
    assert small[2] / small[0] == pytest.approx(49, rel=0.25)
    same = quadratics(np.tile(TARGETS[:1], (4, 1)), [1.0, 0.5, 0.3])
    assert abs(gap_after("lsgd", same, 200, tau=4, eta=0.2, batch_size=0, **LITERAL)) < 1e-12


def test_decreasing_steps_of_theorem_four():
    """η_k = 1/(μ(k + const)): the gap times K is bounded; with a constant step it grows like K."""
    fed = quadratics(TARGETS, [1.0, 0.5, 0.3])
    options = {"tau": 4, "eta": 0.1, "batch_size": 0, **LITERAL}
    for decreasing, low, high in ((True, 0.0, 1.0), (False, 3.9, 4.1)):
        short, long = (gap_after("lsgd", fed, K, decreasing=decreasing, **options) for K in (100, 400))
        assert low < long * 400 / (short * 100) < high


def test_theorem_five_of_local_sgd():
    """The weighted average of the virtual iterates obeys the bound (σ = 0)."""
    fed, tau, K = ridge(M=3), 3, 60
    options = {"lam": 0.5, "tau": tau, "batch_size": 0}
    best = optimum("lsgd", fed, **options)
    strategy, cohort, grid = make("lsgd", fed, **options)
    rounds(strategy, grid, 1)
    f, eta = objective_of(strategy), strategy.state.rates.eta
    base = [f.measure({}, fed.client(m).train) for m in range(3)]
    worst = type(base[0])(
        min(float(b.mu) for b in base),
        *(max(float(getattr(b, k)) for b in base) for k in ("L_w", "L_b", "cL_w", "cL_b")),
    )
    c, parts = f.constants(worst), [fed.client(m).train for m in range(3)]
    zeta = (
        sum(np.square(flat(f.grad_w(best.w, b, d))).sum() for b, d in zip(best.betas, parts, strict=True)) / 3
    )
    ws, betas = [np.zeros(3)] * 3, [np.zeros(3)] * 3
    total, mean = 0.0, np.zeros(12)
    for k in range(K + 1):
        if k % tau == 0:
            ws = [sum(ws) / 3] * 3
        weight = (1 - eta * c.mu) ** -(k + 1)
        mean, total = mean + weight * np.concatenate([sum(ws) / 3, *betas]), total + weight
        steps = [
            f.grads({W: torch.tensor(w[None])}, {W: torch.tensor(b[None])}, d)
            for w, b, d in zip(ws, betas, parts, strict=True)
        ]
        ws = [w - eta * flat(g) for w, (g, _) in zip(ws, steps, strict=True)]
        betas = [b - eta / 3 * flat(g) for b, (_, g) in zip(betas, steps, strict=True)]
    at = (mean / total).reshape(4, 1, 3)
    with torch.no_grad():
        F = (
            sum(
                float(f.value({W: torch.tensor(at[0])}, {W: torch.tensor(b)}, d))
                for b, d in zip(at[1:], parts, strict=True)
            )
            / 3
        )
    far = 2 * np.square(flat(best.w)).sum() + sum(np.square(flat(b)).sum() for b in best.betas)
    psi = 8 * c.L_w * eta * math.e * (tau - 1) * tau * 3 * zeta
    assert 0 <= F - best.value <= (1 - eta * c.mu) ** K * far / eta + eta * psi
    # the method's own iterates are those of this loop
    strategy, cohort, grid = make("lsgd", fed, **options)
    rounds(strategy, grid, (K + 1 - 1) // tau)
    np.testing.assert_allclose(
        flat(blocks(strategy, cohort)[0]), (ws_at := _replay(f, parts, eta, tau, K // tau)), atol=1e-12
    )
    assert np.isfinite(ws_at).all()


def _replay(f, parts, eta, tau, count):
    w, betas = np.zeros(3), [np.zeros(3)] * 3

    def g(w, b, d):
        point = {W: torch.tensor(w[None])}, {W: torch.tensor(b[None])}
        return [flat(x) for x in grad(f.value, argnums=(0, 1))(*point, d)]

    for _ in range(count):
        ends = []
        for m, d in enumerate(parts):
            own = w
            for _ in range(tau):
                g_w, g_b = g(own, betas[m], d)
                own, betas[m] = own - eta * g_w, betas[m] - eta / 3 * g_b
            ends.append(own)
        w = sum(ends) / 3
    return w
