"""The optimisers of the unified framework on one problem whose iterates are known.

MX2, M = 2, d = 1, n = 1, f'_m(b) = (b - b_m)²/2, b = (0, 2), λ = 2, μ = μ'/(3M) = 1/6; blocks B, W,
B, W; where there are anchors, they are set in iterations 2 and 4. The optimum is u = 1, F = 1/3.
"""

import numpy as np
import pytest

from tests.unified import Script, blocks, flat, golden, make, rounds, value

HEADS, TAILS = 0.0, 1.0
PLAIN = [TAILS, HEADS, TAILS, HEADS]  # B W B W
ANCHORED = [TAILS, TAILS, HEADS, HEADS, TAILS, TAILS, HEADS, HEADS]  # each with its ρ-coin


def trajectory(name, monkeypatch, coins, **options):
    """After each of the four iterations: (w-variables, memories, F)."""
    options = {"lam": 2.0, "mu_F": 1 / 6, "max_local": 1, **options}
    strategy, cohort, grid = make(name, golden(), **options)
    found = []
    for k in range(1, 5):
        rounds(strategy, grid, k, Script(coins[(k - 1) * len(coins) // 4 :]), monkeypatch)
        memories = [cohort.store.get(m, (10**9, 0)) for m in (0, 1)]
        found.append((strategy.state.w, memories, value(strategy, cohort)))
    return strategy, found


def betas(memories, name):
    return np.concatenate([flat(getattr(m, name)) for m in memories])


def close(found, expected, digits=9):
    np.testing.assert_allclose(found, expected, atol=0.6 * 10.0**-digits, rtol=0)


def test_acd(monkeypatch):
    strategy, found = trajectory("acd", monkeypatch, PLAIN)
    h = strategy.state.rates
    close([h.p_w, h.nu, h.theta, h.eta], [0.4494897428, 0.0336735048, 0.1674374483, 5.9723795973])
    expected = [
        (0, 0, [0, 0.66666667], [0, 1.82489731], 0.6666666667),
        (0.6085345762, 1.3600952405, [0, 0.86059785], [0, 1.66343747], 0.5097164796),
        (0.7343739760, 1.2553260686, [0.34618721, 1.01285388], [0.94763417, 1.60032845], 0.4103636439),
        (1.1017509097, 1.8088489974, [0.44689196, 1.11121912], [0.86379117, 1.51843324], 0.3577436131),
    ]
    for (w, memories, F), (w_y, w_z, y, z, F_expected) in zip(found, expected, strict=True):
        close([flat(w.y)[0], flat(w.z)[0], F], [w_y, w_z, F_expected])
        close(betas(memories, "y"), y, 8)
        close(betas(memories, "z"), z, 8)


def test_asvrcd(monkeypatch):
    strategy, found = trajectory("asvrcd", monkeypatch, ANCHORED)
    h = strategy.state.rates
    close([h.p_w, h.eta, h.rho], [0.4, 0.05, 0.4])
    close([h.theta_1, h.gamma, h.nu], [0.1020620726, 0.1224744871, 0.9795875855])
    (w1, b1, _), (w2, b2, _), (w3, b3, _), (w4, b4, F) = found
    close([flat(w1.y)[0], flat(w1.z)[0]], [0, 0])
    close(betas(b1, "y"), [0, 0.05])
    close(betas(b1, "z"), [0, 0.12247449], 8)
    close([flat(w2.y)[0], flat(w2.z)[0]], [0.0028635081, 0.0070141338])
    close(betas(b2, "y"), [0, 0.0823969], 7)
    close(betas(b2, "z"), [0, 0.24311027], 8)
    close([flat(w2.v)[0], *betas(b2, "v")], [0, 0, 0.05])
    close([flat(w3.y)[0], flat(w3.z)[0]], [0.0036231425, 0.0112389581])
    close(betas(b3, "y"), [1.093291e-4, 0.124885369])
    close(betas(b3, "z"), [2.678004e-4, 0.343408562])
    close([flat(w4.y)[0], flat(w4.z)[0]], [0.0093200944, 0.0275504853])
    close(betas(b4, "y"), [7.08384e-5, 0.155995614])
    close(betas(b4, "z"), [2.637799e-4, 0.451927837])
    close([flat(w4.v)[0], *betas(b4, "v")], [0.0036231425, 1.093291e-4, 0.124885369])
    close(F, 0.8612702701)


def test_ascd(monkeypatch):
    strategy, found = trajectory("ascd", monkeypatch, PLAIN)
    close(strategy.state.rates.theta, 0.8)
    (_, b1, _), (w2, _, _), (_, b3, _), (w4, _, _) = found
    close(betas(b1, "y"), [0, 0.08333333], 8)
    close(betas(b1, "z"), [0, 0.20412415], 8)
    close([flat(w2.y)[0], flat(w2.z)[0]], [0.0159068959, 0.0389637782])
    close(betas(b3, "y"), [0.00202423, 0.2428278], 7)
    close([flat(w4.y)[0], flat(w4.z)[0]], [0.0600242467, 0.1017525699])


def test_svrcd(monkeypatch):
    _, found = trajectory("svrcd", monkeypatch, ANCHORED)
    expected = [
        (0, [0, 0.05]),
        (0.0044194174, [0, 0.1]),
        (0.0061871843, [2.6042e-4, 0.14026042]),
        (0.0151825401, [2.6042e-4, 0.18651042]),
    ]
    for (w, memories, _), (w_y, y) in zip(found, expected, strict=True):
        close(flat(w.y), [w_y])
        close(betas(memories, "y"), y, 8)


def test_scd(monkeypatch):
    _, found = trajectory("scd", monkeypatch, PLAIN)
    expected = [
        (0, [0, 0.08333333]),
        (0.0073656956, [0, 0.08333333]),
        (0.0073656956, [4.3403e-4, 0.15668403]),
        (0.0203323890, [4.3403e-4, 0.15668403]),
    ]
    for (w, memories, _), (w_y, y) in zip(found, expected, strict=True):
        close(flat(w.y), [w_y])
        close(betas(memories, "y"), y, 8)


@pytest.mark.parametrize(
    ("scale", "w", "beta"),
    [("mean", 0.03576193, [0.000875, 0.3213875]), ("one", 0.06434672, [0.0032, 0.5166])],
)
def test_lsgd_two_rounds_of_two_steps(scale, w, beta):
    strategy, cohort, grid = make("lsgd", golden(), lam=2.0, eta=0.1, tau=2, batch_size=0, beta_scale=scale)
    rounds(strategy, grid, 2)
    found, own = blocks(strategy, cohort)
    close(flat(found), [w], 8)
    close(np.concatenate([flat(b) for b in own]), beta, 9)


def test_no_communication_but_in_w_steps(monkeypatch):
    strategy, _cohort, grid = make("acd", golden(), lam=2.0, mu_F=1 / 6, max_local=1)
    told = []
    for k, coin in enumerate([TAILS, HEADS, TAILS], 1):
        rounds(strategy, grid, k, Script([coin]), monkeypatch)
        told.append((strategy.round_log.bytes_up, strategy.state.counts.communications))
    assert told[1:] == [(2 * 8, 1), (0, 1)]  # d_0 = 1 number of each client
    assert strategy.state.counts.iterations == 3
