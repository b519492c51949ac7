"""Answers of a device with one to three changes that no honest device makes."""

import contextlib
import copy
import json
import random
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedpers.core.serialization import pack
from fedpers.deploy import resident
from fedpers.deploy.bundles import STYPE, bundled
from fedpers.deploy.deal import deal
from fedpers.flower.internals import begin_run, set_message_id
from fedpers.flower.messages import Header, seal
from tests.deployment.fake_link import DATA, load

NAMES = ("site-0", "site-1")
ODD: list[Any] = [-1, 0, 1, 2**62, 10**18, 1.5, 99.0, float("nan"), float("inf"), "x", "", b"x", True, False]
ODD += [[], [1], [1, 2, 3], ["a", "b"], [-5, 7], [2, 0], [float("nan")], [True, False]]
NUMBERS = [float("nan"), float("inf"), -float("inf"), 99.0, -1.0, 1e18, 1e300, 0.5, 0, "x", None, True]
DTYPES = ["f8", "f4", "i4", "i8", "?", "u1", "f2", "c8"]


def device_answer(folder: Path, config: str, header: dict[str, Any], body: Any) -> RecordDict:
    """What the device of site-0 answers to an order, in this process."""
    data = folder / "data"
    if not data.exists():
        deal(load(["data=digits", *DATA]).data, 3, data)
    node = {"client": NAMES[0], "data": str(data / "site-0.npz"), "state": str(folder / "state")}
    skeleton, arrays = pack(body)
    request = {"header": {**header, "skeleton": skeleton}, "node": node, "config": config}
    found, packed = resident.answer(request, [a.copy() for a in arrays])
    record = ArrayRecord({str(i): Array(a) for i, a in enumerate(packed)})
    return RecordDict({"arrays": record, "config": ConfigRecord(found)})


def reply(content: RecordDict, header: Header) -> Message:
    begin_run()
    asked = Message(seal(header._asdict(), None), 5, header.kind)
    set_message_id(asked, 1)
    return Message(content, reply_to=asked)


def mutant(valid: RecordDict, rng: random.Random) -> RecordDict:
    """The same answer, changed."""
    content = RecordDict(
        {
            "arrays": ArrayRecord({k: copy.copy(a) for k, a in valid["arrays"].items()}),
            "config": ConfigRecord(dict(valid["config"])),
        }
    )
    for _ in range(rng.randint(1, 3)):
        with contextlib.suppress(
            KeyError, IndexError, ValueError, TypeError, OverflowError, SyntaxError, TokenError
        ):  # nothing left to change there, or NumPy cannot read what is mutated already
            rng.choice([_header, _header, _skeleton, _arrays, _arrays, _records])(content, rng)
    return _put_together(content, rng) if rng.randrange(2) else content


def _put_together(content: RecordDict, rng: random.Random) -> RecordDict:
    """As devices send it; sometimes with sizes that are not those of the parts."""
    content = bundled(content)
    record: Any = content.get("arrays", {})
    for key, array in record.items():
        if array.stype == STYPE and not rng.randrange(4):
            sizes = list(array.shape)
            sizes[rng.randrange(len(sizes))] += rng.choice([-1, 1, 10**12, -(10**12)])
            more = rng.choice([sizes, sizes[:-1], [*sizes, 0], [*sizes, -1, 1], sizes[::-1]])
            record[key] = Array(array.dtype, tuple(more), STYPE, array.data)
    return content


def _header(content: RecordDict, rng: random.Random) -> None:
    config: Any = content["config"]
    key = rng.choice(list(config))
    what = rng.randrange(8)
    if what == 0:
        del config[key]
    elif what == 1:
        config[rng.choice(["more", "num-examples", "test_accuracy"])] = rng.choice([1, 0.5, "x"])
    elif what == 2 and isinstance(config[key], list):
        config[key] = _changed_list(list(config[key]), rng)
    else:
        config[key] = rng.choice(ODD)


def _changed_list(values: list[Any], rng: random.Random) -> list[Any]:
    what = rng.randrange(4)
    if what == 0:
        return values[:-1]
    if what == 1:
        return [*values, 1]
    if what == 2:
        return [float(v) for v in values]
    values[rng.randrange(len(values))] = rng.choice([-1, 10**18, 3])
    return values


def _skeleton(content: RecordDict, rng: random.Random) -> None:
    config: Any = content["config"]
    text = str(config["skeleton"])
    if rng.randrange(2):
        letters = list(text)
        for _ in range(rng.randint(1, 5)):
            letters[rng.randrange(len(letters))] = rng.choice('{}[]":,0123456789rftdlvx-eN')
        config["skeleton"] = "".join(letters)
        return
    tree = json.loads(text)
    part = rng.choice(parts(tree))
    if "d" in part and rng.randrange(2):
        what = rng.randrange(4)
        if what == 0:
            part["d"].pop(rng.randrange(len(part["d"])))
        elif what == 1:
            part["d"].append([rng.choice(["test_more", "own_loss", "w"]), {"v": 0.5}])
        elif what == 2:
            part["d"].reverse()
        else:
            part["d"] = []
    elif "t" in part:
        part.update(t=rng.choice([0, 1, 99, -1, "0", True]))
    elif "v" in part:
        part.update(v=rng.choice(NUMBERS))
    else:
        part.clear()
        part.update(rng.choice([{"v": None}, {"v": 1}, {"l": [], "tuple": True}, {"d": []}]))
    config["skeleton"] = json.dumps(tree)


def parts(node: Any) -> list[dict[str, Any]]:
    """The nodes of a skeleton."""
    if isinstance(node, dict):
        mine = [node] if node.keys() & {"t", "v", "d", "l", "r"} else []
        return mine + [p for v in node.values() for p in parts(v)]
    return [p for v in node for p in parts(v)] if isinstance(node, list) else []


def _arrays(content: RecordDict, rng: random.Random) -> None:
    record: Any = content["arrays"]
    if not record:
        record["0"] = Array(np.zeros(2, np.float32))
        return
    key = rng.choice(list(record))
    values = record[key].numpy()
    what = rng.randrange(8)
    if what == 0:
        record[key] = Array(np.full_like(values, rng.choice([np.nan, np.inf, -np.inf, 0.0, 1e30])))
    elif what == 1:
        one = values.copy()
        one.reshape(-1)[rng.randrange(one.size)] = rng.choice([np.nan, np.inf, -np.inf])
        record[key] = Array(one)
    elif what == 2:
        record[key] = Array(rng.choice([values.reshape(-1)[:1], values[None], values[..., :-1], values.T]))
    elif what == 3:
        record[key] = Array(values.astype(rng.choice(DTYPES)))
    elif what == 4:
        del record[key]
    elif what == 5:
        record[str(len(record))] = Array(values)
    elif what == 6:
        data = bytearray(record[key].data)
        data[rng.randrange(len(data))] = rng.randrange(256)
        record[key] = Array(str(values.dtype), values.shape, "numpy.ndarray", bytes(data))
    else:
        honest = (str(values.dtype), values.shape, "numpy.ndarray")
        lie = rng.choice([("float64", *honest[1:]), (honest[0], (1,), honest[2]), (*honest[:2], "pickle")])
        record[key] = Array(*lie, record[key].data)


def _records(content: RecordDict, rng: random.Random) -> None:
    what = rng.randrange(3)
    if what == 0:
        del content[rng.choice(["arrays", "config"])]
    elif what == 1:
        content["metrics"] = MetricRecord({"num-examples": rng.choice([1, 10**18])})
    else:
        content["arrays"] = ArrayRecord()
