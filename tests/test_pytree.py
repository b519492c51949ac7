"""Trees of records: what makes them alike, and back from columns of leaves."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from fedpers.checks.case import same
from fedpers.core.errors import FedpersError
from fedpers.core.pytree import LEAF, flatten, rebuild, record, spec_of, tree_map
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


def test_a_row_keeps_the_types_of_plain_values():
    for value in (True, 1, 1.0):
        kind, tensors = take_apart({"w": torch.ones(3), "n": value})
        block = torch.zeros(row_size(kind), dtype=torch.uint8)
        block[:12] = tensors[0].view(torch.uint8)
        assert type(read_row(kind, block)["n"]) is type(value)
