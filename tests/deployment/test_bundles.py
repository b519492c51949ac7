"""The arrays of a message travel together: few of Flower's objects, the same arrays in the same order."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedpers.deploy import bundles
from fedpers.deploy.answers import Refused, opened
from fedpers.flower.internals import begin_run
from fedpers.flower.messages import Header, seal
from tests.deployment.fake_link import unbundled

ARRAYS = [np.arange(n, dtype=dtype) for n, dtype in ((3, "f4"), (0, "f4"), (2, "i8"), (5, "f8"), (1, "?"))]


def content(arrays: list[np.ndarray]) -> RecordDict:
    return seal({"kind": "train"}, {str(i): torch.from_numpy(a) for i, a in enumerate(arrays)})


@pytest.mark.parametrize("most", [1, 140, 300, 2**24])
def test_what_comes_out_is_what_went_in(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(bundles, "MOST", most)
    stored = ArrayRecord({str(i): Array(a) for i, a in enumerate(ARRAYS)})
    given = [a.data for a in stored.values()]
    record = bundles.bundled(RecordDict({"arrays": stored}))["arrays"]
    assert [part for array in record.values() for part in bundles.parts(array)] == given
    found = unbundled(RecordDict({"arrays": record}))
    assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, ARRAYS, strict=True))
    sizes = [len(array.data) for array in record.values()]
    assert len(record) == {1: 5, 140: 5, 300: 3, 2**24: 1}[most], sizes  # 128 bytes before an array's numbers
    assert all(
        size <= most for size, a in zip(sizes, record.values(), strict=True) if a.stype == bundles.STYPE
    )
    assert not stored, "memory could not be freed"


def test_a_hundred_tensors_are_six_of_flowers_objects() -> None:
    begin_run()
    sent = bundles.bundled(content([np.zeros((4, 4), np.float32) + i for i in range(100)]))
    assert len(get_all_nested_objects(Message(sent, 1, "train"))) <= 6


@pytest.mark.parametrize("sizes", [(), (1,), (140,), (140, 141), (280, 0), (281, -1), (10**12,)])
def test_sizes_that_are_not_those_of_the_parts_are_refused(sizes: tuple[int, ...]) -> None:
    begin_run()
    sent = bundles.bundled(content([np.zeros(3, np.float32), np.zeros(3, np.float32)]))
    record: ArrayRecord = sent["arrays"]  # type: ignore[assignment]
    assert record["0"].shape == (140, 140)
    record["0"] = Array("npy", sizes, bundles.STYPE, record["0"].data)
    with pytest.raises(Refused, match=r"arrays\[0\] cannot be read: ValueError"):
        opened(Message(sent, 1, Header("train").kind))
