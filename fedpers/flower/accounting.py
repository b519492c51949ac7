"""How much privacy a run has spent: the largest loss of a client, from the orders that it was sent."""

from collections import Counter
from pathlib import Path
from typing import Any

from fedpers.core.errors import CheckpointError, ConfigError, FedpersError
from fedpers.core.privacy import PrivacyConfig
from fedpers.core.serialization import read_record, write_record
from fedpers.flower.observer import Observer, RoundLog

FILE = "privacy.safetensors"  # in the folder of a checkpoint


def epsilon(config: PrivacyConfig, releases: int) -> float:
    """ε at config.delta for one client that sent so many noised changes; 0 for none.

    What is hidden is all data of the client: two clipped changes are up to 2C apart, so the noise is z/2
    sensitivities. There is no amplification by sampling, since the server knows who is drawn. Rényi
    differential privacy of the Gaussian mechanism (Mironov, CSF 2017), by Flower's accountant.

    Raises:
        ConfigError: the accountant is not installed.
    """
    if not releases:
        return 0.0
    from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, SamplingMethod
    from flwr.serverapp import PrivacyConfig as Terms

    # Without amplification the relation stands for nothing but what the sensitivity is measured by.
    terms = Terms(config.delta, 1, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = _accountant(terms)
    accountant.compose(GaussianPrivacyEvent(config.noise_multiplier / 2, 1, 1), releases)
    return float(accountant.get_epsilon(config.delta))


def _accountant(terms: Any) -> Any:
    try:
        from flwr.serverapp import RdpAccountant

        return RdpAccountant(terms)
    except ImportError as error:
        raise ConfigError(
            f"privacy=dp needs an accountant: pip install 'fedpers[privacy]' ({error})"
        ) from error


class Spending(Observer):
    """Counts each client's releases, and adds the largest ε so far to a round's row."""

    def __init__(self, config: PrivacyConfig) -> None:
        self.config = config
        self.releases: Counter[int] = Counter()  # {client: orders of training that it was sent}

    @property
    def most(self) -> int:
        """Releases of the client that was asked most often."""
        return max(self.releases.values(), default=0)

    def on_round(self, t: int, log: RoundLog) -> None:
        """Add the column epsilon."""
        self.releases.update(log.releases)
        log.extra["epsilon"] = epsilon(self.config, self.most)

    def facts(self) -> dict[str, Any]:
        """For summary.json."""
        c = self.config
        return {
            "epsilon": epsilon(c, self.most),
            "delta": c.delta,
            "releases": self.most,
            "clip": c.clip,
            "noise_multiplier": c.noise_multiplier,
            "protects": "all data of one client against the server, in the replies of its training",
            "amplification": "none",
        }

    def save(self, folder: Path) -> None:
        """Write into a checkpoint's folder."""
        write_record(folder / FILE, {"releases": [[k, n] for k, n in sorted(self.releases.items())]})

    def committed(self) -> None:
        """Nothing waits for a checkpoint."""

    def load(self, folder: Path) -> None:
        """Go back to what `save` wrote.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        try:
            pairs = read_record(folder / FILE)["releases"]
            self.releases = Counter({int(k): int(n) for k, n in pairs})
        except (FedpersError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{folder / FILE} holds no count of releases: {error}") from error
