"""The mirror step, the Laplacian and affinities: closed forms, bounds and identities."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpers.core.errors import ConfigError, DataError
from fedpers.families.mixtures.simplex import (
    affinity,
    cosine_affinity,
    given_affinity,
    laplacian,
    mirror_step,
    read_matrix,
    with_rows,
)

F64 = torch.float64


def points(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1]))


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@given(
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.sampled_from([0.01, 1.0, 1e4]),
    st.sampled_from([0.0, 1e-6, 1e-2]),
)
@settings(max_examples=60, deadline=None)
def test_the_step_stays_on_the_simplex_above_the_floor(seed, K, eta, floor):
    c = mirror_step(points(seed, 4, K), normal(seed, 4, K), eta, floor)
    assert torch.isfinite(c).all()
    assert torch.allclose(c.sum(1), torch.ones(4, dtype=F64), rtol=0, atol=1e-12)
    assert float(c.min()) >= floor / (1 + K * floor) * (1 - 1e-12)


def test_the_step_is_the_closed_form():
    c, g = points(0, 5, 4), normal(0, 5, 4)
    weights = c * torch.exp(-0.7 * g)
    want = weights / (c * torch.exp(-0.7 * g)).sum(1, keepdim=True)
    torch.testing.assert_close(mirror_step(c, g, 0.7, 0), want, rtol=0, atol=1e-15)
    torch.testing.assert_close(mirror_step(c, g + 3.0, 0.7, 0), want, rtol=0, atol=1e-14)
    torch.testing.assert_close(mirror_step(c, 0 * g, 0.7, 0), c, rtol=0, atol=1e-15)


def test_the_step_minimises_its_definition():
    """<g, c'> + KL(c' ‖ c)/eta is nowhere lower on the simplex."""
    c, g, eta = points(1, 3), normal(1, 3), 0.8
    value = lambda a: (a * g).sum(-1) + (a * (a / c).log()).sum(-1) / eta  # noqa: E731
    best = value(mirror_step(c, g, eta, 0))
    assert bool((value(points(2, 2000, 3)) >= best - 1e-12).all())


def test_the_step_descends_by_its_squared_length():
    """<g, c - c⁺> >= ‖c - c⁺‖₁² / eta."""
    for seed in range(300):
        K, eta = 2 + seed % 6, 10.0 ** (seed % 5 - 2)
        c, g = points(seed, K), normal(seed, K)
        new = mirror_step(c, g, eta, 0)
        assert float((g * (c - new)).sum()) >= float((c - new).abs().sum() ** 2 / eta) - 1e-12


def test_huge_and_single_precision_gradients_are_no_problem():
    c = mirror_step(torch.tensor([0.5, 0.5], dtype=F64), torch.tensor([1e4, -1e4]), 1.0, 1e-6)
    torch.testing.assert_close(c, torch.tensor([1e-6, 1.0], dtype=F64), rtol=0, atol=2e-6)
    assert mirror_step(torch.tensor([0.5, 0.5]), torch.zeros(2), 1.0).dtype == F64


def test_weighting_by_p_is_a_smaller_step_and_a_larger_lambda():
    """step(eta, p = 1/M, lam) = step(eta/M, p = 1, M lam)."""
    c, g, Lc, M, eta, lam = points(3, 4), normal(3, 4), normal(4, 4), 7, 0.6, 0.2
    a = mirror_step(c, g / M + 2 * lam * Lc, eta, 0)
    b = mirror_step(c, g + 2 * M * lam * Lc, eta / M, 0)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-15)


def matrix(weigh, n):
    return weigh(torch.eye(n, dtype=F64))


COUNTS = torch.tensor([[3.0, 1, 0], [6, 2, 0], [0, 0, 5], [1, 1, 1]])


def test_label_cosine_is_a_gram_matrix():
    W = matrix(cosine_affinity(COUNTS), 4)
    want = torch.nn.functional.cosine_similarity(COUNTS[:, None], COUNTS[None], dim=2)
    torch.testing.assert_close(W, want.double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(W, W.T, rtol=0, atol=1e-15)
    torch.testing.assert_close(W.diagonal(), torch.ones(4, dtype=F64), rtol=0, atol=1e-15)
    assert float(torch.linalg.eigvalsh(W).min()) >= -1e-12
    assert abs(float(W[0, 1]) - 1) < 1e-15  # the same mix of labels
    assert float(W[0, 2]) == 0  # no label in common
    frequencies = COUNTS / COUNTS.sum(1, keepdim=True)
    torch.testing.assert_close(matrix(cosine_affinity(frequencies), 4), W, rtol=0, atol=1e-6)


def test_a_client_without_labels_is_like_nobody():
    W = matrix(cosine_affinity(torch.tensor([[0.0, 0], [1, 0]])), 2)
    assert W.tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("kind", ["label_cosine", "ones", "none"])
def test_the_laplacian_is_the_quadratic_form(kind):
    weigh = affinity(kind, 4, {"label_counts": COUNTS})
    C, W = points(5, 4, 3), matrix(weigh, 4)
    differences = (C[:, None] - C[None]).square().sum(2)
    got = (C * laplacian(weigh, C)).sum()
    torch.testing.assert_close(2 * got, (W * differences).sum(), rtol=0, atol=1e-14)
    torch.testing.assert_close(laplacian(weigh, C), (W.sum(1).diag() - W) @ C, rtol=0, atol=1e-14)
    known = laplacian(weigh, C, weigh(torch.ones(4, 1, dtype=F64)))
    assert torch.equal(known, laplacian(weigh, C))
    alike = C[:1].expand(4, 3)
    torch.testing.assert_close(laplacian(weigh, alike), 0 * C, rtol=0, atol=1e-14)


def test_gradient_of_the_penalty_is_twice_the_laplacian():
    """λ/2 Σ w_ij ‖c_i - c_j‖² has gradient 2 λ L C."""
    weigh, C = cosine_affinity(COUNTS), points(6, 4, 3).requires_grad_()
    W = matrix(weigh, 4)
    penalty = 0.3 / 2 * (W * (C[:, None] - C[None]).square().sum(2)).sum()
    (g,) = torch.autograd.grad(penalty, C)
    torch.testing.assert_close(g, 2 * 0.3 * laplacian(weigh, C.detach()), rtol=0, atol=1e-14)


def test_with_all_ones_and_one_over_m_the_penalty_is_that_of_a_mixed_model():
    """λ tr(CᵀLC) = Σ ‖c_i - mean‖² for W = 1 and λ = 1/M: a GLMM's random effects."""
    C = points(7, 6, 3)
    got = (C * laplacian(affinity("ones", 6, {}), C)).sum() / 6
    torch.testing.assert_close(got, (C - C.mean(0)).square().sum(), rtol=0, atol=1e-14)


def test_the_diagonal_of_w_is_free():
    W = matrix(cosine_affinity(COUNTS), 4)
    C = points(8, 4, 3)
    a, b = given_affinity(W), given_affinity(W + torch.diag(torch.arange(4.0)).double())
    torch.testing.assert_close(laplacian(a, C), laplacian(b, C), rtol=0, atol=1e-14)


def test_a_given_affinity_is_checked(tmp_path, caplog):
    with pytest.raises(ConfigError, match="symmetric"):
        given_affinity(torch.tensor([[1.0, 0.5], [0.2, 1]]))
    with pytest.raises(ConfigError, match="negative"):
        given_affinity(torch.tensor([[1.0, -0.5], [-0.5, 1]]))
    with caplog.at_level(logging.WARNING, "fedpers"):
        given_affinity(torch.tensor([[0.0, 1], [1, 0]]))
    assert "positive semi-definite" in caplog.text
    with pytest.raises(DataError, match=r"nothing\.npy"):
        read_matrix(str(tmp_path / "nothing.npy"), 2)
    np.save(tmp_path / "w.npy", np.eye(3))
    with pytest.raises(DataError, match=r"\(3, 3\), must be \(2, 2\)"):
        read_matrix(str(tmp_path / "w.npy"), 2)
    torch.testing.assert_close(
        matrix(affinity("given", 3, {}, str(tmp_path / "w.npy")), 3), torch.eye(3, dtype=F64)
    )


def test_label_cosine_needs_labels():
    with pytest.raises(ConfigError, match="class labels"):
        cosine_affinity(torch.zeros(3, 0))


def test_with_rows_replaces_only_those():
    C = points(9, 4, 2)
    D = with_rows(C, {2: torch.tensor([1.0, 0.0], dtype=F64)})
    assert D[2].tolist() == [1, 0]
    assert torch.equal(D[[0, 1, 3]], C[[0, 1, 3]])
    assert with_rows(C, {}) is C
