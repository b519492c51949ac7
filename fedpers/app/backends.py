"""Where the clients run: in this process, or on Ray through Flower's simulation engine."""

import logging
import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flwr.serverapp import Grid

from fedpers.app.build import Parts, encode_config
from fedpers.app.devices import devices_of
from fedpers.app.gpu_worker import current, starter
from fedpers.config.run_config import EngineConfig, RunConfig
from fedpers.core import machine
from fedpers.core.bounds import show
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.host import told_errors_only
from fedpers.core.threads import threads
from fedpers.engines.memory.row_store import RowStore

if TYPE_CHECKING:
    from fedpers.engines.cohort import Cohort
    from fedpers.engines.runner import RunnerConfig

log = logging.getLogger("fedpers")
Body = Callable[[Grid], None]
NODES = 64  # of a simulation on Ray, through which all clients are reached


def run_inprocess(cfg: RunConfig, parts: Parts, store: RowStore, body: Body, given: bool = False) -> None:
    """Run `body` on a grid of clients in this process and its worker processes (one thread each).

    `given`: the data is an object of the caller; only forked copies of this process can read it.

    Raises:
        ConfigError: the device cannot do what the engine is asked for.
    """
    import torch

    from fedpers.engines.inprocess_grid import InProcessGrid
    from fedpers.engines.runner import RunnerConfig

    engine, devices = cfg.engine, devices_of(cfg)
    cuda = parts.plan.device.startswith("cuda")
    if engine.precision == "tf32" and not cuda:
        raise ConfigError("engine.precision=tf32 needs device=cuda; on a CPU choose float32 or bf16")
    runner = RunnerConfig(
        engine.runner,
        engine.chunk,
        _workers(cfg, devices, given),
        convolution=engine.convolution,
        precision=engine.precision,
    )
    anew = starter(cfg, devices, runner) if devices != ("cpu",) else None
    cohort = cohort_of(parts, store, runner, anew)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other, seen up to 25x slower
    try:
        if anew:
            cohort.start()  # they load while this process does
        with current(devices[0]), threads(runner.workers):
            body(InProcessGrid(cohort))
    finally:
        cohort.close()
        torch.set_num_threads(before)  # the process is its owner's


def cohort_of(
    parts: Parts, store: RowStore, runner: "RunnerConfig | None" = None, starter: Any = None
) -> "Cohort":
    """All clients in this process, with the one model or each with its own.

    Raises:
        ConfigError: workers that make their clients anew, on GPUs, know one model.
    """
    from fedpers.engines.cohort import Cohort
    from fedpers.engines.runner import RunnerConfig
    from fedpers.engines.unlike_cohort import UnlikeCohort

    runner, given = runner or RunnerConfig(), (parts.federation, store, parts.plan)
    if parts.unlike is None:
        return Cohort(parts.client, *given, runner, starter)
    if starter is not None and runner.workers > 1:
        text = "workers on GPUs give all clients one model; use device=cpu or engine.workers=1"
        raise ConfigError(f"model=groups engine.workers={runner.workers}: {text}")
    return UnlikeCohort(parts.unlike.clients, parts.unlike.places, *given, runner)


def _workers(cfg: RunConfig, devices: Sequence[str], given: bool) -> int:
    """The number of processes, this one included: one per device, unless `engine.workers` is set."""
    count = cfg.engine.workers or len(devices)
    if not given or devices == ("cpu",) or count == 1:
        return count
    asked = f"engine.workers={count}" if cfg.engine.workers else f"devices={show(cfg.devices)}"
    if cfg.engine.workers or cfg.devices:
        text = "other processes cannot reach a Federation of this one; name one GPU, or use data=files"
        raise ConfigError(f"{asked}: {text}")
    log.warning("one of %d GPUs is used: no other process can reach a Federation of this one", len(devices))
    return 1


def run_ray(cfg: RunConfig, parts: Parts, store: RowStore, body: Body) -> None:
    """Run `body` on Flower's simulation engine; clients' states stay here, in `store`.

    Raises:
        ConfigError: Ray is not installed, or runs in this process already, or an actor takes more of the
            machine than there is.
        FedpersError: whatever `body` raised.
    """
    import torch

    before = torch.get_num_threads()
    try:
        with told_errors_only():
            _simulate(cfg, parts, store, body)
    finally:
        torch.set_num_threads(before)  # new threads of this process begin with what the server's had


def _simulate(cfg: RunConfig, parts: Parts, store: RowStore, body: Body) -> None:
    import torch
    from flwr.serverapp import ServerApp

    from fedpers.app.client_app import fleet_app
    from fedpers.flower.internals import unreported

    try:
        import ray
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise ConfigError(f"engine=ray needs Ray: pip install 'flwr[simulation]' ({error})") from error
    if ray.is_initialized():
        text = "Ray runs in this process already, and Flower would end it with the run"
        raise ConfigError(f"engine=ray: {text}; call ray.shutdown() before, or run in a process of its own")
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
    with unreported(), machine.only_granted_gpus():
        run_simulation(server, app, nodes, backend_config=_backend(cfg.engine))
    if failed:
        raise failed[0]


def resources_there(address: str | None) -> list[Mapping[str, float]]:
    """{CPU, GPU} of each machine: of a running cluster, or what this process was granted of this one.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    import ray

    if not address:
        return [{"CPU": machine.cores(), "GPU": len(machine.gpus())}]
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
    """Raise OSError where nobody listens; Ray itself would retry for minutes before it reports that."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), patience).close()


def check_resources(engine: EngineConfig, machines: Sequence[Mapping[str, float]]) -> None:
    """Refuse an actor that needs more than any machine has: Ray and Flower would wait for one for ever.

    Raises:
        ConfigError: names the key, its value and what there is.
    """
    for key, kind in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        wanted, most = getattr(engine, key), max((m.get(kind, 0) for m in machines), default=0)
        if wanted > 1 and wanted % 1:
            text = "of more than one, Ray gives whole ones alone"
            raise ConfigError(f"engine.{key}={wanted:g}: {text}; choose {math.floor(wanted)}")
        if wanted > most:
            there = "this process was granted"
            if engine.address:
                there = f"the largest machine of {engine.address} has"
            text = f"{there} {most:g} {kind}s, and an actor takes so many"
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
            raise FedpersError(f"Ray did not start within {patience:.0f} s")
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
        init["address"] = "local"  # one of its own, whatever cluster runs on this machine
        init["num_cpus"], init["num_gpus"] = machine.cores(), len(machine.gpus())
        init["include_dashboard"] = False
    # Ray starts an actor that died anew, on another machine if it must; Flower hands these on as they are
    resources = {"num_cpus": engine.num_cpus, "num_gpus": engine.num_gpus, "max_restarts": -1}
    return {"init_args": init, "client_resources": resources}
