"""Federations of the embedded set: splits, label spaces, limits, transforms, messages."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import fedpers.conf
from fedpers.core.errors import ConfigError, DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation
from fedpers.datasets.registry import DATASETS

SPLITS = ("train", "valid", "test")


def digits(seed=0, dtype=torch.float64, **options):
    return load_federation(DataConfig(**options), seed, dtype)


def samples(federation, k):
    """The images of client k as a set of bytes per split."""
    client = federation.client(k)
    return [{row.numpy().tobytes() for row in getattr(client, s).x} for s in SPLITS]


def test_default_federation():
    fed = digits()
    assert (fed.num_clients, fed.input_shape, fed.num_classes) == (20, (1, 8, 8), 10)
    total = sum(len(getattr(fed.client(k), s)) for k in range(20) for s in SPLITS)
    assert total == 1797  # every sample is used once
    assert ((fed.label_counts > 0).sum(axis=1) == 2).all()
    for k in range(20):
        data = fed.client(k)
        assert len(data.train) == fed.num_train[k] == fed.label_counts[k].sum()
        assert len(data.test) == fed.num_test[k]
        assert data.train.x.shape == (fed.num_train[k], 1, 8, 8)
        assert data.train.x.dtype == torch.float64 and data.train.y.dtype == torch.int64
        assert data.train.x.min() >= 0 and data.train.x.max() <= 1
        counts = torch.bincount(data.train.y, minlength=10).tolist()
        assert counts == fed.label_counts[k].tolist()


def test_splits_of_a_client_share_no_sample():
    fed = digits(num_clients=4, partition="iid")
    for k in range(4):
        train, valid, test = samples(fed, k)
        assert not (train & valid or train & test or valid & test)


def test_fractions():
    fed = digits(num_clients=1, partition="iid", test_fraction=0.25, valid_fraction=0.5)
    client = fed.client(0)
    assert [len(getattr(client, s)) for s in SPLITS] == [674, 674, 449]  # 1797 = 449 + 1348


def test_same_seed_same_data_other_seed_other_data():
    one, two, other = digits(3).client(5), digits(3).client(5), digits(4).client(5)
    assert torch.equal(one.train.x, two.train.x) and torch.equal(one.test.y, two.test.y)
    assert one.train.x.shape != other.train.x.shape or not torch.equal(one.train.x, other.train.x)
    fixed = load_federation(DataConfig(seed=3), 4, torch.float64)
    assert torch.equal(fixed.client(5).train.x, one.train.x)  # data.seed comes first


def test_a_client_is_converted_once_and_survives_pickle():
    fed = digits()
    assert fed.client(2) is fed.client(2)
    again = pickle.loads(pickle.dumps(fed))
    assert torch.equal(again.client(2).train.x, fed.client(2).train.x)


def test_local_label_space():
    whole, local = digits(), digits(label_space="local")
    assert local.num_classes == 2 and local.label_counts.shape == (20, 2)
    for k in range(20):
        classes = np.flatnonzero(local.truth["classes"][k])
        y = torch.from_numpy(classes)[local.client(k).train.y]  # back to the set's numbers
        assert torch.equal(y, whole.client(k).train.y)
        assert local.label_counts[k].sum() == whole.label_counts[k].sum()


def test_limit():
    fed = digits(limit=400, num_clients=5)
    assert sum(len(getattr(fed.client(k), s)) for k in range(5) for s in SPLITS) == 400


def test_caps_per_client():
    fed = digits(num_clients=5, partition="iid", train_per_client=50, test_per_client=7)
    assert fed.num_test.tolist() == [7] * 5
    assert fed.num_train.tolist() == [45] * 5  # 10 % of 50 are for validation


def test_standardise_and_unit_norm():
    plain = digits(num_clients=1, partition="iid", test_fraction=0.001, valid_fraction=0.0)
    x = (
        digits(num_clients=1, partition="iid", test_fraction=0.001, valid_fraction=0.0, standardise=True)
        .client(0)
        .train.x.flatten(1)
    )
    varies = plain.client(0).train.x.flatten(1).std(dim=0) > 0
    assert x[:, varies].mean(dim=0).abs().max() < 1e-9  # the test sample does not count
    assert not x[:, ~varies].isnan().any()
    unit = digits(unit_norm=True).client(0).train.x.flatten(1).norm(dim=1)
    torch.testing.assert_close(unit, torch.ones_like(unit))


def test_normalise_is_one_shift_and_scale_per_channel():
    plain, given = digits(), digits(normalise=True, mean=[0.5], std=[0.25])
    torch.testing.assert_close(given.client(0).train.x, (plain.client(0).train.x - 0.5) / 0.25)
    measured = digits(
        num_clients=1, partition="iid", valid_fraction=0.0, test_fraction=0.001, normalise=True
    ).client(0)
    seen = measured.train.x  # the test sample does not count
    assert abs(seen.mean()) < 1e-9 and abs(seen.std(correction=0) - 1) < 1e-9


def test_rotated_clients_see_rotated_images():
    options = {"num_clients": 4, "partition": "rotations"}
    turned = digits(rotations=[0, 90, 180, 270], **options)
    straight = digits(rotations=[0, 0, 0, 0], **options)
    for k in range(4):
        expected = torch.rot90(straight.client(k).test.x, k, dims=(2, 3))  # counter-clockwise
        assert torch.equal(turned.client(k).test.x, expected)
    assert turned.truth["group"].tolist() == [0, 1, 2, 3]


def test_renumbered_clients():
    fed = digits(num_clients=4, partition="permutations", num_groups=2)
    plain = digits(num_clients=4, partition="permutations", num_groups=1)
    one, two = fed.client(3).train.y, plain.client(3).train.y
    assert not torch.equal(one, two)
    table = set(zip(one.tolist(), two.tolist(), strict=True))
    assert len(table) == 10  # a bijection


def test_mixture_cuts_keep_copies_of_a_sample_together():
    fed = digits(
        num_clients=6,
        partition="mixture",
        mixture="random",
        min_samples=150,
        sources=["all@0", "all@0", "all@0"],
        valid_fraction=0.3,
    )
    assert fed.truth["membership"].shape == (6, 3)
    for k in range(6):
        train, valid, test = samples(fed, k)
        assert not (train & valid or train & test or valid & test)


def test_every_mistake_at_once():
    config = DataConfig(
        name="digit",
        partition="dirichelt",
        alpha=0,
        valid_fraction=1.5,
        sources=["low@90", "all@45"],
        mean=[1.0],
    )
    with pytest.raises(ConfigError) as error:
        load_federation(config, 0)
    text = str(error.value)
    for part in (
        "did you mean 'digits'",
        "did you mean 'dirichlet'",
        "data.alpha is 0",
        "data.valid_fraction is 1.5",
        "'low' is unknown",
        "'all@45'",
        "data.std 0",
    ):
        assert part in text
    assert len(error.value.problems) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clients": None}, "data.num_clients must be a number"),
        ({"partition": "natural"}, "natural clients"),
        ({"min_samples": 9, "max_samples": 3}, "data.min_samples is 9, above"),
        ({"partition": "groups", "clients_per_group": [1, 2], "num_groups": 2}, "sums to 3"),
        ({"partition": "mixture", "sources": ["all", "all", "all"]}, "blends two sources"),
        ({"pool": True, "train_only": True}, "exclude each other"),
        ({"rotations": [45]}, "allowed are 0, 90, 180, 270"),
    ],
)
def test_keys_that_do_not_fit_together(options, message):
    problems = DataConfig(**options).check()
    assert len(problems) == 1 and message in problems[0]


def test_more_clients_than_samples():
    with pytest.raises(DataError, match=r"data.num_clients is 5000, but there are 1797"):
        digits(num_clients=5000)
    with pytest.raises(DataError, match="use fewer"):
        digits(num_clients=1500, partition="iid")  # no room for three splits


def test_rows_of_the_table_are_described():
    assert all(entry.text and callable(entry.function) for entry in DATASETS.values())


CONF = Path(fedpers.conf.__file__).parent / "data"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda p: p.stem)
def test_yaml_files_are_valid_configurations(path):
    values = yaml.safe_load(path.read_text())
    assert values.get("library", values["name"]) == path.stem
    assert DataConfig(**values).check() == []


def test_every_set_has_a_yaml_file():
    assert {p.stem for p in CONF.glob("*.yaml")} == set(DATASETS)


def test_a_cap_keeps_all_classes():
    fed = digits(num_clients=2, partition="classes", classes_per_client=10, test_per_client=60)
    assert len(fed.client(0).test.y.unique()) == 10
