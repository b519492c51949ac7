"""How much privacy a run has spent: the largest loss of a client, from the orders that it was sent."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedpers.core.errors import CheckpointError, FedpersError
from fedpers.core.privacy import PrivacyConfig
from fedpers.core.serialization import read_record, write_record
from fedpers.flower.observer import Observer, RoundLog

FILE = "privacy.safetensors"  # in the folder of a checkpoint
RTOL = 1e-9  # of ε


def epsilon(config: PrivacyConfig, releases: int) -> float:
    """ε at config.delta for one client that sent so many noised changes; 0 for none.

    What is hidden is all data of the client: two clipped changes are up to 2C apart, so the noise is z/2
    sensitivities. There is no amplification by sampling, since the server knows who is drawn. T Gaussian
    mechanisms in a row are one whose μ = sensitivity / noise is √T times as large (Dong, Roth, Su, JRSS B
    2022, Corollary 3.3), also where a client's next change depends on the noise before. ε is the exact
    root of δ(ε) (Balle, Wang, ICML 2018, Theorem 8), rounded up.
    """
    if not releases:
        return 0.0
    mu = 2 * math.sqrt(releases) / config.noise_multiplier
    enough = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / config.delta))  # by Mironov, CSF 2017
    if _delta(0.0, mu) <= config.delta:
        return 0.0
    found = brentq(lambda eps: _delta(eps, mu) - config.delta, 0.0, enough, xtol=1e-12, rtol=RTOL)
    return float(found) * (1 + 4 * RTOL)


def _delta(eps: float, mu: float) -> float:
    """δ(ε) = Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ) of a Gaussian mechanism, without overflow."""
    return math.exp(log_ndtr(mu / 2 - eps / mu)) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu))


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
