"""A run's parts, from files of the user's that may have moved or changed since the run began."""

from pathlib import Path

from fedpers.app.build import Parts, assemble
from fedpers.app.run_folder import DATA
from fedpers.config.run_config import RunConfig
from fedpers.core.data import Federation
from fedpers.core.errors import DataError
from fedpers.datasets import unchanged


def assembled(cfg: RunConfig, out: Path, federation: Federation | None) -> Parts:
    """The parts of the run in the folder `out`; `cfg.resume` says that it is there already.

    A new run notes the checksum of the files in data.path in its folder.

    Raises:
        DataError: the data cannot be read, or are not those that the run began with.
    """
    given = federation is not None
    try:
        if cfg.resume and not given:
            unchanged.check(cfg.data, out / DATA)
        parts = assemble(cfg, federation, unlike=True)
    except (DataError, FileNotFoundError) as error:
        path = cfg.data.path
        if cfg.resume and not given and path and not Path(path).expanduser().exists():
            raise DataError(_gone(path)) from error
        raise
    if not cfg.resume and not given:
        unchanged.note(cfg.data, out / DATA)
    return parts


def _gone(path: str) -> str:
    if Path(path).expanduser().is_absolute():
        return f"data.path={path}: the run's data are not there any more; put them back"
    where = "it is relative to the folder that the run was started from; call this command there"
    return f"data.path={path}: the run's data are not here; {where}"
