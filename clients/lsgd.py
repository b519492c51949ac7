"""LSGD-PFL, client half. The algorithm box is in strategies/lsgd.py."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fedpers.core.bounds import above, bounds
from fedpers.core.params import add
from fedpers.families.disclosures import BLOCK
from fedpers.families.unified.client import BlockClient, batches
from fedpers.families.unified.composed import FRSettings
from fedpers.families.unified.config import BlockConfig
from fedpers.families.unified.messages import Block
from fedpers.families.unified.mixture import APFL2Settings
from fedpers.families.unified.objective import Settings
from fedpers.method import Data, Params, Stream, record


@dataclass(frozen=True)
class LSGDConfig(BlockConfig):
    """Hyper-parameters of LSGD-PFL."""

    eta: float | None = None              # η_k = η: step size; null: the theory's
    decreasing: bool = False              # η_k = 1/(1/η + μk) (Theorem 4)
    tau: int = 5                          # τ: local steps between two averagings
    batch_size: int = 1                   # B: samples drawn for a step; 0: all
    w_scale: Literal["one", "mean"] = "one"       # step of w: η, or η/M
    beta_scale: Literal["mean", "one"] = "mean"   # step of β: η/M (of F's gradient), or η

    @property
    def takes_samples(self) -> bool:      # type: ignore[override]
        """Not with whole gradients."""
        return self.batch_size > 0

    @property
    def needs_convex(self) -> bool:       # type: ignore[override]
        """A step must be given where no theory gives one."""
        return self.eta is None

    def check(self) -> list[str]:
        """Problems of values."""
        least = bounds(self, tau=(1, None), batch_size=(0, None))
        return [*BlockConfig.check(self), *above(self, eta=0), *least]


@dataclass(frozen=True)
class APFLConfig(LSGDConfig):
    """APFL by its own name: LSGD on the relaxed objective apfl2."""

    objective: Settings = field(default_factory=APFL2Settings)


@dataclass(frozen=True)
class FedResConfig(LSGDConfig):
    """Federated residual learning by its own name: LSGD on the objective fr."""

    objective: Settings = field(default_factory=FRSettings)


@record
class LocalSteps:
    """Order: make τ steps from here, of these sizes."""

    w: Params
    etas: tuple[float, ...]
    M: int


@record
class SharedCopy:
    """Reply: the client's copy of the shared block."""

    w: Params


class LSGDClient(BlockClient):
    """Steps on both blocks at once; sends its copy of the shared one."""

    config: LSGDConfig
    disclosure = BLOCK

    def iterate(
        self, order: LocalSteps, state: Block, data: Data, rng: Stream
    ) -> tuple[SharedCopy, Block]:
        """τ steps, both blocks from the same batch."""
        f, h, w, beta = self.objective(order.M), self.config, order.w, state.y
        over_w, over_b = (f.M if scale == "mean" else 1 for scale in (h.w_scale, h.beta_scale))
        for batch, eta in zip(self._batches(data, rng), order.etas, strict=True):        # [C1]
            g_w, g_b = f.grads(w, beta, batch)                                           # [C2]
            w, beta = add(w, g_w, -eta / over_w), add(beta, g_b, -eta / over_b)          # [C3]
        return SharedCopy(w), Block(beta)                                                   # [C4]

    def _batches(self, data: Data, rng: Stream) -> list[Data]:
        h = self.config
        if not h.batch_size:
            return [data] * h.tau
        return batches(data, rng.uniform(h.tau, h.batch_size).to(torch.float64))

    @classmethod
    def exposed(cls, config: LSGDConfig) -> list[str]:
        """The questions about f_m, whose answers are no declared delta."""
        f = config.objective
        unset = [f"method.objective.{k}" for k in ("mu", "L", "cL") if getattr(f, k) is None]
        found = [f"set {', '.join(unset)} (else clients tell the constants of their losses)"] if unset else []
        return found + ["set method.report=false (else clients tell f_m)"] * config.report

    def work(self, order: Any, n: int) -> int:
        """τ steps of B samples, in both blocks."""
        return 2 * self.config.tau * (self.config.batch_size or n) * isinstance(order, LocalSteps)
