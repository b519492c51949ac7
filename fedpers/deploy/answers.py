"""Checks answers of devices: every field is of the declared type and range, or the answer is refused."""

import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from fedpers.config.run_config import RunConfig
from fedpers.core.errors import FedpersError
from fedpers.core.pipeline import KINDS
from fedpers.core.pytree import leaves
from fedpers.core.scores import SCORES, short
from fedpers.core.serialization import unpack
from fedpers.core.work import Work
from fedpers.deploy.bundles import STYPE as BUNDLE
from fedpers.deploy.bundles import parts
from fedpers.deploy.keys import NAME
from fedpers.deploy.ledger import Facts
from fedpers.deploy.orders import NONE
from fedpers.deploy.private_state import Recall
from fedpers.deploy.rehearsal import Rehearsal
from fedpers.deploy.spilled import spilled
from fedpers.deploy.versions import VERSION, mismatch
from fedpers.flower.forms import MOST, ROUNDING, WORK, Field, misfit, show, unlike
from fedpers.flower.messages import COST, SKELETON, Answer, Assessed, Header
from fedpers.flower.validation import Inspector

ARRAYS, CONFIG = "arrays", "config"  # the records of a message
DIGEST = re.compile(r"[0-9a-f]{16}")  # of a policy
SPLITS = ("train", "valid", "test")
NONE_AT_ALL = Field(float, math.inf, -math.inf, nan=True)


class Refused(FedpersError):
    """An answer that is refused; the message names the field that is wrong."""


@dataclass(frozen=True)
class PendingOrder:
    """An order that waits for its answer, and what the server knows of the client, to check it by."""

    order: Any
    header: Header
    facts: Facts
    recall: Recall
    num_clients: int


@dataclass(frozen=True)
class Taken:
    """An answer that was checked and accepted."""

    answer: Answer
    version: tuple[int, int] | None  # of the client's state after it
    reinitialised: bool
    policy: str  # digest of the one that the device obeyed


class Reader:
    """Reads the answers of a run."""

    def __init__(self, cfg: RunConfig, device: str) -> None:
        self.cfg, self.device = cfg, device
        self.rehearsal = Rehearsal(cfg, device)
        self.folder = Path(cfg.out) if cfg.out and Path(cfg.out).is_dir() else None

    def rehearse(self, orders: Iterable[Any], header: Header) -> None:
        """Compute the expected forms of replies to these orders, before the server waits for devices."""
        for order in {id(order): order for order in orders}.values():
            self.rehearsal.example(order, header)

    def read(self, message: Message, asked: PendingOrder, inspector: Inspector) -> Taken:
        """An answer to an order; `inspector` is that of the exchange.

        Raises:
            Refused: with the field that is wrong.
        """
        said, arrays = opened(message)
        check(self._fields(asked), said)
        body = spilled(_body(said[SKELETON], arrays, self.device), self.folder)
        arrays.clear()  # large ones lie in files now
        evaluates = asked.header.kind == "evaluate"
        body = self._evaluation(body, asked) if evaluates else self._reply(body, asked, inspector)
        version = None if said["version"] == NONE else (said["version"][0], said["version"][1])
        cost = {name: said[name] for name in COST}
        return Taken(Answer(body, said["num"], **cost), version, bool(said["reinitialised"]), said["policy"])

    def _fields(self, asked: PendingOrder) -> dict[str, Field]:
        """Of the header of an answer to an order."""
        trains, facts = asked.header.kind == "train", asked.facts
        since, when = list(asked.recall.since or NONE), [asked.header.t, asked.header.e]
        cost = self.rehearsal.cost(asked.order, facts.num_train) if trains else Work()
        costs = [Field(high=WORK, low=0)] * len(COST) if cost is None else [Field(among=(v,)) for v in cost]
        return {
            **dict(zip(COST, costs, strict=True)),
            "num": Field(among=(facts.num_train if trains else facts.num_test,)),
            "version": Field(among=(since, when) if trains else (since,)),
            "reinitialised": Field(low=0, high=int(asked.recall.since is not None)),
            "policy": Field(str, pattern=DIGEST),
            SKELETON: Field(str),
        }

    def _reply(self, body: Any, asked: PendingOrder, inspector: Inspector) -> Any:
        example = self.rehearsal.example(asked.order, asked.header)
        wrapped = isinstance(body, Assessed)
        if example is not None and isinstance(example, Assessed) != wrapped:
            raise Refused("its reply comes " + ("with" if wrapped else "without") + " an evaluation")
        if not wrapped:
            self._check_reply(example, body, asked, inspector)
            return body
        names = body.metrics if example is None else example.metrics
        columns = self._columns(names, body.metrics, asked.facts)
        self._check_reply(getattr(example, "reply", None), body.reply, asked, inspector)
        return Assessed(body.reply, columns)

    def _check_reply(self, form: Any, body: Any, asked: PendingOrder, inspector: Inspector) -> None:
        """`form` is what the rehearsal gives, None if it failed."""
        if form is not None:
            limits = {"samples": float(asked.facts.num_train), "clients": asked.num_clients - 1.0}
            _refuse(unlike(form, body, type(form).__name__, limits))
        if any(getattr(x, "is_complex", bool)() for x in leaves(body)):
            raise Refused(f"{type(body).__name__} holds complex numbers")
        _refuse(inspector.look(asked.order, body)[0])

    def _evaluation(self, body: Any, asked: PendingOrder) -> dict[str, Any]:
        example = self.rehearsal.example(asked.order, asked.header)
        return self._columns(body if example is None else example, body, asked.facts)

    def _columns(self, names: Any, body: Any, facts: Facts) -> dict[str, Any]:
        """Those of an evaluation, in the order of `names`: tables of clients begin with the first one's.

        Of a split without samples there are no numbers.
        """
        if not isinstance(body, dict) or not isinstance(names, dict):
            raise Refused(f"the evaluation is a {type(body).__name__}, expected columns")
        empty = body.get("valid_num") == 0
        check({name: self._column(name, facts, empty) for name in map(str, names)}, body)
        return {name: body[name] for name in names}

    def _column(self, name: str, facts: Facts, no_valid: bool) -> Field:
        split, _, quantity = name.removesuffix("_before").partition("_")
        if split not in SPLITS:  # of the method's own
            field = self._quantity(quantity)
            return replace(field, nan=field.nan or quantity not in ("loss", "accuracy"))
        if quantity == "num":
            known = {"train": facts.num_train, "test": facts.num_test}.get(split)
            return Field(float, 0, MOST, whole=True) if known is None else Field(float, *_about(known))
        return NONE_AT_ALL if split == "valid" and no_valid else self._quantity(quantity)

    def _quantity(self, name: str) -> Field:
        if name == "loss":
            return Field(float, low=-ROUNDING)
        if name == "accuracy":
            return NONE_AT_ALL if self.cfg.data.task == "regression" else Field(float, 0, 1 + ROUNDING)
        if name in SCORES:
            low, high = SCORES[name].range
            return Field(float, low - ROUNDING, high + ROUNDING, nan=SCORES[name].may_be_nan)
        return Field(float, nan=name in map(short, self.cfg.metrics))


def _about(n: int) -> tuple[float, float]:
    """The tolerance of a count of n samples that is reported in float32."""
    return n * (1 - ROUNDING), n * (1 + ROUNDING)


def facts_of(cfg: RunConfig) -> dict[str, Field]:
    """What a device tells when the roll is called."""
    classes = {"classification": cfg.data.num_classes, "binary": 2}.get(cfg.data.task, 0)
    sums = math.prod(cfg.data.input_shape) if cfg.data.standardise else 0
    return {
        "num_train": Field(low=1, high=MOST),
        "num_test": Field(low=1, high=MOST),
        "num_valid": Field(low=0, high=MOST),
        "left_out": Field(low=0, high=MOST),
        "label_counts": Field(low=0, high=MOST, length=classes),
        "columns": Field(str),
        "kind": Field(str, among=KINDS),
        "sums": Field(float, length=sums),
        "squares": Field(float, low=0, length=sums),
        "client": Field(str, pattern=NAME),
        "policy": Field(str, pattern=DIGEST),
        "fedpers": Field(str, pattern=VERSION),
    }


def read_facts(message: Message, declared: Mapping[str, Field]) -> dict[str, Any]:
    """What a device tells of itself.

    Raises:
        Refused: with the field that is wrong.
    """
    said, arrays = opened(message)
    if (problem := mismatch(said.get("fedpers"), "fedpers: the device")) is not None:
        raise Refused(problem)
    if said.get("label_counts") == []:  # its owner's policy keeps them
        declared = {**declared, "label_counts": Field(length=0)}
    check(declared, said)
    counts = declared["label_counts"]
    if counts.length:
        _refuse(replace(counts, total=said["num_train"]).fault("label_counts", said["label_counts"]))
    if arrays:
        raise Refused(f"{ARRAYS} holds {len(arrays)} arrays, expected none")
    return said | {"columns": _names(said["columns"])}


def _names(text: str) -> tuple[str, ...]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if type(names) is not list or not all(type(name) is str for name in names):
        raise Refused(f"columns is {show(text)}, expected a list of names in JSON")
    return tuple(names)


# ---- messages -----------------------------------------------------------------------------------


def opened(message: Message) -> tuple[dict[str, Any], list[np.ndarray]]:
    """(plain values, arrays) of a message, which has no arrays any more: a model is there once.

    Raises:
        Refused: it is an error, or of another form.
    """
    if message.has_error():
        raise Refused(str(message.error.reason))
    content = message.content
    for name, kind in ((ARRAYS, ArrayRecord), (CONFIG, ConfigRecord)):
        if not isinstance(content.get(name), kind):
            raise Refused(f"{name} is missing")
    if more := sorted(content.keys() - {ARRAYS, CONFIG}):
        raise Refused(f"{show(more[0])} is no field of this answer, expected {ARRAYS}, {CONFIG}")
    arrays: ArrayRecord = content[ARRAYS]  # type: ignore[assignment]
    plain: ConfigRecord = content[CONFIG]  # type: ignore[assignment]
    return dict(plain), [
        found for name in list(arrays) for found in _numpy(f"{ARRAYS}[{name}]", arrays.pop(name))
    ]


def _numpy(name: str, array: Array) -> list[np.ndarray]:
    """The arrays of a bundle, or the one that it is."""
    try:
        found = [np.load(io.BytesIO(part), allow_pickle=False) for part in parts(array)]
    except Exception as error:  # whatever damaged bytes lead to
        raise Refused(f"{name} cannot be read: {type(error).__name__}") from error
    said = (array.stype, array.dtype, tuple(array.shape))
    if array.stype != BUNDLE and said != ("numpy.ndarray", str(found[0].dtype), found[0].shape):
        raise Refused(f"{name} holds other numbers than it says")
    return found


def _body(skeleton: str, arrays: list[np.ndarray], device: str) -> Any:
    """The body of an answer, in which every array has a place.

    Raises:
        Refused: the skeleton is damaged, or is not that of these arrays.
    """
    try:
        used = _places(json.loads(skeleton))
        body = unpack(skeleton, [torch.from_numpy(array).to(device) for array in arrays])
    except Exception as error:  # whatever a damaged text leads to
        raise Refused(f"{SKELETON} cannot be read: {error}") from error
    if used != set(range(len(arrays))):
        raise Refused(f"{ARRAYS} holds {len(arrays)} arrays, {SKELETON} names {show(used)}")
    return body


def _places(node: Any) -> set[Any]:
    """Which arrays a skeleton names."""
    if isinstance(node, dict):
        if "t" in node:
            return {node["t"] if type(node["t"]) is int else str(node["t"])}
        return {place for part in node.values() for place in _places(part)}
    return {place for part in node for place in _places(part)} if isinstance(node, list) else set()


def check(declared: Mapping[str, Field], got: Mapping[str, Any]) -> None:
    """Raise Refused with what `misfit` finds, if it finds something."""
    _refuse(misfit(declared, got))


def _refuse(fault: str | None) -> None:
    if fault is not None:
        raise Refused(fault)
