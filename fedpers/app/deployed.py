"""The ServerApp of engine=deployment: it runs beside the SuperLink and writes the run directory."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpers.app.build import assemble
from fedpers.app.devices import choose_device
from fedpers.app.observers import user_observers
from fedpers.app.public import public_samples
from fedpers.app.run import Prepared, drive, logged
from fedpers.app.run_folder import store_config
from fedpers.config.registry import method
from fedpers.config.run_config import RunConfig, from_mapping
from fedpers.core.data import ClientData, Federation
from fedpers.core.errors import FedpersError
from fedpers.core.host import borrowed
from fedpers.core.logs import formatter, to_stderr
from fedpers.core.memory import return_large
from fedpers.core.pipeline import Pipeline
from fedpers.deploy.agreement import agree, notes_of
from fedpers.deploy.device_grid import DeviceGrid
from fedpers.deploy.diary import Diary, write_card
from fedpers.deploy.ledger import Ledger
from fedpers.flower.observer import Observer, RoundLog
from fedpers.results import checkpoint
from fedpers.results.files import claimed
from fedpers.results.recorder import Recorder
from fedpers.results.summary import describe, note_failure

PATIENCE_S = 180.0  # for a crashed run's process, which lets go of the folder when it ends
app = ServerApp()


class Counted(Observer):
    """Adds to each round's row how many messages were sent, answered, late or refused since the last row."""

    def __init__(self, grid: DeviceGrid) -> None:
        self.grid = grid

    def on_round(self, t: int, log: RoundLog) -> None:
        """Add the columns asked, answered, late, refused, retried, reinitialised."""
        log.extra.update(self.grid.take_counts())


@app.main()
@borrowed()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration that the bundle carries."""
    to_stderr("%(message)s")
    torch.set_num_threads(1)
    return_large()
    cfg = from_mapping(json.loads(str(context.run_config["config"])))
    out = Path(str(cfg.out))
    out.mkdir(parents=True, exist_ok=True)
    with _claimed_patiently(out):
        store_config(cfg, out)
        try:
            run(cfg, out, grid)
        except Exception as error:  # whatever it was, whoever waits for the run is told
            told = isinstance(error, FedpersError)
            note_failure(out, str(error) if told else f"{type(error).__name__}: {error}")
            raise


def run(cfg: RunConfig, out: Path, grid: Grid) -> None:
    """One run on devices, to its end.

    Raises:
        FedpersError: too few clients, a client's failure, or a file system that refuses.
    """
    method(cfg.method_name).strategy_class()  # its records, which a checkpoint holds
    with logged(out, formatter()):
        _run(cfg, out, grid)


def _run(cfg: RunConfig, out: Path, grid: Grid) -> None:
    ledger, device, t, state = Ledger(), choose_device(cfg), 0, None
    if cfg.resume:
        t, state = checkpoint.load(out, ledger, device)
    devices = DeviceGrid(grid, cfg, ledger, device)
    devices.diary = Diary(out)
    devices.assemble(cfg.data.num_clients)
    if not ledger.pipeline:
        agree(cfg.data, ledger)
    parts = assemble(cfg, federation_of(cfg, ledger))
    parts.strategy.public = public_samples(cfg, parts.federation)
    if cfg.resume:
        parts.strategy.state, parts.strategy.rounds_done = state, t
    recorder = Recorder(out, cfg, parts.federation, start=t)
    prepared = Prepared(cfg, out, parts, recorder, ledger, user_observers(cfg.observers))  # type: ignore[arg-type]
    try:
        drive(prepared, devices, [Counted(devices)])  # type: ignore[arg-type]
    except BaseException as error:
        write_card(out, describe(cfg) | {"status": "failed", "error": str(error)})
        raise
    write_card(out, prepared.summary)


def of_devices(cfg: RunConfig, run: Path) -> tuple[int, Any, Federation]:
    """(round, state, population) of the newest checkpoint of a run on devices."""
    method(cfg.method_name).strategy_class()
    ledger = Ledger()
    t, state = checkpoint.load(run, ledger)
    return t, state, federation_of(cfg, ledger)


def federation_of(cfg: RunConfig, ledger: Ledger) -> Federation:
    """The federation as the server knows it: without data, from the numbers that devices reported."""
    outputs = cfg.data.num_classes if cfg.data.task == "classification" else 1
    return Federation(
        name=cfg.data.name,
        num_clients=len(ledger.names),
        input_shape=tuple(cfg.data.input_shape),
        num_classes=outputs,
        task=cfg.data.task,
        client=_elsewhere,
        num_train=ledger.num_train,
        num_test=ledger.num_test,
        label_counts=ledger.label_counts,
        notes=notes_of(ledger),
        pipeline=Pipeline.of(json.loads(ledger.pipeline or "{}")),
        clients=ledger.names,
    )


def _elsewhere(k: int) -> ClientData:
    raise FedpersError(f"client {k}'s data is on its device")


@contextmanager
def _claimed_patiently(out: Path) -> Iterator[None]:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            claim = claimed(out)
            claim.__enter__()
            break
        except FedpersError:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)
    try:
        yield
    finally:
        claim.__exit__(None, None, None)
