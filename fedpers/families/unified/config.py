"""Hyper-parameters that the optimisers of the unified framework share; objectives have their own."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fedpers.core.bounds import above, bounds
from fedpers.families.unified.mixture import MX2Settings
from fedpers.families.unified.objective import Objective, Settings, objective_class


@dataclass(frozen=True)
class BlockConfig:
    """What every optimiser of the framework has: an objective, with the keys which that one reads."""

    objective: Settings = field(default_factory=MX2Settings)  # name, and the keys which that one reads
    report: bool = True  # ask clients for f_m in rounds that are evaluated

    needs_convex: ClassVar[bool] = True
    takes_samples: ClassVar[bool] = True  # gradients of some: the objective must be a mean over samples

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return list(self._unsuited(self.objective.name, objective_class(self.objective.name)))

    def _unsuited(self, name: str, cls: type[Objective]) -> Iterator[str]:
        """What this optimiser may not minimise; for a user's own objective as for ours."""
        if not cls.convex and self.needs_convex:
            yield (
                f"objective={name} is not convex: only method=lsgd has a theory for it; set its step eta, "
                "which no theory gives here, and batch_size=0 if it is no mean over samples"
            )
        elif not cls.finite_sum and self.takes_samples:
            yield f"objective={name} is no mean over samples; use method=acd, or lsgd with batch_size=0"


@dataclass(frozen=True)
class CoinConfig(BlockConfig):
    """Keys of the methods that draw a block in each iteration; null is what the theory gives."""

    p_w: float | None = None  # p_w: probability of the w-block
    max_local: int = 1000  # iterations after which a round ends without news

    def check(self) -> list[str]:
        """Problems of values."""
        return [*super().check(), *probabilities(self, "p_w"), *bounds(self, max_local=(1, None))]


@dataclass(frozen=True)
class CoordinateConfig(CoinConfig):
    """Keys of those that take one sample a step."""

    eta: float | None = None  # η: step size
    shared_index: bool = False  # one sample index j for all clients, as in the theory

    def check(self) -> list[str]:
        """Problems of values."""
        return [*super().check(), *above(self, eta=0)]


@dataclass(frozen=True)
class AnchorConfig(CoordinateConfig):
    """Keys of those with control variates (and of ASCD, whose θ_1 depends on ρ)."""

    rho: float | None = None  # ρ: probability of a new anchor
    refresh: Literal["w", "beta"] = "w"  # ρ = p_w/n (fewest communications) or p_β/n

    def check(self) -> list[str]:
        """Problems of values."""
        return [*super().check(), *probabilities(self, "rho")]


def probabilities(config: Any, *names: str) -> list[str]:
    """Problems of values that must be in (0, 1]; null passes."""
    return above(config, **dict.fromkeys(names, 0)) + bounds(config, **dict.fromkeys(names, (None, 1)))
