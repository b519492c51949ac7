"""Objectives: gradients, constants, optima and their equalities (float64)."""

import numpy as np
import pytest
import torch

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.params import scale
from fedpers.families.unified.mixture import MX2
from fedpers.families.unified.objective import Base, Objective, make_objective, objective_class
from fedpers.families.unified.optimum import Flat, expand, solve
from fedpers.learning.gradients import grad
from fedpers.learning.gradients import model_gradient as written_out
from fedpers.learning.model import build_model
from tests.oracles.unified import optimum, slope
from tests.unified import W, federation, flat, golden, linear_model, logistic, quadratics, ridge, settings

M = 4


def objective(name, fed, M=M, **options):
    return make_objective(settings(name, **options), linear_model(fed), M)


def arrays(fed):
    parts = [fed.client(m).train for m in range(fed.num_clients)]
    return [p.x.numpy() for p in parts], [p.y.numpy().astype(float) for p in parts]


def closed_gradients(name, g, u, b, s, lam=0.7, Lam=1.3, a=0.3):
    """Section 3's formulas; g is ∇f'_m."""
    if name == "mt2":
        return s * (Lam * g(u) + lam * (u - b)), g(b) + lam * (b - u)
    if name == "mx2":
        return s * lam * (u - b), g(b) + lam * (b - u)
    if name == "apfl2":
        x = (1 - a) * b + a * u
        return s * (Lam * g(u) + a * g(x)), (1 - a) * g(x)
    if name == "fr":
        return s * g(u + b), g(u + b)
    return (g(u), None) if name == "fl" else (None, g(b))


@pytest.mark.parametrize("reparametrise", [True, False])
@pytest.mark.parametrize("make", [ridge, logistic])
@pytest.mark.parametrize("name", ["mt2", "mx2", "apfl2", "fr", "fl", "full"])
def test_gradients_are_the_closed_forms(name, make, reparametrise):
    fed, rng = make(), np.random.default_rng(1)
    f = objective(name, fed, lam=0.7, Lambda=1.3, alpha=0.3, reparametrise=reparametrise)
    s = M**-0.5 if reparametrise and name != "fl" else 1.0
    xs, ys = arrays(fed)
    w, b = rng.normal(size=(2, 3))
    blocks = [
        {} if name == "full" else {W: torch.tensor(w[None])},
        {} if name == "fl" else {W: torch.tensor(b[None])},
    ]
    for m in range(M):
        data = fed.client(m).train
        g = lambda x, m=m: slope(xs, ys, m, x, fed.task)  # noqa: E731
        expected = closed_gradients(name, g, s * w, b, s)
        both = f.grads(*blocks, data)
        auto = Objective.grads(f, *blocks, data)  # of the value, by local.grad
        for i, (each, want) in enumerate(zip((f.grad_w, f.grad_beta), expected, strict=True)):
            if want is not None:
                np.testing.assert_allclose(flat(each(*blocks, data)), want, atol=1e-10)
                np.testing.assert_allclose(flat(both[i]), want, atol=1e-10)
                np.testing.assert_allclose(flat(auto[i]), want, atol=1e-10)


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_weight_sharing_cuts_the_gradient(task):
    fed = ridge() if task == "regression" else logistic()
    f = objective("ws2", fed, private="features", shared_features=2)
    w, beta = f.start({W: torch.tensor([[0.3, -0.2, 0.5]]).double()})
    assert torch.equal(f.personal(w, beta)[W], torch.tensor([[0.3, -0.2, 0.5]]).double())
    xs, ys = arrays(fed)
    want = slope(xs, ys, 1, np.array([0.3, -0.2, 0.5]), task)
    g_w, g_b = f.grads(w, beta, fed.client(1).train)
    np.testing.assert_allclose(flat(g_w), 0.5 * want[:2], atol=1e-10)  # s = 1/√4
    np.testing.assert_allclose(flat(g_b), want[2:], atol=1e-10)
    # residual learning on the same two sets of inputs is the same function
    r = objective("fr", fed, shared_features=2, private_features=1)
    whole = {W: torch.tensor([[0.3, -0.2, 0.5]]).double()}
    g_w, g_b = r.grads(scale(whole, 2.0), whole, fed.client(1).train)
    np.testing.assert_allclose(flat(g_w), 0.5 * np.append(want[:2], 0), atol=1e-10)
    np.testing.assert_allclose(flat(g_b), np.append([0, 0], want[2:]), atol=1e-10)


@pytest.mark.parametrize("kind", ["head", "body"])
def test_layers_are_shared_and_put_together(kind):
    model = build_model("mlp", input_shape=(3,), num_outputs=2, task="classification", hidden=[4])
    f = make_objective(settings("ws2", private=kind), model, 9)
    params = model.init(0)
    w, beta = f.start(params)
    assert all(model.is_head(k) == (kind == "head") for k in beta)
    together = f.personal(w, beta)
    assert all(torch.allclose(together[k], params[k]) for k in params)
    assert torch.allclose(next(iter(w.values())), 3 * params[next(iter(w))])


# ---- optima --------------------------------------------------------------------------------------


def best(name, fed, **options):
    f = objective(name, fed, M=fed.num_clients, **options)
    parts = [fed.client(m).train for m in range(fed.num_clients)]
    found = solve(f, parts, {W: torch.zeros(1, fed.input_shape[0]).double()})
    u = flat(f.shared(found.w)) if found.w else None
    betas = np.stack([flat(b) for b in found.betas])
    return u, betas, found.value


def quadratic_form(fed):
    """(A_m, c_m) of f'_m(b) = ½(b-c)ᵀA(b-c) + const."""
    xs, ys = arrays(fed)
    A = [2 * x.T @ x / len(x) for x in xs]
    return A, np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(xs, ys, strict=True)])


@pytest.mark.parametrize("reparametrise", [True, False])
@pytest.mark.parametrize(("name", "Lam"), [("mx2", 0.0), ("mt2", 1.3)])
def test_closed_form_optimum(name, Lam, reparametrise):
    fed = ridge()
    u, betas, _ = best(name, fed, lam=0.7, Lambda=Lam, reparametrise=reparametrise)
    expected = optimum(*quadratic_form(fed), 0.7, Lam)
    np.testing.assert_allclose(u, expected[0], atol=1e-9)
    np.testing.assert_allclose(betas, expected[1], atol=1e-9)


def test_optima_of_the_golden_problem():
    u, betas, F = best("mx2", golden(), lam=2.0)
    np.testing.assert_allclose([u[0], *betas[:, 0], F], [1, 2 / 3, 4 / 3, 1 / 3], atol=1e-10)
    for Lam in (0.5, 3.0):
        u, betas, F = best("mt2", golden(), lam=2.0, Lambda=Lam)
        np.testing.assert_allclose([u[0], *betas[:, 0], F], [1, 2 / 3, 4 / 3, 1 / 3 + Lam / 2], atol=1e-10)
        u, betas, F = best("apfl2", golden(), alpha=0.5, Lambda=Lam)
        np.testing.assert_allclose([u[0], *betas[:, 0], F], [1, -1, 3, Lam / 2], atol=1e-10)


def test_mixture_and_envelope_are_equal():
    """MX2 over w is MX, over β the Moreau envelope; the envelope's gradient is λ(u - prox)."""
    fed, lam = ridge(), 0.7
    u, betas, F = best("mx2", fed, lam=lam)
    np.testing.assert_allclose(u, betas.mean(0), atol=1e-9)
    parts = [fed.client(m).train for m in range(M)]
    f = objective("moreau", fed, lam=lam, prox_steps=600, prox_lr=0.15)
    w = {W: torch.tensor(u[None])}
    with torch.no_grad():
        assert sum(float(f.value(w, {}, p)) for p in parts) / M == pytest.approx(F, abs=1e-9)
        slopes = [flat(f.grad_w(w, {}, p)) for p in parts]
        for m, p in enumerate(parts):
            np.testing.assert_allclose(flat(f.prox(w, p)), betas[m], atol=1e-8)
            np.testing.assert_allclose(slopes[m], lam * (u - betas[m]), atol=1e-8)
    np.testing.assert_allclose(np.mean(slopes, axis=0), 0, atol=1e-8)


def test_limits():
    """λ → 0 and ∞, Λ → ∞, λ = 0, and the degeneracy of APFL2 for every Λ and α."""
    fed = ridge()
    A, c = quadratic_form(fed)
    u_fl = np.linalg.solve(sum(A), sum(a @ b for a, b in zip(A, c, strict=True)))
    np.testing.assert_allclose(best("fl", fed, lam=0)[0], u_fl, atol=1e-8)
    np.testing.assert_allclose(best("full", fed)[1], c, atol=1e-8)
    u, betas, _ = best("mx2", fed, lam=1e6)
    np.testing.assert_allclose(np.vstack([u, betas]), np.tile(u_fl, (M + 1, 1)), atol=1e-4)
    np.testing.assert_allclose(best("mx2", fed, lam=1e-7)[1], c, atol=1e-5)
    u, betas, _ = best("mt2", fed, lam=0.0)
    np.testing.assert_allclose(u, u_fl, atol=1e-8)
    np.testing.assert_allclose(betas, c, atol=1e-8)
    np.testing.assert_allclose(best("mt2", fed, Lambda=1e7)[0], u_fl, atol=1e-5)
    for alpha, Lam in [(0.0, 1.0), (0.3, 0.2), (0.8, 5.0)]:
        u, betas, _ = best("apfl2", fed, alpha=alpha, Lambda=Lam)
        np.testing.assert_allclose(u, u_fl, atol=1e-7)
        np.testing.assert_allclose(betas, (c - alpha * u_fl) / (1 - alpha), atol=1e-6)


@pytest.mark.parametrize("name", ["mx2", "mt2", "apfl2"])
def test_reparametrisation_changes_no_solution(name):
    u, betas, F = best(name, ridge(), alpha=0.3)
    u2, betas2, F2 = best(name, ridge(), alpha=0.3, reparametrise=False)
    np.testing.assert_allclose(u, u2, atol=1e-8)
    np.testing.assert_allclose(betas, betas2, atol=1e-8)
    assert pytest.approx(F2, abs=1e-10) == F


# ---- constants -----------------------------------------------------------------------------------


def hessian(f, fed):
    """Hessian of F over (w, β_1..β_M), assembled; and the sizes of w and one β."""
    w, beta = f.start({W: torch.zeros(1, fed.input_shape[0]).double()})
    of_w, of_b = Flat(w), Flat(beta)
    M, d, m = fed.num_clients, of_w.size, of_b.size
    parts = [fed.client(k).train for k in range(M)]
    at = expand(f, parts, torch.zeros(d).double(), torch.zeros(M, m).double(), of_w, of_b)
    H = np.zeros((d + M * m, d + M * m))
    for k, own in enumerate(at.hessians.numpy() / M):
        place = np.r_[:d, d + k * m : d + (k + 1) * m]
        H[np.ix_(place, place)] += own
    return H, d


def base_of(f, fed):
    told = [f.measure({}, fed.client(m).train) for m in range(fed.num_clients)]
    most = [max(float(getattr(b, k)) for b in told) for k in ("L_w", "L_b", "cL_w", "cL_b")]
    return Base(min(float(b.mu) for b in told), *most)


OPTIONS = {"ws2": {"private": "features", "shared_features": 2}, "fr": {"l2": 0.3}}


@pytest.mark.parametrize("reparametrise", [True, False])
@pytest.mark.parametrize("name", ["mx2", "mt2", "apfl2", "ws2", "fr", "fl", "full"])
def test_constants_bound_the_hessian(name, reparametrise):
    fed = ridge()
    options = {"lam": 0.7, "Lambda": 1.3, "alpha": 0.3, "reparametrise": reparametrise}
    f = objective(name, fed, **options, **OPTIONS.get(name, {}))
    H, d = hessian(f, fed)
    c = f.constants(base_of(f, fed))
    assert np.linalg.eigvalsh(H)[0] >= c.mu - 1e-12
    assert np.linalg.eigvalsh(H[:d, :d])[-1:].sum() <= c.L_w + 1e-12
    assert np.linalg.eigvalsh(H[d:, d:])[-1:].sum() <= c.L_b + 1e-12
    assert c.L_w <= c.cL_w + 1e-12 and c.L_b <= c.cL_b + 1e-12


@pytest.mark.parametrize("name", ["mx2", "mt2", "apfl2"])
def test_mu_is_attained_and_the_papers_apfl_bound_is_not(name):
    """f'_m with Hessian μ'I: the smallest eigenvalue of F's is the formula's."""
    fed = quadratics(np.zeros((M, 2)), curvatures=0.4)
    f = objective(name, fed, lam=0.7, Lambda=1.3, alpha=0.5)
    H, _ = hessian(f, fed)
    lowest = np.linalg.eigvalsh(H)[0]
    assert f.constants(base_of(f, fed)).mu == pytest.approx(lowest, rel=1e-10)
    if name == "apfl2":
        g = objective(name, fed, Lambda=3 * 0.25, alpha=0.5)
        assert np.linalg.eigvalsh(hessian(g, fed)[0])[0] < 0.4 * 0.25 / M * 0.99
        # ours holds with the smaller side condition
        assert g.constants(base_of(g, fed)).mu >= 0.4 * 0.25 / (2 * M)


@pytest.mark.parametrize("name", ["mx2", "mt2", "apfl2", "fl", "full"])
def test_without_strong_convexity_mu_is_0(name):
    for lam in (0.0, 0.7):
        assert objective(name, ridge(), lam=lam).constants(Base(0.0, 1.0, 1.0, 1.0, 1.0)).mu == 0


def test_side_conditions_of_the_papers_bounds():
    """μ'/(3M) for MX2 if μ' <= λ/2, λ/(2M) for MT2 if Λ >= 3λ/(2μ'): ours are no smaller."""
    fed = ridge()
    base = Base(0.3, 1.0, 1.0, 1.0, 1.0)
    assert objective("mx2", fed, lam=0.7).constants(base).mu >= 0.3 / (3 * M)
    mt2 = objective("mt2", fed, lam=0.7, Lambda=1.5 * 0.7 / 0.3).constants(base)
    assert mt2.mu >= 0.7 / (2 * M) * (1 - 1e-12)


def test_classes_have_a_bound_too():
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(M, 6, 3))
    fed = federation(xs, rng.integers(0, 3, (M, 6)), task="classification")
    model = linear_model(fed, bias=True, init="default")
    f = make_objective(settings("fl"), model, M)
    told = base_of(f, fed)
    most = max((x**2).sum(1).max() + 1 for x in xs)
    assert told.cL_w == pytest.approx(most / 2) and told.mu == 0


@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
def test_slopes_are_autograds(task):
    rng = np.random.default_rng(0)
    y = {
        "classification": rng.integers(0, 3, (2, 6)),
        "binary": rng.integers(0, 2, (2, 6)),
        "regression": rng.normal(size=(2, 6)),
    }[task]
    fed = federation(rng.normal(size=(2, 6, 3)), y, task=task)
    for bias in (False, True):
        model = linear_model(fed, bias=bias, init="default")
        params = {k: v.double() for k, v in model.init(1).items()}
        data = fed.client(1).train
        padded = Data(data.x, data.y, torch.tensor([1.0, 1, 0, 1, 0, 1]).double())
        for d in (data, padded):
            found, want = written_out(model, params, d), grad(model.loss)(params, d)
            assert found.keys() == want.keys()
            assert all(torch.allclose(found[k], want[k], atol=1e-14) for k in want)


def test_an_objective_of_ones_own():
    name = f"{MX2.__module__}:MX2"
    assert isinstance(objective(name, golden()), MX2)
    for wrong in ("nowhere:Mine", "fedpers.families.unified.composed:WEIGHT"):
        with pytest.raises(ConfigError):
            objective_class(wrong)
    with pytest.raises(ConfigError, match="did you mean 'mx2'"):
        objective_class("mx")
