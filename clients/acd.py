"""ACD-PFL, client half. The algorithm box is in strategies/acd.py."""

from dataclasses import dataclass

from fedpers.core.params import add, blend, scale
from fedpers.families.unified.coin_client import CoinClient
from fedpers.families.unified.config import CoinConfig
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.families.unified.objective import Objective
from fedpers.families.unified.step_sizes import ACDRates
from fedpers.method import Data, Params


@dataclass(frozen=True)
class ACDConfig(CoinConfig):
    """Hyper-parameters of ACD-PFL; null is what the theory gives."""

    takes_samples = False


def middle(a: Block, h: ACDRates) -> Params:
    """x, the point at which gradients are taken."""
    return blend(a.y, a.z, h.theta)


def drift(a: Block, x: Params, h: ACDRates) -> Block:
    """One iteration of a block that was not drawn; x is its point `middle`."""
    k = h.eta * h.nu
    return Block(x, scale(add(a.z, x, k), 1 / (1 + k)))


def descend(a: Block, x: Params, g: Params, p: float, L: float, h: ACDRates) -> Block:
    """One iteration of a block that was drawn with probability p; g is its gradient of F at x."""
    k = h.eta * h.nu
    return Block(add(x, g, -1 / L), scale(add(add(a.z, x, k), g, -h.eta * p / L), 1 / (1 + k)))


class ACDClient(CoinClient):
    """Takes steps on its private block; sends a gradient in w when it is asked."""

    config: ACDConfig
    keeps = "yz"
    per_step = 0

    def beta_step(
        self, f: Objective, order: Iterate, w: Block, beta: Block, data: Data
    ) -> tuple[Block, Block]:
        """An iteration of the private block."""
        h, w_x, x = order.rates, middle(w, order.rates), middle(beta, order.rates)
        g = scale(f.grad_beta(w_x, x, data), 1 / f.M)                                    # [C1]
        beta = descend(beta, x, g, 1 - h.p_w, h.L_b, h)                                  # [C2]
        return drift(w, w_x, h), beta                                                    # [C3]

    def event(
        self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data, data: Data
    ) -> tuple[BlockGradients, Block]:
        """The gradient in w."""
        h, x = order.rates, middle(beta, order.rates)
        g_m = f.grad_w(middle(w, h), x, data)                                            # [C4]
        return BlockGradients(g_m, {}), drift(beta, x, h)                                # [C5]
