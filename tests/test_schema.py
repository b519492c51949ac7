"""Plain values into dataclasses: types, ranges, unknown keys, all mistakes at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpers.config import schema
from fedpers.core.bounds import above, bounds


@dataclass(frozen=True)
class Inner:
    lr: float = 0.1
    steps: int = 1

    def check(self):
        return bounds(self, steps=(1, 5)) + above(self, lr=0)


@dataclass(frozen=True)
class Outer:
    name: str
    kind: Literal["adam", "sgd"] = "sgd"
    on: bool = False
    count: int | None = None
    widths: tuple[int, ...] = ()
    pair: tuple[float, str] = (1.0, "a")
    nested: tuple[tuple[int, ...], ...] = ()
    folder: Path | None = None
    table: Mapping[str, float] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    other: Any = None


def read(**values):
    problems: list[str] = []
    return schema.build(Outer, {"name": "x", **values}, "m", problems), problems


@pytest.mark.parametrize(
    ("values", "expected"), [({"count": 3}, 3), ({"count": 3.0}, 3), ({"count": None}, None)]
)
def test_integers(values, expected):
    made, problems = read(**values)
    assert not problems
    assert made.count == expected
    assert type(made.count) is type(expected)


def test_good_values_of_every_kind():
    made, problems = read(
        kind="adam",
        on=True,
        widths=[1, 2],
        pair=[1, "b"],
        nested=[[1], [2, 3]],
        folder="a/b",
        table={"a": 1},
        inner={"lr": 1},
        other=[1],
    )
    assert not problems
    assert made == Outer(
        "x", "adam", True, None, (1, 2), (1.0, "b"), ((1,), (2, 3)), Path("a/b"), {"a": 1.0}, Inner(1.0), [1]
    )


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"count": "ten"}, "m.count=ten: expected an integer or null"),
        ({"count": 2.5}, "m.count=2.5: expected an integer or null"),
        ({"count": True}, "m.count=true: expected an integer or null"),
        ({"on": 1}, "m.on=1: expected true or false"),
        ({"on": "yes"}, "m.on=yes: expected true or false"),
        ({"name": None}, "m.name=null: expected text"),
        ({"kind": "adm"}, "m.kind=adm: expected one of adam, sgd; did you mean 'adam'?"),
        ({"widths": 3}, "m.widths=3: expected a list, each an integer"),
        ({"widths": [1, "b"]}, "m.widths=[1, b]: expected a list, each an integer"),
        ({"pair": [1]}, "m.pair=[1]: expected a list of 2: a number, text"),
        ({"table": {"a": "b"}}, "m.table={'a': 'b'}: expected keys and values"),
        ({"inner": 3}, "m.inner=3: expected keys and values"),
        ({"inner": {"lr": "fast"}}, "m.inner.lr=fast: expected a number"),
        ({"inner": {"lr": float("nan")}}, "m.inner.lr=nan: expected a number"),
        ({"inner": {"lr": 0}}, "m.inner.lr=0: must be above 0"),
        ({"inner": {"steps": 6}}, "m.inner.steps=6: must be at most 5"),
        ({"inner": {"steps": 0}}, "m.inner.steps=0: must be at least 1"),
        (
            {"knd": 1},
            "m.knd is unknown; did you mean m.kind? Allowed: count, folder, inner, kind, name,"
            " nested, on, other, pair, table, widths",
        ),
        ({"inner": {"zzz": 1}}, "m.inner.zzz is unknown. Allowed: lr, steps"),
    ],
)
def test_one_mistake(values, problem):
    made, problems = read(**values)
    assert made is None
    assert problems == [problem]


def test_all_mistakes_at_once():
    problems: list[str] = []
    values = {"knd": 1, "count": "x", "inner": {"lr": "y", "steps": 0}}
    assert schema.build(Outer, values, "m", problems) is None
    assert [p.split(":")[0].split(" is")[0] for p in problems] == [
        "m.knd",
        "m.count=x",
        "m.inner.lr=y",
        "m.inner.steps=0",
        "m.name",
    ]
    assert "m.name is missing: expected text" in problems


@dataclass(frozen=True)
class Prefixed:
    inner: Inner = field(default_factory=Inner)
    size: int = 0

    def check(self):
        return ["size=0: first", "inner.steps=0: second", "m.size=0: third"]


def test_a_check_may_or_may_not_write_the_path():
    problems: list[str] = []
    schema.build(Prefixed, {}, "m", problems)
    assert problems == ["m.size=0: first", "m.inner.steps=0: second", "m.size=0: third"]


@dataclass(frozen=True)
class Named:
    lr: float = -1.0

    def check(self):
        return ["local.lr=-1: must not be negative"]


def test_a_check_may_name_the_key_that_holds_it():
    problems: list[str] = []
    schema.build(Named, {}, "method.local", problems)
    assert problems == ["method.local.lr=-1: must not be negative"]


words = st.sampled_from(["", "adam", "ten", "lr", "steps", "1"])
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner) | st.dictionaries(words, inner),
    max_leaves=5,
)
keys = st.sampled_from(["name", "kind", "on", "count", "widths", "inner", "odd"])


@settings(derandomize=True, deadline=None)
@given(st.dictionaries(keys, json))
def test_never_raises_and_is_silent_only_on_success(values):
    problems: list[str] = []
    made = schema.build(Outer, values, "", problems)
    assert (made is None) == bool(problems)
