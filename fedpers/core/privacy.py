"""Differential privacy of what a client sends: its keys, and the Gaussian mechanism."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedpers.core.bounds import above
from fedpers.core.pytree import leaves, tree_map
from fedpers.core.rng import Stream


@dataclass(frozen=True)
class PrivacyConfig:
    """Whether clients clip the change that they send and add noise to it."""

    name: Literal["off", "dp"] = "off"
    clip: float = 1.0  # C: largest L2 norm of a change
    noise_multiplier: float = 1.0  # z: the noise of each number has standard deviation z C
    delta: float = 1e-5  # of (epsilon, delta)

    @property
    def on(self) -> bool:
        """Whether there is noise."""
        return self.name == "dp"

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        high = [] if self.delta < 1 else [f"delta={self.delta}: must be below 1"]
        return above(self, clip=0, noise_multiplier=0, delta=0) + high


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
    std = clip * noise_multiplier

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + std * rng.normal(*x.shape).to(x)

    return tree_map(noisy, clipped(change, clip))
