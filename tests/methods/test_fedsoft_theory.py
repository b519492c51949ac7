"""FedSoft's Theorems 2 to 4 as numbers on quadratics, and the least error of its estimation of u."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.clients.fedsoft import FedSoftClient, FedSoftConfig
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.families.clustered.centers import nearest_shares
from fedpers.method import Plan
from fedpers.strategies.fedsoft import FedSoft
from tests.mixtures import federation, isotropic, keep_importance, linear

LAM, L_F, MU_F = 10.0, 2.0, 2.0  # the risk of source s is F_s(w) = ‖w - θ_s‖²
L_LAM = MU_LAM = 2.0 + LAM  # of h_ks(w; c_s) = F_s(w) + λ/2 ‖w - c_s‖²


def rounds(U, theta, n, told, away, count):
    """(c^t, w^{t+1}, c^{t+1}) of rounds: all clients, exact solves, importance `told`, c^0 = θ + `away`."""
    model, rng = linear(theta.shape[1]), np.random.default_rng(1)
    cfg = FedSoftConfig(S=len(theta), lam=LAM, sampling="full", solver="exact")
    server = FedSoft(cfg, model, Plan(seed=3, dtype="float64"))
    grid = InProcessGrid(
        Cohort(FedSoftClient(cfg, model), federation(isotropic(U @ theta, n, rng)), RamStore(), server.plan)
    )
    server.connect(grid)
    keep_importance(server, told)
    first = theta + away
    server.state = replace(
        server.state, centers=tuple({"head.weight": torch.from_numpy(c)[None]} for c in first)
    )
    centers = lambda: np.stack([c["head.weight"][0].numpy() for c in server.state.centers])  # noqa: E731
    for t in range(1, count + 1):
        before = centers()
        server.start(grid, num_rounds=t)
        states = grid.cohort.store.states
        yield before, np.stack([states[k].w["head.weight"][0].numpy() for k in range(len(U))]), centers()


def slope(w, theta_s, c_s):
    """∇h_ks(w; c_s)."""
    return 2 * (w - theta_s) + LAM * (w - c_s)


def similarity(u, theta, c, s):
    """The least β of Assumption 2 for a client with shares u, at center s."""
    best = (2 * theta[s] + LAM * c[s]) / (2 + LAM)
    return (
        sum(u[j] * np.square(slope(best, theta[j], c[j])).sum() for j in range(len(u)))
        / np.square(2 * (c[s] - theta[s])).sum()
    )


def test_theorems_2_and_3_bound_what_clients_solve_in_every_round():
    """The one solve is good for each source by 1/√u_ks, and the model is within rΔ of every center."""
    rng = np.random.default_rng(0)
    theta, n = 3 * rng.normal(size=(2, 4)), [12, 20, 15, 9]
    U = np.array([[0.97, 0.03], [1.0, 0.0], [0.03, 0.97], [0.0, 1.0]])
    apart = np.linalg.norm(theta[0] - theta[1])  # δ = Δ
    away = 0.2 * apart * np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    for c, w, new in rounds(U, theta, n, U, away, 8):
        worst = 0.0
        for k, s in np.ndindex(U.shape):
            h_k = sum(U[k, j] * slope(w[k], theta[j], c[j]) for j in range(2))
            assert np.linalg.norm(h_k) < 1e-10  # Assumption 1 with γ_0 = 0
            gamma = np.sqrt(similarity(U[k], theta, c, s) * L_LAM / MU_LAM)
            worst = max(worst, gamma)
            if U[k, s]:
                bound = gamma / np.sqrt(U[k, s]) * np.linalg.norm(2 * (c[s] - theta[s]))
                assert np.linalg.norm(slope(w[k], theta[s], c[s])) <= bound + 1e-9
        r = (2 * worst + 1) / 4 * np.sqrt(L_F / MU_F) + 0.5 * np.sqrt(MU_F / L_F) + 1
        assert np.linalg.norm(w[:, None] - c[None], axis=2).max() <= r * apart
        assert np.linalg.norm(new - theta, axis=1).max() < 0.5 * apart  # Assumption 4 goes on


@pytest.mark.parametrize("p", [0.0, 0.01, 0.05])
def test_theorem_4_holds_in_every_round_and_is_an_equality_without_errors(p):
    """One source a client (γ = 0) and everybody (K → ∞); a share p of its points is taken for the other's."""
    rng = np.random.default_rng(2)
    theta, n = 3 * rng.normal(size=(2, 4)), np.array([12, 20, 9, 15, 11])
    U = np.eye(2)[[0, 0, 1, 1, 1]]
    apart = np.linalg.norm(theta[0] - theta[1])
    away = 0.3 * apart * np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    r = 1 / 4 + 1 / 2 + 1  # Theorem 3's, for γ = 0 and L_F = μ_F
    for c, _, new in rounds(U, theta, n, (1 - p) * U + p * (1 - U), away, 12):
        for s in range(2):
            n_s = n @ U[:, s]
            m_bar, m_hat = n.sum() - n_s, n_s  # (1 - p) m_s + p m_s
            rho = n_s / LAM - L_F * n_s / (MU_LAM * LAM)
            rho -= p * m_bar / (2 * MU_LAM) + L_F * m_hat / (2 * MU_LAM**2)
            assert rho > 0
            R = (MU_LAM + L_F) * m_bar * r**2 / 2
            gradient = np.square(2 * (c[s] - theta[s])).sum()
            bound = -rho * gradient / ((1 - p) * n_s + p * n.sum()) + p * R * apart**2 / ((1 - p) * n_s)
            change = np.square(new[s] - theta[s]).sum() - np.square(c[s] - theta[s]).sum()
            assert change <= bound + 1e-9
            if not p:
                assert change == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize(("theta_var", "floor"), [(1.0, 0.065), (50.0, 0.012)])
def test_with_the_true_sources_points_are_misjudged_by_their_noise(theta_var, floor):
    """A point errs with p = arctan(2/D)/π for sources D apart and noise 1, so u errs by p mean |1 - 2u|."""
    data = DataConfig(
        name="synthetic_fedsoft",
        partition="natural",
        num_sources=2,
        dim=10,
        theta_var=theta_var,
        mixture="random",
        num_clients=100,
        holdout=1,
        noise=1.0,
    )
    fed = load_federation(data, 0)
    theta, u = fed.truth["theta"], fed.truth["membership"]
    sources = tuple({"head.weight": torch.from_numpy(row)[None].float()} for row in theta)
    found = np.stack([nearest_shares(linear(10), sources, fed.client(k).train).numpy() for k in range(100)])
    error = np.abs(found - u).mean()
    p = np.arctan(2 / np.linalg.norm(theta[0] - theta[1])) / np.pi
    assert error == pytest.approx(floor, abs=0.003)
    assert error == pytest.approx(p * np.abs(1 - 2 * u).mean(), abs=0.006)
