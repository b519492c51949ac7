"""Hyper-parameters of the objectives and the optimisers of the unified framework."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fedpers.core.errors import unknown
from fedpers.families.unified.objectives import OBJECTIVES


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is minimised; every optimiser of the framework has these keys."""

    objective: str = "mx2"  # a name of OBJECTIVES, or package.module:Class
    lam: float = 0.5  # λ: penalty (λ/2)‖β_m - u‖² (mt2, mx2, moreau)
    Lambda: float = 1.0  # Λ: weight of the shared model's own loss (mt2, apfl2)
    alpha: float = 0.1  # α: share of u in the mixed model (apfl2); step (maml)
    private: Literal["head", "body", "features", "none"] = "head"  # β_m of ws2
    shared_features: int = 0  # inputs that w sees, the first (ws2, fr); fr, 0: all
    private_features: int = 0  # inputs that β_m sees, the last (fr); 0: all
    prox_steps: int = 50  # moreau: gradient steps of the inner minimisation
    prox_lr: float = 0.1  # moreau: their rate
    l2: float = 0.0  # ridge of the plain loss f'
    reparametrise: bool = True  # u = M^(-1/2) w; false: u = w
    predict: Literal["personal", "private"] = "personal"  # apfl2: mixed model, or β_m alone
    mu: float | None = 0.01  # μ' of the plain loss (a surrogate); null: from the data
    mu_F: float | None = None  # μ of F; null: from μ', by the objective's formula
    L: float | None = None  # L' of the plain loss; null: from the data
    cL: float | None = None  # script L' of one sample's loss; null: from the data
    max_local: int = 1000  # iterations after which a round ends without news
    report: bool = True  # ask clients for f_m in rounds that are evaluated

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return [*_names(self), *_ranges(self), *_optional(self)]


def _names(h: ObjectiveConfig) -> Iterator[str]:
    if h.objective not in OBJECTIVES and ":" not in h.objective:
        yield unknown("objective", h.objective, OBJECTIVES)
    if h.objective == "ws2" and h.private == "features" and not h.shared_features:
        yield "private=features needs shared_features, the inputs that w sees"
    # an envelope of the mean is no mean of envelopes: whole gradients only
    samples = getattr(h, "batch_size", 1) if hasattr(h, "eta") else 0
    if h.objective == "moreau" and samples:
        yield "objective=moreau is no mean over samples; use method=acd, pfedme, or batch_size=0"
    if h.objective == "maml" and (not hasattr(h, "tau") or samples or getattr(h, "eta", None) is None):
        yield (
            "objective=maml is not convex: only method=lsgd has a theory for it; set its step eta, which "
            "no theory gives here, and batch_size=0, for it is no mean over samples"
        )


def _ranges(h: ObjectiveConfig) -> Iterator[str]:
    zero = ("lam", "Lambda", "l2", "shared_features", "private_features", "prox_lr", "batch_size")
    one = ("max_local", "prox_steps", "tau")
    least = dict.fromkeys(zero, 0.0) | dict.fromkeys(one, 1.0)
    for name, low in least.items():
        if getattr(h, name, low) < low:
            yield f"{name}={getattr(h, name)}: must be at least {low:g}"
    if not 0 <= h.alpha < 1:
        yield f"alpha={h.alpha}: must be in [0, 1)"


def _optional(h: ObjectiveConfig) -> Iterator[str]:
    """Keys that the theory fills in where they are null."""
    most = dict.fromkeys(("mu", "mu_F", "L", "cL", "eta", "gamma"), math.inf)
    most |= dict.fromkeys(("p_w", "rho", "theta_1", "theta_2", "nu", "theta"), 1.0)
    for name, high in most.items():
        value = getattr(h, name, None)
        if value is not None and not 0 < value <= high:
            at_most = f" and at most {high:g}" if high < math.inf else ""
            yield f"{name}={value}: must be positive{at_most}, or null for the theory's"


@dataclass(frozen=True)
class CoordinateConfig(ObjectiveConfig):
    """Keys of the stochastic coordinate methods; null is what the theory gives."""

    p_w: float | None = None  # p_w: probability of the w-block
    eta: float | None = None  # η: step size
    shared_index: bool = False  # one sample index j for all clients, as in the theory
