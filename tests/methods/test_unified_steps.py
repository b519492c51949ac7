"""Step sizes that never diverge, and what they take from clients of unequal sizes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.clients.asvrcd import ASVRCDConfig
from fedpers.core.errors import ConfigError
from fedpers.engines.runner import Runner, RunnerConfig
from fedpers.families.unified.messages import Block
from fedpers.families.unified.objective import Constants
from fedpers.families.unified.step_sizes import lsgd_step
from tests.unified import (
    CLASSES,
    W,
    blocks,
    flat,
    linear_model,
    make,
    objective_of,
    ridge,
    rounds,
    settings,
    uneven,
    value,
)

HARD = {
    "mt2": {"objective": "mt2", "lam": 0.5, "Lambda": 100.0},
    "apfl2": {"objective": "apfl2", "alpha": 0.8},
    "u=w": {"objective": "mx2", "lam": 0.5, "reparametrise": False},
}


def values(fed, count, **options):
    """F at the start and after each round of LSGD with the theory's step."""
    strategy, cohort, grid = make("lsgd", fed, **options)
    found = [value(strategy, cohort)]
    for t in range(1, count + 1):
        rounds(strategy, grid, t)
        found.append(value(strategy, cohort))
    return found


@pytest.mark.parametrize("tau", [1, 5])
@pytest.mark.parametrize("batch_size", [0, 1])
@pytest.mark.parametrize("name", HARD)
def test_the_default_step_of_local_sgd_never_raises_f(name, batch_size, tau):
    """The paper's Theorem 1 has L_β where Lemma 5 has the larger of both: as printed it diverges here."""
    found = values(ridge(M=10), 100, tau=tau, batch_size=batch_size, **HARD[name])
    assert max(found) == found[0] > 1.1 * found[-1]


@pytest.mark.parametrize("tau", [1, 5])
def test_one_sample_a_step_needs_one_samples_smoothness(tau):
    found = values(ridge(M=2, n=50, d=100), 100, objective="full", tau=tau, batch_size=1)
    assert max(found) == found[0] > 1.1 * found[-1]


def test_bounds_of_the_step():
    c = Constants(0.1, 2.0, 1.0, 6.0, 4.0)
    assert lsgd_step(c, 1) == 1 / (4 * 2.0)
    assert lsgd_step(replace(c, L_b=3.0), 1) == 1 / (4 * 3.0)
    assert lsgd_step(c, 1, beta_scale=20.0) == 1 / (4 * 20.0)
    assert lsgd_step(c, 3) == pytest.approx(1 / (8 * math.sqrt(3 * math.e) * 2 * 2.0))
    # B samples with replacement: (1 - 1/B) L + script L / B
    assert lsgd_step(c, 1, batch_size=1) == 1 / (4 * 6.0)
    assert lsgd_step(c, 1, batch_size=4) == pytest.approx(1 / (4 * 3.0))
    assert lsgd_step(replace(c, L_w=0.0, cL_w=0.0), 5) == 1 / 4


def test_many_local_steps_need_the_bound_in_tau():
    """Clients that disagree: without the bound in τ local steps leave F above where it began."""
    fed = ridge(M=4, n=3, d=3, shift=5.0)
    options = {"objective": "fl", "tau": 50, "batch_size": 0}
    strategy, _, grid = make("lsgd", fed, **options)
    rounds(strategy, grid, 1)
    c = strategy.constants([objective_of(strategy).measure({}, fed.client(m).train) for m in range(4)])
    assert strategy.state.rates.eta == pytest.approx(lsgd_step(c, 50), rel=1e-12)  # constants of a stack
    assert lsgd_step(c, 50) <= 1 / (8 * math.sqrt(3 * math.e) * 49 * c.L_w)


# ---- clients of unequal sizes -------------------------------------------------------------------


def test_the_mean_of_local_sgd_does_not_weigh_by_samples():
    """One step of each client from 0, on all its samples: w is minus η times the mean gradient."""
    fed, eta = uneven(), 0.05
    strategy, cohort, grid = make("lsgd", fed, objective="fl", tau=1, batch_size=0, eta=eta)
    rounds(strategy, grid, 1)
    steps = [-2 * d.x.T @ d.y / len(d) for d in (fed.client(m).train for m in range(3))]
    np.testing.assert_allclose(flat(blocks(strategy, cohort)[0]), -eta * sum(steps) / 3, atol=1e-14)


@pytest.mark.parametrize("name", ["asvrcd", "svrcd"])
def test_n_is_the_largest_size(name):
    """ρ = p_w/n: with a smaller n anchors would come too often for what the largest client pays."""
    strategy, _, grid = make(name, uneven(), mu=0.05)
    rounds(strategy, grid, 1)
    assert strategy.state.rates.rho == strategy.state.rates.p_w / 9


@pytest.mark.parametrize("name", ["scd", "ascd", "svrcd", "asvrcd"])
def test_samples_are_drawn_from_all_of_a_clients_and_no_padding(name):
    """Every sample is drawn; clients answer one by one, so there is no padding to step on by chance."""
    fed, drawn = uneven(), {3: [], 9: [], 6: []}
    strategy, cohort, grid = make(name, fed, mu=0.05)
    samples = cohort.client.samples

    def noting(order, data, rng):
        found = samples(order, data, rng)
        index = [int((data.x == one.x).all(1).nonzero()[0]) for one in found]
        drawn[int(data.num)] += index
        return found

    cohort.client.samples, cohort.runner = noting, Runner(RunnerConfig("loop"))
    rounds(strategy, grid, 60)
    for n, index in drawn.items():
        assert set(index) == set(range(n))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CLASSES)
def test_the_steps_of_a_whole_stack_are_those_of_each_client(name, bias):
    """Padded clients of 8, 9 and 7 samples, at once and one by one."""
    fed, found = uneven((8, 9, 7)), []
    options = {"rho": 0.3} if "vrcd" in name else {"batch_size": 2} if name == "lsgd" else {}
    for runner in ("stack", "loop"):
        model = linear_model(fed, bias=bias)
        strategy, cohort, grid = make(name, fed, model, objective="mt2", mu=0.05, **options)
        cohort.runner = Runner(RunnerConfig(runner))
        rounds(strategy, grid, 8)
        w, betas = blocks(strategy, cohort)
        found.append(np.concatenate([flat(w), *map(flat, betas)]))
        assert not cohort.runner.looped
    np.testing.assert_allclose(*found, atol=1e-13)
    assert np.abs(found[0]).min() > 1e-6


@pytest.mark.parametrize("mu", [None, 0.4])
def test_the_average_of_theorem_one_is_the_weighted_sum_of_its_iterates(mu):
    """Σ_k (1-ημ)^-(k+1) x_k over the virtual iterates, which runs of τ = 1 to 6 steps show one by one."""
    fed, eta, tau, count = uneven(), 0.05, 2, 3
    options = {"batch_size": 0, "eta": eta, "objective": "mt2", "mu_F": mu}
    strategy, cohort, grid = make("lsgd", fed, tau=tau, output="average", **options)
    rounds(strategy, grid, count)
    found = [flat(x) for x in (strategy.at(strategy.state), *blocks(strategy, cohort)[1])]
    mu_F = strategy.state.constants.mu
    f, parts = objective_of(strategy), [fed.client(m).train for m in range(3)]
    w, betas = np.zeros(2), [np.zeros(2)] * 3
    iterates = []
    for _ in range(count):
        ws = [w] * 3
        for _ in range(tau):
            iterates.append([sum(ws) / 3, *betas])
            g = [
                f.grads({W: torch.tensor(a[None])}, {W: torch.tensor(b[None])}, d)
                for a, b, d in zip(ws, betas, parts, strict=True)
            ]
            ws = [a - eta * flat(x) for a, (x, _) in zip(ws, g, strict=True)]
            betas = [b - eta / 3 * flat(x) for b, (_, x) in zip(betas, g, strict=True)]
        w = sum(ws) / 3
    weights = np.array([(1 - eta * mu_F) ** -(k + 1.0) for k in range(count * tau)])
    expected = np.einsum("k,kbd->bd", weights / weights.sum(), np.array(iterates))
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_an_average_of_some_clients_is_refused():
    strategy, _, grid = make("lsgd", uneven(), tau=1, output="average")
    strategy.plan = replace(strategy.plan, clients_per_round=2)
    with pytest.raises(ConfigError, match="clients_per_round=2 of 3"):
        rounds(strategy, grid, 1)


# ---- ASCD first, then ASVRCD --------------------------------------------------------------------


def same(a, b):
    """Whether two blocks of two runs have the same sequences, bit for bit."""
    return all(
        torch.equal(x, y)
        for n in "yz"
        for x, y in zip(getattr(a, n).values(), getattr(b, n).values(), strict=True)
    )


def memories(cohort):
    return [cohort.store.get(m, (10**9, 0)) for m in range(3)]


def switched(count, first, **options):
    """(strategy, cohort, grid) of ASVRCD on uneven clients whose first communications are ASCD's."""
    parts = make("asvrcd", uneven(), mu=0.5, ascd=first, **options)
    rounds(parts[0], parts[2], count)
    return parts


def test_the_first_communications_are_those_of_ascd():
    strategy, cohort, _ = switched(12, first=12)
    plain, others, grid = make("ascd", uneven(), mu=0.5)
    rounds(plain, grid, 12)
    assert strategy.state.counts == plain.state.counts and plain.state.counts.communications == 12
    assert same(strategy.state.w, plain.state.w)
    assert all(same(a, b) for a, b in zip(memories(cohort), memories(others), strict=True))


def test_then_it_is_asvrcd_from_where_ascd_came_to():
    """The same as an ASVRCD that is put there by hand, all sequences at ASCD's last iterate."""
    strategy, cohort, grid = switched(5, first=5)
    y, betas = strategy.state.w.y, [m.y for m in memories(cohort)]
    rounds(strategy, grid, 30)
    by_hand, others, other_grid = make("asvrcd", uneven(), mu=0.5)
    rounds(by_hand, other_grid, 5)  # any five rounds: the sixth's coins and samples must be the same
    by_hand.state = replace(by_hand.init(by_hand.roster, y, None), rates=strategy.state.rates)
    G = {k: torch.zeros_like(v) for k, v in y.items()}
    for m, beta in enumerate(betas):
        others.store.put(m, (5, 0), Block(beta, beta, beta, G))
    by_hand.state = replace(by_hand.state, w=Block(y, y, y))
    rounds(by_hand, other_grid, 30)
    assert same(strategy.state.w, by_hand.state.w) and strategy.state.counts.beta_grads > 1
    assert all(same(a, b) for a, b in zip(memories(cohort), memories(others), strict=True))


def test_the_switch_ends_lower_than_ascd_alone():
    fed = ridge(M=3, n=4, d=2)
    ends = {}
    for name, options in {"ascd": {}, "asvrcd": {"ascd": 20}}.items():
        strategy, cohort, grid = make(name, fed, mu=0.3, **options)
        rounds(strategy, grid, 250)
        ends[name] = value(strategy, cohort)
    strategy, cohort, grid = make("acd", fed, mu=0.3)
    rounds(strategy, grid, 200)
    least = value(strategy, cohort)
    assert ends["asvrcd"] - least < 0.1 * (ends["ascd"] - least)


def test_nothing_to_communicate_leaves_nothing_to_switch():
    config = ASVRCDConfig(objective=settings("full", mu=0.5), ascd=3)
    assert config.check() == ["ascd=3: must be 0, objective=full never communicates"]
