"""What the kernels in C, the worker channel and the row store buy, each beside the library way.

Ways of one case take turns in one process, so that what else the machine does hits all of them.
CPU seconds are those of all processes that take part.

    python benchmarks/parts.py [--passes 3]
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import channels
import stores
import torch

from fedpers.bench.evaluation import answering, evaluation_of
from fedpers.bench.main import write
from fedpers.bench.work import LR, Result, Work, federation, make_model, take_turns, tensors
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig, Weights
from fedpers.clients.fedprox import FedProxClient, FedProxConfig
from fedpers.clients.fedprox import Weights as ProxWeights
from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.gradients import grad
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.layers import PIECE
from fedpers.learning.model import Model, build_model
from fedpers.learning.optimizers import LocalConfig

Run = Callable[[], float | None]  # does the work; returns the CPU seconds of other processes
Case = tuple[str, str, dict[str, Run]]  # part, case, ways; the first way is ours


def main() -> None:
    """Measure all parts, write parts.json and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=3, help="times that each way is run, in threes")
    write(measure(parser.parse_args().passes), "parts", Path(__file__).parent / "results")


def measure(passes: int) -> list[Result]:
    """All parts; a row for each way of each case."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        cases: Iterator[Case] = chain(
            _training(), _images(), _evaluation(), channels.cases(stack), stores.cases(stack)
        )
        return [row for case in cases for row in compare(*case, 3 * passes)]


def compare(part: str, case: str, ways: dict[str, Run], count: int) -> list[Result]:
    """A row for each way; the first way is ours."""
    rows: list[Result] = []
    for way, found in take_turns(ways, count).items():
        times = found["cpu"] / (rows[0] if rows else found)["cpu"]
        rows.append({"part": part, "case": case, "way": way, **found, "times": times, "count": count})
        print("{part}, {case}, {way}: {seconds:.4f} s, {cpu:.4f} s of CPU".format(**rows[-1]), flush=True)
    return rows


# ---- kernels -----------------------------------------------------------------------------------

SGD = LocalConfig(lr=LR, epochs=1, batch_size=20)
PROX = FedProxConfig(mu=0.1, local=SGD)
CLIENTS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "SGD": lambda m: (FedAvgClient(FedAvgConfig(local=SGD), m), Weights),
    "momentum": lambda m: (FedAvgClient(FedAvgConfig(local=replace(SGD, momentum=0.9)), m), Weights),
    "Adam": lambda m: (FedAvgClient(FedAvgConfig(local=replace(SGD, optimizer="adam")), m), Weights),
    "proximal": lambda m: (FedProxClient(PROX, m), ProxWeights),
}


def _by_autograd(run: Run) -> Run:
    def inside() -> None:
        with autograd_only():
            run()

    return inside


def _training() -> Iterator[Case]:
    """Local training of 100 clients, 200 samples each."""
    for name in ("lr", "mlp"):
        work = Work(name, M=100)
        model, fed = make_model(work), federation(*tensors(work), test=slice(1))
        for rule, make in CLIENTS.items():
            client, order = make(model)
            cohorts = [Cohort(client, fed, RamStore(), Plan(), RunnerConfig(r)) for r in ("stack", "loop")]
            stack, loop = (answering(c, order(c.params), "train", range(work.M)) for c in cohorts)
            yield "training", f"{name}, {rule}", _ways(stack, loop, "autograd under vmap")


def _evaluation() -> Iterator[Case]:
    """Losses and accuracies of 500 personal models."""
    for name in ("lr", "mlp"):
        work = Work(name, M=500, n=70)
        stack, loop = (evaluation_of(work, RunnerConfig(r)) for r in ("stack", "loop"))
        yield "evaluation", name, _ways(stack, loop, "torch under vmap")


def _images() -> Iterator[Case]:
    """The gradient in all of a client's images, 1,000 of its set's size."""
    for name, shape in (("cnn_omniglot", (1, 28, 28)), ("cnn_pflego", (3, 32, 32))):
        model = build_model(name, input_shape=shape, num_outputs=10, task="classification")
        data = Data(torch.randn(1000, *shape), torch.randint(0, 10, (1000,)), torch.ones(1000))
        run = partial(_gradient, model, model.init(0), data)
        yield "whole gradient", name, {f"{PIECE} images at a time": run, "all at once": _by_autograd(run)}


def _gradient(model: Model, params: Params, data: Data) -> None:
    with torch.no_grad():  # as clients work
        grad(model.loss)(params, data)


def _ways(stack: Run, loop: Run, without: str) -> dict[str, Run]:
    """The kernel, and what runs without it."""
    return {"kernel in C": stack, without: _by_autograd(stack), "loop": _by_autograd(loop)}


if __name__ == "__main__":
    main()
