"""`fedpers run`: Hydra composes, names the run directory, sweeps; `fedpers.app.run` does the work."""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedpers.config import compose, hydra_internals
from fedpers.config.run_config import RunConfig, to_mapping
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.results.files import replace_text
from fedpers.results.summary import note_failure, read_summary

TRACES = ("metrics.csv", "summary.json", "checkpoint")  # what shows that a run was here
PROGRAM = "fedpers run"
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
    args = hydra_internals.parse_arguments(argv, PROGRAM)
    folder = _value(args.overrides, "resume")
    try:
        if folder is not None:
            _resume(Path(folder).expanduser(), args, session)
        else:
            _start(args, session)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(session.out)) from None
    return 0


def _resume(folder: Path, args: Any, session: Session) -> None:
    if args.multirun:
        raise ConfigError(f"resume={folder}: one run is resumed at a time; leave out -m")
    cfg = compose.resumed(folder, [o for o in args.overrides if not o.startswith("resume=")])
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    _execute(cfg, folder, session)


def _start(args: Any, session: Session) -> None:
    """Check the overrides, then have Hydra call a job for each run; a sweep goes on after a failure."""
    only_shown = args.help or args.hydra_help or args.cfg or args.info or args.shell_completion
    named = _value(args.overrides, "out")
    overrides = [o for o in args.overrides if _key(o) != "out"]
    args.overrides = compose.prepare(overrides, bool(args.multirun), args.config_dir)
    if named is not None:
        out = Path(named).expanduser()
        args.overrides.append(f"hydra.{'sweep' if args.multirun else 'run'}.dir={_quoted(str(out))}")
        if not only_shown:
            _claim(out, sweep=bool(args.multirun))

    def job(cfg: DictConfig) -> None:
        hydra = HydraConfig.get()
        folder = Path(hydra.runtime.output_dir)
        try:
            run_cfg = compose.from_omegaconf(cfg, list(hydra.overrides.task))
            _claim(folder, sweep=False)
            _execute(run_cfg, folder, session)
        except Exception as error:  # kept, so that a sweep goes on and Hydra is silent
            if hydra.mode == RunMode.MULTIRUN and "BasicLauncher" not in hydra.launcher._target_:
                raise  # another process; this list would not be ours
            session.failed.append((folder, error))
            if hydra.mode == RunMode.MULTIRUN:
                log.warning("failed: %s", error)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints its errors and leaves
    try:
        hydra_internals.run_hydra(args, PROGRAM, compose.CONF, job)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(compose.first_line(error)) from error
    _raise_failures(session)


def _execute(cfg: RunConfig, out: Path, session: Session) -> None:
    """Save the resolved config, run, and say how it went."""
    from fedpers.app import run

    session.out, cfg = out, replace(cfg, out=str(out))
    save_config(cfg, out)
    try:
        summary = run.execute(cfg, out)
    except Exception as error:
        note_failure(out, f"{type(error).__name__}: {error}")
        raise
    session.finished += 1
    print(f"{_sentence(cfg, summary)}\n{out}  (pictures in {out / 'plots'})")


def save_config(cfg: RunConfig, out: Path) -> None:
    """Write the resolved config to .hydra/config.yaml of the run directory."""
    path = out / ".hydra" / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, OmegaConf.to_yaml(OmegaConf.create(to_mapping(cfg))))


def _sentence(cfg: RunConfig, summary: dict[str, Any]) -> str:
    final = summary.get("final") or {}
    parts = [
        f"{name.replace('_', ' ')} {final[name]:.4f}"
        for name in ("loss", "accuracy", "worst_decile")
        if isinstance(final.get(name), float) and final[name] == final[name]
    ]
    return f"{cfg.method_name} on {cfg.data.name}: {', '.join(parts) or 'done'}"


def _claim(out: Path, sweep: bool) -> None:
    """Make sure that the run directory can be written and that no other run is in it.

    Raises:
        ConfigError: it cannot, or there is one.
    """
    held = [t for t in TRACES if (out / t).exists()]
    if held == ["summary.json"] and read_summary(out).get("status") == "failed":
        held = []  # it failed before its first round: there is nothing to keep
    if held and not sweep:
        raise ConfigError(
            f"out={out}: there is a run already ({', '.join(held)}); "
            f"choose another folder, or go on with it: fedpers run resume={out}"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"out={out}: cannot be written ({error.strerror}); choose another folder"
        ) from error


def _raise_failures(session: Session) -> None:
    """Raise what stopped a run: a bug as it is, users' mistakes in one message."""
    errors = [error for _, error in session.failed]
    total = len(errors) + session.finished
    for error in errors:
        if total == 1 or not isinstance(error, (FedpersError, OSError)):
            raise error
    if errors:
        lines = [f"{out}: {error}" for out, error in session.failed]
        raise FedpersError("\n".join([f"{len(errors)} of {total} runs failed", *lines]))


def _how_to_go_on(out: Path | None) -> str:
    if out is None or not (out / "checkpoint").exists():
        return "interrupted before the first checkpoint; nothing to go on with"
    return f"interrupted; to go on:  fedpers run resume={out}"


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _value(overrides: Sequence[str], key: str) -> str | None:
    """The last value that the overrides give `key`; None where it is not given or null."""
    values = [o.partition("=")[2] for o in overrides if _key(o) == key]
    return values[-1].strip("'\"") if values and values[-1] not in ("", "null") else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"
