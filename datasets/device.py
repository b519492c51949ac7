"""Data that a configuration cannot bring: on the clients' own devices, or in an object of the caller."""

from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError
from fedpers.datasets.config import DataConfig


def absent(cfg: DataConfig, seed: int, dtype: object) -> Federation:
    """Refuse to build it here.

    Raises:
        ConfigError: always; only engine=deployment reaches such data.
    """
    raise ConfigError("data=device: the data is on the clients' devices; run with engine=deployment")


def ungiven(cfg: DataConfig, seed: int, dtype: object) -> Federation:
    """Refuse to build it: only its owner has it.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        "data=python: the data is a Federation of a Python program; give it: fedpers.run(data=...), "
        "fedpers.load(path, data=...)"
    )
