"""Per-FedAvg, client half. The algorithm box is in strategies/perfedavg.py."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedpers.core.params import add
from fedpers.families.global_model.client import GlobalModelClient, Weights
from fedpers.learning.kernels.plan import understood
from fedpers.learning.kernels.programs import run_program
from fedpers.learning.minibatches import schedule_of
from fedpers.learning.optimizers import program
from fedpers.learning.step import Grad, Mix, Program, Rate
from fedpers.method import Data, LocalConfig, Model, Params, Stream, bounds, grad, minimise


@dataclass(frozen=True)
class PerFedAvgConfig:
    """Hyper-parameters of Per-FedAvg (FO)."""

    alpha: float = 0.01                   # α: rate of the adaptation step
    adapt_steps: int = 1                  # full-batch steps at rate α before a client predicts
    local: LocalConfig = field(default_factory=LocalConfig)      # its lr is β

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, alpha=(0, None), adapt_steps=(0, None))


@dataclass(frozen=True)
class MetaLoss:
    """The loss f(w - α ∇f(w; D); D'), the gradient in D taken as a constant (first order).

    Samples of a batch are numbers of rows of `data`: those of D'.
    """

    model: Model
    alpha: float
    data: Data
    other: Tensor                         # [n] the row in D for each in D'

    def __call__(self, w: Params, rows: Data) -> Tensor:
        """Its value."""
        return self.model.loss(self._stepped(w, rows), self._at(rows.x, rows.mask))

    def gradient(self, w: Params, rows: Data) -> Params:
        """∇f(w - α ∇f(w; D); D'): two gradients of f, for which there may be a kernel."""
        return grad(self.model.loss)(self._stepped(w, rows), self._at(rows.x, rows.mask))  # type: ignore

    def minimise(self, w: Params, opt: Any, rows: Data, rng: Stream, cfg: LocalConfig, lr: Any) -> Any:
        """All steps in one call, where there is a kernel; else None."""
        if not understood(cfg) or program(cfg) != program(LocalConfig()) or not isinstance(lr, float):
            return None
        draw = lambda: schedule_of(self.data, rng, cfg)                                  # noqa: E731
        steps, own = self.steps(self.alpha), {"w": w}
        found = run_program(
            self.model.loss, steps, own, ("w",), self.data.block, draw, lr=lr, other=self.other
        )
        return found and (found[0], opt)

    @staticmethod
    @cache
    def steps(alpha: float) -> Program:
        """One step of plain SGD, in the paper's letters."""
        return Program((
            Grad("g", "w", other=True),                                                  # [C2]
            Mix("u", ((1.0, "w"), (-alpha, "g"))),
            Grad("g", "u"),                                                              # [C3]
            Mix("w", ((1.0, "w"), (Rate(), "g"))),
        ))

    def _stepped(self, w: Params, rows: Data) -> Params:
        g = grad(self.model.loss)(w, self._at(self.other[rows.x], rows.mask))
        return add(w, {k: v.detach() for k, v in g.items()}, -self.alpha)

    def _at(self, rows: Tensor, mask: Tensor) -> Data:
        return Data(self.data.x[rows], self.data.y[rows], mask)


class PerFedAvgClient(GlobalModelClient):
    """Trains the received model so that one step of adaptation makes it good."""

    config: PerFedAvgConfig
    reply_is_shared = True

    def answer(self, order: Weights, state: None, data: Data, rng: Stream) -> tuple[Weights, None]:
        """One local training on pairs of samples: one to step on, one to see what it brought."""
        n = len(data)
        other = rng.schedule(n, n, 1, 0)[0][0].to(data.y.device)     # a permutation
        loss = MetaLoss(self.model, self.config.alpha, data, other)                    # [C1]
        rows = Data(torch.arange(n, device=other.device), data.y, data.mask)
        w = minimise(loss, order.params, rows, rng, self.config.local)
        return Weights(w), None                                                          # [C4]

    @property
    def adapts(self) -> bool:
        """Whether clients step on their own data before they predict."""
        return self.config.adapt_steps > 0

    def adapt(self, shared: Weights, state: None, data: Data, rng: Stream) -> tuple[Weights, None]:
        """`adapt_steps` gradient steps at rate α on all training samples."""
        w, slope = shared.params, grad(self.model.loss)
        for _ in range(self.config.adapt_steps):
            w = add(w, slope(w, data), -self.config.alpha)
        return Weights(w), None

    def work(self, order: Any, n: int) -> int:
        """Two gradients for each sample of the local training."""
        return 2 * self.config.local.work(n)
