"""Where the clients run: in this process, or on Ray through Flower's simulation engine."""

import logging
import math
import os
import socket
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.serverapp import Grid

from fedpers.app.build import Parts, encode_config
from fedpers.config.run_config import EngineConfig, RunConfig
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.engines.memory.row_store import RowStore

Body = Callable[[Grid], None]
NODES = 64  # of a simulation on Ray, through which all clients are reached


def run_inprocess(engine: EngineConfig, parts: Parts, store: RowStore, body: Body) -> None:
    """Run `body` on a grid of clients in this process (and its workers, one thread each).

    Raises:
        ConfigError: the device cannot do what the engine is asked for.
    """
    import torch

    from fedpers.engines.cohort import Cohort
    from fedpers.engines.inprocess_grid import InProcessGrid
    from fedpers.engines.runner import RunnerConfig

    cuda = parts.plan.device.startswith("cuda")
    if engine.precision == "tf32" and not cuda:
        raise ConfigError("engine.precision=tf32 needs device=cuda; a CPU knows float32 and bf16")
    if engine.workers > 1 and cuda:
        raise ConfigError(
            f"engine.workers={engine.workers}: processes cannot share a GPU's clients; use 1, a stack "
            f"fills the GPU"
        )
    runner = RunnerConfig(
        engine.runner,
        engine.chunk,
        engine.workers,
        convolution=engine.convolution,
        precision=engine.precision,
    )
    cohort = Cohort(parts.client, parts.federation, store, parts.plan, runner)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other, seen up to 25x slower
    try:
        body(InProcessGrid(cohort))
    finally:
        cohort.close()
        torch.set_num_threads(threads)  # the process is its owner's


def run_ray(cfg: RunConfig, parts: Parts, store: RowStore, body: Body) -> None:
    """Run `body` on Flower's simulation engine; clients' states stay here, in `store`.

    Raises:
        ConfigError: Ray is not installed.
        FedpersError: whatever `body` raised.
        ConfigError: an actor takes more of the machine than there is.
    """
    import torch
    from flwr.serverapp import ServerApp

    from fedpers.app.client_app import fleet_app

    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise ConfigError(f"engine=ray needs Ray: pip install 'flwr[simulation]' ({error})") from error
    check_resources(cfg.engine, resources_there(cfg.engine.address))
    server = ServerApp()
    failed: list[BaseException] = []
    nodes = min(parts.federation.num_clients, NODES)

    @server.main()
    def main(grid: Grid, context: Any) -> None:
        torch.set_num_threads(1)  # holds for this thread; see `run_inprocess`
        try:
            body(_fleet(grid, cfg.engine, parts, store, nodes))
        except BaseException as error:  # Flower's thread would only log it
            failed.append(error)

    app = fleet_app(encode_config(cfg))
    for chatty in ("flwr", "alembic"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = _backend(cfg.engine)
        run_simulation(server, app, nodes, backend_config=backend)
    if failed:
        raise failed[0]


def resources_there(address: str | None) -> list[Mapping[str, float]]:
    """{CPU, GPU} of each machine: of a running cluster, or of this one as Ray would count it.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    import ray
    import torch

    if not address:
        return [{"CPU": os.cpu_count() or 1, "GPU": torch.cuda.device_count()}]
    try:
        _knock(address)
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # ConnectionError, ValueError, RuntimeError: what Ray thinks of an address
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"engine.address={address}: no Ray cluster there ({reason})") from error
    try:
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


def _knock(address: str, patience: float = 10.0) -> None:
    """Raise OSError where nobody listens: Ray itself asks again and again, for minutes on a busy machine."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), patience).close()


def check_resources(engine: EngineConfig, machines: Sequence[Mapping[str, float]]) -> None:
    """Refuse an actor that no machine can hold: Ray would wait for such a machine, and Flower with it.

    Raises:
        ConfigError: names the key, its value and what there is.
    """
    for key, kind in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        wanted, most = getattr(engine, key), max((m.get(kind, 0) for m in machines), default=0)
        if wanted > 1 and wanted % 1:
            text = "of more than one, Ray gives whole ones alone"
            raise ConfigError(f"engine.{key}={wanted:g}: {text}; choose {math.floor(wanted)}")
        if wanted > most:
            where = f"the largest machine of {engine.address}" if engine.address else "this machine"
            text = f"{where} has {most:g} {kind}s, and an actor takes so many"
            raise ConfigError(f"engine.{key}={wanted:g}: {text}; choose at most {most:g}")
    if not any(m.get("CPU", 0) >= engine.num_cpus and m.get("GPU", 0) >= engine.num_gpus for m in machines):
        text = "no machine has both"
        raise ConfigError(f"engine.num_cpus={engine.num_cpus:g} engine.num_gpus={engine.num_gpus:g}: {text}")


def _fleet(grid: Grid, engine: EngineConfig, parts: Parts, store: RowStore, nodes: int) -> Grid:
    """All clients of the federation, behind the nodes of Flower's simulation."""
    from fedpers.engines.ray_grid import RayCohort, RayGrid
    from fedpers.flower.roster import wait_for_nodes

    ids = wait_for_nodes(grid, nodes)
    device, count = parts.plan.device, _actors(engine)
    return RayGrid(RayCohort(grid, ids, count, parts.federation, store, device, engine.chunk))


def _actors(engine: EngineConfig, patience: float = 120.0) -> int:
    """How many actors Flower has made of Ray's resources, once Ray is there."""
    import ray

    began = time.monotonic()
    while not ray.is_initialized():
        if time.monotonic() - began > patience:
            raise FedpersError(f"Ray was not there within {patience:.0f} s")
        time.sleep(0.05)
    there = ray.cluster_resources()
    count = there.get("CPU", 0) / engine.num_cpus
    if engine.num_gpus:
        count = min(count, there.get("GPU", 0) / engine.num_gpus)
    return max(int(count), 1)


def _backend(engine: EngineConfig) -> Any:
    init: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    if engine.address:
        init["address"] = engine.address
    else:
        init["num_cpus"] = os.cpu_count() or 1
        init["include_dashboard"] = False
    # Ray starts an actor that died anew, on another machine if it must; Flower hands these on as they are
    resources = {"num_cpus": engine.num_cpus, "num_gpus": engine.num_gpus, "max_restarts": -1}
    return {"init_args": init, "client_resources": resources}
