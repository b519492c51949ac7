"""Data that lies on the clients' own devices: this process has none of it."""

from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError
from fedpers.datasets.config import DataConfig


def absent(cfg: DataConfig, seed: int, dtype: object) -> Federation:
    """Refuse to build it here.

    Raises:
        ConfigError: always; only engine=deployment reaches such data.
    """
    raise ConfigError("data=device: the data is on the clients' devices; run with engine=deployment")
