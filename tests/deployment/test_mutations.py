"""Mutated answers of devices: what is taken equals a valid one, what is refused names client and field."""

import contextlib
import json
import math
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedpers.clients.fedavg import FedAvgClient
from fedpers.config.run_config import RunConfig, to_mapping
from fedpers.core.pytree import flatten, leaves
from fedpers.core.serialization import unpack
from fedpers.deploy import device_grid, roll_call
from fedpers.deploy.device_grid import DeviceGrid, Watch, _reasons
from fedpers.deploy.ledger import Facts, Ledger
from fedpers.deploy.orders import NONE, Order
from fedpers.deploy.private_state import Recall
from fedpers.flower.messages import Assessed, Header
from fedpers.flower.validation import Inspector
from tests.deployment import fake_link
from tests.deployment.fake_link import Link, configs, unbundled
from tests.deployment.matrix import fault
from tests.deployment.mutants import NAMES, device_answer, mutant, parts, reply

RUN = "0" * 32
ORDER = Order(RUN, 0, Recall(None, None), 60.0)
SEED = int(os.environ.get("FAULT_SEED", "2"))
# beginnings of refusals that name no single field
COUNTED = ("num_test", "num_valid", "left_out")
TOLD = "its answer to the roll call: "
WHOLE = ("its reply", "the evaluation")


class Case:
    """A valid answer of one kind, and the server that reads changed ones."""

    def __init__(self, folder: Path, method: str, kind: str, *more: str) -> None:
        _, self.cfg = configs(method, 3, "failures=skip", *more)
        self.header = Header(kind, 2, 0, assess="eval_protocol=participants_local" in more)
        config = json.dumps(to_mapping(self.cfg))
        plain = {**self.header._asdict(), **ORDER.header()}
        facts = dict(device_answer(folder, config, {**plain, "kind": "query"}, None)["config"])
        ledger = Ledger(RUN)
        told = Facts(facts["num_train"], facts["num_test"], tuple(facts["label_counts"]))
        ledger.enrol(dict.fromkeys(NAMES, told))
        self.grid = DeviceGrid(None, self.cfg, ledger, "cpu")  # type: ignore[arg-type]
        self.order = None if kind == "query" else first_order(self.cfg, ledger, kind)
        self.valid = device_answer(folder, config, plain, self.order)

    def judged(self, content: RecordDict) -> Watch:
        self.grid.ledger.since = {}
        watch = Watch({0: self.order})
        self.grid._judge(watch, 0, reply(kept(content), self.header), self.header, Inspector())
        return watch


def kept(content: RecordDict) -> RecordDict:
    """A copy for the server, which takes the arrays out of what it reads."""
    arrays = {name: ArrayRecord(dict(r)) for name, r in content.items() if isinstance(r, ArrayRecord)}
    return RecordDict({**content, **arrays})


def first_order(cfg: RunConfig, ledger: Ledger, kind: str) -> Any:
    """The first order of a run's server, or what clients are sent to predict with."""
    from fedpers.app.build import assemble
    from fedpers.app.deployed import federation_of
    from fedpers.core.rng import server_rng
    from fedpers.flower.roster import Roster, rows_of
    from fedpers.learning.model import initial_params

    s = assemble(cfg, federation_of(cfg, ledger)).strategy
    numbers = torch.tensor([f.num_train for f in ledger.facts], dtype=torch.float64)
    known = {"label_counts": torch.from_numpy(ledger.label_counts).double()}
    s.roster = Roster((0, 1), numbers, {n: known[n] for n in s.needs})
    s.row = rows_of(s.roster.ids)
    s.state = s.init(s.roster, initial_params(s.model, s.plan), server_rng(0, 0))
    return s.order_to_predict(0) if kind == "evaluate" else next(s.round(s.state, 1, server_rng(0, 1)))[0]


def same_form(valid: RecordDict, taken: RecordDict) -> bool:
    """Whether an answer is one that an honest device could give: the same but for finite numbers."""
    a, b = (dict(c["config"]) for c in (valid, taken))
    texts = a.pop("skeleton"), b.pop("skeleton")
    arrays = [unbundled(c) for c in (valid, taken)]
    bodies = [_ordered(unpack(str(text), found)) for text, found in zip(texts, arrays, strict=True)]
    (x, form), (y, other) = map(flatten, bodies)
    versions = NONE, [2, 0]  # an answer may leave the client's state as it was, or not
    honest = a.pop("version") in versions and b.pop("version") in versions
    same = form == other and len(arrays[0]) == len(arrays[1])
    return honest and same and a == b and all(map(_alike, x, y))


def _alike(x: Any, y: Any) -> bool:
    if isinstance(x, torch.Tensor):
        whole = isinstance(y, torch.Tensor) and (x.dtype, x.shape) == (y.dtype, y.shape)
        return whole and bool(torch.isfinite(y).all())
    return type(x) is type(y) and (not isinstance(x, float) or math.isnan(x) or math.isfinite(y))


def _ordered(body: Any) -> Any:
    """The columns of an evaluation sorted: they have no order on the way, see `columns_of`."""
    if isinstance(body, Assessed):
        return Assessed(body.reply, _ordered(body.metrics))
    return _of_an_empty_split(dict(sorted(body.items()))) if isinstance(body, dict) else body


def columns_of(body: Any) -> dict[str, Any]:
    return dict(body) if isinstance(body, dict) else dict(getattr(body, "metrics", {}))


def names_in(content: RecordDict) -> set[tuple[str, str]]:
    """(place, name) of an answer's records, keys, columns and types, as far as it can be read."""
    plain = content.get("config", {})
    names = {("record", name) for name in content} | {("key", str(name)) for name in plain}
    with contextlib.suppress(KeyError, ValueError, TypeError):
        for part in parts(json.loads(plain["skeleton"])):  # type: ignore[arg-type, call-overload, index]
            names |= {("column", str(name)) for name, _ in part.get("d", [])}
            names.add(("type", str(part.get("r", "")).rpartition(".")[2]))
    return names


def blames(why: str, valid: RecordDict, changed: RecordDict) -> bool:
    """Whether a refusal begins with what was changed: a field of the answer, or a key that it gained."""
    if gained := re.match(r"'(.+?)' is no field of this answer, expected \w", why):
        return gained[1] in {name for _, name in names_in(changed) - names_in(valid)}
    begins = re.match(rf"{'|'.join(WHOLE)}|\w+", why)
    field = begins[0] if begins else ""
    plain = dict(valid["config"])
    if field in plain and field != "skeleton" and " sums to " not in why:  # a sum depends on others
        now = dict(changed["config"]).get(field)
        return repr(now) != repr(plain[field])
    return field in (*WHOLE, *(name for _, name in names_in(valid)))


def _of_an_empty_split(body: dict[str, Any]) -> dict[str, Any]:
    """An evaluation whose validation split may be empty: then it has no numbers, which are nan."""
    empty = body.get("valid_num") == 0
    return {n: 0.0 if empty and n.startswith("valid_") and v != v else v for n, v in body.items()}


def in_range(name: str, value: float) -> bool:
    """Whether a column of an evaluation of classes may hold this."""
    return 0 <= value <= 1.00001 if name.endswith("accuracy") else value > -0.00001


CASES = [("fedavg", "train"), ("fedavg", "evaluate"), ("fedsoft", "train"), ("pflego", "evaluate"),
         ("fedavg", "train", "eval_protocol=participants_local")]  # fmt: skip


def run_mutants(case: Case, count: int, seed: int) -> Counter[str]:
    rng, seen = random.Random(seed), Counter[str]()
    expected = columns_of(case.judged(case.valid).good[0].body)
    for _ in range(count):
        changed = mutant(case.valid, rng)
        watch = case.judged(changed)
        if watch.good:
            body = watch.good[0].body
            assert same_form(case.valid, changed)
            columns = columns_of(body)
            assert list(columns) == list(expected)
            known = case.grid.ledger.facts[0]
            assert all(in_range(n, v) for n, v in columns.items() if not math.isnan(v))
            assert not columns or columns["test_num"] == known.num_test
        else:
            text = _reasons(watch, NAMES)
            assert text.startswith("site-0: "), text
            assert blames(text.removeprefix("site-0: "), case.valid, changed), text
            assert case.grid.ledger.since == {}
        seen["taken" if watch.good else "refused"] += 1
    return seen


def roll_mutants(folder: Path, count: int, seed: int) -> Counter[str]:
    """The same for answers to the roll call, read from a grid."""
    case, rng, seen = Case(folder, "fedavg", "query"), random.Random(seed), Counter[str]()
    declared = case.grid.roll.declared
    for _ in range(count):
        changed = mutant(case.valid, rng)
        node = SimpleNamespace(node_id=7, name="site-0", public_key=b"key")
        roll = roll_call.RollCall(SimpleNamespace(get_nodes=lambda n=node: [n]), Ledger(), declared, 60.0)
        roll._asked["1"] = 7, 0.0
        message = reply(changed, case.header)
        message.metadata.__dict__["_reply_to_message_id"] = "1"
        roll._inbox = SimpleNamespace(look=lambda *_, m=message: [m])  # type: ignore[assignment]
        roll._hear()
        if "site-0" in roll.facts:
            told = dict(changed["config"])
            free = {"client": 0, "num_test": 0, "num_valid": 0, "left_out": 0}  # any name, any number
            if told["label_counts"] == []:  # a policy may keep them
                free["label_counts"] = 0
            assert told | free == dict(case.valid["config"]) | free
            assert all(type(told[n]) is int and 0 <= told[n] < 2**31 for n in COUNTED)
            assert told["num_test"] > 0
        else:
            assert blames(roll.faults["site-0"].removeprefix(TOLD), case.valid, changed), roll.faults
        seen["taken" if roll.facts else "refused"] += 1
    return seen


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("ERROR", "fedpers"):
        yield


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(c).replace("=", "-"))
def test_a_mutated_answer_is_refused_by_client_and_field_or_equal_to_a_valid_one(
    case: tuple[str, ...], tmp_path: Path
) -> None:
    made = Case(tmp_path, *case)
    assert made.judged(made.valid).good
    seen = run_mutants(made, 200, seed=1)
    assert seen["taken"] > 2 and seen["refused"] > 140


def test_a_mutated_answer_to_the_roll_call_is_refused_or_equal_to_a_valid_one(
    tmp_path: Path, quiet: None
) -> None:
    seen = roll_mutants(tmp_path, 200, seed=1)
    assert seen["refused"] > 140


@pytest.mark.slow
def test_ten_thousand_mutants(tmp_path: Path, quiet: None) -> None:
    seen = Counter[str]()
    for i, case in enumerate(CASES):
        seen += run_mutants(Case(tmp_path / str(i), *case), 1700, seed=SEED)
    seen += roll_mutants(tmp_path, 1500, seed=SEED)
    assert seen.total() == 10_000 and seen["refused"] > 7000 and seen["taken"] > 100


@fault(13)
@pytest.mark.parametrize("seed", range(2))
def test_no_mutated_answer_ends_a_run_that_skips_failures(
    tmp_path: Path, seed: int, monkeypatch: Any
) -> None:
    """site-1 answers every order and evaluation with a mutant; the others train to the end."""
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(roll_call, "LOOK_S", 0.01)
    rng = random.Random(seed)
    _, cfg = configs("fedsoft", 8, "failures=skip", "engine.retries=0", "method.S=2", "method.K=3")

    def broken(who: str, header: dict[str, Any], good: Message) -> Message:
        if who != "site-1" or header["kind"] == "query":
            return good
        return Message(mutant(good.content, rng), reply_to=_asked(good))

    out = fake_link.on_devices(Link(tmp_path, cfg, broken), cfg, tmp_path / "out")
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"
    refused = sum(map(int, fake_link.column(out, "refused")))
    assert refused > 5


def _asked(good: Message) -> Message:
    """A message that the reply to `good` answers, by the same number."""
    asked = Message(RecordDict({"config": ConfigRecord({})}), 5, good.metadata.message_type)
    set_id = good.metadata.reply_to_message_id
    asked.metadata.__dict__["_message_id"] = set_id
    return asked


def test_the_order_of_a_mutant_is_that_of_its_method(tmp_path: Path) -> None:
    """The valid answer really is one of the method's own client half."""
    case = Case(tmp_path, "fedavg", "train")
    assert case.grid.reader.rehearsal.client.__class__ is FedAvgClient
    assert all(x.is_meta for x in leaves(case.grid.reader.rehearsal.example(case.order, case.header)))
    assert case.valid["config"]["version"] == NONE
