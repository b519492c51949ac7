"""A run's parts, from files of the user's that may have moved or changed since the run began."""

import json
from pathlib import Path

from fedpers.app.build import Parts, assemble
from fedpers.app.run_folder import FILES
from fedpers.config.run_config import RunConfig
from fedpers.core.data import Federation
from fedpers.core.errors import DataError
from fedpers.datasets.unchanged import READ, checksum
from fedpers.results.files import replace_json


def assembled(cfg: RunConfig, out: Path, federation: Federation | None) -> Parts:
    """The parts of the run in the folder `out`; `cfg.resume` says that it is there already.

    A new run notes the checksums of the user's files in its folder.

    Raises:
        DataError: the data cannot be read, or the files are not those that the run began with.
    """
    given = federation is not None
    try:
        if cfg.resume:
            _check(_checksums(cfg, given), out / FILES)
        parts = assemble(cfg, federation, unlike=True)
    except (DataError, FileNotFoundError) as error:
        path = cfg.data.path
        if cfg.resume and not given and path and not Path(path).expanduser().exists():
            raise DataError(_gone(path)) from error
        raise
    if not cfg.resume and (found := _checksums(cfg, given)):
        (out / FILES).parent.mkdir(parents=True, exist_ok=True)
        replace_json(out / FILES, found)
    return parts


def _checksums(cfg: RunConfig, given: bool) -> dict[str, str]:
    """{key=value: checksum} of the files that the configuration names; not of data that the caller gave."""
    named: list[tuple[str, str | None, tuple[str, ...]]] = [
        ("model.weights", model.options.get("weights"), ()) for model in cfg.model.models
    ]
    named.append(("data.public_file", cfg.data.public_file, ()))
    if not given:
        named.append(("data.path", cfg.data.path, READ))
        named += [("data.name", cfg.data.name, ())] if cfg.data.library else []
    there = [(key, name, kinds) for key, name, kinds in named if name and Path(name).expanduser().exists()]
    return {f"{key}={name}": checksum(Path(name).expanduser(), kinds) for key, name, kinds in there if name}


def _check(here: dict[str, str], record: Path) -> None:
    then: dict[str, str] = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    for key in here.keys() & then.keys():
        if here[key] != then[key]:
            raise DataError(
                f"{key}: has changed since the run began (sha256 {here[key][:12]} here, {then[key][:12]} "
                "then), and the run's numbers belong to what it was; put the files back as they were, or "
                "make a new run with another out="
            )


def _gone(path: str) -> str:
    if Path(path).expanduser().is_absolute():
        return f"data.path={path}: the run's data are not there any more; put them back"
    where = "it is relative to the folder that the run was started from; call this command there"
    return f"data.path={path}: the run's data are not here; {where}"
