"""Trees of records: what makes them alike, and back from columns of leaves."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from fedpers.checks.case import same
from fedpers.core.errors import FedpersError
from fedpers.core.pytree import (
    LEAF,
    changed,
    flatten,
    in_place_of,
    neighbours,
    rebuild,
    record,
    spec_of,
    tree_map,
)
from fedpers.engines.memory.row_file import read_row, row_size, take_apart


@record("test_pytree.Dense")
class Dense:
    layers: tuple[dict[str, torch.Tensor], str]
    rest: list[Any]


def spec(tree, **options):
    return spec_of(*flatten(tree), **options)


def test_trees_are_alike_up_to_the_values_of_tensors_and_numbers():
    a = {"w": torch.zeros(2, 3), "rate": 0.5, "steps": 1, "name": "a"}
    alike = {**a, "w": torch.ones(2, 3), "rate": 0.25}
    assert spec(a) == spec(alike) and hash(spec(a)) == hash(spec(alike))
    assert spec(a, numbers=False) != spec(alike, numbers=False)
    for name, other in [("w", torch.zeros(3, 2)), ("w", torch.zeros(2, 3).double()), ("steps", True)]:
        assert spec(a) != spec({**a, name: other})  # True == 1, but is not the same
    assert pickle.loads(pickle.dumps(spec(a))) == spec(a)
    assert (spec(a).nbytes, spec(a).max_dim, spec({}).max_dim) == (24, 2, 0)


def test_a_changed_record_is_a_new_one_with_other_fields():
    before = Dense(({}, "a"), [1])
    after = changed(before, rest=[2])
    assert (type(after), after.layers, after.rest, before.rest) == (Dense, before.layers, [2], [1])
    assert after.layers is before.layers and after != before and changed(before) == before


def test_columns_become_trees():
    tree = ({"w": torch.zeros(2)}, 0.5, None, (3,))
    w = torch.arange(4.0).reshape(2, 2)
    first, second = spec(tree).unstack([w.unbind(0), [1.0, 2.0]], 2)
    assert same(first, ({"w": w[0]}, 1.0, None, (3,)))
    assert same(second, ({"w": w[1]}, 2.0, None, (3,)))
    assert spec([(1,), [2]]).unstack([], 1) == [[(1,), [2]]]
    assert spec(7).unstack([], 2) == [7, 7] and spec(()).unstack([], 2) == [(), ()]
    assert spec(tree[0]["w"]).structure is LEAF


def test_trees_of_a_kind_become_columns():
    def tree(seed):
        draw = torch.Generator().manual_seed(seed)
        w, b = torch.randn(2, 3, generator=draw), torch.randn(3, generator=draw)
        return Dense(({"b": b, "w": w}, "name"), [{}, w.double(), 0.5])

    trees = [tree(k) for k in range(3)]
    expected = zip(*([x for x in flatten(t)[0] if isinstance(x, torch.Tensor)] for t in trees), strict=True)
    found = spec(trees[0]).columns(trees)
    assert len(found) == 3  # 0.5 and the name are no tensors
    for column, leaves in zip(found, expected, strict=True):
        assert all(a is b for a, b in zip(column, leaves, strict=True))
    assert spec({"n": 1}).columns([{"n": 1}]) == []


def test_what_cannot_be_sent_is_named():
    with pytest.raises(FedpersError, match="a ndarray cannot be sent or stored"):
        spec({"x": np.zeros(2)})


def test_a_function_of_leaves():
    a, b = {"x": (torch.ones(1), 2)}, {"x": (torch.ones(1), 3)}
    assert same(tree_map(lambda p, q: p + q, a, b), {"x": (2 * torch.ones(1), 5)})
    flat, structure = flatten(a)
    assert same(rebuild(structure, flat), a)


@pytest.mark.parametrize(
    "other", [{"y": 1, "x": 2}, {"x": 1, "z": 2}, {"x": 1}, (1, 2), {"x": 1, "y": (2,)}, 3]
)
def test_leaves_of_unlike_trees_are_not_paired(other):
    with pytest.raises(ValueError, match="trees are unlike"):
        tree_map(max, {"x": 1, "y": 2}, other)


def test_a_row_keeps_the_types_of_plain_values():
    for value in (True, 1, 1.0):
        kind, tensors = take_apart({"w": torch.ones(3), "n": value})
        block = torch.zeros(row_size(kind), dtype=torch.uint8)
        block[:12] = tensors[0].view(torch.uint8)
        assert type(read_row(kind, block)["n"]) is type(value)


def rows_of(*places, of=None):
    """Rows, each by its place, of a stack of 2 x 2 matrices."""
    stack = torch.arange(16.0).view(4, 2, 2) if of is None else of
    rows = stack.unbind(0)
    return [rows[i] for i in places]


def test_rows_one_after_the_other_are_a_stack_without_a_copy():
    column = rows_of(1, 2, 3)
    stack = neighbours(column)
    assert torch.equal(stack, torch.stack(column)) and stack.data_ptr() == column[0].data_ptr()


@pytest.mark.parametrize(
    "column",
    [
        rows_of(0, 2),
        rows_of(1, 0),
        rows_of(1, 1),
        rows_of(0) + rows_of(1),
        [*rows_of(0), rows_of(0, 1)[1].T],
        [row.T for row in rows_of(0, 1)],
        [torch.zeros(2, 2), torch.zeros(2, 2)],
        rows_of(0, 1, of=torch.zeros(2, 2, 0)),
        rows_of(0, 1, of=torch.arange(8.0).view(2, 2, 2).transpose(0, 1)),
    ],
    ids=["gap", "order", "twice", "two stacks", "one turned", "all turned", "none", "empty", "across"],
)
def test_other_rows_are_no_stack(column):
    assert neighbours(column) is None


def test_rows_at_the_end_of_a_storage_do_not_reach_beyond_it():
    """Memory that happens to follow is nobody's row."""
    stack = torch.arange(8.0).view(2, 2, 2)
    last = stack.unbind(0)[1]
    beyond = torch.empty(0).set_(stack.untyped_storage(), 0, (2, 2))

    class After(torch.Tensor):
        def data_ptr(self):
            return last.data_ptr() + last.nbytes

    assert neighbours([last, beyond.as_subclass(After)]) is None


@record("test_pytree.Own")
class Own:
    w: torch.Tensor
    b: torch.Tensor


def first_states(count):
    w, b = torch.zeros(count, 3), torch.zeros(count, 2)
    return [Own(*row) for row in zip(w.unbind(0), b.unbind(0), strict=True)]


def test_a_tree_takes_the_place_of_a_row():
    states, own = first_states(4), Own(torch.ones(3), torch.ones(2))
    found = in_place_of(own, states[2], 2, 4)
    assert found is states[2] and same(found, own)
    stacks = [neighbours([getattr(s, name) for s in states]) for name in ("w", "b")]
    assert [s.sum(1).tolist() for s in stacks] == [[0, 0, 3, 0], [0, 0, 2, 0]]


@pytest.mark.parametrize(
    ("other", "row"),
    [
        (Own(torch.zeros(3), torch.zeros(2)), 2),  # nobody's row
        (first_states(4)[2], 1),  # another place
        (first_states(5)[2], 2),  # a longer stack
        (Own(first_states(4)[2].w, torch.zeros(2)), 2),  # one of both
        (Own(first_states(4)[2].w, torch.zeros(4, 3)[:, :2].unbind(0)[2]), 2),
        ({"w": first_states(4)[2].w}, 2),
        (Own(torch.zeros(4, 3, dtype=torch.float64).unbind(0)[2], first_states(4)[2].b), 2),
    ],
)
def test_what_is_no_such_row_is_left_alone(other, row):
    own, before = Own(torch.ones(3), torch.ones(2)), tree_map(torch.clone, other)
    assert in_place_of(own, other, row, 4) is own and same(other, before)


def test_a_tree_with_plain_values_is_left_as_it_is():
    row = (first_states(4)[2].w, 0.5)
    assert in_place_of((torch.ones(3), 0.25), row, 2, 4)[1] == 0.25
