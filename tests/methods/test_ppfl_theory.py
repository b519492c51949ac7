"""PPFL's theorems and its relations to other families, as numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.clients.ppfl import PPFLClient
from fedpers.core.params import sq_norm
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.families.mixtures.mixture import Mixture
from fedpers.families.mixtures.simplex import affinity, laplacian, mirror_step
from fedpers.families.mixtures.stationarity import stationarity
from fedpers.method import Data, LocalConfig
from fedpers.strategies.ppfl import State
from tests.methods.test_ppfl import (
    CLASSES,
    LINEAR,
    MLP,
    close,
    config,
    groups,
    initial,
    rows,
    run,
    server,
    smoothness,
    watched,
)

F64 = torch.float64
P = torch.from_numpy(CLASSES.num_train / CLASSES.num_train.sum())


# ---- Theorem 1 -----------------------------------------------------------------------------------


def scaled(M, factor):
    """Two groups of linear regressions with short inputs, so that the theorem's rates are not tiny."""
    fed = groups(M, 2, 6, n=12)
    parts = [fed.client(k) for k in range(M)]
    short = [
        type(d)(*(Data(factor * s.x, factor * s.y, s.mask) for s in (d.train, d.valid, d.test)))
        for d in parts
    ]
    return replace(fed, client=short.__getitem__)


@pytest.mark.parametrize("T", [49, 196])
def test_with_full_gradients_algorithm_1_has_no_floor(T):
    """Corollary 1 at σ = 0, one step a round: the mean measure is at most 2 F(z⁰) / (√T ρ_h (1 - γ_h L_h)).

    That is for the worse block h; γ = (4 η, η/2) for η = 1/√T. The bound holds in expectation over the
    blocks that are drawn, and is loose enough here for each run.
    """
    fed, lam, eta = scaled(4, 0.2), 0.002, T**-0.5
    cfg = config(
        algorithm="rbcd",
        num_canonical=2,
        eta_2=eta,
        lam=lam,
        affinity="ones",
        membership_weighting="p",
        floor=0.0,
        local=LocalConfig(lr=eta, epochs=1, batch_size=0),
    )
    start = initial(cfg, fed, LINEAR)
    L_1, L_2 = smoothness(fed, start.theta, lam, 1 / 4)
    assert max(1024 * L_1**2, L_2**2 / 4) <= 49  # what the corollary asks of T
    mix = Mixture(LINEAR)
    F = sum(float(mix.loss(start.theta, fed.client(k).train, start.C[k])) for k in range(4)) / 4
    bound = 2 * F / (T**0.5 * 0.5 * min(1 - 4 * eta * L_1, 1 - eta / 2 * L_2))
    assert np.mean(watched(cfg, fed, LINEAR, T)) <= bound


def test_the_floor_is_the_noise_of_the_memberships_gradients():
    """The block of memberships at a constant rate: full gradients end at 0, those of one sample do not.

    The best blend lies inside the simplex, but fits no sample exactly: σ_2 > 0 there.
    """
    fed = groups(4, 1, 7, n=12)
    beta = torch.linalg.lstsq(fed.client(0).train.x, fed.client(0).train.y).solution[:, 0]
    off, along = torch.eye(5, dtype=F64)[:2]
    theta = {"head.weight": torch.stack([beta + off + along, beta + off - along])[:, None]}
    start = State(theta, torch.tensor([[0.9, 0.1]], dtype=F64).expand(4, 2).clone())
    last = {}
    for batch in (0, 1):
        local = LocalConfig(lr=0.1, steps=1, batch_size=batch)
        cfg = config(algorithm="rbcd", num_canonical=2, eta_2=0.2, local=local, rho=0.0)
        strategy, _ = run(cfg, fed, LINEAR, 80, start, eval_every=0)
        C = strategy.state.C
        assert float(C.min()) > 0.01
        g = torch.stack(
            [strategy.mixture.membership_gradient(theta, fed.client(i).train, C[i]) for i in range(4)]
        )
        nothing = {"head.weight": torch.zeros(2, 1, 5)}
        last[batch] = stationarity(nothing, C, mirror_step(C, g, 0.2, 0.0), 0.2)
    assert last[0] < 1e-8
    assert last[1] > 1e-2


# ---- Theorem 3: generalised linear mixed models --------------------------------------------------


def test_components_that_all_share_are_the_fixed_effects_of_a_mixed_model():
    """c_ik = c_jk for fixed k, W = 1, λ = 1/M: Σ p_i f_i(x_f b_f + x_r b_ir) + Σ b_ir' G⁺ b_ir."""
    M, fixed, random, rng = 5, 2, 3, np.random.default_rng(8)
    columns = np.zeros((fixed + random, 4))  # features x canonical models, padded
    columns[:fixed, :2] = rng.normal(size=(fixed, 2))
    columns[fixed:, 2:] = rng.normal(size=(random, 2))
    C = rng.dirichlet(np.ones(4), M)
    C[:, :2] = [0.3, 0.1]  # c_ik = c_jk
    C[:, 2:] *= 0.6 / C[:, 2:].sum(1, keepdims=True)
    x, y, n = rng.normal(size=(M, 9, 5)), rng.normal(size=(M, 9)), np.array([9, 4, 7, 9, 5])
    theta = {"head.weight": torch.from_numpy(columns.T[:, None].copy())}
    mix = Mixture(LINEAR)
    losses = [
        float(
            mix.loss(
                theta,
                Data(*(torch.from_numpy(v) for v in (x[i, :k], y[i, :k, None], np.ones(k)))),
                torch.from_numpy(C[i]),
            )
        )
        for i, k in enumerate(n)
    ]
    c = torch.from_numpy(C)
    ours = np.dot(n / n.sum(), losses) + float((c * laplacian(affinity("ones", M, {}), c)).sum()) / M
    b = C @ columns.T
    assert np.ptp(b[:, :fixed], axis=0).max() < 1e-15  # b_f is one for all
    G = np.linalg.pinv(columns[fixed:, 2:] @ columns[fixed:, 2:].T)
    b_r = b[:, fixed:] - b[:, fixed:].mean(0)
    fits = [
        np.square(x[i, :k] @ np.r_[b[i, :fixed], b[:, fixed:].mean(0) + b_r[i]] - y[i, :k]).mean()
        for i, k in enumerate(n)
    ]
    mixed = np.dot(n / n.sum(), fits) + sum(v @ G @ v for v in b_r)
    assert ours == pytest.approx(mixed, rel=1e-12)


# ---- relations to other families -----------------------------------------------------------------


def test_orthonormal_canonical_models_make_it_multi_task_learning():
    """(8): the block of memberships is a mirror step by Σ p_i f_i(θ_i) + λ/2 Σ w_ij ‖θ_i - θ_j‖²."""
    fed, lam, eta = groups(4, 2, 9, n=12), 0.05, 0.4
    cfg = config(
        algorithm="rbcd", rho=0.0, lam=lam, affinity="ones", membership_weighting="p", floor=0.0, eta_2=eta
    )
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 3)))
    theta, C = {"head.weight": torch.from_numpy(q.T[:, None].copy())}, rows(10, 4, 3)
    strategy, _ = run(cfg, fed, LINEAR, state=State(theta, C))
    own = (C @ theta["head.weight"][:, 0]).requires_grad_()  # θ_i = Σ_k c_ik θ_k
    fit = sum(
        (fed.client(i).train.x @ own[i] - fed.client(i).train.y[:, 0]).square().mean() for i in range(4)
    )
    (g,) = torch.autograd.grad(fit / 4 + lam / 2 * (own[:, None] - own[None]).square().sum(), own)
    weights = C * torch.exp(-eta * g @ theta["head.weight"][:, 0].T)
    close(strategy.state.C, weights / weights.sum(1, keepdim=True), 1e-13)


@pytest.mark.parametrize(("lam", "alone"), [(0.0, True), (0.1, False)])
def test_without_lambda_memberships_are_a_decoupled_private_part(lam, alone):
    """(9) at λ = 0: v_i = c_i moves by its own data and the shared θ only."""
    cfg = config(lam=lam, affinity="ones")
    start = replace(initial(cfg), C=rows(11, 6, 3))
    others = torch.cat([start.C[:1], rows(12, 5, 3)])
    a, _ = run(cfg, state=start)
    b, _ = run(cfg, state=replace(start, C=others))
    assert torch.equal(a.state.C[0], b.state.C[0]) == alone


# ---- failures ------------------------------------------------------------------------------------


class OneIsGone(Cohort):
    """Client 1 never trains."""

    def handle(self, requests):
        found = zip(requests, super().handle(requests), strict=True)
        gone = RuntimeError("the device went away")
        return [gone if r.k == 1 and r.header.kind == "train" else a for r, a in found]


def test_a_client_that_failed_keeps_its_membership():
    """Algorithm 1: not even the pull of the others moves it; those that answered move as ever."""
    cfg = config(algorithm="rbcd", rho=0.0, lam=0.2, affinity="ones", stationarity=True, floor=1e-2)
    start = replace(initial(cfg), C=rows(13, 6, 3).clamp_min(1e-9))
    whole, _ = run(cfg, state=start)
    strategy = server(cfg, failures="skip")
    strategy.state = start
    strategy.start(
        InProcessGrid(OneIsGone(PPFLClient(cfg, MLP), CLASSES, RamStore(), strategy.plan)), num_rounds=1
    )
    assert torch.equal(strategy.state.C[1], start.C[1])
    others = [0, 2, 3, 4, 5]
    close(strategy.state.C[others], whole.state.C[others], 1e-15)
    assert not torch.equal(strategy.state.C[0], start.C[0])
    assert "stationarity" in whole.round_log.extra
    assert "stationarity" not in strategy.round_log.extra  # a sum over some clients is no measure


def test_the_measure_is_zero_where_nothing_moves():
    """K equal canonical models at their least squares: no slope, and memberships have nowhere to go."""
    fed = groups(1, 1, 14, n=12)
    d = fed.client(0).train
    best = torch.linalg.lstsq(d.x, d.y).solution.T
    cfg = config(num_canonical=2, eta_2=0.3, local=LocalConfig(lr=0.1, momentum=0.9), stationarity=True)
    state = State({"head.weight": best.expand(2, 1, 5).clone()}, rows(15, 1, 2))
    assert float(sq_norm(state.theta)) > 0.1
    strategy, _ = run(cfg, fed, LINEAR, state=state)
    assert strategy.round_log.extra["stationarity"] < 1e-20


# ---- rates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"algorithm": "rbcd", "rho": 0.0}], ids=["alternating", "rbcd"])
def test_the_schedule_is_that_of_both_rates(options):
    """Two rounds of `step` are one at full rates, and one at a tenth of them from where that ended."""
    whole = LocalConfig(lr=0.1, epochs=2, batch_size=0)
    tenth = replace(whole, lr=0.01)
    got, _ = run(config(eta_2=0.8, local=replace(whole, schedule="step", horizon=2), **options), rounds=2)
    first, _ = run(config(eta_2=0.8, local=whole, **options))
    then, _ = run(config(eta_2=0.08, local=tenth, **options), state=first.state)
    close(got.state, then.state, 1e-14)
    assert not torch.equal(then.state.C, first.state.C)
