"""SCD-PFL, client half. The algorithm box is in strategies/scd.py."""

from dataclasses import dataclass

from fedpers.core.params import add
from fedpers.families.unified.client import BlockClient
from fedpers.families.unified.config import CoordinateConfig
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.method import Data, Stream


@dataclass(frozen=True)
class SCDConfig(CoordinateConfig):
    """Hyper-parameters of SCD-PFL."""


class SCDClient(BlockClient):
    """Moves its block alone, a sample at a time; gives a sample's gradient in w."""

    config: SCDConfig

    def iterate(
        self, order: Iterate, state: Block, data: Data, rng: Stream
    ) -> tuple[BlockGradients, Block]:
        """T steps on the private block, then a gradient in w."""
        f, h, w, beta, g_m = self.objective(order.M, order.m), order.rates, order.w.y, state.y, {}
        for j, zeta, _ in order.steps(self.samples(order, data, rng)):                   # [C1]
            if zeta:
                g_m = f.grad_w(w, beta, j)                                               # [C3]
            else:
                g = f.grad_beta(w, beta, j)
                beta = add(beta, g, -h.eta / ((1 - h.p_w) * f.M))                        # [C2]
        return BlockGradients(g_m, {}), Block(beta)
