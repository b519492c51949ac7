"""The step that clients take, and what took it: `fedpers explain`, and a line of summary.json.

Nothing here is predicted: who took steps is what the engine noted of those that it made.
"""

import inspect
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.serverapp import Grid

import fedpers
from fedpers.core.witness import KERNEL, LOOP, RECORDED, STACK, TORCH
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.row_store import RowStore
from fedpers.engines.unlike_cohort import UnlikeCohort
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.observer import Observer
from fedpers.learning.kernels.library import library
from fedpers.learning.kernels.plan import layers_of, small_convs, understood
from fedpers.learning.training_round import trainings

FEW = 4  # clients of a trial round
CLIENTS = {STACK: "in a stack", LOOP: "one by one"}
NONE = "nobody: no client trained in this process"


def explain(words: Sequence[str]) -> str:
    """The instructions of a method's local step and the code that runs them, found by making one round.

    Args:
        words: overrides of the command line, the method among them.

    Raises:
        ConfigError: lists every mistake.
        DataError: the data is not there.
    """
    from fedpers.app import backends
    from fedpers.app.build import assemble
    from fedpers.config import compose

    cfg = replace(compose.load(words), rounds=1, eval_every=0, optimum=False, observers=())
    cfg = replace(cfg, engine=replace(cfg.engine, name="inprocess", workers=1))
    parts, said = assemble(cfg), list[str]()
    if not parts.strategy.takes_all:
        few = min(FEW, cfg.clients_per_round or FEW, parts.federation.num_clients - cfg.new_clients)
        parts.strategy.plan = replace(parts.strategy.plan, clients_per_round=few)

    def body(grid: Grid) -> None:
        assert isinstance(grid, InProcessGrid)
        parts.strategy.start(grid, num_rounds=1, observer=Observer())
        said.extend(_described(grid.cohort))

    with tempfile.TemporaryDirectory(prefix="fedpers-") as folder:
        store = RowStore(Path(folder), cfg.engine.memory_mb, parts.plan.device)
        try:
            backends.run_inprocess(cfg, parts, store, body)
        finally:
            store.close()
    return "\n".join([f"{cfg.method_name} on {cfg.data.name}, model {cfg.model.name}", *said])


def _described(cohort: Cohort) -> Iterator[str]:
    """The programs of the steps that were taken, the method's own file, and who took them."""
    client, programs = cohort.client, cohort.runner.witness.programs
    for text in dict.fromkeys(map(str, programs.values())):
        yield "step:"
        yield from (f"    {line}" for line in text.splitlines())
    own = "the client's part around it" if programs else "step: the method's own, written"
    yield f"{own}: in {source_of(client)}"
    yield f"taken by: {who_took_it(cohort)}"


def source_of(client: PersonalizedClient) -> str:
    """The file of a method's client half, below the folder of its package."""
    path = Path(inspect.getfile(type(client))).resolve()
    roots = [Path(p).resolve() for p in fedpers.__path__]
    found = [path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root)]
    return min(found, key=len) if found else str(path)


def facts_of(grid: Grid) -> dict[str, str]:
    """The entries of summary.json about local steps; {} where other processes made all of them."""
    cohort = grid.cohort if isinstance(grid, InProcessGrid) else None
    if not isinstance(cohort, Cohort):
        return {}
    each = cohort.cohorts if isinstance(cohort, UnlikeCohort) else [cohort]
    return {"local_step": "; ".join(dict.fromkeys(map(who_took_it, each)))}


def who_took_it(cohort: Cohort) -> str:
    """One line: which code made the local steps, whether clients were stacked or looped, and why."""
    witness = cohort.runner.witness
    who, how = witness.who(KERNEL, TORCH, RECORDED), witness.who(STACK, LOOP)
    if not how:
        return NONE
    names = " and ".join(who or [TORCH])
    clients = " or ".join(CLIENTS[h] for h in how)
    why = [*(_why_torch(cohort) if who != [KERNEL] else []), *(_why_loop(cohort) if LOOP in how else [])]
    return f"{names}, clients {clients}" + (f" ({'; '.join(why)})" if why else "")


def _why_torch(cohort: Cohort) -> Iterator[str]:
    """What the C kernels do not know here."""
    model, plan = cohort.client.model, cohort.plan
    unknown = {f"{k}.{f}" for k, cfg in trainings(cohort.client.config).items() for f in _unknown(cfg)}
    reasons = {
        "FEDPERS_NATIVE=0": os.environ.get("FEDPERS_NATIVE") == "0",
        "the C kernels are not there: no compiler, or it is not done": library() is None,
        f"the C kernels run on a CPU, not on {plan.device}": plan.device != "cpu",
        f"the C kernels know float32, not {plan.dtype}": plan.dtype != "float32",
        f"the C kernels do not know {', '.join(sorted(unknown))}": bool(unknown),
        "the C kernels know dense networks and small convolutions of this package": not (
            layers_of(model) or small_convs(model)
        ),
    }
    found = [reason for reason, holds in reasons.items() if holds]
    yield from found[:1] or ["the method's own step is written in torch, in part or whole"]


def _unknown(cfg: object) -> Iterator[str]:
    """Fields of a LocalConfig that keep it from the kernels: each that, set back, or alone, is understood."""
    from fedpers.learning.optimizers import LocalConfig

    assert isinstance(cfg, LocalConfig)
    if understood(cfg):
        return
    plain = LocalConfig()
    for name, value in vars(cfg).items():
        if value != getattr(plain, name) and not understood(replace(plain, **{name: value})):
            yield f"{name}={value}"


def _why_loop(cohort: Cohort) -> Iterator[str]:
    """Why clients were run one by one."""
    runner = cohort.runner
    if runner.config.runner == "loop":
        yield "engine.runner=loop"
    elif not cohort.client.vectorized:
        yield "the method's clients cannot be stacked"
    elif runner.said:
        yield from sorted(runner.said)
    elif runner.looped:
        yield "vmap cannot take this method's orders"
    else:
        yield "they differ in what a stack must share"
