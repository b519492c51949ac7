"""How far the unified framework's iterations on an MLP are from what they must compute and move.

SCD's and ASCD's private iterations of 20 clients, by the kernel alone, CPU milliseconds a client.
*Floor*: the gradients, as in `fedpers bench methods --profile`; *second*: the shared model's product
with each sample, which the pull towards it takes; *moved*: a client's own models read once, what is
wanted written once, at the rate at which this core copies what no cache holds. The sum is a
yardstick, no bound: our products may be faster than the library's.

    python benchmarks/recurrent.py
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fedpers.bench.engines import floor
from fedpers.bench.work import Work, federation, make_model, tensors
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
    w, x = torch.tensor([1 - THETA, THETA, 0, 0]), torch.tensor([0, 0, 1 - THETA, THETA])
    pull, z = PULL * (x - w), torch.tensor([0, 0, 0, 1.0])
    moved = [x - RATE * pull, (1 - NU) * x + NU * z - GAMMA * pull]
    moves = [[1, 0, 0, 0], [0, 1, 0, 0], *(row.tolist() for row in moved)]
    return moves, x.tolist(), [0, 0, -RATE, -GAMMA], [(-pull).tolist(), [0, 0, 1, 0], [0, 0, 0, 1]]


@torch.no_grad()
def main() -> None:
    """Print a row for each method and number of steps."""
    torch.set_num_threads(1)
    work = Work("mlp", M=CLIENTS, C=CLIENTS)
    model, fed = make_model(work), federation(*tensors(work), test=slice(work.n // 10))
    parts = [fed.client(k).train for k in range(CLIENTS)]
    params = model.init(0)
    found = plain_parts(model.loss, params, parts)
    assert found is not None, "there is no kernel"
    a, b = torch.zeros(2, 13 * 2**20)
    gemm, copied = floor(work)["sgemm"] * 1e9, 2 * a.nbytes / best(lambda: b.copy_(a))
    print(f"products {gemm / 1e9:.0f} GFLOP/s, copies {copied / 1e9:.0f} GB/s read and written")
    for name, parts_of in (("scd", scd), ("ascd", ascd)):
        moves, point, gains, ends = (torch.tensor(t, dtype=torch.float64) for t in parts_of())
        how, own = Recurrence(moves, point[None], torch.ones(1, dtype=torch.float64), gains), len(moves) // 2
        shared = [{k: v.expand(CLIENTS, *v.shape) for k, v in model.init(j).items()} for j in range(own)]
        models = shared + [{k: v.contiguous() for k, v in w.items()} for w in shared]
        moved = 4 * size(params) * (own + len(ends)) / copied
        for S in STEPS:
            index = torch.randint(0, len(parts[0]), (CLIENTS, S, 1))
            given = found[0], how, models, ends, parts, index, torch.ones(index.shape)
            took = best(partial(recurrent._call, *given))
            passes, second = (
                flops_of(model, work.shape).all_passes(S, 0, 0) / gemm,
                2 * size(params) * S / gemm,
            )
            least, took = passes + second + moved, took / CLIENTS
            row = " + ".join(f"{1e3 * t:.3f}" for t in (passes, second, moved))
            print(
                f"{name} {S:3} steps: {1e3 * took:.3f} ms, {took / passes:.2f} floors;"
                f" floor + second + moved {row} ms: {least / passes:.2f} floors"
            )


if __name__ == "__main__":
    main()
