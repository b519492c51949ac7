"""The engines that a benchmark runs, one a process: `python -m fedpers.bench.engines ENGINE JSON`."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.bench.work import LR, NO_KERNELS, Clock, Result, Work, federation, make_model, tensors, versions
from fedpers.core.rng import Stream


def play(
    strategy: Any, client: Any, fed: Any, store: Any, how: Any, rounds: int, done: Callable[..., None]
) -> Any:
    """Run rounds in this process without evaluation; `done(t, log)` is called after each.

    Returns:
        The cohort, with its workers ended.
    """
    from fedpers.core.host import owned
    from fedpers.core.threads import threads
    from fedpers.engines.cohort import Cohort
    from fedpers.engines.inprocess_grid import InProcessGrid

    owned()  # as the command's own process does
    cohort = Cohort(client, fed, store, strategy.plan, how)
    grid = InProcessGrid(cohort)
    cohort.start()
    with threads(how.workers):
        start(strategy, grid, rounds, done)
    cohort.close()
    return cohort


def start(strategy: Any, grid: Any, rounds: int, done: Callable[..., None]) -> None:
    """Run rounds on a grid without evaluation; `done(t, log)` is called after each."""
    from fedpers.flower.observer import Observer

    observer = Observer()
    observer.on_round = done  # type: ignore[method-assign]
    strategy.configure_evaluate = lambda *args: []
    strategy.start(grid, num_rounds=rounds, observer=observer)


def averaging(work: Work) -> tuple[Any, Any, Any]:
    """(server half, client half, data) of FedAvg at this work."""
    from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
    from fedpers.core.plan import Plan
    from fedpers.learning.optimizers import LocalConfig
    from fedpers.strategies.fedavg import FedAvg

    config = FedAvgConfig(local=LocalConfig(lr=LR, epochs=work.E, batch_size=work.B))
    model = make_model(work)
    server = FedAvg(config, model, Plan(clients_per_round=work.C, eval_every=0))
    return server, FedAvgClient(config, model), federation(*tensors(work), test=slice(work.n // 10))


def ours(work: Work, runner: Any) -> Result:
    """FedAvg through our Strategy, the clients in this process and its workers."""
    from fedpers.engines.memory.client_store import RamStore
    from fedpers.engines.runner import RunnerConfig

    clock, how = Clock(), RunnerConfig(runner, workers=work.workers)
    play(*averaging(work), RamStore(), how, work.rounds, lambda t, log: clock.done())
    return clock.result()


def tight(work: Work, device: str = "cpu", sync: Callable[[], Any] = lambda: None) -> Result:
    """The best plain loop: one model, autograd.grad, foreach updates, channels last.

    Args:
        sync: waits for the device after each round.
    """
    model, clock, rng = make_model(work), Clock(), np.random.default_rng(0)
    x, y = (t.to(device) for t in tensors(work))
    params = {k: channels_last(v.to(device)).requires_grad_() for k, v in model.init(0).items()}
    weights = list(params.values())
    first = [w.detach().clone() for w in weights]
    for t in range(work.rounds):
        total = [torch.zeros_like(w) for w in weights]
        for k in rng.choice(work.M, work.C, replace=False).tolist():
            with torch.no_grad():
                torch._foreach_copy_(weights, first)
            for e in range(work.E):
                i = Stream(0, t, k, e).schedule(work.n, work.B, 1, 0)[0].reshape(-1).to(device)
                for xs, ys in zip(channels_last(x[k][i]).split(work.B), y[k][i].split(work.B), strict=True):
                    g = torch.autograd.grad(F.cross_entropy(model(params, xs), ys), weights)
                    with torch.no_grad():
                        torch._foreach_add_(weights, g, alpha=-LR)
            with torch.no_grad():
                torch._foreach_add_(total, weights, alpha=1 / work.C)
        first = total
        sync()
        clock.done()
    return clock.result()


def channels_last(a: Tensor) -> Tensor:
    """Images and kernels of convolutions in the order that is fastest on CPUs."""
    return a.contiguous(memory_format=torch.channels_last) if a.dim() == 4 else a


def floor(work: Work) -> Result:
    """The speed of this machine on one thread, in GFLOP/s: (a matrix product, a convolution)."""

    def rate(flops: float, run: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(8):
            began = time.process_time()
            run()
            seconds.append(time.process_time() - began)
        return flops / min(seconds[1:]) / 1e9

    a, x, w = torch.randn(1024, 1024), torch.randn(20, 32, 14, 14), torch.randn(64, 32, 5, 5)
    x, w = channels_last(x), channels_last(w)
    with torch.no_grad():
        sgemm = rate(2 * 1024**3, lambda: a @ a)
        conv = rate(2.0 * 20 * 196 * 64 * 800, lambda: F.conv2d(x, w, padding=2))
    return {"seconds": [], "cpu": [], "sgemm": sgemm, "conv": conv}


OURS = {"auto": "auto", "loop": "loop", "stack": "stack", NO_KERNELS: "auto"}


def main(argv: list[str]) -> int:
    """Run one engine on one work and print what it took."""
    torch.set_num_threads(1)
    engine, work = argv[0], Work(**json.loads(argv[1]))
    if engine == NO_KERNELS:
        os.environ["FEDPERS_NATIVE"] = "0"
    if engine in OURS:
        found = ours(work, OURS[engine])
    elif engine in ("tight", "floor"):
        found = {"tight": tight, "floor": floor}[engine](work)
    else:
        from fedpers.bench import peers

        found = getattr(peers, engine.replace("-", "_"))(work)
    found |= {"engine": engine, "work": asdict(work), "versions": versions()}
    if os.environ.get("RANK", "0") == "0":  # of several processes the first one tells
        print("RESULT " + json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
