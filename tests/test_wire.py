"""Records as bytes, in messages and in files."""

import random

import pytest
import torch

from fedpers.core.errors import CheckpointError, FedpersError
from fedpers.core.pytree import RECORDS, record, record_name
from fedpers.core.serialization import num_bytes, pack, read_record, unpack, write_record
from fedpers.engines.memory.client_store import FileStore
from fedpers.flower.messages import open_content, seal


@record
class Inner:
    values: dict[str, torch.Tensor]


@record
class Thing:
    inner: Inner
    parts: tuple[torch.Tensor, ...]
    rate: float
    name: str | None


def thing():
    inner = Inner({"a": torch.arange(6.0).reshape(2, 3)})
    return Thing(inner, (torch.tensor([1, 2]), torch.tensor(3.5)), 0.1, None)


def check(back):
    want = thing()
    assert (back.rate, back.name) == (want.rate, want.name)
    assert torch.equal(back.inner.values["a"], want.inner.values["a"])
    assert isinstance(back.parts, tuple)
    assert back.parts[0].dtype == torch.int64
    assert back.parts[1].shape == ()


def test_round_trip():
    check(unpack(*pack(thing())))


def test_a_shared_tensor_travels_once_and_is_counted_once():
    t = torch.zeros(100)
    skeleton, arrays = pack({"x": t, "y": t})
    assert len(arrays) == 1
    assert num_bytes({"x": t, "y": t}) == 400
    assert torch.equal(unpack(skeleton, arrays)["y"], t)


def test_a_record_keeps_its_name_wherever_its_class_lives():
    from fedpers.clients.fedsoft import Train
    from fedpers.core.data import Data

    assert record_name(Data) == "core.Data"
    assert record_name(Train) == "fedsoft.Train"
    assert record_name(int) is None


def test_two_classes_cannot_have_one_name():
    from fedpers.core.data import Data

    with pytest.raises(FedpersError, match=r"two records are called core\.Data"):
        record("core.Data")(type("Data", (), {}))
    assert RECORDS["core.Data"] is Data


def test_only_known_records_come_back():
    skeleton, arrays = pack(thing())
    with pytest.raises(FedpersError, match="cannot be read back"):
        unpack(skeleton.replace("Thing", "Thong"), arrays)
    with pytest.raises(FedpersError, match="cannot be read back"):
        unpack(skeleton[:-5], arrays)
    with pytest.raises(FedpersError, match="use records of tensors"):
        pack({"x": object()})


def test_sealed_content_is_ordinary_flower():
    content = seal({"kind": "train"}, thing())
    assert list(content.array_records) == ["arrays"]
    assert content["config"]["kind"] == "train"
    check(open_content(content)[1])


def test_files(tmp_path):
    path = tmp_path / "deep" / "thing.safetensors"
    write_record(path, thing())
    check(read_record(path))
    assert [p.name for p in path.parent.iterdir()] == ["thing.safetensors"]
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=r"thing.safetensors is missing, truncated"):
        read_record(path)


def test_a_file_whose_records_have_other_fields_now_is_refused_by_name(tmp_path, monkeypatch):
    path, name = tmp_path / "thing.safetensors", record_name(Thing)
    write_record(path, thing())
    monkeypatch.setitem(RECORDS, name, type("Thing", (), {"__init__": lambda self, inner, more: None}))
    with pytest.raises(
        CheckpointError, match=r"thing.safetensors was written by another version.*start the run anew"
    ):
        read_record(path)


def test_mutated_files_are_refused_or_equal(tmp_path):
    """2,000 changes of one to four bytes, or cuts: never other numbers than were written."""
    path, rng, refused = tmp_path / "state.safetensors", random.Random(0), 0
    write_record(path, thing())
    whole = path.read_bytes()
    for _ in range(2000):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
        try:
            check(read_record(path))
        except CheckpointError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 1900


def test_file_store_goes_back_to_the_last_checkpoint(tmp_path):
    store = FileStore(tmp_path, keep_rounds=3)
    for t in range(1, 8):
        store.put(0, (t, 0), Inner({"a": torch.tensor(float(t))}))
    value = lambda when: float(store.get(0, when).values["a"])  # noqa: E731
    assert value((8, 0)) == 7
    assert value((5, 0)) == 4  # a server resumed at round 4
    store.put(0, (5, 0), Inner({"a": torch.tensor(50.0)}))  # rounds 6 and 7 never were
    assert value((9, 0)) == 50
    assert store.get(1, (9, 0)) is None
    assert len(list((tmp_path / "0").iterdir())) <= 5
