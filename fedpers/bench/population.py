"""Rounds of 1,000 clients out of a thousand to ten million: in one process and more, and on nodes of Ray.

Each setting runs in a process of its own, `python -m fedpers.bench.population JSON`, in turns with others.
"""

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpers.bench.engines import averaging, play, start
from fedpers.bench.processes import watched
from fedpers.bench.work import Result, Work, federation, versions
from fedpers.clients.fedper import FedPerClient, FedPerConfig
from fedpers.core.errors import FedpersError
from fedpers.core.host import owned
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.memory.row_store import RowStore
from fedpers.engines.ray_grid import BUNDLE, RayCohort, RayGrid, serve
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig
from fedpers.strategies.fedper import FedPer

NUMBERS = tuple(10**n for n in range(3, 8))
ASKED, SAMPLES, INPUTS, HIDDEN = 1000, 20, 32, 512  # a head of 512 x 10 weights and 10 biases: 20 KB
PROCESSES, NODES = "processes", "Ray nodes"
HEADS = "heads"  # what clients train: private heads, hardly any arithmetic
WAYS = ((PROCESSES, 1, 1), (PROCESSES, 2, 1), (PROCESSES, 4, 1),
        (NODES, 1, 1), (NODES, 2, 1), (NODES, 4, 1), (NODES, 1, 4))  # of so many CPUs each  # fmt: skip
MEMORY_MB = 128  # of clients' heads: full after six rounds
STORE = 2**30  # bytes of a node of Ray: replies of a round of the largest work are not spilled to disk


def population(args: argparse.Namespace) -> list[Result]:
    """A row for each number of clients and way: time to the first round, of a round, memory, disk."""
    ends = NUMBERS[0], NUMBERS[-1]  # between them one cluster will do
    settings = [(n, *way) for n in NUMBERS for way in WAYS if way[0] == PROCESSES or n in ends or way[1] == 4]
    found: dict[tuple[Any, ...], list[Result]] = {setting: [] for setting in settings}
    for setting in settings * args.passes:
        found[setting].append(run_setting(setting, args.rounds or 20))
        print(*setting, {k: v for k, v in found[setting][-1].items() if k != "seconds"}, flush=True)
    return [_row(setting, runs) for setting, runs in found.items()]


def run_setting(setting: tuple[Any, ...], rounds: int, trains: str = HEADS) -> Result:
    """Seconds and memory of one setting; `trains`: what clients train, as `parts` takes it."""
    command = [sys.executable, "-m", "fedpers.bench.population", json.dumps([*setting, rounds, trains])]
    text, peak = watched(command, {**os.environ, "OMP_NUM_THREADS": "1"})
    for line in reversed(text.splitlines()):
        if line.startswith("RESULT "):
            return {**json.loads(line[7:]), "peak_mb": peak}
    raise FedpersError(f"population {setting}: no result\n{text[-2000:]}")


def _row(setting: tuple[Any, ...], runs: list[Result]) -> Result:
    clients, way, count, cpus = setting
    seconds = statistics.median(s for run in runs for s in run["seconds"])
    row = {"clients": clients, "way": way, "count": count, "cpus": cpus, "seconds": seconds}
    row["startup"] = statistics.median(run["startup"] for run in runs)
    return row | {part: max(run[part] for run in runs) for part in ("peak_mb", "disk_mb")}


# ---- one setting, in a process of its own ------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Run one setting, and print what it took."""
    number, way, count, cpus, rounds, *rest = json.loads(argv[0])
    trains = rest[0] if rest else HEADS
    torch.set_num_threads(1)
    seconds: list[float] = []
    startup: list[float] = []

    def done(t: int, log: Any) -> None:
        startup.append(time.time() - psutil.Process().create_time())
        seconds.append(log.seconds)

    with tempfile.TemporaryDirectory() as folder:
        store = RowStore(Path(folder), memory_mb=MEMORY_MB)
        if way == PROCESSES:
            server, client, fed = parts(number, trains)
            play(server, client, fed, store, RunnerConfig(workers=count), rounds, done)
        else:
            on_ray((number, trains), count, cpus, store, rounds, done)
        disk = sum(f.stat().st_blocks * 512 for f in Path(folder).iterdir()) / 2**20
    found = {"seconds": seconds[rounds // 2 :], "startup": startup[0], "disk_mb": disk}
    print("RESULT " + json.dumps(found | {"versions": versions()}), flush=True)
    return 0


def parts(number: int, trains: str) -> tuple[Any, Any, Any]:
    """(server half, client half, data of `number` clients).

    Args:
        trains: HEADS: FedPer's private heads, data of a thousand clients; else the model of FedAvg's `Work`.
    """
    if trains != HEADS:
        return averaging(Work(trains, M=number, C=min(number, ASKED)))
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((ASKED, SAMPLES, INPUTS), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, (ASKED, SAMPLES)))
    model = build_model("mlp", input_shape=(INPUTS,), num_outputs=10, task="classification", hidden=[HIDDEN])
    config = FedPerConfig(local=LocalConfig(lr=0.05, batch_size=10))
    server = FedPer(config, model, Plan(clients_per_round=ASKED, eval_every=0))
    return server, FedPerClient(config, model), federation(x, y, slice(None), number)


def on_ray(
    which: tuple[int, str], nodes: int, cpus: int, store: RowStore, rounds: int, done: Callable[..., None]
) -> None:
    """The rounds on a cluster of nodes on this machine, an actor a CPU, as `engine=ray` runs them.

    Args:
        which: what `parts` takes.
    """
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation
    from ray.cluster_utils import Cluster

    from fedpers.flower.internals import unreported
    from fedpers.flower.roster import wait_for_nodes

    node = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    for _ in range(1, nodes):
        cluster.add_node(num_cpus=cpus, object_store_memory=STORE)
    server, app, failed = ServerApp(), ClientApp(), []
    app.train(BUNDLE.partition(".")[2])(partial(_bundle, which))

    @server.main()
    def run(grid: Any, context: Any) -> None:
        torch.set_num_threads(1)
        try:
            strategy, _, fed = parts(*which)
            ids = wait_for_nodes(grid, 64)
            fleet = RayGrid(RayCohort(grid, ids, nodes * cpus, fed, store, "cpu"))
            start(strategy, fleet, rounds, done)
        except BaseException as error:  # Flower's thread would only log it
            failed.append(error)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    init = {"address": cluster.address, "logging_level": "error", "log_to_driver": False}
    resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0}
    with unreported():
        run_simulation(server, app, 64, backend_config={"init_args": init, "client_resources": resources})
    cluster.shutdown()
    if failed:
        raise failed[0]


def _bundle(which: tuple[int, str], message: Message, context: Context) -> Message:
    return Message(serve(_cohort(*which), message.content), reply_to=message)


@lru_cache(maxsize=1)
def _cohort(number: int, trains: str) -> Cohort:
    owned()
    torch.set_num_threads(1)
    server, client, fed = parts(number, trains)
    return Cohort(client, fed, RamStore(), server.plan)


if __name__ == "__main__":
    from fedpers.bench import population as module  # actors find it by this name

    sys.exit(module.main(sys.argv[1:]))
