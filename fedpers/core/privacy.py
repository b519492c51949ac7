"""Differential privacy of what a client sends: its keys, and the Gaussian mechanism."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from fedpers.core.bounds import above
from fedpers.core.gaussian_dp import mu_of
from fedpers.core.pytree import leaves, tree_map
from fedpers.core.rng import Stream


@dataclass(frozen=True)
class PrivacyConfig:
    """Whether changes are clipped and noised: by clients, before they send (dp), or the server (central)."""

    name: Literal["off", "dp", "central"] = "off"
    clip: float = 1.0  # C: largest L2 norm of a change
    noise_multiplier: float | None = None  # z: noise of standard deviation z C; null: 1, or by `epsilon`
    epsilon: float | None = None  # at most this much at the end of the run: it finds z
    delta: float = 1e-5  # of (epsilon, delta)

    @property
    def on(self) -> bool:
        """Whether there is noise."""
        return self.name != "off"

    @property
    def by_clients(self) -> bool:
        """Whether clients add it."""
        return self.name == "dp"

    @property
    def by_server(self) -> bool:
        """Whether the server adds it, to the mean of what it has seen."""
        return self.name == "central"

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        high = [] if self.delta < 1 else [f"delta={self.delta}: must be below 1"]
        return above(self, clip=0, noise_multiplier=0, epsilon=0, delta=0) + high

    @property
    def noise(self) -> float:
        """The noise multiplier z."""
        return 1.0 if self.noise_multiplier is None else self.noise_multiplier

    def found(self, releases: int) -> "PrivacyConfig":
        """With the noise by which a client may tell so many changes and the run keeps to `epsilon`."""
        if not self.on or self.noise_multiplier is not None:
            return self
        z = 1.0 if self.epsilon is None else 2 * math.sqrt(releases) / mu_of(self.epsilon, self.delta)
        return replace(self, noise_multiplier=z)


def norm(tree: Any) -> float:
    """The L2 norm of all tensors of a tree together, summed in float64."""
    return math.sqrt(sum(float(x.double().square().sum()) for x in leaves(tree)))


def clipped(change: Any, largest: float) -> Any:
    """The tree, scaled down where its L2 norm is above `largest`.

    A tree that is not finite is returned as it is: the server refuses it by name.
    """
    size = norm(change)
    if not math.isfinite(size) or size <= largest:
        return change
    return tree_map(lambda x: x * (largest / size), change)


def gaussian_mechanism(change: Any, clip: float, noise_multiplier: float, rng: Stream) -> Any:
    """The clipped tree plus independent normal noise of standard deviation clip * noise_multiplier.

    Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", 2014, Appendix A; clipped over all
    tensors together as in McMahan, Ramage, Talwar, Zhang, ICLR 2018, https://arxiv.org/abs/1710.06963.
    """
    return noised(clipped(change, clip), clip * noise_multiplier, rng)


def noised(tree: Any, std: float, rng: Stream) -> Any:
    """The tree plus independent normal noise."""

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + std * rng.normal(*x.shape).to(x)

    return tree_map(noisy, tree)
