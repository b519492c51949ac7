"""The keys `data.public` and `data.public_file`: samples that all know, for methods that need some."""

from dataclasses import replace
from pathlib import Path

from fedpers.config import registry
from fedpers.core.bounds import show
from fedpers.datasets.config import DataConfig
from fedpers.datasets.keys import GIVEN, not_public

EXAMPLE = "data.public_file=FILE (.npz with x and maybe y, a table, or a folder of images)"


def needed(method: str) -> bool:
    """Whether the method's server works with public samples."""
    row = registry.METHODS.get(method) or registry.methods().get(method)
    return row is not None and row.public


def placed(data: DataConfig) -> DataConfig:
    """The data's keys, with the whole path of the file: a server app reads it from another folder."""
    if data.public_file is None:
        return data
    return replace(data, public_file=str(Path(data.public_file).expanduser().absolute()))


def told(data: DataConfig, method: str) -> DataConfig:
    """The data's keys, with data.public=auto where the method needs samples and nobody named any.

    The run's own keys stay as they are: methods on the same keys are compared with each other.
    """
    asked = data.public is not None or data.public_file is not None
    if asked or not needed(method) or not_public(data.partition, data.label_space):
        return data
    return replace(data, public="auto")


def problems(data: DataConfig, method: str) -> list[str]:
    """A problem where public samples are needed and there are none, or the other way round."""
    wanted = needed(method)
    if data.public_file and not wanted:
        users = ", ".join(sorted(name for name, row in registry.METHODS.items() if row.public))
        return [
            f"data.public_file={data.public_file}: without effect for method={method}; {users} would use it"
        ]
    if not wanted or told(data, method).public or data.public_file or data.name == GIVEN:  # may bring some
        return []
    why = not_public(data.partition, data.label_space) or f"set data.public=auto, or give {EXAMPLE}"
    return [f"data.public={show(data.public)}: method={method} needs samples that all know: {why}"]
