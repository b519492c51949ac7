"""Generated problems: shapes, sizes and moments that follow from their definitions."""

import pickle

import numpy as np
import pytest
import torch

from fedpers.core.errors import ConfigError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation


def same(a, b):
    """Two clients have the same samples."""
    return all(
        torch.equal(getattr(a, s).x, getattr(b, s).x) and torch.equal(getattr(a, s).y, getattr(b, s).y)
        for s in ("train", "valid", "test")
    )


def make(name, seed=0, **options):
    partition = "iid" if name == "synthetic_classes" else "natural"
    return load_federation(DataConfig(name=name, partition=partition, **options), seed, torch.float64)


NAMES = ("ppfl", "fedsoft", "unified_a", "unified_b", "sine")


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_clients_in_any_order(name):
    one, two = (make(f"synthetic_{name}", num_clients=4, test_per_client=10) for _ in range(2))
    for k in (3, 0, 2):
        one.client(k)
    for k in range(4):
        a = one.client(k)
        assert same(a, two.client(k))
        assert len(a.train) == one.num_train[k] and len(a.test) == one.num_test[k] == 10
        assert len(a.valid) == np.ceil(0.1 * one.num_train[k])
    assert same(pickle.loads(pickle.dumps(one)).client(2), one.client(2))
    other = make(f"synthetic_{name}", seed=1, num_clients=4, test_per_client=10)
    assert not torch.equal(other.client(0).test.x, one.client(0).test.x)


@pytest.mark.parametrize("name", ["ppfl", "unified_a", "unified_b"])
def test_label_counts_are_those_of_the_training_samples(name):
    fed = make(f"synthetic_{name}", num_clients=3)
    assert fed.task == "binary" and fed.num_classes == 1
    for k in range(3):
        assert torch.bincount(fed.client(k).train.y, minlength=2).tolist() == (fed.label_counts[k].tolist())


def test_ppfl_follows_its_generator():
    fed = make("synthetic_ppfl", num_clients=300, alpha=0.4, test_per_client=400)
    assert fed.num_train.min() >= 50 and fed.num_train.max() == 1000
    # median e^4 + 50 = 104.6; that of 300 draws has standard deviation 1.25 * 2 * e^4 / sqrt(300)
    assert abs(np.median(fed.num_train) - 104.6) < 5 * 7.9
    shares, theta = fed.truth["membership"], fed.truth["theta"]
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert theta.shape == (3, 150) and np.abs(theta).max() <= 1
    data = fed.client(0).test
    assert data.x.shape == (400, 150) and data.x.abs().max() <= 1
    pure = int(shares.max(axis=1).argmax())  # the client nearest to one component
    data = fed.client(pure).test
    agree = (data.x @ torch.from_numpy(theta[shares[pure].argmax()]) > 0) == data.y.bool()
    assert agree.double().mean() > 0.95 * shares[pure].max()


def test_fedsoft_sources_are_linear_regressions():
    fed = make("synthetic_fedsoft", num_clients=100, holdout=2000)
    theta = torch.from_numpy(fed.truth["theta"])
    assert theta.shape == (2, 10) and fed.label_counts.shape == (100, 0)
    assert fed.num_train.min() >= 100 and fed.num_train.max() <= 200
    for s in range(2):
        data = fed.holdout[f"source{s}"]
        residual = data.y - data.x @ theta[s]
        assert residual.var() == pytest.approx(1, abs=0.16)  # 5 standard deviations
        assert abs(residual.mean()) < 0.12


def test_fedsoft_clients_have_the_shares_of_their_mixture():
    fed = make("synthetic_fedsoft", num_clients=10, noise=0.0, num_sources=2)
    theta = torch.from_numpy(fed.truth["theta"])
    for k in range(10):
        data = fed.client(k).train
        first = ((data.y - data.x @ theta[0]).abs() < 1e-9).double().mean()
        assert first == pytest.approx(fed.truth["membership"][k, 0])
        assert first == pytest.approx(0.1 if k < 5 else 0.9, abs=0.011)


def test_fedsoft_with_many_sources_needs_the_random_mixture():
    fed = make("synthetic_fedsoft", num_sources=8, mixture="random")
    assert fed.truth["theta"].shape == (8, 10)
    with pytest.raises(ConfigError, match=r"use data.mixture=random"):
        make("synthetic_fedsoft", num_sources=8)


def test_unified_problems_follow_their_generators():
    fed = make("synthetic_unified_a", sigma_h=1.0, num_clients=20)
    beta, w = fed.truth["beta"], fed.truth["w"]
    assert beta.shape == (20, 15) and (np.abs(w - 0.5) <= 0.01).all()
    shift = beta - w
    assert (shift.max(axis=1) - shift.min(axis=1) <= 0.02).all()  # one mu_m per device, +- 0.01
    data = fed.client(0).train
    assert len(data) == 1000 and data.x.min() >= 0.2 and data.x.max() <= 0.5
    fed = make("synthetic_unified_b", num_clients=20, sigma_h=15.0)
    assert fed.truth["w"].shape == (10,) and fed.truth["beta"].shape == (20, 5)
    data = fed.client(7).train
    full = np.concatenate([fed.truth["w"], fed.truth["beta"][7]])
    chance = torch.sigmoid(data.x @ torch.from_numpy(full))
    assert float(data.y.double().mean()) == pytest.approx(float(chance.mean()), abs=0.08)


def test_sine_clients_see_successive_intervals():
    fed = make("synthetic_sine", num_clients=8, noise=0.0)
    for k in range(8):
        x = fed.client(k).train.x
        assert x.shape == (20, 1)
        assert x.min() + np.pi >= k * np.pi / 4 and x.max() + np.pi <= (k + 1) * np.pi / 4
        torch.testing.assert_close(fed.client(k).train.y, torch.sin(x[:, 0] + np.pi), atol=1e-6, rtol=0)


def test_gaussian_classes_are_as_far_apart_as_asked():
    fed = make(
        "synthetic_classes",
        num_clients=1,
        dim=200,
        num_classes=4,
        num_samples=8000,
        separation=6.0,
        valid_fraction=0.0,
    )
    data = fed.client(0).train
    centres = torch.stack([data.x[data.y == c].mean(dim=0) for c in range(4)])
    distance = torch.pdist(centres)
    assert float(distance.pow(2).mean().sqrt()) == pytest.approx(6.0, rel=0.15)
    assert float((data.x - centres[data.y]).var()) == pytest.approx(1.0, rel=0.01)


def test_generators_take_no_partition():
    with pytest.raises(ConfigError, match=r"set data.partition=natural"):
        load_federation(DataConfig(name="synthetic_ppfl", partition="iid"), 0)
