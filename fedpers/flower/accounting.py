"""How much privacy a run has spent: the largest loss of a client, from the orders that it was sent."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

from fedpers.core.errors import CheckpointError, FedpersError
from fedpers.core.gaussian_dp import epsilon_of
from fedpers.core.privacy import PrivacyConfig
from fedpers.core.serialization import read_record, write_record
from fedpers.flower.observer import Observer, RoundLog

FILE = "privacy.safetensors"  # in the folder of a checkpoint
PROTECTS = {
    "dp": "all data of one client against the server, in the replies of its training",
    "central": "all data of one client against whoever sees the models of the server, not against the server",
}
BESIDE = ("loss and accuracy of evaluations", "numbers of samples and labels")  # what ε says nothing of
SUMS = "sums of features and of their squares, for data.standardise"
ROOM = 1e-6  # by which ε may be above its target: rounding


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
    return epsilon_of(2 * math.sqrt(releases) / config.noise, config.delta)


class Spending(Observer):
    """Counts each client's releases, and adds the largest ε so far to a round's row."""

    def __init__(self, config: PrivacyConfig, standardise: bool = False) -> None:
        self.config = config
        self.beside = (*BESIDE, SUMS) if standardise else BESIDE
        self.releases: Counter[int] = Counter()  # {client: orders of training that it was sent}

    @property
    def most(self) -> int:
        """Releases of the client that was asked most often."""
        return max(self.releases.values(), default=0)

    def on_round(self, t: int, log: RoundLog) -> None:
        """Add the column epsilon.

        Raises:
            FedpersError: it is above the target: the method asked a client more than once a round.
        """
        self.releases.update(log.releases)
        log.extra["epsilon"] = spent = epsilon(self.config, self.most)
        target = self.config.epsilon
        if target is not None and spent > target * (1 + ROOM):
            raise FedpersError(
                f"privacy.epsilon={target:g}: round {t} came to {spent:g}; a client was asked {self.most} "
                "times, and the noise is for one change a round; give privacy.noise_multiplier instead"
            )

    def plan(self, rounds: int) -> str:
        """What a client spends that takes part in every round, in words."""
        c, most = self.config, epsilon(self.config, rounds)
        spends = f"a client that is asked in each of {rounds} rounds spends epsilon {most:.4g}"
        told = f"privacy: noise multiplier {c.noise:.4g}; {spends} at delta {c.delta:g}"
        return f"{told}, by its changes; not covered: {', '.join(self.beside)}"

    def told(self) -> str:
        """What was spent, in words."""
        c, spent = self.config, epsilon(self.config, self.most)
        return f"privacy: epsilon {spent:.4g} at delta {c.delta:g}, of {self.most} changes of one client"

    def facts(self) -> dict[str, Any]:
        """For summary.json."""
        c = self.config
        return {
            "epsilon": epsilon(c, self.most),
            "delta": c.delta,
            "releases": self.most,
            "clip": c.clip,
            "noise_multiplier": c.noise,
            **({} if c.epsilon is None else {"target_epsilon": c.epsilon}),
            "protects": PROTECTS[c.name],
            "not_covered": list(self.beside),
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
