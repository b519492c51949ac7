"""The synthetic problems of the papers, and small Gaussian classes."""

from typing import TypeVar

import numpy as np
import torch
from numpy.random import Generator

from fedpers.core.data import Federation
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import stream
from fedpers.datasets.generated import SETUP, ClientDistributions, Samples, federation
from fedpers.datasets.raw import Raw
from fedpers.datasets.sources import MIXTURES, whole_counts

T = TypeVar("T")


def load_classes(cfg: DataConfig, rng: Generator) -> Raw:
    """Gaussian classes of unit variance in R^dim whose centres are data.separation apart (rms)."""
    dim = cfg.dim or 20
    centres = rng.standard_normal((cfg.num_classes, dim)) * cfg.separation / np.sqrt(2 * dim)
    y = np.arange(cfg.num_samples) % cfg.num_classes
    x = centres[y] + rng.standard_normal((cfg.num_samples, dim))
    return Raw(cfg.name, x, y, x[:0], y[:0], cfg.num_classes)


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)) without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * z))


def _or(value: T | None, default: T) -> T:
    """`value`, or what the paper says."""
    return default if value is None else value


def _tests(cfg: DataConfig, num_train: np.ndarray) -> np.ndarray:
    """Test samples of each client: data.test_per_client, else in proportion to its training."""
    if cfg.test_per_client is not None:
        return np.full(len(num_train), cfg.test_per_client)
    share = cfg.test_fraction / (1 - cfg.test_fraction)
    return np.ceil(share * num_train).astype(np.int64)


def ppfl(cfg: DataConfig, seed: int, dtype: torch.dtype) -> Federation:
    """PPFL: each client mixes K logistic models in shares α_i ~ Dirichlet(data.alpha).

    n_i = min(⌊LogNormal(4, 2)⌋ + 50, 1000), θ*_k ~ U[-1,1]^d, x ~ U[-1,1]^d,
    y = round(σ(x·θ*_k + N(0, noise²))) for the points of component k.
    """
    rng = stream(seed, SETUP)
    n, k, d = _or(cfg.num_clients, 300), cfg.num_sources or 3, cfg.dim or 150
    num_train = np.minimum(np.floor(rng.lognormal(4, 2, n)) + 50, 1000).astype(np.int64)
    shares = rng.dirichlet(np.full(k, cfg.alpha), n)
    theta = rng.uniform(-1, 1, (k, d))
    noise = _or(cfg.noise, 0.1)

    def draw(client: int, size: int, rng: Generator) -> Samples:
        part = rng.permutation(np.repeat(np.arange(k), rng.multinomial(size, shares[client])))
        x = rng.uniform(-1, 1, (size, d))
        z = np.einsum("nd,nd->n", x, theta[part]) + noise * rng.standard_normal(size)
        return x, np.round(sigmoid(z)).astype(np.int64)

    truth = {"membership": shares, "theta": theta}
    return federation(
        cfg, seed, dtype, ClientDistributions(draw, num_train, _tests(cfg, num_train), d, "binary", truth)
    )


def fedsoft(cfg: DataConfig, seed: int, dtype: torch.dtype) -> Federation:
    """FedSoft: linear regression, clients mix S sources y = ⟨x, θ_s⟩ + ε in data.mixture's shares.

    θ_s ~ N(0, theta_var·I_d), x ~ N(0, I_d), ε ~ N(0, noise²); n_k uniform in
    min_samples..max_samples; data.holdout test samples of each source for everybody.
    """
    rng = stream(seed, SETUP)
    n, sources, d = _or(cfg.num_clients, 100), cfg.num_sources or 2, cfg.dim or 10
    theta = rng.standard_normal((sources, d)) * np.sqrt(cfg.theta_var)
    num_train = rng.integers(cfg.min_samples, cfg.max_samples + 1, n)
    shares = MIXTURES[cfg.mixture].draw(n, sources, rng)
    noise = _or(cfg.noise, 1.0)

    def sample(part: np.ndarray, rng: Generator) -> Samples:
        x = rng.standard_normal((len(part), d))
        eps = noise * rng.standard_normal(len(part))
        return x, np.einsum("nd,nd->n", x, theta[part]) + eps

    def draw(client: int, size: int, rng: Generator) -> Samples:
        counts = whole_counts(shares[client][None], np.array([size]))[0]
        return sample(rng.permutation(np.repeat(np.arange(sources), counts)), rng)

    def source(s: int, size: int, rng: Generator) -> Samples:
        return sample(np.full(size, s), rng)

    membership = whole_counts(shares, num_train) / num_train[:, None]
    truth = {"membership": membership, "group": membership.argmax(axis=1), "theta": theta}
    return federation(
        cfg,
        seed,
        dtype,
        ClientDistributions(draw, num_train, _tests(cfg, num_train), d, "regression", truth, source, sources),
    )


def _logistic(
    cfg: DataConfig,
    seed: int,
    dtype: torch.dtype,
    coefficients: np.ndarray,
    span: tuple[float, float],
    truth: dict[str, np.ndarray],
) -> Federation:
    """x ~ U[span]^d, y ~ Bernoulli(σ(coefficients_m · x)); 1,000 training samples a device."""
    count, d = coefficients.shape
    num_train = np.full(count, cfg.train_per_client or 1000)

    def draw(client: int, size: int, rng: Generator) -> Samples:
        x = rng.uniform(*span, (size, d))
        return x, (rng.random(size) < sigmoid(x @ coefficients[client])).astype(np.int64)

    return federation(
        cfg, seed, dtype, ClientDistributions(draw, num_train, _tests(cfg, num_train), d, "binary", truth)
    )


def unified_a(cfg: DataConfig, seed: int, dtype: torch.dtype) -> Federation:
    """Unified framework, synthetic A: logistic regression, β*_m = w* + Δ_m, a shift per device.

    w* ~ U[0.49, 0.51]^d, μ_m ~ N(0, σ_h²), Δ_m ~ U[μ_m ± 0.01]^d, x ~ U[0.2, 0.5]^d.
    """
    rng = stream(seed, SETUP)
    n, d = _or(cfg.num_clients, 20), cfg.dim or 15
    w = rng.uniform(0.49, 0.51, d)
    shift = _or(cfg.sigma_h, 0.3) * rng.standard_normal((n, 1))
    beta = w + shift + rng.uniform(-0.01, 0.01, (n, d))
    return _logistic(cfg, seed, dtype, beta, (0.2, 0.5), {"w": w, "beta": beta})


def unified_b(cfg: DataConfig, seed: int, dtype: torch.dtype) -> Federation:
    """Unified framework, synthetic B: two thirds of the coefficients are shared.

    w* ~ N(0, 1), β*_m ~ U[μ_m ± 0.01], μ_m ~ N(0, σ_h²), x ~ U[0, 0.1]^d; d = 10 + 5.
    """
    rng = stream(seed, SETUP)
    n, d = _or(cfg.num_clients, 20), cfg.dim or 15
    private = d // 3
    w = rng.standard_normal(d - private)
    shift = _or(cfg.sigma_h, 5.0) * rng.standard_normal((n, 1))
    beta = shift + rng.uniform(-0.01, 0.01, (n, private))
    both = np.concatenate([np.broadcast_to(w, (n, len(w))), beta], axis=1)
    return _logistic(cfg, seed, dtype, both, (0.0, 0.1), {"w": w, "beta": beta})


def sine(cfg: DataConfig, seed: int, dtype: torch.dtype) -> Federation:
    """FedeRiCo's toy: client k sees y = sin x + noise on the k-th of N intervals of [0, 2π].

    The input is x - π: about 0, where a line's slope and intercept do not pull at each other.
    """
    n, noise = _or(cfg.num_clients, 8), _or(cfg.noise, 0.1)
    width = 2 * np.pi / n
    num_train = np.full(n, cfg.train_per_client or 20)

    def draw(client: int, size: int, rng: Generator) -> Samples:
        x = width * (client + rng.random((size, 1)))
        return x - np.pi, np.sin(x[:, 0]) + noise * rng.standard_normal(size)

    return federation(
        cfg, seed, dtype, ClientDistributions(draw, num_train, _tests(cfg, num_train), 1, "regression")
    )
