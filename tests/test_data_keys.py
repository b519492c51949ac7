"""Every key of `data.` for every registered set and partition: it changes something or is refused."""

import hashlib
import inspect
from dataclasses import fields, replace

import numpy as np
import pytest
import yaml

from fedpers.config import compose
from fedpers.core.errors import ConfigError, DataError
from fedpers.datasets import files, own, registry
from fedpers.datasets.config import DataConfig, unused
from fedpers.datasets.federation import load_federation
from fedpers.datasets.keys import GENERATED, IGNORED_BY, UNTESTED, USED_BY
from fedpers.datasets.partition import PARTITIONS
from fedpers.datasets.raw import Raw

OTHER = {  # key: a value that is not its default
    "seed": 7, "limit": 300, "num_clients": 5, "min_size": 60, "classes_per_client": 3,
    "shards_per_client": 3, "alpha": 5.0, "balanced": "true", "num_clusters": 1, "num_groups": 3,
    "groups": "[[0,1,2,3,4],[5,6,7,8,9]]", "clients_per_group": "[2,4]", "random_groups": "true",
    "rotations": "[0,180]", "sources": "[all@0,all@180]", "replacement": "false", "mixture": "random",
    "min_samples": 50, "max_samples": 130, "train_per_client": 7, "test_per_client": 3, "valid_fraction": 0.3,
    "test_fraction": 0.4, "pool": "true", "train_only": "true", "holdout": 5, "label_space": "local",
    "normalise": "true", "mean": "[0.3]", "std": "[0.2]", "standardise": "true", "unit_norm": "true",
    "file": "w8a", "rotate": "false", "omniglot_split": "before_rotation", "omniglot_clients": "drawer",
    "digest": "abc", "options": "{a:1}", "features": "[a]", "partitioner": "IidPartitioner",
    "partitioner_options": "{num_partitions:2}", "stride": 3, "path": "elsewhere", "target": "t",
    "client": "c", "missing": "drop", "tokens": "true", "image_size": "[4,4]", "input_shape": "[3]",
    "class_names": "[a,b,c,d,e,f,g,h,i,j]", "task": "binary", "dim": 7, "num_classes": 4, "num_samples": 900,
    "separation": 1.0, "num_sources": 4, "noise": 0.7, "theta_var": 2.0, "sigma_h": 0.9,
    "negatives": 2, "candidates": 7, "time": "when", "public": 20,
}  # fmt: skip
OTHERWISE = {"label_space": "global", "standardise": False, "normalise": False, "train_only": False,
             "pool": False, "rotate": True}  # fmt: skip  # where the set's file has that value
WHICH = {"name", "library", "partition", "root",  # choose the set, the partition, the place of all sets
         "public_file"}  # fmt: skip  # read by the server of a method that asks for it, else refused
BY_LOADER = {  # keys that the function of a set itself reads: how, in its source
    **{k: f"cfg.{k}" for k in (
        "file", "rotate", "omniglot_split", "omniglot_clients", "options", "features", "partitioner",
        "partitioner_options", "stride", "path", "target", "client", "missing", "tokens", "image_size",
        "task", "negatives", "candidates", "time")},
}  # fmt: skip
ON_DEVICES = {"seed", "num_clients", "test_fraction", "valid_fraction", "standardise", "input_shape",
              "missing", "class_names", "task", "image_size", "num_classes"}  # fmt: skip
SIZES = np.arange(20, 140, 10)  # samples of twelve natural clients
BASE = {
    "libsvm": ["data.file=a9a"],
    "files": ["data.path=somewhere", "data.num_clients=6"],
    "huggingface": ["data.name=somewhere", "data.num_clients=6"],
    "cifar100": ["data.classes_per_client=4", "data.num_clients=6"],
    **{n: ["data.min_size=1", "data.num_clients=6"] for n in ("shakespeare", "tff_shakespeare")},
    **{name: ["data.dim=5", "data.num_clients=6", "data.test_per_client=20"] for name in GENERATED},
    "synthetic_sine": ["data.num_clients=6"],
}


def made_up(cfg, rng):
    """A set with a test part and twelve natural clients: stands for one whose files are not there."""
    owner = np.repeat(np.arange(12), SIZES)
    y = (np.arange(len(owner)) * 7 + owner) % (10 - owner % 3)  # some clients lack classes
    channels = 3 if cfg.name.startswith("cifar") else 1
    x = np.random.default_rng(0).integers(0, 255, (len(y), channels, 8, 8)).astype(np.uint8)
    half = np.arange(len(y)) % 3 == 0
    own = cfg.kind in ("files", "huggingface")
    names = tuple(f"client {k}" for k in range(12)) if own else ()
    return Raw(cfg.name, x[~half], y[~half], x[half], y[half], 10, owner=owner[~half], test_owner=owner[half],
               names=names, own=own)  # fmt: skip


def untested(cfg, rng):
    """The same without a test part."""
    whole = made_up(cfg, rng)
    return Raw(cfg.name, whole.x, whole.y, whole.x[:0], whole.y[:0], 10, owner=whole.owner,
               test_owner=whole.owner[:0])  # fmt: skip


LOADED = {"digits", "synthetic_classes", "breast_cancer", "diabetes", *GENERATED}  # need no files
REAL = dict(registry.DATASETS)
NOWHERE = {"device", "python"}  # their samples are elsewhere


@pytest.fixture(autouse=True)
def without_files(monkeypatch):
    for name, row in registry.DATASETS.items():
        if name not in LOADED | NOWHERE:
            stand_in = untested if name in UNTESTED else made_up
            monkeypatch.setitem(
                registry.DATASETS, name, registry.DataSet(row.text, stand_in, "", row.natural)
            )
    registry.data_sets.cache_clear()
    yield
    registry.data_sets.cache_clear()


def content(data) -> str:
    """A digest of everything that a federation holds."""
    federation = load_federation(data, 0)
    digest = hashlib.sha256(repr((federation.num_clients, federation.input_shape, federation.notes)).encode())
    parts = [federation.client(k) for k in range(federation.num_clients)]
    tensors = [t for c in parts for d in (c.train, c.valid, c.test) for t in (d.x, d.y)]
    tensors += [t for d in federation.holdout.values() for t in (d.x, d.y)]
    for array in [*(t.numpy() for t in tensors), *federation.truth.values(), federation.label_counts]:
        digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def with_key(base, key):
    """The configuration with another value of the key, and with the one that it needs."""
    pair = {"mean": {"std": (0.2,)}, "std": {"mean": (0.3,)}}.get(key, {})
    value = yaml.safe_load(str(OTHER[key]))
    return replace(base, **{key: OTHERWISE[key] if getattr(base, key) == value else value}, **pair)


def refused(data, key) -> str:
    """What is said against the key before anything is loaded; "" if nothing is."""
    return "; ".join([*data.check(), *unused(data, [key])])


def silent(base, keys) -> list[str]:
    """The keys whose other values change nothing without a word."""
    plain, found = content(base), []
    for key in keys:
        data = with_key(base, key)
        said = refused(data, key)
        try:
            changed = not said and content(data) != plain
        except (ConfigError, DataError) as error:
            said, changed = str(error), False
        if not changed and f"data.{key}" not in said:
            found.append(f"{key}: {said}")
    return found


def words_of(name: str) -> list[str]:
    few = [] if name in NOWHERE or name in BASE else ["data.num_clients=6"]
    return [f"data={name}", "method=fedavg", *few, *BASE.get(name, [])]


def test_every_key_has_another_value():
    assert OTHER.keys() == {f.name for f in fields(DataConfig)} - WHICH


@pytest.mark.parametrize("name", [n for n in registry.DATASETS if n not in NOWHERE])
def test_a_key_of_a_set_changes_something_or_is_refused_by_name(name):
    base = compose.load(words_of(name)).data
    source = "".join(map(inspect.getsource, [inspect.getmodule(REAL[name].function), own, files]))
    keys = [*BY_LOADER, *(["test_fraction"] if name == "shakespeare" else [])]
    by_loader = [k for k in keys if not refused(with_key(base, k), k)]
    assert not [k for k in by_loader if BY_LOADER.get(k, f"cfg.{k}") not in source]
    assert not silent(base, OTHER.keys() - set(by_loader))


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if p != "natural"])
def test_a_key_of_a_partition_changes_something_or_is_refused_by_name(partition):
    words = ["data=digits", "method=fedavg", "data.num_clients=6", f"data.partition={partition}"]
    words += {"dirichlet": ["data.alpha=0.05"]}.get(partition, [])
    assert not silent(compose.load(words).data, [k for k in USED_BY if set(USED_BY[k]) & PARTITIONS.keys()])


@pytest.mark.parametrize("name", sorted(NOWHERE))
def test_keys_of_sets_that_are_elsewhere_are_used_there_or_refused(name):
    words = ["data=device", "data.input_shape=[4]"] if name == "device" else ["data=python", "data.digest=x"]
    base = compose.load([*words, "method=fedavg"]).data
    for key in OTHER.keys() - (ON_DEVICES if name == "device" else {"digest"}):
        assert f"data.{key}" in refused(with_key(base, key), key), key


def test_keys_without_effect_beside_others_are_refused():
    for words, key in [
        (["data=digits", "data.standardise=true", "data.normalise=true"], "normalise"),
        (
            ["data=digits", "data.partition=groups", "data.groups=[[0,1],[2,3]]", "data.num_groups=2"],
            "num_groups",
        ),
    ]:
        with pytest.raises(ConfigError, match=f"data.{key}=.*without effect"):
            compose.load(["method=fedavg", *words])


def test_a_key_that_asks_for_nothing_is_no_mistake():
    words = [
        "data=digits",
        "method=fedavg",
        "data.pool=false",
        "data.standardise=true",
        "data.normalise=false",
    ]
    assert compose.load(words).data.standardise is True


def test_sets_and_keys_of_the_tables_are_known():
    names, keys = {*registry.DATASETS, *PARTITIONS}, {f.name for f in fields(DataConfig)}
    for table in (USED_BY, IGNORED_BY):
        assert table.keys() <= keys and {n for users in table.values() for n in users} <= names
