"""`fedpers run`: Hydra composes, names the run directory, sweeps; `fedpers.app.run` does the work."""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedpers.app import preemption
from fedpers.app.run_folder import CONFIG, check_nesting, check_writable
from fedpers.config import compose, hydra_internals, search, slips
from fedpers.config.run_config import RunConfig
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.logs import formatter, restored, wants_json
from fedpers.core.metrics import in_words

if TYPE_CHECKING:
    from fedpers.app.many import ManyRuns
    from fedpers.config.search import SweepConfig

PROGRAM = "fedpers run"
FOREIGN = "jobs=, tune=: these runs are started by fedpers; leave out hydra/launcher="
log = logging.getLogger("fedpers")


@dataclass
class Session:
    """What happened in this command so far."""

    out: Path | None = None  # the run directory of the run that is going on
    failed: list[tuple[Path, Exception]] = field(default_factory=list)
    finished: int = 0


def run_command(argv: Sequence[str]) -> int:
    """Run what Hydra's arguments `argv` ask for; returns the exit status.

    Raises:
        FedpersError: a mistake of the user.
        KeyboardInterrupt: Ctrl-C; its text tells how to go on.
    """
    session = Session()
    slips.refuse_dashes(argv, [*(f.name for f in fields(RunConfig)), *search.KEYS])
    args = hydra_internals.parse_arguments(argv, PROGRAM)
    folder = _value(args.overrides, "resume")
    try:
        with restored(), preemption.heeded():
            try:
                if folder is not None:
                    _resume(Path(folder).expanduser(), args, session)
                else:
                    _start(args, session)
            except preemption.Preempted:
                print(f"saved on {preemption.asked()}: the same command goes on", file=sys.stderr)
                return preemption.status()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(session.out)) from None
    return 0


def _resume(folder: Path, args: Any, session: Session) -> None:
    if args.multirun:
        raise ConfigError(f"resume={folder}: one run is resumed at a time; leave out -m")
    cfg = compose.resumed(folder, [o for o in args.overrides if not o.startswith("resume=")])
    screen = logging.StreamHandler(sys.stdout)
    screen.setLevel(logging.WARNING)  # details go to the run's fedpers.log
    screen.setFormatter(formatter("%(message)s"))
    logging.getLogger().addHandler(screen)  # until the end of the command
    _execute(cfg, folder, session, words=args.overrides)


def _start(args: Any, session: Session) -> None:
    """Check the overrides, then have Hydra call a job for each run; a sweep goes on after a failure."""
    named = _value(args.overrides, "out")
    overrides = [o for o in args.overrides if _key(o) != "out"]
    args.overrides, settings = compose.prepare(overrides, bool(args.multirun), args.config_dir)
    many = _together(settings, args) if settings.jobs != 1 or settings.tune else None
    if named is not None:
        out = Path(named).expanduser()
        check_writable(out)
        check_nesting(out, bool(args.multirun))
        args.overrides.append(f"hydra.{'sweep' if args.multirun else 'run'}.dir={_quoted(str(out))}")

    def job(cfg: DictConfig) -> float | None:
        hydra = HydraConfig.get()
        folder = _as_given(Path(hydra.runtime.output_dir))
        words = list(hydra.overrides.task)
        if many is not None:
            _check_launcher(hydra)
            run, space = compose.from_omegaconf(cfg, words), compose.space(cfg, words)
            many.add(run, space, folder, words, _as_given(_root(hydra)))
            return None
        try:
            # the same sweep or job again: what is finished is left alone
            repeat = hydra.mode == RunMode.MULTIRUN or preemption.restarted()
            summary = _execute(compose.from_omegaconf(cfg, words), folder, session, repeat, words)
            return objective(summary)  # for sweepers that search, such as Hydra's Optuna plugin
        except Exception as error:  # kept, so that a sweep goes on and Hydra is silent
            if hydra.mode == RunMode.MULTIRUN and "BasicLauncher" not in hydra.launcher._target_:
                raise  # another process; this list would not be ours
            session.failed.append((folder, error))
            if hydra.mode == RunMode.MULTIRUN:
                log.warning("failed: %s", error)
        return None

    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints its errors and leaves
    try:
        hydra_internals.run_hydra(args, PROGRAM, compose.CONF, job)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(compose.first_line(error)) from error
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before
    if many is not None and many.tasks:
        _make(many, session)
    _raise_failures(session)


def _together(settings: "SweepConfig", args: Any) -> "ManyRuns":
    if _value(args.overrides, "hydra/launcher") not in (None, "basic"):
        raise ConfigError(FOREIGN)  # before it starts a process for each run
    from fedpers.app.many import ManyRuns  # brings all of Flower, which a mistyped word should not wait for

    return ManyRuns(settings)


def _make(many: "ManyRuns", session: Session) -> None:
    try:
        results = many.make()
    except preemption.Preempted:
        raise
    except KeyboardInterrupt:
        text = f"interrupted; to go on: the same command with out={shlex.quote(str(many.root))}"
        raise KeyboardInterrupt(text) from None
    for task, result in results:
        if isinstance(result, Exception):
            session.failed.append((task.out, result))
        else:
            session.finished += 1
    print(f"{many.root}  (a report: fedpers report {shlex.quote(str(many.root))})")


def _root(hydra: Any) -> Path:
    """The folder of all runs of the command."""
    return Path(hydra.sweep.dir if hydra.mode == RunMode.MULTIRUN else hydra.runtime.output_dir).absolute()


def _check_launcher(hydra: Any) -> None:
    if hydra.mode == RunMode.MULTIRUN and "BasicLauncher" not in hydra.launcher._target_:
        raise ConfigError(FOREIGN)


def _execute(
    cfg: RunConfig, out: Path, session: Session, repeat: bool = False, words: Sequence[str] = ()
) -> dict[str, Any]:
    """Run, and say how it went; returns the summary."""
    from fedpers.app import run

    session.out = out
    say: Callable[[str], object] = print
    if wants_json():  # a program reads, so it gets records, and all of them
        say = log.info
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.INFO)
    summary = run.execute(replace(cfg, out=str(out)), out, repeat=repeat, command=words)
    session.finished += 1
    for note in summary.get("notes", ()):  # its warnings were logged, on the screen too
        say(f"note: {note}")
    say(f"{_sentence(cfg, summary)}\n{out}  (pictures in {out / 'plots'})")
    return summary


def objective(summary: dict[str, Any]) -> float | None:
    """What Hydra's sweepers optimise: best validation accuracy, else validation loss; no test data."""
    best = summary.get("best") or {}
    found = best.get("valid_accuracy", best.get("valid_loss"))
    return None if found is None else float(found)


def _sentence(cfg: RunConfig, summary: dict[str, Any]) -> str:
    final = summary.get("final") or {}
    parts = [
        f"{in_words(name)} {final[name]:.4f}"
        for name in ("loss", "accuracy", "worst_decile")
        if isinstance(final.get(name), float) and final[name] == final[name]
    ]
    ended = "diverged: " if summary.get("diverged") else ""
    numbers = ", ".join(parts) or "done"
    said = f"{cfg.method_name} on {cfg.data.name}: {ended}{numbers}{_chosen(summary)}"
    return said + _of_new_clients(summary)


def _chosen(summary: dict[str, Any]) -> str:
    """The accuracy in the round that validation chose, which reports rank by, if it is not the last."""
    best, final = summary.get("best") or {}, summary.get("final") or {}
    if "accuracy" not in best or best.get("round") in (None, final.get("round")):
        return ""
    chosen = f"accuracy {best['accuracy']:.4f} in round {best['round']}, which validation chose"
    return f" after the last round; {chosen}"


def _of_new_clients(summary: dict[str, Any]) -> str:
    """A sentence on the accuracy of clients that never trained, before and after their adaptation."""
    new = summary.get("new_clients")
    if not new:
        return ""
    name = "accuracy" if "accuracy" in new["before"] else "loss"
    text = f"\n{new['count']} new clients: {name} {new['before'][name]:.4f} before adaptation"
    if new["after"] is None:
        return f"{text} (new_epochs=0)"
    trained = f", {new['epochs']} epochs at rate {new['lr']:g} among it" if new["epochs"] else ""
    return f"{text}, {new['after'][name]:.4f} after it{trained}"


def _raise_failures(session: Session) -> None:
    """Raise the first bug as it was raised, or all users' mistakes as one error."""
    errors = [error for _, error in session.failed]
    total = len(errors) + session.finished
    for error in errors:
        if total == 1 or not isinstance(error, (FedpersError, OSError)):
            raise error
    if errors:
        folders: dict[str, list[Path]] = {}
        for out, error in session.failed:
            folders.setdefault(str(error), []).append(out)
        # what all runs failed by, such as a missing file, is said once
        more = {text: f" and {len(outs) - 1} more" if outs[1:] else "" for text, outs in folders.items()}
        lines = [f"{outs[0]}{more[text]}: {text}" for text, outs in folders.items()]
        raise FedpersError("\n".join([f"{len(errors)} of {total} runs failed", *lines]))


def _how_to_go_on(out: Path | None) -> str:
    if out is None or not (out / CONFIG).exists():
        return "interrupted before the first run"
    return f"interrupted; to go on:  fedpers run resume={shlex.quote(str(out))}"


def _as_given(folder: Path) -> Path:
    """The folder relative to the current one where it is below it, as the user wrote it."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _value(overrides: Sequence[str], key: str) -> str | None:
    """The last value that the overrides give `key`, a folder; None where it is not given or null.

    Raises:
        ConfigError: it is empty, as a shell's variable is that was never set.
    """
    values = [o.partition("=")[2].strip().strip("'\"") for o in overrides if _key(o) == key]
    if values and not values[-1]:
        raise ConfigError(f"{key}=: give a folder, or leave {key}= out")
    return values[-1] if values and values[-1] != "null" else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"
