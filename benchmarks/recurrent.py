"""How far the unified framework's iterations are from what they must compute and move.

Private iterations of 20 clients by the kernel alone, CPU seconds a client. *Floor*: the gradients, as in
`fedpers bench methods --profile`; *products*: those of each step's sample with all models that learn and into
them, and of each sample once with what a point holds besides; *moved*: a client's own models read once,
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
from torch import Tensor

from fedpers.bench.engines import floor
from fedpers.bench.main import write
from fedpers.bench.work import Result, Work, federation, make_model, tensors
from fedpers.core.params import size
from fedpers.learning.flops import flops_of
from fedpers.learning.kernels import recurrent
from fedpers.learning.kernels.coupled import plain_parts
from fedpers.learning.kernels.few_models import Few
from fedpers.learning.kernels.recurrent import Recurrence

CLIENTS, STEPS = 20, (1, 10, 30, 100)
PULL, RATE, GAMMA, THETA, NU = 0.1, 0.05, 0.2, 0.3, 0.9
Steps = tuple[Tensor, Tensor, Tensor, Tensor]  # moves, points, gains and ends of models, those of β last


def best(run: Callable[[], Any], count: int = 12) -> float:
    """CPU seconds of the quickest of some runs, each after what it reads was pushed out of the caches."""
    other, found = torch.zeros(16 * 2**20), []
    for _ in range(count):
        other.add_(1)
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found)


def units(count: int) -> Tensor:
    """The shares of each model in itself."""
    return torch.eye(count, dtype=torch.float64)


def scd() -> Steps:
    """The steps of w and β."""
    w, beta = units(2)
    pull = PULL * (beta - w)
    return torch.stack([w, beta - RATE * pull]), beta[None], -RATE * beta, torch.stack([-pull, beta])


def ascd() -> Steps:
    """Of y and z of w, y and z of β."""
    w_y, w_z, y, z = units(4)
    w, x = (1 - THETA) * w_y + THETA * w_z, (1 - THETA) * y + THETA * z
    pull = PULL * (x - w)
    moves = torch.stack([w_y, w_z, x - RATE * pull, (1 - NU) * x + NU * z - GAMMA * pull])
    return moves, x[None], -RATE * y - GAMMA * z, torch.stack([-pull, y, z])


def svrcd() -> Steps:
    """Of y, its anchor v and the gradient there G of w, and of β."""
    w, w_v, w_G, y, v, G = units(6)
    pull = PULL * ((y - w) - (v - w_v))
    moves = torch.stack([w - RATE * w_G, w_v, w_G, y - RATE * (G + pull), v, G])
    return moves, torch.stack([y, v]), -RATE * y, torch.stack([-pull, y])


def asvrcd() -> Steps:
    """Of y, z, v and G of w, and of β."""
    w_y, w_z, w_v, w_G, y, z, v, G = units(8)
    w, x = ((0.5 - THETA) * a + THETA * b + 0.5 * c for a, b, c in ((w_y, w_z, w_v), (y, z, v)))
    pull = PULL * ((x - w) - (v - w_v))

    def moved(x: Tensor, z: Tensor, g: Tensor) -> list[Tensor]:
        return [x - RATE * g, (1 - NU) * x + NU * z - GAMMA * g]

    moves = torch.stack([*moved(w, w_z, w_G), w_v, w_G, *moved(x, z, G + pull), v, G])
    return moves, torch.stack([x, v]), -RATE * y - GAMMA * z, torch.stack([-pull, y, z])


def products(few: Few, steps: int, samples: float) -> float:
    """Products of a sample with a model, or into one, in so many steps on so many different samples."""
    given, kept, learners, points, _ = few.sizes
    _, moves, share, _ = few.numbers.split(
        [kept * given, kept**2, points * kept, len(few.numbers) - kept * (given + kept + points)]
    )
    reach, rows, move = torch.zeros(kept, dtype=torch.float64), share.view(-1, kept), moves.view(kept, kept)
    for _ in range(steps):
        reach, rows = torch.maximum(reach, rows.abs().amax(0)), rows @ move
    return 2 * learners * steps + int((reach[learners:] > 1e-9).sum()) * samples


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
    for steps_of in (scd, ascd, svrcd, asvrcd):
        (moves, points, gains, ends), signs = steps_of(), torch.tensor([1.0, -1.0], dtype=torch.float64)
        how, own = Recurrence(moves, points, signs[: len(points)], gains), len(moves) // 2
        shared = [{k: v.expand(CLIENTS, *v.shape) for k, v in model.init(j).items()} for j in range(own)]
        models = shared + [{k: v.contiguous() for k, v in w.items()} for w in shared]
        moved = 4 * size(params) * (own + len(ends)) / copied
        for S in STEPS:
            index = torch.randint(0, len(parts[0]), (CLIENTS, S, 1))
            different = sum(len(rows.unique()) for rows in index) / CLIENTS
            took = best(
                partial(recurrent._call, found[0], how, models, ends, parts, index, torch.ones(index.shape))
            )
            least = flops_of(model, work.shape).all_passes(S * len(points), 0, 0) / gemm
            made = 2 * size(params) * products(how.of_few(ends), S, different) / gemm
            row = {"model": model.name, "method": steps_of.__name__, "steps": S, "seconds": took / CLIENTS}
            row |= {"floor": least, "products": made, "moved": moved, "gemm": gemm, "copied": copied}
            rows.append(row)
    return [
        r | {"times": r["seconds"] / r["floor"], "made": r["products"] / r["floor"],
             "least": (r["products"] + r["moved"]) / r["floor"]}
        for r in rows
    ]  # fmt: skip


def main() -> None:
    """Measure, write recurrent.json and the table."""
    parser = argparse.ArgumentParser(
        description="steps of the unified framework's methods beside what they must compute and move"
    )
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    a, b = torch.zeros(2, 13 * 2**20)
    copied = 2 * a.nbytes / best(lambda: b.copy_(a))
    write(measured("lr", copied) + measured("mlp", copied), "recurrent", Path(args.out))


if __name__ == "__main__":
    main()
