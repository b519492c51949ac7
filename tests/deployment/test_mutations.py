"""Ten thousand mutated replies: none crashes the server, none that is taken is unfit, the sender is named."""

import contextlib
import random
from collections import Counter
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpers.core.params import Params
from fedpers.core.pytree import leaves, record
from fedpers.deploy import device_grid
from fedpers.deploy.device_grid import DeviceGrid, Watch
from fedpers.deploy.ledger import Facts, Ledger
from fedpers.flower.internals import begin_run, set_message_id
from fedpers.flower.messages import COST, Header, seal
from fedpers.flower.validation import Inspector, shape_problem
from tests.deployment.fake_link import configs

MUTANTS = 10  # of one seed
HEADER = Header("train", 2, 0)


@record("tests.Mutated")
class Trained:
    """An order and a reply."""

    params: Params
    step: float


BODY = Trained({"w": torch.ones(2, 3), "b": torch.zeros(3)}, 0.5)
seen: Counter[str] = Counter()


def grid() -> DeviceGrid:
    _, cfg = configs("fedavg", 1)
    ledger = Ledger()
    ledger.enrol({"site-a": Facts(3, 1, (1, 2)), "site-b": Facts(3, 1, (1, 2))})
    return DeviceGrid(None, cfg.engine, ledger, "cpu", strict=False)  # type: ignore[arg-type]


GRID = grid()


def garble(text: str, rng: random.Random) -> str:
    letters = list(text)
    for _ in range(rng.randint(1, 5)):
        letters[rng.randrange(len(letters))] = rng.choice('{}[]":,0123456789rftdlvx-eN')
    return "".join(letters)


def mutate(content: RecordDict, rng: random.Random) -> None:
    """One change of a reply's arrays, skeleton or header."""
    arrays: Any = content["arrays"]
    config: Any = content["config"]
    numbers = arrays.to_numpy_ndarrays()
    which, value = rng.randrange(len(numbers)), rng.choice([np.nan, np.inf, -np.inf, 1e300, 0.0])
    choice = rng.randrange(9)
    if choice == 0:
        numbers[which] = np.full_like(numbers[which], value)
    elif choice == 1:
        numbers[which] = rng.choice(
            [numbers[which].ravel()[:1], numbers[which][None], numbers[which] * 0 + 1j]
        )
    elif choice == 2:
        del numbers[which]
    elif choice == 3:
        numbers[which] = numbers[which].astype(rng.choice(["f8", "i4", "?", "u1", "f2"]))
    content["arrays"] = ArrayRecord(numbers)
    if choice == 4:
        config["skeleton"] = garble(str(config["skeleton"]), rng)
    elif choice == 5:
        key = rng.choice([*COST, "num", "version", "skeleton", "reinitialised"])
        config[key] = rng.choice([-1, 2**62, 1.5, "x", b"x", True, [1], [1, 2, 3], ["a", "b"], [-5, 7]])
    elif choice == 6:
        del config[rng.choice(list(config))]
    elif choice == 7:
        data = bytearray(content["arrays"]["0"].data)  # type: ignore[index,call-overload]
        data[rng.randrange(len(data))] = rng.randrange(256)
        content["arrays"]["0"] = Array("float32", (2, 3), "numpy.ndarray", bytes(data))  # type: ignore[index,call-overload]
    elif choice == 8:
        del content[rng.choice(["arrays", "config"])]


def reply(rng: random.Random) -> Message:
    begin_run()
    asked = Message(seal(HEADER._asdict(), BODY), 5, "train")
    set_message_id(asked, 1)
    content = seal({**dict.fromkeys(COST, 3), "num": 3, "version": [2, 0], "reinitialised": 0}, BODY)
    for _ in range(rng.randint(1, 3)):
        if "arrays" in content and "config" in content and content["arrays"]:
            with contextlib.suppress(Exception):  # a garbled array cannot be changed once more
                mutate(content, rng)
    return Message(content, reply_to=asked)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_mutated_replies_are_refused_by_name_or_fit(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(MUTANTS):
        GRID.ledger.since = {0: (1, 0)}
        watch = Watch({0: BODY})
        GRID._judge(watch, 0, reply(rng), HEADER, Inspector())
        if watch.good:
            taken = watch.good[0].body
            assert shape_problem(BODY, taken, BODY) is None
            for x in leaves(taken):
                assert bool(torch.isfinite(torch.as_tensor(x)).all())
        else:
            assert GRID.ledger.since == {0: (1, 0)} and watch.orders and watch.faults[0]
        seen["taken" if watch.good else "refused"] += 1


def test_both_happened_and_they_were_ten_thousand() -> None:
    if not seen:
        test_mutated_replies_are_refused_by_name_or_fit()
    assert seen["taken"] > 100 and seen["refused"] > 5000 and seen.total() >= 10_000


WHAT = st.one_of(st.integers(), st.text(), st.floats(), st.lists(st.integers()))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(["num_train", "num_test", "label_counts", "client"]), WHAT))
def test_what_a_device_says_of_itself_is_checked(said: dict[str, Any]) -> None:
    try:
        facts = device_grid._facts(said)
    except (KeyError, TypeError, ValueError, OverflowError):
        return
    assert facts.num_train > 0 and min(facts.label_counts, default=0) >= 0
