"""Checks which run a folder holds and whether another may begin there, before anything is written."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import yaml

from fedpers.config.run_config import RESUMABLE, RunConfig, flatten, from_mapping, to_mapping
from fedpers.core.errors import ConfigError
from fedpers.results import checkpoint
from fedpers.results.files import claimed, replace_text
from fedpers.results.summary import INTERRUPTED, note_failure, read_summary

CONFIG, COMMAND = ".hydra/config.yaml", ".hydra/overrides.yaml"
FILES = ".hydra/files.json"  # checksums of files of the user
TRACES = (CONFIG, "metrics.csv", "summary.json", "checkpoint")  # each shows that a run was here
FREE = (*RESUMABLE, "out", "resume", "paper", "data.root")  # may differ between runs that are the same
log = logging.getLogger("fedpers")


@contextmanager
def opened(cfg: RunConfig, out: Path, repeat: bool, command: Sequence[str]) -> Iterator[RunConfig | None]:
    """Hold the folder `out` for a run, with its config stored there; yields the run as it is to be made.

    A refused run changes nothing in the folder, and one that cannot be gone on with nothing in its results.
    A run that fails leaves the reason in summary.json.

    Args:
        cfg: the run; `cfg.resume` goes on with the run that `out` holds.
        out: the run directory.
        repeat: whether the same run may be there already. If it is finished, None is yielded; else it
            goes on, or starts anew where it has no checkpoint.
        command: the overrides that the user gave, kept beside the config.

    Raises:
        ConfigError: another run is in the folder, or it cannot be written.
        FedpersError: another process writes there.
    """
    check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    with claimed(out):
        admitted, before = admitted_run(cfg, out, repeat), _ended(out)
        if admitted is not None:
            store_config(admitted, out, command)
        with _failure_noted(out, before):
            yield admitted


def check_writable(out: Path) -> None:
    """Raise ConfigError if a folder cannot be made or written; nothing is written to find out."""
    there = next(p for p in (out, *out.absolute().parents) if p.exists())
    if not there.is_dir():
        raise ConfigError(f"out={out}: cannot be written ({there} is no folder); choose another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"out={out}: cannot be written (no permission for {there}); choose another folder")


def check_nesting(out: Path, many: bool) -> None:
    """Raise ConfigError if `many` runs were to stand inside a run, or one where there are several below."""
    if many and any((out / trace).exists() for trace in TRACES):
        raise ConfigError(
            f"out={out}: the folder holds a run, and several runs need a folder of their own; choose another"
        )
    if not many and not (out / CONFIG).exists() and any(out.glob(f"*/{CONFIG}")):
        raise ConfigError(
            f"out={out}: there are runs in folders below it; choose another folder for this one"
        )


def admitted_run(cfg: RunConfig, out: Path, repeat: bool) -> RunConfig | None:
    """The run as it is to be made in `out`, None if it is finished; for the rest see `opened`."""
    if cfg.resume:
        return _going_on(cfg, out)
    held = [trace for trace in TRACES if (out / trace).exists()]
    if not held or _failed_before_round_1(out):
        return cfg
    if not repeat and read_summary(out).get("status") != INTERRUPTED:
        raise ConfigError(
            f"out={out}: there is a run already ({', '.join(held)}); "
            f"choose another folder, or go on with it: fedpers run resume={out}"
        )
    stored = check_same(cfg, out)
    if cfg.rounds < stored.rounds:
        raise ConfigError(f"out={out}: the run there has {stored.rounds} rounds, this one {cfg.rounds}")
    if read_summary(out).get("status") == "finished" and stored.rounds >= cfg.rounds:
        log.info("%s: finished before", out)
        return None
    return _going_on(replace(cfg, resume=str(out)), out)


def _failed_before_round_1(out: Path) -> bool:
    """Whether the folder holds a failed run without a finished round, which may be replaced."""
    if read_summary(out).get("status") != "failed" or checkpoint.last_round(out) is not None:
        return False
    table = out / "metrics.csv"
    return not table.exists() or len(table.read_text(encoding="utf-8").splitlines()) < 2  # its names alone


def _going_on(cfg: RunConfig, out: Path) -> RunConfig:
    """The run from its checkpoint; from its beginning where it was killed before the first one."""
    done = checkpoint.last_round(out)
    if done is not None and done > cfg.rounds:
        text = "leave rounds= out, or give a larger number"
        raise ConfigError(f"rounds={cfg.rounds}: the run in {out} has {done} rounds done; {text}")
    if done is not None:
        return cfg
    log.warning("%s: killed before its first checkpoint; it starts anew from its stored config", out)
    return replace(cfg, resume=None)


def stored_config(out: Path) -> RunConfig:
    """The run that a folder holds.

    Raises:
        ConfigError: its config is missing or damaged.
    """
    try:
        return from_mapping(yaml.safe_load((out / CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError, ConfigError) as error:
        raise ConfigError(f"out={out}: {CONFIG} of the run there cannot be read: {error}") from error


def check_same(cfg: RunConfig, out: Path) -> RunConfig:
    """The run that a folder holds, which must be this one but for what may change when it goes on.

    Raises:
        ConfigError: it is another one, or cannot be read.
    """
    stored = stored_config(out)
    if differing := _differences(cfg, stored):
        raise ConfigError(f"out={out}: another run is there ({differing}); choose another folder")
    return stored


def _differences(one: RunConfig, other: RunConfig) -> str:
    """`key: value here, value there` of up to three keys in which two runs are not the same."""
    first, second = flatten(to_mapping(one)), flatten(to_mapping(other))
    keys = [k for k in first | second if first.get(k) != second.get(k) and not _is_free(k)]
    return "; ".join(f"{k}: {second.get(k)} there, {first.get(k)} here" for k in keys[:3])


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def store_config(cfg: RunConfig, out: Path, command: Sequence[str] = ()) -> None:
    """Write the resolved config and the user's words, those of a resumed run over those before."""
    (out / CONFIG).parent.mkdir(parents=True, exist_ok=True)
    plain = to_mapping(replace(cfg, resume=None))
    replace_text(out / CONFIG, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    goes_on = cfg.resume or any(word.startswith("resume=") for word in command)
    words = _gone_on(_stored_words(out), command) if goes_on else list(command)
    replace_text(out / COMMAND, yaml.safe_dump(words, allow_unicode=True))


def _stored_words(out: Path) -> list[str]:
    try:
        return [str(word) for word in yaml.safe_load((out / COMMAND).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return []


def _gone_on(before: Sequence[str], more: Sequence[str]) -> list[str]:
    """The overrides that make the whole run anew: of two with one key the later is kept."""
    later = {word.partition("=")[0]: word for word in more}
    kept = {key: word for key, word in later.items() if key not in ("resume", "out")}
    return [kept.pop(word.partition("=")[0], word) for word in before] + list(kept.values())


def _ended(out: Path) -> dict[str, bytes]:
    """{file name: content} of the summary, the config and the command of a run that has ended; else {}."""
    if not all((out / name).is_file() for name in ("summary.json", CONFIG)):
        return {}
    return {n: (out / n).read_bytes() for n in ("summary.json", CONFIG, COMMAND) if (out / n).is_file()}


@contextmanager
def _failure_noted(out: Path, before: dict[str, bytes]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if before and _ended(out).get("summary.json") == before["summary.json"]:  # it never went on
            for name in before.keys() - {"summary.json"}:
                replace_text(out / name, before[name].decode("utf-8"))
        else:
            note_failure(out, f"{type(error).__name__}: {error}")
        raise
