"""A number α_m for each client in APFL's objectives: minima in closed form, Lemma 3's constants."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedpers.app.run import execute
from fedpers.config import compose
from fedpers.core.errors import ConfigError
from fedpers.families.unified.objective import make_objective
from fedpers.families.unified.optimum import solve
from fedpers.results import files
from tests.unified import W, blocks, flat, linear_model, make, quadratics, ridge, rounds, settings

ALPHA = (0.0, 0.3, 0.6)
TARGETS = np.array([[0.0, 1.0], [2.0, -3.0], [5.0, 0.0]])
ONE = np.array([[0.0], [2.0], [5.0]])  # n = 1: a sample's gradient is the whole one


def minimum(targets):
    """(u, β_m): u = w'*, and the mixed models are each client's own minimum t_m."""
    u, a = targets.mean(0), np.array(ALPHA)[:, None]
    return u, (targets - a * u) / (1 - a)


def test_the_minimum_is_the_closed_form():
    fed = ridge(M=3)
    parts = [fed.client(m).train for m in range(3)]
    xs, ys = [p.x.numpy() for p in parts], [p.y.numpy() for p in parts]
    A = [2 * x.T @ x / len(x) for x in xs]
    c = np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(xs, ys, strict=True)])
    u_fl = np.linalg.solve(sum(A), sum(a @ b for a, b in zip(A, c, strict=True)))
    f = make_objective(settings("apfl2", alpha=ALPHA, Lambda=0.7), linear_model(fed), 3)
    best = solve(f, parts, {W: torch.zeros(1, 3).double()})
    np.testing.assert_allclose(flat(f.shared(best.w)), u_fl, atol=1e-8)
    a = np.array(ALPHA)[:, None]
    np.testing.assert_allclose([flat(b) for b in best.betas], (c - a * u_fl) / (1 - a), atol=1e-7)


MANY = {"scd": 250, "svrcd": 350, "ascd": 200, "asvrcd": 250, "acd": 50, "lsgd": 300}
OWN = {"lsgd": {"batch_size": 0, "tau": 1}, "scd": {"eta": 0.5}, "svrcd": {"eta": 0.5}}


@pytest.mark.parametrize("method", MANY)
def test_every_optimiser_ends_there(method):
    options = {"objective": "apfl2", "alpha": ALPHA, "mu": 1.0, "L": 1.0, "cL": 1.0, **OWN.get(method, {})}
    strategy, cohort, grid = make(method, quadratics(ONE), **options)
    rounds(strategy, grid, MANY[method])
    w, betas = blocks(strategy, cohort)
    u, expected = minimum(ONE)
    np.testing.assert_allclose(flat(strategy.objective.shared(w)), u, atol=5e-3)
    np.testing.assert_allclose([flat(b) for b in betas], expected, atol=5e-2)
    for k in range(3):
        told = strategy.evaluation_message(strategy.state, k)
        mixed = cohort.client.personal(told, cohort.state(k, (10**9, 0)))
        np.testing.assert_allclose(flat(mixed), ONE[k], atol=5e-2)


@pytest.mark.parametrize("cohort_size", [None, 2])
def test_a_step_of_local_sgd_is_the_formula(cohort_size):
    """x_m = (1-α_m)β_m + α_m w: w_m -= η(Λ(w - t_m) + α_m(x_m - t_m)), β_m -= η/M (1-α_m)(x_m - t_m)."""
    eta, Lam, M, a = 0.2, 0.7, 3, np.array(ALPHA)[:, None]
    options = {"objective": "apfl2", "alpha": ALPHA, "Lambda": Lam, "reparametrise": False, "eta": eta}
    strategy, cohort, grid = make("lsgd", quadratics(TARGETS), tau=1, batch_size=0, **options)
    drawn = [[2, 0], [1, 2], [0, 1]] if cohort_size else [[0, 1, 2]] * 3
    days = iter(drawn)
    strategy.sample = lambda rng: next(days)
    start = flat(strategy.objective.start({W: torch.zeros(1, 2).double()})[0])
    rounds(strategy, grid, 3)
    u, beta = start, np.zeros((M, 2))
    first = cohort.client.first_block(cohort.params)
    beta += flat(first)
    u = flat(strategy.objective.start(cohort.params)[0])
    for members in drawn:
        x = (1 - a) * beta + a * u
        to_w = Lam * (u - TARGETS) + a * (x - TARGETS)
        beta[members] -= (eta / M * (1 - a) * (x - TARGETS))[members]
        u = np.mean([u - eta * to_w[m] for m in members], 0)
    w, betas = blocks(strategy, cohort)
    np.testing.assert_allclose(flat(w), u, atol=1e-12)
    np.testing.assert_allclose([flat(b) for b in betas], beta, atol=1e-12)


@pytest.mark.parametrize("reparametrise", [True, False])
def test_constants_are_those_of_the_worst_client(reparametrise):
    """Lemma 3: L_w = s²(Λ + max α_m²)L', L_β = (1 - min α_m)²L'/M; μ bounds F's Hessian, written out."""
    M, Lam, curve = 3, 0.7, 0.4
    fed = quadratics(np.zeros((M, 1)), curvatures=curve)
    options = {"objective": "apfl2", "alpha": ALPHA, "Lambda": Lam, "reparametrise": reparametrise}
    strategy, cohort, _ = make("acd", fed, **options)
    client = cohort.client
    c = strategy.constants([client.describe(client.objective(M, m), fed.client(m).train) for m in range(M)])
    s = M**-0.5 if reparametrise else 1.0
    assert c.L_w == pytest.approx(s**2 * (Lam + 0.6**2) * curve)
    assert c.L_b == pytest.approx((1 - 0.0) ** 2 * curve / M)
    H = np.zeros((M + 1, M + 1))
    for m, a in enumerate(ALPHA):
        row = np.zeros(M + 1)
        row[0], row[m + 1] = a * s, 1 - a
        H += curve / M * np.outer(row, row)
        H[0, 0] += curve / M * Lam * s**2
    lowest = np.linalg.eigvalsh(H)[0]
    assert lowest / 4 < c.mu <= lowest
    assert (
        c.mu
        < strategy.objective.of(0).constants(client.describe(client.objective(M), fed.client(0).train)).mu
    )


def test_a_known_centre_has_them_too(tmp_path):
    path = tmp_path / "shared.safetensors"
    save_file({W: torch.tensor([[1.0, 2.0]], dtype=torch.float64)}, path)
    options = {"objective": "apfl", "center": str(path), "alpha": ALPHA, "mu": 0.16, "L": 1.0, "cL": 1.0}
    strategy, cohort, grid = make("acd", quadratics(TARGETS), max_local=400, **options)
    rounds(strategy, grid, 3)
    a = np.array(ALPHA)[:, None]
    expected = (TARGETS - a * np.array([1.0, 2.0])) / (1 - a)
    np.testing.assert_allclose([flat(b) for b in blocks(strategy, cohort)[1]], expected, atol=1e-6)


@pytest.mark.parametrize("alpha", ["[0.1,0.2,1]", "[0.1,-0.2]", "1"])
def test_each_of_them_is_checked(alpha):
    with pytest.raises(ConfigError, match=r"alpha=(1|-0\.2)(\.0)?: must be at least 0 and below 1"):
        compose.load(["method=acd", f"method.objective={{name: apfl2, alpha: {alpha}}}"])


RUN = ["method=acd", "data=synthetic_unified_a", "model=logistic", "data.num_clients=3", "rounds=4"]
THREE = "method.objective={name: apfl2, alpha: [0.1,0.3,0.6], l2: 0.1}"


def test_a_run_measures_its_distance_from_their_optimum(tmp_path):
    execute(compose.load([*RUN, THREE, "optimum=true", "rounds=120"]), out=tmp_path / "run")
    rows, _ = files.read_csv(tmp_path / "run" / "metrics.csv")
    gaps = [row["suboptimality"] for row in rows if "suboptimality" in row]
    assert 0 <= float(gaps[-1]) < 1e-6 < float(gaps[0])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["data.num_clients=4"], "has 3 numbers, and 4 clients train"),
        (["data.num_clients=5", "new_clients=2"], "3 clients train beside 2 new ones"),
    ],
)
def test_their_number_is_that_of_the_clients_who_train(more, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        execute(compose.load([*RUN, THREE, *more]), out=tmp_path / "run")
