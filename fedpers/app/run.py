"""One run: build it, drive it through its engine, write its directory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedpers.app.build import Parts, assemble
from fedpers.config.run_config import RunConfig
from fedpers.engines.memory.row_store import RowStore
from fedpers.families.unified.optimality_gap import observe_optimality_gap
from fedpers.flower.strategy import Observer, RoundLog
from fedpers.results import checkpoint
from fedpers.results.files import claimed, flush_files
from fedpers.results.progress import ProgressBar
from fedpers.results.recorder import Recorder


@dataclass
class Prepared:
    """A run that is ready to be driven."""

    cfg: RunConfig
    out: Path
    parts: Parts
    recorder: Recorder
    store: RowStore | None  # None: clients keep their states elsewhere, as files
    summary: dict[str, Any] = field(default_factory=dict)


class Checkpointer(Observer):
    """Saves every so many rounds, and after the last."""

    def __init__(self, run: Prepared) -> None:
        self.run = run

    def after_round(self, t: int) -> None:
        """Save if round t is one of those."""
        every, last = self.run.cfg.checkpoint_every, t == self.run.cfg.rounds
        if every and (last or t % every == 0):
            self.run.recorder.flush()  # what the checkpoint's rounds wrote comes first
            if self.run.cfg.engine.name == "ray":
                flush_files()  # the states that go with it
            checkpoint.save(self.run.out, t, self.run.parts.strategy.state, self.run.store)


class Observers(Observer):
    """Several observers, told in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    def on_round(self, t: int, log: RoundLog) -> None:
        """Pass on."""
        for o in self.observers:
            o.on_round(t, log)

    def on_evaluation(self, t: int, clients: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
        """Pass on."""
        for o in self.observers:
            o.on_evaluation(t, clients, arrays)

    def after_round(self, t: int) -> None:
        """Pass on."""
        for o in self.observers:
            o.after_round(t)


def execute(cfg: RunConfig, out: Path) -> dict[str, Any]:
    """Run one configuration to its end; goes on from `out`'s checkpoint if cfg.resume is set.

    Returns:
        The content of summary.json.

    Raises:
        FedpersError: a mistake of the user, a client's failure, or a file system that refuses.
    """
    if cfg.engine.name == "deployment":  # its server app claims the folder
        from fedpers.deploy.submit import run_on_devices

        return run_on_devices(cfg, out)
    from fedpers.app import backends

    with claimed(out):
        prepared = prepare(cfg, out)

        def body(grid: Grid) -> None:
            drive(prepared, grid)

        if cfg.engine.name == "ray":
            backends.run_ray(cfg, prepared.parts, out / "memory", body)
        else:
            store = prepared.store or RowStore(None, cfg.engine.memory_mb)
            backends.run_inprocess(cfg.engine, prepared.parts, store, body)
        return prepared.summary


def prepare(cfg: RunConfig, out: Path) -> Prepared:
    """Build a run and restore what its checkpoint has, if it is to be resumed."""
    parts = assemble(cfg)
    store = None
    if cfg.engine.name == "inprocess":
        store = RowStore(out / "memory", cfg.engine.memory_mb, parts.plan.device)
    t = 0
    if cfg.resume:
        t, state = checkpoint.load(out, store, parts.plan.device)
        parts.strategy.state, parts.strategy.rounds_done = state, t
    recorder = Recorder(out, cfg, parts.federation, start=t)
    return Prepared(cfg, out, parts, recorder, store)


def drive(run: Prepared, grid: Grid, first: Sequence[Observer] = ()) -> None:
    """All rounds on a grid, watched by `first`, recorder, checkpointer and progress bar."""
    strategy = run.parts.strategy
    with ProgressBar(run.cfg.method_name, run.cfg.rounds, strategy.rounds_done) as progress:
        observers = [*first, run.recorder, Checkpointer(run), progress]
        if run.cfg.optimum:
            gap = observe_optimality_gap(strategy, grid)
            observers.insert(0, gap)  # before the recorder: it adds to what is recorded
            run.recorder.facts["optimum"] = gap.facts()
        strategy.start(grid, num_rounds=run.cfg.rounds, observer=Observers(observers))
    run.summary = run.recorder.close()
