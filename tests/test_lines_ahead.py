"""What a step does before its first gradient: in C it may be made at the end of the step before."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedpers.checks.case import close
from fedpers.checks.toy_data import toy_federation
from fedpers.core.data import Data
from fedpers.learning.kernels import native
from fedpers.learning.kernels.programs import plain_parts
from fedpers.learning.kernels.steps import compiled
from fedpers.learning.model import build_model
from fedpers.learning.step import Grad, Mix, Now, Program, stepped

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")

FED = toy_federation(num_clients=2, sizes=(12, 15))
PARTS = [FED.client(c).train for c in range(2)]
X = Mix("x", ((0.3, "w"), (0.7, "β")))
AT_X = Grad("g", "x")
MOVED = Mix("w", ((1.0, "w"), (-0.2, "g"))), Mix("β", ((1.0, "β"), (-0.1, "g")))
LINES = {
    "a point": (1, (X, AT_X, *MOVED)),
    "two points": (2, (X, Mix("z", ((0.5, "x"), (0.5, "w"))), Grad("h", "z"), AT_X,
                       Mix("w", ((1.0, "w"), (-0.2, "h"))), *MOVED)),
    "beside a gradient that is added": (1, (X, Grad("g", "w"), MOVED[0], AT_X, *MOVED)),
    "what is wanted": (0, (Mix("β", ((0.9, "β"), (0.1, "w"))), Grad("g", "β"), *MOVED)),
    "what is made again": (0, (X, AT_X, Mix("x", ((1.0, "x"), (-0.1, "g"))), Mix("w", ((1.0, "x"),)))),
}  # fmt: skip


@pytest.mark.parametrize("same", ["nothing", "rows", "rows and weights"])
@pytest.mark.parametrize("hidden", [(), (80, 6)])
@pytest.mark.parametrize(("ahead", "lines"), LINES.values(), ids=LINES)
def test_steps_are_those_of_the_lines_in_turn(ahead, lines, hidden, same):
    """Also where a step has no samples, or more than one the same rows."""
    shape = {"input_shape": (5,), "num_outputs": 3, "task": "classification"}
    model = build_model("mlp", hidden=list(hidden), **shape) if hidden else build_model("logistic", **shape)
    start = [{"w": model.init(c), "β": model.init(c + 2)} for c in range(2)]
    index = torch.tensor([[0, 3, 5, 1], [2, 4, 6, 0], [7, 1, 0, 3], [7, 1, 0, 3]]).expand(2, 4, 4)
    weight = torch.tensor([[1.0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 2, 1, 1]]).expand(2, 4, 4)
    index = index if same == "nothing" else index[:, :1].expand(2, 4, 4)
    weight = weight[:, :1].expand(2, 4, 4) if same == "rows and weights" else weight
    done = in_c(model, Program(lines), start, index, weight)
    assert compiled(Program(lines), ("w", "β"), ("w", "β")).ahead == ahead
    for c, v in enumerate(start):
        for rows, shares in zip(index[c], weight[c], strict=True):
            v = stepped(lines, v, now(model, c, rows, shares)) if shares.any() else v
        assert close([{k: t[c] for k, t in done[name].items()} for name in start[0]], [v["w"], v["β"]], 2e-6)


def in_c(model, program, start, index, weight):
    """The vectors of both clients, from one call."""
    stacks = {x: {k: torch.stack([v[x][k] for v in start]) for k in start[0][x]} for x in start[0]}
    with torch.no_grad():
        plan, training = plain_parts(model.loss, start[0]["w"], PARTS)
        plan = replace(plan, program=program, wanted=("w", "β"))
        return native.train(plan, replace(training, vectors=stacks), PARTS, index, weight).vectors


def now(model, c, rows: Tensor, shares: Tensor) -> Now:
    data = Data(PARTS[c].x[rows], PARTS[c].y[rows], shares)
    return Now(torch.func.grad(lambda params: model.loss(params, data)), 0.0, torch.tensor(1))
