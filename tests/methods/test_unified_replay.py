"""ASCD on the data, samples and coins of the runs behind the paper's Figure 1, and what F is there.

The files (unified_fig1_sigma*.npz, recorded with the authors' program) are no part of this repository:
FEDPERS_REPLAY names their folder. In the file's F a communication is an iteration of the w-block.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedpers.core.params import scale
from fedpers.families.unified.mixture import MX2
from fedpers.families.unified.optimum import solve
from tests.unified import Script, W, blocks, federation, make, objective_of, rounds

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "shared/papers/replay", ROOT.parent / "shared/papers/replay")
FOLDER = Path(os.environ["FEDPERS_REPLAY"]) if "FEDPERS_REPLAY" in os.environ else None
ROUNDS = {"0.1": 150, "0.3": 60, "1.0": 20}


def recorded(sigma):
    """The arrays of one file."""
    name = f"unified_fig1_sigma{sigma}.npz"
    for folder in [FOLDER] if FOLDER else FOLDERS:
        if (folder / name).is_file():
            return SimpleNamespace(**np.load(folder / name))
    pytest.skip(f"{name} is not there; FEDPERS_REPLAY=<folder> says where it is")


def problem(run, name="ascd", **options):
    """(strategy, cohort, grid) of a method with the constants of the file."""
    fed = federation(list(run.X), list(run.Y), task="binary")
    mu_F = float(run.mu) / (3 * len(run.X))
    constants = {"L": float(run.L), "cL": float(run.L), "mu": float(run.mu), "mu_F": mu_F}
    return make(name, fed, lam=float(run.lam), max_local=10**6, **constants, **options)


def F(run, f, w, betas):
    """The objective, on all data at once."""
    u, own = f.shared(w)[W][0].numpy(), np.stack([b[W][0].numpy() for b in betas])
    z = np.einsum("mnd,md->mn", run.X, own)
    loss = (np.logaddexp(0, z) - run.Y * z).mean(1)
    return float((loss + run.lam / 2 * ((own - u) ** 2).sum(1)).mean())


class Recorded:
    """A client's stream whose samples are those of the file."""

    def __init__(self, index, n):
        self.u = torch.from_numpy((index + 0.5) / n)

    def uniform(self, count):
        assert count == len(self.u)
        return self.u


def follow(run, strategy, cohort, upto):
    """F after each communication; yields the state as well."""
    M, n = run.index.shape[1], run.X.shape[1]
    parts = [cohort.data(m).train for m in range(M)]
    states = [cohort.state(m, (0, 0)) for m in range(M)]
    s, done = next_state(strategy), 0
    for count in run.iterations[:upto]:
        rows, done = run.index[done : done + count], done + int(count)
        steps = strategy.iterate(s, Script([0.0 if c else 1.0 for c in run.w_step[done - count : done]]))
        orders, replies = next(steps), {}
        for m in range(M):
            replies[m], states[m] = cohort.client.answer(
                orders[m], states[m], parts[m], Recorded(rows[:, m], n)
            )
        with pytest.raises(StopIteration) as end:
            steps.send(replies)
        s = end.value.value
        yield F(run, objective_of(strategy), s.w.y, [cohort.client.block(b) for b in states])


def next_state(strategy):
    """The state before round 1, with the theory's rates."""
    with pytest.raises(StopIteration) as end:
        next(strategy._prepare(strategy.state))
    return end.value.value


@pytest.mark.parametrize("sigma", ROUNDS)
def test_our_curve_is_the_recorded_one(sigma):
    run = recorded(sigma)
    strategy, cohort, _ = problem(run)
    assert next_state(strategy).rates.p_w == pytest.approx(float(run.p_w), rel=1e-12)
    with torch.no_grad():
        found = list(follow(run, strategy, cohort, ROUNDS[sigma]))
    np.testing.assert_allclose(found, run.F_recorded[1 : len(found) + 1], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("sigma", "least"), [("0.1", 0.27541), ("0.3", 0.34056), ("1.0", 0.28041)])
def test_the_minimum_is_the_recorded_one(sigma, least):
    run = recorded(sigma)
    strategy, cohort, _ = problem(run)
    f, parts = objective_of(strategy), [cohort.data(m).train for m in range(len(run.X))]
    best = solve(f, parts, {W: torch.zeros(1, 15).double()})
    assert best.value == pytest.approx(float(run.F_star), abs=1e-9)
    assert round(best.value, 5) == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize(("sigma", "ends_at"), [("0.1", 0.2782), ("0.3", 0.3655), ("1.0", 0.3503)])
def test_the_recorded_l2sgd_ends_near_the_minimum_of_a_penalty_m_times_too_large(sigma, ends_at):
    """Their penalty is about Mλ; the curves end at .2784, .3664 and .3536."""
    run = recorded(sigma)
    M = len(run.X)
    strategy, cohort, _ = problem(SimpleNamespace(**vars(run) | {"lam": M * run.lam}))
    parts = [cohort.data(m).train for m in range(M)]
    best = solve(objective_of(strategy), parts, {W: torch.zeros(1, 15).double()})
    assert F(run, objective_of(strategy), best.w, best.betas) == pytest.approx(ends_at, abs=6e-5)


@pytest.mark.parametrize(("divisor", "at_ten"), [(1, 0.348), (20, 0.633)])
def test_the_recorded_asvrcd_divides_gradients_of_beta_by_m_once_more(divisor, at_ten, monkeypatch):
    """F after 10 communications, the mean of three runs: theirs of thirty is .633. Their coins for
    ASVRCD are not in the file; with them the box gives .348, and divided once more theirs, .601."""
    whole, of_beta = MX2.grads, MX2.grad_beta
    over = lambda g: scale(g, 1 / divisor)  # noqa: E731
    monkeypatch.setattr(MX2, "grads", lambda f, *at: (whole(f, *at)[0], over(whole(f, *at)[1])))
    monkeypatch.setattr(MX2, "grad_beta", lambda f, *at: over(of_beta(f, *at)))
    run, found = recorded("0.1"), []
    for seed in range(3):
        strategy, cohort, grid = problem(run, name="asvrcd", seed=seed)
        rounds(strategy, grid, 11)  # the first communication sets the anchor
        found.append(F(run, objective_of(strategy), *blocks(strategy, cohort)))
    assert np.mean(found) == pytest.approx(at_ten, abs=0.03)
