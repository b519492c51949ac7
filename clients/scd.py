"""SCD-PFL, client half. The algorithm box is in strategies/scd.py."""

from dataclasses import dataclass

from fedpers.core.params import add
from fedpers.families.unified.coin_client import CoinClient
from fedpers.families.unified.config import CoordinateConfig
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.families.unified.objective import Objective
from fedpers.method import Data


@dataclass(frozen=True)
class SCDConfig(CoordinateConfig):
    """Hyper-parameters of SCD-PFL."""


class SCDClient(CoinClient):
    """Moves its block alone, a sample at a time; gives a sample's gradient in w."""

    config: SCDConfig

    def beta_step(self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data) -> tuple[Block, Block]:
        """A step on the private block."""
        g, h = f.grad_beta(w.y, beta.y, j), order.rates                                  # [C1]
        return w, Block(add(beta.y, g, -h.eta / ((1 - h.p_w) * f.M)))                    # [C2]

    def event(
        self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data, data: Data
    ) -> tuple[BlockGradients, Block]:
        """The gradient in w."""
        return BlockGradients(f.grad_w(w.y, beta.y, j), {}), beta                        # [C3]
