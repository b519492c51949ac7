"""LSGD-PFL, client half. The algorithm box is in strategies/lsgd.py."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedpers.core.params import add
from fedpers.families.unified.client import BlockClient, batches
from fedpers.families.unified.config import ObjectiveConfig
from fedpers.families.unified.messages import Point
from fedpers.method import Data, Params, Stream, record


@dataclass(frozen=True)
class LSGDConfig(ObjectiveConfig):
    """Hyper-parameters of LSGD-PFL."""

    eta: float | None = None              # η_k = η: step size; null: the theory's
    tau: int = 5                          # τ: local steps between two averagings
    batch_size: int = 1                   # B: samples drawn for a step; 0: all
    w_scale: Literal["one", "mean"] = "one"       # step of w: η, or η/M
    beta_scale: Literal["mean", "one"] = "mean"   # step of β: η/M (of F's gradient), or η


@dataclass(frozen=True)
class APFLConfig(LSGDConfig):
    """APFL by its own name: LSGD on the relaxed objective apfl2."""

    objective: str = "apfl2"


@dataclass(frozen=True)
class FedResConfig(LSGDConfig):
    """Federated residual learning by its own name: LSGD on the objective fr."""

    objective: str = "fr"


@record
class LocalSteps:
    """Order: make τ steps from here."""

    w: Params
    eta: float
    M: int


@record
class SharedCopy:
    """Reply: the client's copy of the shared block."""

    w: Params


class LSGDClient(BlockClient):
    """Steps on both blocks at once; sends its copy of the shared one."""

    config: LSGDConfig

    def iterate(
        self, order: LocalSteps, state: Point, data: Data, rng: Stream
    ) -> tuple[SharedCopy, Point]:
        """τ steps, both blocks from the same batch."""
        f, h, w, beta = self.objective(order.M), self.config, order.w, state.y
        eta_w = order.eta / (f.M if h.w_scale == "mean" else 1)
        eta_b = order.eta / (f.M if h.beta_scale == "mean" else 1)
        for batch in self._batches(data, rng):                                           # [C1]
            g_w, g_b = f.grads(w, beta, batch)                                           # [C2]
            w, beta = add(w, g_w, -eta_w), add(beta, g_b, -eta_b)                        # [C3]
        return SharedCopy(w), Point(beta)                                             # [C4]

    def _batches(self, data: Data, rng: Stream) -> list[Data]:
        h = self.config
        if not h.batch_size:
            return [data] * h.tau
        return batches(data, rng.uniform(h.tau, h.batch_size).to(torch.float64))

    def work(self, order: Any, n: int) -> int:
        """τ steps of B samples, in both blocks."""
        return 2 * self.config.tau * (self.config.batch_size or n) * isinstance(order, LocalSteps)
