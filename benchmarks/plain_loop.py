"""FedAvg on architectures of today beside a plain PyTorch loop over the same clients, one thread each.

Twenty clients, an epoch a round, SGD, in turns; numbers above 1 say how many times as long the loop takes.

    python -m benchmarks.plain_loop [--only ViT ...] [--pairs 5]     (needs transformers and peft)
"""

import argparse
import copy
import json
import logging
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.nets import ARCHITECTURES, TEXT, Architecture
from fedpers.bench.main import keep
from fedpers.bench.work import AsModule, Result
from fedpers.config import compose
from fedpers.config.registry import method
from fedpers.core.data import Federation
from fedpers.core.plan import Plan
from fedpers.flower.observer import Observer
from fedpers.learning.lora import Lora, adapt
from fedpers.simulate import simulate

CLIENTS, LR, ROUNDS = 20, 0.05, 3  # the first round of ours warms up
SIZES = ((11, 10), (50, 10), (10, 2))  # (training samples, batch)
FILE = Path(__file__).parent / "results" / "plain_loop.json"
Pair = tuple[Tensor, Tensor]


def module_of(architecture: Architecture) -> nn.Module:
    """The architecture as a module of torch, with adapters where it has them."""
    if isinstance(architecture.make, str):
        return AsModule(architecture.model())
    module: nn.Module = architecture.make()
    if "lora" in architecture.options:
        names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        adapt(module, Lora.of({**architecture.options["lora"], "targets": names[:-1]}, "model"), names[-1])
    return module


def plain_round(module: nn.Module, clients: list[Pair], batch: int) -> float:
    """Seconds of a round of FedAvg in a loop over clients, written as one would."""
    began = time.perf_counter()
    start = {k: v.clone() for k, v in module.state_dict().items()}
    trained = [k for k, p in module.named_parameters() if p.requires_grad]
    total = {k: torch.zeros_like(start[k]) for k in trained}
    for x, y in clients:
        module.load_state_dict(start)
        optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], LR)
        for part in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            out = module(x[part])
            out = getattr(out, "logits", out)
            F.cross_entropy(out.flatten(0, -2), y[part].flatten()).backward()
            optimizer.step()
        for k, p in module.named_parameters():
            if p.requires_grad:
                total[k] += p.detach() / len(clients)
    module.load_state_dict({**start, **total})
    return time.perf_counter() - began


class Times(Observer):
    """Seconds of each round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_round(self, t: int, log: Any) -> None:
        """Keep them."""
        self.seconds.append(log.seconds)


def our_run(architecture: Architecture, data: Federation, batch: int) -> Callable[[], float]:
    """What gives the seconds of a round of ours, once warm."""
    model, row = architecture.model(), method("fedavg")
    words = [f"local.{k}={v}" for k, v in {"epochs": 1, "batch_size": batch, "lr": LR}.items()]
    config = compose.load(["method=fedavg", *[f"method.{word}" for word in words]]).method

    def run() -> float:
        times = Times()
        plan = Plan(eval_every=0, num_clients=CLIENTS)
        strategy = row.strategy_class()(config, model, plan)
        simulate(strategy, row.client_class()(config, model), data, ROUNDS, observer=times)
        return min(times.seconds[1:])

    return run


def times(name: str, n: int, batch: int, pairs: int) -> float:
    """How many times as long the loop takes: the median of pairs in turns."""
    architecture = ARCHITECTURES[name]
    data = architecture.federation(CLIENTS, n, 1)
    clients = [(data.client(k).train.x, data.client(k).train.y) for k in range(CLIENTS)]
    clients = [(x.long() if architecture.shape == TEXT else x, y) for x, y in clients]
    module, ours = module_of(architecture).train(), our_run(architecture, data, batch)
    start = copy.deepcopy(module.state_dict())
    plain_round(module, clients, batch), ours()
    loop, mine = [], []
    for _ in range(pairs):
        module.load_state_dict(start)
        loop.append(min(plain_round(module, clients, batch) for _ in range(ROUNDS - 1)))
        mine.append(ours())
    return statistics.median(a / b for a, b in zip(loop, mine, strict=True))


def _measured(file: Path) -> dict[str, Result]:
    """{architecture: row} of what was measured before, which stays if it is not measured again."""
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": []}
    return {
        r["architecture"]: {**r, "measured": r.get("measured", known["machine"]["date"])}
        for r in known["rows"]
    }


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", default=str(FILE))
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("fedpers").setLevel(logging.ERROR)
    rows = _measured(Path(given.out))
    for name in given.only:
        row: Result = {"architecture": name}
        for n, batch in SIZES:
            row[f"{n} samples, batch {batch}"] = round(times(name, n, batch, given.pairs), 2)
        rows[name] = row | {"measured": str(date.today())}
        print(rows[name], flush=True)
    keep(
        [rows[name] for name in ARCHITECTURES if name in rows],
        "python -m benchmarks.plain_loop",
        Path(given.out),
    )


if __name__ == "__main__":
    main()
