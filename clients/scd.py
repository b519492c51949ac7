"""SCD-PFL, client half. The algorithm box is in strategies/scd.py."""

from dataclasses import dataclass

from fedpers.core.params import add
from fedpers.families.unified.client import BlockClient
from fedpers.families.unified.config import CoordinateConfig
from fedpers.families.unified.messages import BlockGradients, Iterate, Point
from fedpers.method import Data, Stream


@dataclass(frozen=True)
class SCDConfig(CoordinateConfig):
    """Hyper-parameters of SCD-PFL."""


class SCDClient(BlockClient):
    """Moves its block alone, a sample at a time; gives a sample's gradient in w."""

    config: SCDConfig

    def iterate(
        self, order: Iterate, state: Point, data: Data, rng: Stream
    ) -> tuple[BlockGradients, Point]:
        """T steps on the private block, then a gradient in w."""
        f, h, w, beta = self.objective(order.M), order.rates, order.w.y, state.y
        j = self.samples(order, data, rng)                                               # [C1]
        for i in range(order.T):
            g = f.grad_beta(w, beta, j[i])
            beta = add(beta, g, -h.eta / ((1 - h.p_w) * f.M))                            # [C2]
        reply = f.grad_w(w, beta, j[order.T]) if order.w_step else {}                    # [C3]
        return BlockGradients(reply, {}), Point(beta)
