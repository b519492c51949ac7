"""How far the unified framework's iterations are from what they must compute and move.

SCD's and ASCD's private iterations of 20 clients, by the kernel alone, CPU seconds a client. *Floor*: the
gradients, as in `fedpers bench methods --profile`; *products*: those of each sample with all models that
move by themselves, and into each model that a gradient reaches; *moved*: a client's own models read once,
what is wanted written once, at the rate at which this core copies what no cache holds. Their sum is a
yardstick, no bound: our products may be faster than the library's.

    python benchmarks/recurrent.py
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedpers.bench.engines import floor
from fedpers.bench.main import write
from fedpers.bench.work import Result, Work, federation, make_model, tensors
from fedpers.core.params import size
from fedpers.learning.flops import flops_of
from fedpers.learning.kernels import recurrent
from fedpers.learning.kernels.coupled import plain_parts
from fedpers.learning.kernels.recurrent import Recurrence

CLIENTS, STEPS = 20, (1, 10, 30, 100)
PULL, RATE, GAMMA, THETA, NU = 0.1, 0.05, 0.2, 0.3, 0.9


def best(run: Callable[[], Any], count: int = 12) -> float:
    """CPU seconds of the quickest of some runs, each after what it reads was pushed out of the caches."""
    other, found = torch.zeros(16 * 2**20), []
    for _ in range(count):
        other.add_(1)
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found)


def scd() -> tuple[list[list[float]], list[float], list[float], list[list[float]]]:
    """Moves, point, gains and ends of the models w and β."""
    step = [RATE * PULL, 1 - RATE * PULL]
    return [[1, 0], step], [0, 1], [0, -RATE], [[PULL, -PULL], [0, 1]]


def ascd() -> tuple[list[list[float]], list[float], list[float], list[list[float]]]:
    """The same of y and z of w, y and z of β."""
    wide = partial(torch.tensor, dtype=torch.float64)
    w, x, z = wide([1 - THETA, THETA, 0, 0]), wide([0, 0, 1 - THETA, THETA]), wide([0, 0, 0, 1])
    pull = PULL * (x - w)
    moved = [x - RATE * pull, (1 - NU) * x + NU * z - GAMMA * pull]
    moves = [[1, 0, 0, 0], [0, 1, 0, 0], *(row.tolist() for row in moved)]
    return moves, x.tolist(), [0, 0, -RATE, -GAMMA], [(-pull).tolist(), [0, 0, 1, 0], [0, 0, 0, 1]]


@torch.no_grad()
def measured(setting: str, copied: float) -> list[Result]:
    """A row for each method and number of steps on a model; `copied` bytes a second."""
    work = Work(setting, M=CLIENTS, C=CLIENTS)
    model, fed = make_model(work), federation(*tensors(work), test=slice(work.n // 10))
    parts = [fed.client(k).train for k in range(CLIENTS)]
    params, gemm = model.init(0), floor(work)["sgemm"] * 1e9
    found = plain_parts(model.loss, params, parts)
    assert found is not None, "there is no kernel"
    rows: list[Result] = []
    for name, parts_of in (("scd", scd), ("ascd", ascd)):
        moves, point, gains, ends = (torch.tensor(t, dtype=torch.float64) for t in parts_of())
        how, own = Recurrence(moves, point[None], torch.ones(1, dtype=torch.float64), gains), len(moves) // 2
        shared = [{k: v.expand(CLIENTS, *v.shape) for k, v in model.init(j).items()} for j in range(own)]
        models = shared + [{k: v.contiguous() for k, v in w.items()} for w in shared]
        _, moving, learning, *_ = how.of_few(ends).sizes
        moved = 4 * size(params) * (own + len(ends)) / copied
        for S in STEPS:
            index = torch.randint(0, len(parts[0]), (CLIENTS, S, 1))
            took = best(
                partial(recurrent._call, found[0], how, models, ends, parts, index, torch.ones(index.shape))
            )
            least = flops_of(model, work.shape).all_passes(S, 0, 0) / gemm
            products = 2 * size(params) * S * (moving + learning) / gemm
            row = {"model": model.name, "method": name, "steps": S, "seconds": took / CLIENTS, "floor": least}
            rows.append(row | {"products": products, "moved": moved, "gemm": gemm, "copied": copied})
    return [
        r | {"times": r["seconds"] / r["floor"], "made": r["products"] / r["floor"],
             "least": (r["products"] + r["moved"]) / r["floor"]}
        for r in rows
    ]  # fmt: skip


def main() -> None:
    """Measure, write recurrent.json and the table."""
    parser = argparse.ArgumentParser(
        description="steps of SCD and ASCD beside what they must compute and move"
    )
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    a, b = torch.zeros(2, 13 * 2**20)
    copied = 2 * a.nbytes / best(lambda: b.copy_(a))
    write(measured("lr", copied) + measured("mlp", copied), "recurrent", Path(args.out))


if __name__ == "__main__":
    main()
