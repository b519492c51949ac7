"""One run: build it, drive it through its engine, write its directory."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedpers.app import preemption
from fedpers.app.build import Parts, sizes_of
from fedpers.app.local_step import facts_of
from fedpers.app.observers import Observers, UserObservers, user_observers
from fedpers.app.own_files import assembled
from fedpers.app.privacy import check_privacy
from fedpers.app.public import public_samples
from fedpers.app.run_folder import admitted_run, opened
from fedpers.config.run_config import RunConfig, to_mapping
from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.host import borrowed
from fedpers.core.logs import formatter
from fedpers.core.memory import give_back
from fedpers.core.systems import Systems
from fedpers.engines.memory.row_store import RowStore
from fedpers.families.unified.optimality_gap import observe_optimality_gap
from fedpers.flower.accounting import Spending
from fedpers.flower.clock import Clock
from fedpers.flower.observer import Observer, RoundLog
from fedpers.learning.flops import SampleFlops, flops_of
from fedpers.learning.model import Model
from fedpers.results import checkpoint
from fedpers.results.early_stop import EarlyStop
from fedpers.results.files import flush_files, replace_json
from fedpers.results.progress import ProgressBar
from fedpers.results.recorder import Recorder
from fedpers.results.summary import note_interruption, peak_memory, read_summary

log = logging.getLogger("fedpers")


@dataclass
class Prepared:
    """A run that is ready to be driven."""

    cfg: RunConfig
    out: Path
    parts: Parts
    recorder: Recorder
    store: RowStore | None  # None: clients keep their states elsewhere, as files
    guests: UserObservers = field(default_factory=lambda: UserObservers(()))  # observers of the user
    summary: dict[str, Any] = field(default_factory=dict)
    spending: Spending | None = None  # None: without privacy
    own_process: bool = False  # whether its process makes no other run: then its memory is the run's


class Cost(Observer):
    """Adds to each round's row the operations of its training (GFLOP), from the sizes of the layers."""

    def __init__(self, model: Model | None, input_shape: tuple[int, ...]) -> None:
        """Of clients with unlike models, None, the column is left out."""
        self.flops: SampleFlops | None = None
        try:
            self.flops = flops_of(model, input_shape) if model else None
        except Exception as error:  # whatever a network of the user's does: no run is lost by it
            kind = "" if isinstance(error, FedpersError) else f"{type(error).__name__}: "
            log.warning("the column gflops is left out; no sample could be counted: %s%s", kind, error)

    def on_round(self, t: int, log: RoundLog) -> None:
        """Add the column gflops."""
        if self.flops is not None:
            cost = self.flops.of(log.gradient_evals, log.body_forwards, log.head_steps)
            log.extra["gflops"] = cost / 1e9


class Checkpointer(Observer):
    """Writes a checkpoint every `checkpoint_every` rounds and after the last."""

    def __init__(self, run: Prepared) -> None:
        self.run = run

    def after_round(self, t: int) -> None:
        """Save if round t is one of those, or if a scheduler asks.

        Raises:
            Preempted: it did.
        """
        every, last = self.run.cfg.checkpoint_every, t == self.run.parts.strategy.last_round
        due, signalled = bool(every) and (last or t % every == 0), preemption.asked()
        if due or signalled:
            self.run.recorder.flush()  # what the checkpoint's rounds wrote comes first
            if self.run.store is None:
                flush_files()  # the states that go with it, in files of the clients' own
            strategy, stores = self.run.parts.strategy, (self.run.store, self.run.spending)
            run = strategy.run_id if self.run.store is None else ""
            checkpoint.save(self.run.out, t, strategy.state, *stores, exchanges=strategy.exchanges, run=run)
        if signalled and not last:
            note_interruption(self.run.out, signalled)
            raise preemption.Preempted


@borrowed()
def execute(
    cfg: RunConfig,
    out: Path,
    *,
    repeat: bool = False,
    command: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    federation: Federation | None = None,
    pictures: bool = True,
    own_process: bool = False,
) -> dict[str, Any]:
    """Make one run in the folder `out`, from its beginning or, with cfg.resume, from `out`'s checkpoint.

    Args:
        cfg: the run.
        out: the run directory; a run that is there already is refused, unless it is to be resumed.
        repeat: the same run may be there; it is gone on with, and left alone if it is finished.
        command: the user's overrides, to be kept with the run.
        observers: told of the run, beside those that `cfg` names.
        federation: the data, instead of what `cfg` says.
        pictures: whether to draw them.
        own_process: whether this process makes no other run; then its peak memory is noted.

    Returns:
        The content of summary.json.

    Raises:
        ConfigError: the folder is not free, or an observer cannot be made.
        FedpersError: another mistake of the user, a client's failure, or a file system that refuses.
    """
    check_privacy(cfg)
    if cfg.engine.name == "deployment":  # its server app claims the folder
        from fedpers.deploy.submit import run_on_devices

        admitted_run(cfg, out, repeat=False)
        return run_on_devices(cfg, out)
    guests, lines = user_observers(cfg.observers, observers), formatter()
    with opened(cfg, out, repeat, command) as admitted:
        if admitted is None:
            return read_summary(out)
        try:
            with logged(out, lines):
                return _make(admitted, out, federation, guests, pictures, own_process)
        finally:
            give_back()  # to the process' next run, or to others on the machine


def _make(
    cfg: RunConfig,
    out: Path,
    federation: Federation | None,
    guests: UserObservers,
    pictures: bool,
    own_process: bool,
) -> dict[str, Any]:
    from fedpers.app import backends

    prepared = prepare(cfg, out, federation, guests, remember=True)
    prepared.recorder.pictures, prepared.own_process = pictures, own_process

    def body(grid: Grid) -> None:
        drive(prepared, grid)

    store = prepared.store
    assert store is not None
    with contextlib.closing(store):
        if cfg.engine.name == "ray":
            backends.run_ray(cfg, prepared.parts, store, body)
        else:
            backends.run_inprocess(cfg, prepared.parts, store, body, given=federation is not None)
    return prepared.summary


@contextmanager
def logged(out: Path, lines: logging.Formatter) -> Iterator[None]:
    """While this is open, write fedpers' log records, debug records included, to the run's fedpers.log."""
    logger, handler = logging.getLogger("fedpers"), logging.FileHandler(out / "fedpers.log", delay=True)
    handler.setFormatter(lines)
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


def prepare(
    cfg: RunConfig,
    out: Path,
    federation: Federation | None = None,
    guests: UserObservers | None = None,
    remember: bool = False,
) -> Prepared:
    """Build a run and restore what its checkpoint has, if it is to be resumed.

    Args:
        cfg: the run.
        out: the run directory.
        federation: clients' data; None: those that the configuration names.
        guests: observers of the caller's; None: those that the configuration names.
        remember: whether clients' states are kept here; else the clients keep them.
    """
    parts = assembled(cfg, out, federation)
    parts.strategy.public = public_samples(cfg, parts.federation)
    device, t = parts.plan.device, 0
    store = RowStore(out / "memory", cfg.engine.memory_mb, device) if remember else None
    if cfg.resume:
        t, state = checkpoint.load(out, store, device)
        parts.strategy.state, parts.strategy.rounds_done = state, t
        if store is None:
            parts.strategy.run_id = checkpoint.run_id(out)
    recorder = Recorder(out, cfg, parts.federation, start=t)
    return Prepared(cfg, out, parts, recorder, store, guests or user_observers(cfg.observers))


def drive(run: Prepared, grid: Grid, first: Sequence[Observer] = ()) -> None:
    """Run all rounds on a grid; observers are told in this order: `first`, recorder, checkpointer, progress
    bar, the user's."""
    try:
        _drive(run, grid, first)
    finally:
        run.recorder.release()


def _drive(run: Prepared, grid: Grid, first: Sequence[Observer]) -> None:
    guests = run.guests
    guests.on_start(run.out, to_mapping(run.cfg))
    try:
        _play(run, grid, first)
    except BaseException as error:
        guests.on_end({"status": "failed", "error": f"{type(error).__name__}: {error}"})
        raise
    guests.on_end(run.summary)
    if guests.failures:
        run.summary["observer_failures"] = dict(guests.failures)
        replace_json(run.out / "summary.json", run.summary)


def _play(run: Prepared, grid: Grid, first: Sequence[Observer]) -> None:
    strategy = run.parts.strategy
    title = run.cfg.method_name
    run.recorder.facts |= sizes_of(run.parts)
    run.recorder.listener = run.guests
    with ProgressBar(title, run.cfg.rounds, strategy.rounds_done) as progress:
        cost = Cost(None if run.parts.unlike else strategy.model, run.parts.federation.input_shape)
        early = EarlyStop(run.cfg.stop, run.recorder.rows)
        if run.cfg.systems.on:
            strategy.clock = _clock(run, cost)
        observers = [*first, cost, run.recorder, early, Checkpointer(run), progress, run.guests]
        if run.cfg.privacy.on:
            run.spending = Spending(run.cfg.privacy, bool(run.cfg.data.standardise))
            log.info("%s", run.spending.plan(run.cfg.rounds))
            if strategy.rounds_done:
                run.spending.load(checkpoint.newest(run.out))
            observers.insert(0, run.spending)
        if run.cfg.optimum:
            gap = observe_optimality_gap(strategy, grid)
            observers.insert(0, gap)  # before the recorder: it adds to what is recorded
            run.recorder.facts["optimum"] = gap.facts()
        everybody = Observers(observers)
        strategy.start(grid, num_rounds=run.cfg.rounds, observer=everybody)
    if strategy.clock is not None:
        told = {name: [r[name] for r in run.recorder.rows if name in r] for name in ("late", "partial")}
        run.recorder.facts |= {name: sum(values) for name, values in told.items() if values}
        run.recorder.facts["virtual_seconds"] = strategy.clock.now
    if everybody.stopped_by:
        run.recorder.facts["stopped"] = {"round": strategy.last_round, "why": everybody.stopped_by}
    run.recorder.facts |= strategy.facts(strategy.state) | facts_of(grid)
    if run.spending is not None:
        run.recorder.facts["privacy"] = run.spending.facts()
        log.info("%s", run.spending.told())
    if run.own_process:
        run.recorder.facts["peak_memory_mb"] = peak_memory()
    run.summary = run.recorder.close()


def _clock(run: Prepared, cost: Cost) -> Clock:
    """The clock of simulated seconds; a resumed run continues at its checkpoint's time.

    Raises:
        ConfigError: nobody can tell what training costs.
    """
    cfg = run.cfg
    if cost.flops is None:
        text = "the operations of a sample of this model could not be counted, see the log"
        raise ConfigError(f"systems={cfg.systems.name}: {text}; set systems=off")
    federation = run.parts.federation
    systems = Systems(cfg.systems, federation.num_clients, cfg.seed)
    now = sum(r.get("virtual_seconds", 0.0) for r in run.recorder.rows)
    return Clock(systems, cost.flops.of, now, run.parts.client, federation.num_train)
