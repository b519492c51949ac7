"""Data sets of other libraries and packages: Hugging Face, entry points, Shakespeare, tables."""

import importlib.metadata
import json
import re
from itertools import chain

import numpy as np
import pandas as pd
import pytest
import torch
from hydra.core.config_store import ConfigStore

import fedpers
from fedpers.config import compose
from fedpers.core.errors import DataError
from fedpers.datasets import registry
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import build, load_federation
from fedpers.datasets.raw import Raw
from fedpers.datasets.shakespeare import ALPHABET, tokens_of, windows

RNG = np.random.default_rng(0)


def hub(folder, **options):
    options = {"partition": "iid", "num_clients": 4, **options}
    return load_federation(DataConfig(name=str(folder), library="huggingface", **options), 0)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A set of 40 rows on disk: x of three numbers, a class, an owner."""
    datasets = pytest.importorskip("datasets")
    x = RNG.normal(size=(40, 3)).astype(np.float32)
    columns = {
        "x": x.tolist(),
        "label": (np.arange(40) % 4).tolist(),
        "client": (np.arange(40) // 8).tolist(),
    }
    made = datasets.Dataset.from_dict(columns)
    folder = tmp_path_factory.mktemp("hub") / "set"
    made.save_to_disk(folder)
    return folder, x, made


def test_a_set_of_hugging_face_is_dealt_or_keeps_its_clients(table):
    folder, x, _ = table
    federation = hub(folder)
    found = torch.cat(
        [p.x for k in range(4) for c in [federation.client(k)] for p in (c.train, c.valid, c.test)]
    )
    assert sorted(found[:, 0].tolist()) == sorted(x[:, 0].tolist())
    natural = hub(folder, partition="natural", num_clients=None)
    assert natural.num_clients == 5
    first = natural.client(0)
    mine = torch.cat([first.train.x, first.valid.x, first.test.x])
    assert sorted(mine[:, 0].tolist()) == sorted(x[:8, 0].tolist())


def test_a_partitioner_of_flwr_datasets_deals(table):
    pytest.importorskip("flwr_datasets")
    options = {"num_partitions": 4, "partition_by": "label"}
    federation = hub(
        table[0], partition="natural", num_clients=None, partitioner="NaturalIdPartitioner",
        partitioner_options={"partition_by": "label"},
    )  # fmt: skip
    assert federation.num_clients == 4
    assert (federation.label_counts > 0).sum(1).tolist() == [1, 1, 1, 1]  # a class a client
    with pytest.raises(DataError, match=r"PathologicalPartitioner.*partitioner_options"):
        hub(table[0], partition="natural", num_clients=None, partitioner="PathologicalPartitioner",
            partitioner_options=options)  # fmt: skip


def dealt(folder, run_seed, name, **options):
    keys = {"partition": "natural", "num_clients": None, "partitioner": name, "partitioner_options": options}
    return load_federation(DataConfig(name=str(folder), library="huggingface", **keys), run_seed)


def rows(federation):
    """The rows of each client, by their first value, in any order."""
    clients = [federation.client(k) for k in range(federation.num_clients)]
    return [sorted(v for s in (c.train, c.valid, c.test) for v in s.x[:, 0].tolist()) for c in clients]


def test_a_partitioner_draws_by_the_seed_of_the_run(table):
    pytest.importorskip("flwr_datasets")
    name, keys = "PathologicalPartitioner", {"num_partitions": 4, "partition_by": "label"}
    keys["num_classes_per_partition"] = 2
    found = [rows(dealt(table[0], run, name, **keys)) for run in (0, 0, 1, 2)]
    assert found[0] == found[1] and found[0] != found[2] != found[3] != found[0]
    assert rows(dealt(table[0], 1, name, **keys, seed=None)) == found[2]
    given = [rows(dealt(table[0], run, name, **keys, seed=7)) for run in (0, 1)]
    assert given[0] == given[1]  # the arguments' seed comes first


@pytest.mark.parametrize(
    "name, options, sizes",
    [
        ("IidPartitioner", {"num_partitions": 4}, [10] * 4),
        ("SizePartitioner", {"partition_sizes": [5, 15, 20]}, [5, 15, 20]),
        ("LinearPartitioner", {"num_partitions": 4}, [4, 8, 12, 16]),
    ],
)
def test_a_partitioner_without_a_seed_deals_otherwise_for_another_seed(table, name, options, sizes):
    pytest.importorskip("flwr_datasets")
    found = [rows(dealt(table[0], run, name, **options)) for run in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert all([len(mine) for mine in dealt_rows] == sizes for dealt_rows in found)
    assert sorted(chain(*found[0])) == sorted(chain(*found[2]))  # nobody's row is lost or given twice


def test_rows_that_a_partitioner_drops_are_counted(table):
    pytest.importorskip("flwr_datasets")
    federation = dealt(table[0], 0, "SizePartitioner", partition_sizes=[10, 12])
    assert [len(mine) for mine in rows(federation)] == [10, 12]
    assert "data.partitioner=SizePartitioner gives 18 of 40 rows to no client" in federation.notes
    assert not any("no client" in n for n in dealt(table[0], 0, "IidPartitioner", num_partitions=4).notes)


def test_splits_and_images_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    def part(n):
        images = [Image.new("L", (5, 4), i) for i in range(n)]
        return datasets.Dataset.from_dict({"image": images, "label": [i % 2 for i in range(n)]})

    made = datasets.DatasetDict({"train": part(8), "validation": part(4)})
    made.save_to_disk(tmp_path / "set")
    federation = hub(tmp_path / "set", num_clients=2, features=("image",), valid_fraction=0)
    assert federation.input_shape == (1, 4, 5)
    assert [len(federation.client(k).train) for k in (0, 1)] == [4, 4]
    assert [len(federation.client(k).test) for k in (0, 1)] == [2, 2]


def test_a_dataset_object_and_a_frame_stand_for_arrays(table):
    frame = pd.DataFrame(table[1], columns=list("abc")).assign(label=np.arange(40) % 4)
    made = table[2].remove_columns("client")
    federation = fedpers.Federation.from_arrays([made, frame])
    one, two = federation.client(0), federation.client(1)
    assert federation.input_shape == (3,)
    whole = [torch.cat([c.train.x, c.valid.x, c.test.x])[:, 0].sort()[0] for c in (one, two)]
    torch.testing.assert_close(whole[0], whole[1])


def test_options_can_be_given_on_the_command_line():
    keys = ["data=huggingface", "data.name=ag_news", "data.options={name:plain}"]
    keys += ["data.partition=natural", "data.num_clients=null", "data.partitioner=IidPartitioner"]
    data = compose.load([*keys, "data.partitioner_options={num_partitions:3}"]).data
    assert (data.name, data.options, data.partitioner_options) == (
        "ag_news",
        {"name": "plain"},
        {"num_partitions": 3},
    )


def test_no_network_is_one_message(monkeypatch):
    pytest.importorskip("datasets")
    import datasets

    def offline(*args, **kwargs):
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(
        DataError, match=r"data.name=no/such: cannot be loaded: ConnectionError: offline; without"
    ):
        hub("no/such")


# ---- sets of other packages ---------------------------------------------------------------------


def halves(cfg, rng):
    x = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
    return Raw(cfg.name, x, (x[:, 0] > 0).astype(np.int64), x[:0], np.zeros(0, np.int64), 2)


def test_other_packages_add_sets(monkeypatch):
    class Entry:
        def __init__(self, name, value):
            self.name, self.value, self.made = name, str(value), value

        def load(self):
            return self.made

    found = [Entry("halves", registry.DataSet("two halves", halves)), Entry("digits", 1), Entry("odd", 2)]
    real = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **k: found if k.get("group") == "fedpers.datasets" else real(**k),
    )
    registry.data_sets.cache_clear()
    try:
        with pytest.warns(RuntimeWarning) as warned:
            run = compose.load(["data=halves", "data.num_clients=3", "data.partition=iid"])
        assert len(warned) == 2
        assert load_federation(run.data, 0).num_clients == 3
    finally:
        registry.data_sets.cache_clear()
        ConfigStore.instance().repo["data"].pop("halves.yaml", None)


@pytest.mark.parametrize("label", [2, -1])
def test_a_set_with_a_label_that_is_no_class_is_refused(label):
    y = np.array([0, 1, label] * 10)
    raw = Raw("own", np.zeros((30, 2), np.float32), y, np.zeros((0, 2), np.float32), y[:0], 2)
    with pytest.raises(DataError, match=rf"has the label {label} \(10 samples .*0 to 1"):
        build(DataConfig(partition="iid", num_clients=2), raw, 0, torch.float32)


# ---- Shakespeare and tables ---------------------------------------------------------------------


def test_windows_of_a_text():
    tokens = tokens_of("To be\u2014or" + "x" * 90)
    assert [ALPHABET[i] for i in tokens[:6]] == ["T", "o", " ", "b", "e", "}"]
    x, y = windows(tokens, 5)
    assert x.shape == (4, 80) and (x[1] == tokens[5:85]).all() and y[1] == tokens[85]


def test_shakespeare_by_role(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    texts = {"HAMLET": "words " * 100, "GHOST": "list, " * 90, "CLERK": "Sir."}
    users = {"user_data": {name: {"raw": text} for name, text in texts.items()}}
    (tmp_path / "shakespeare" / "all.json").write_text(json.dumps(users))
    run = compose.load(["data=shakespeare", f"data.root={tmp_path}", "data.num_clients=null", "model=lstm"])
    federation = load_federation(run.data, 0)
    assert (federation.num_clients, federation.input_shape) == (2, (80,))  # the clerk says too little
    assert federation.notes[0].startswith("1 of 3 roles say too little")
    assert (federation.num_classes, federation.tokens) == (80, 80)
    part = federation.client(1).train  # HAMLET, in the order of names
    assert {ALPHABET[i] for i in part.x.unique().long()} == set("words ")


RAW = "To be, or  not to be:\nthat is   the question.\n\n" * 5


def leaf_samples(text):
    """As LEAF's __txt_to_data makes them, with a stride of one."""
    text = re.sub(r"   *", r" ", text.replace("\n", " "))
    starts = range(0, len(text) - 80)
    return {"x": [text[i : i + 80] for i in starts], "y": [text[i + 80] for i in starts]}


@pytest.mark.parametrize("kind", ["raw", "samples"])
def test_shakespeare_has_the_samples_of_leaf(kind, tmp_path):
    """With data.stride=1 each sample is one of LEAF's, and LEAF's are ours but for those across the cut."""
    (tmp_path / "shakespeare").mkdir()
    user = {"raw": RAW} if kind == "raw" else leaf_samples(RAW)
    (tmp_path / "shakespeare" / "all.json").write_text(json.dumps({"user_data": {"HAMLET": user}}))
    words = ["data=shakespeare", f"data.root={tmp_path}", "data.num_clients=1", "data.stride=1", "model=lstm"]
    client = load_federation(compose.load([*words, "data.test_fraction=0.45"]).data, 0).client(0)
    parts = (client.train, client.valid, client.test)
    ours = {"".join(ALPHABET[int(i)] for i in [*x, y]) for p in parts for x, y in zip(p.x, p.y, strict=True)}
    theirs = leaf_samples(RAW)
    said = [x + y for x, y in zip(theirs["x"], theirs["y"], strict=True)]
    assert ours <= set(said) and len(said) - sum(len(p.y) for p in parts) == 80


def test_samples_that_are_no_windows_of_one_text_are_refused(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    samples = leaf_samples(RAW)
    samples["x"][3] = samples["x"][7]
    (tmp_path / "shakespeare" / "all.json").write_text(json.dumps({"user_data": {"HAMLET": samples}}))
    with pytest.raises(DataError, match="not the windows of one text"):
        load_federation(compose.load(["data=shakespeare", f"data.root={tmp_path}", "model=lstm"]).data, 0)


@pytest.mark.parametrize("name, task", [("breast_cancer", "binary"), ("diabetes", "regression")])
def test_tables_that_come_along(name, task):
    federation = load_federation(compose.load([f"data={name}"]).data, 0)
    assert (federation.num_clients, federation.task) == (8, task)
    whole = torch.cat([federation.client(k).train.x for k in range(8)])  # what the scale is measured on
    torch.testing.assert_close(whole.mean(0), torch.zeros(whole.shape[1]), atol=1e-4, rtol=0)
