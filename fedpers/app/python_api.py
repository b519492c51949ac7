"""Runs from Python: the same configuration, the same folders and the same rules as the command's."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fedpers.app.run_folder import check_nesting
from fedpers.app.stored_runs import Comparison, Run, loaded
from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError
from fedpers.core.host import borrowed
from fedpers.flower.observer import Observer

GIVEN = "python"  # the data set that is a Federation of the caller


@borrowed()
def run(
    method: str | None = None,
    *overrides: str,
    data: str | Mapping[str, Any] | Federation | None = None,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    observers: Sequence[str | Observer] = (),
    **settings: Any,
) -> Run:
    """Train `method` on `data`, once a seed, in this process (or on the engine that is chosen).

    >>> import fedpers
    >>> run = fedpers.run("fedavg", data="digits", rounds=3, seeds=2)  # doctest: +SKIP

    Args:
        method: a name of `fedpers list`; the command's default where it is left out.
        overrides: further words of the command line, such as "method.local.lr=0.05".
        data: a name of `fedpers list`, a mapping of its `name` and keys, or a Federation of your own.
        seeds: how many (0, 1, ...), or which.
        out: the run directory; of several seeds the folder above them. Default: a new one in runs/.
            The same run may be there: it is gone on with, or left alone if it is finished.
        observers: names, "pkg.mod:Class", or objects; they are told of every run.
        settings: any other key of the configuration: `rounds=50`, `model="mlp"`, or a mapping for a
            group, `model={"name": "mlp", "hidden": [64]}`.

    Returns:
        The finished runs.

    Raises:
        ConfigError: lists every mistake, as the command does; or another run is in the folder.
        FedpersError: a run failed.
    """
    from fedpers.app.run import execute
    from fedpers.config import compose

    federation = data if isinstance(data, Federation) else None
    chosen = _of_federation(federation) if federation is not None else data
    named = [o for o in observers if isinstance(o, str)]
    given = [o for o in observers if not isinstance(o, str)]
    keys = {"method": method, "data": chosen, **settings} | ({"observers": named} if named else {})
    words = [*_words({k: v for k, v in keys.items() if v is not None or k in settings}), *overrides]
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or "seed" in settings:
        raise ConfigError(f"seeds={seeds!r}: give how many (at least 1) or which; there is no seed= here")
    configs = [compose.load([*words, f"seed={s}"]) for s in numbers]
    if federation is not None:
        _check_given(federation, configs[0])
    first = configs[0]
    if given and first.engine.name == "deployment":
        text = "the run is made beside the SuperLink, where objects of this process are not; give names"
        raise ConfigError(f"observers: {text}")
    folder = Path(out).expanduser() if out else _new_folder(first.method_name, first.data.name)
    check_nesting(folder, len(numbers) > 1)
    paths = [folder / f"seed={s}" if len(numbers) > 1 else folder for s in numbers]
    for cfg, path in zip(configs, paths, strict=True):
        cfg = replace(cfg, out=str(path))
        execute(cfg, path, repeat=True, command=words, observers=given, federation=federation)
    return loaded(paths, federation)


def load(path: str | Path, data: Federation | None = None) -> Run:
    """The run in a folder, or the runs below it that differ in their seed alone; finished or not.

    Args:
        path: a run directory, or a folder above several.
        data: the Federation that the run was given, if it was; only `model` needs it.

    Raises:
        ConfigError: there is no run, or runs that differ in more than their seed.
    """
    from fedpers.results.report.runs import find_runs

    return loaded([r.path for r in find_runs([Path(path).expanduser()])], data)


def compare(runs: Iterable[Run | str | Path]) -> Comparison:
    """Runs side by side, as `fedpers report` groups them.

    Args:
        runs: what `run` and `load` gave, or folders with runs in or below them.

    Raises:
        ConfigError: a folder has no run, or none of the runs is finished.
    """
    paths = [p for r in runs for p in (r.paths if isinstance(r, Run) else [Path(r).expanduser()])]
    return Comparison.of(paths)


# ---- a Federation of the caller -----------------------------------------------------------------


def _of_federation(federation: Federation) -> dict[str, Any]:
    return {"name": GIVEN, "digest": federation.digest()}


def _check_given(federation: Federation, cfg: Any) -> None:
    if cfg.engine.name != "inprocess":
        text = "other processes cannot reach a Federation of this one; use engine=inprocess, or data=files"
        raise ConfigError(f"engine={cfg.engine.name}: {text}")
    dtype = str(federation.client(0).train.x.dtype).removeprefix("torch.")
    if dtype != cfg.dtype:
        raise ConfigError(f"dtype={cfg.dtype}: the Federation has {dtype}; convert it, or set dtype={dtype}")


def _new_folder(method: str, data: str) -> Path:
    now = datetime.now()
    return Path("runs") / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S-%f}-{method}-{data}"


# ---- keyword arguments as words of the command line ---------------------------------------------


def _words(settings: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """key=value for every setting; a group's mapping chooses its file by `library`, else by `name`."""
    for key, value in settings.items():
        here = f"{path}{key}"
        if isinstance(value, Mapping) and value:
            chosen = "library" if "library" in value else "name"
            if chosen in value and not path:
                yield f"{here}={value[chosen]}"
            rest = {k: v for k, v in value.items() if k != chosen or path}
            yield from _words(rest, f"{here}.")
        else:
            yield f"{here}={_text(value)}"


def _text(value: Any) -> str:
    """A value as the command line writes it."""
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        value = value.tolist()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_text(v)}" for k, v in value.items()) + "}"
    text = str(value)
    return text if re.fullmatch(r"[A-Za-z_]\w*", text) else "'" + text.replace("'", "\\'") + "'"
