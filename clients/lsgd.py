"""LSGD-PFL, client half. The algorithm box is in strategies/lsgd.py."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from fedpers.core.bounds import above, bounds
from fedpers.core.params import add, blend
from fedpers.families.disclosures import BLOCK
from fedpers.families.unified.client import BlockClient, batches, rows_at
from fedpers.families.unified.composed import FRSettings
from fedpers.families.unified.config import BlockConfig
from fedpers.families.unified.messages import Block, LocalSteps, SharedCopy
from fedpers.families.unified.mixture import APFL2Settings
from fedpers.families.unified.objective import Objective, Settings
from fedpers.method import Data, Params, Stream, Work


@dataclass(frozen=True)
class LSGDConfig(BlockConfig):
    """Hyper-parameters of LSGD-PFL."""

    eta: float | None = None              # η_k = η: step size; null: the theory's
    decreasing: bool = False              # η_k = 1/(1/η + μk) (Theorem 4)
    output: Literal["last", "average"] = "last"   # what predicts: x_K, or the average of Theorem 1
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
        both = self.decreasing and self.output == "average"
        text = "output=average: its weights are for a constant step; set decreasing=false"
        sizes = [*above(self, eta=0), *bounds(self, tau=(1, None), batch_size=(0, None))]
        return [*BlockConfig.check(self), *sizes, *[text] * both]


@dataclass(frozen=True)
class APFLConfig(LSGDConfig):
    """APFL by its own name: LSGD on apfl2, with whole steps of a given size on both blocks, as published."""

    objective: Settings = field(default_factory=partial(APFL2Settings, reparametrise=False))
    eta: float | None = 0.05
    tau: int = 20
    batch_size: int = 10
    beta_scale: Literal["mean", "one"] = "one"


@dataclass(frozen=True)
class FedResConfig(APFLConfig):
    """Federated residual learning by its own name: the same steps on the objective fr."""

    objective: Settings = field(default_factory=FRSettings)


class LSGDClient(BlockClient):
    """Steps on both blocks at once; sends its copy of the shared one."""

    config: LSGDConfig
    disclosure = BLOCK

    def iterate(self, order: LocalSteps, state: Block, data: Data, rng: Stream) -> tuple[SharedCopy, Block]:
        """τ steps, both blocks from the same batch."""
        f, h, w, beta = self.objective(order.M, order.m), self.config, order.w, state.y
        over_w, over_b = (f.M if scale == "mean" else 1 for scale in (h.w_scale, h.beta_scale))
        mean_w, mean_b = order.mean, state.z
        for k, batch in enumerate(self._batches(h, data, rng)):                          # [C1]
            if order.shares:
                mean_w, mean_b = (blend(a, x, order.shares[k]) for a, x in ((mean_w, w), (mean_b, beta)))
            g_w, g_b = f.grads(w, beta, batch)                                           # [C2]
            w = add(w, g_w, -order.etas[k] / over_w)                                     # [C3]
            beta = add(beta, g_b, -order.etas[k] / over_b)
        return SharedCopy(w, mean_w), Block(beta, mean_b)                                # [C4]

    def in_one_call(
        self, f: Objective, order: LocalSteps, state: Block, data: Data, rng: Stream
    ) -> tuple[SharedCopy, Block] | None:
        """`iterate` by a kernel, for steps of one size whose iterates nobody averages."""
        h = self.config
        if order.shares or len({*order.etas}) > 1 or not h.batch_size:
            return None
        of_w, of_b = (order.etas[0] / (f.M if scale == "mean" else 1) for scale in (h.w_scale, h.beta_scale))
        draw = lambda: rows_at(data, rng.uniform(h.tau, h.batch_size))                   # noqa: E731
        found = f.descend(order.w, state.y, data, draw, (of_w, of_b))
        if found is None and h.batch_size == 1:
            found = self.sample_by_sample(f, order, state.y, data, draw, (of_w, of_b))
        return None if found is None else (SharedCopy(found[0], order.mean), Block(found[1], state.z))

    def initial_state(self, params: Params, data: Data, rng: Stream) -> Block:
        """β_m, and its average where one is asked for."""
        beta = self.first_block(params)
        return Block(beta, beta if self.config.output == "average" else {})

    def block(self, state: Block) -> Params:
        """β_m, or its average."""
        return state.z if self.config.output == "average" else state.y

    def _batches(self, h: LSGDConfig, data: Data, rng: Stream) -> list[Data]:
        return batches(data, rng.uniform(h.tau, h.batch_size)) if h.batch_size else [data] * h.tau

    def work(self, order: Any, n: int) -> Work:
        """τ steps of B samples, in both blocks at once."""
        samples = self.config.tau * (self.config.batch_size or n) * isinstance(order, LocalSteps)
        return self.objective(order.M, order.m).gradient_work("both").times(samples)
