"""ASCD-PFL, client half. The algorithm box is in strategies/ascd.py."""

from dataclasses import dataclass
from typing import Literal

from fedpers.core.bounds import above
from fedpers.core.params import add, blend, scale
from fedpers.families.unified.coin_client import CoinClient
from fedpers.families.unified.config import AnchorConfig, probabilities
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.families.unified.objective import Objective
from fedpers.families.unified.step_sizes import Rates
from fedpers.method import Data, Params


@dataclass(frozen=True)
class ASCDConfig(AnchorConfig):
    """Hyper-parameters of ASCD-PFL; null is what the theory of ASVRCD gives, in which θ_1 needs ρ."""

    theta_1: float | None = None          # θ_1: not used but for γ
    gamma: float | None = None            # γ: step size of z
    nu: float | None = None               # ν = 1 - γμ
    theta: float | None = None            # θ = min{0.8, 1/η}: weight of z in x
    unsampled: Literal["freeze", "drift"] = "freeze"    # what the block not drawn does

    def check(self) -> list[str]:
        """Problems of values."""
        shares = probabilities(self, "theta_1", "nu", "theta")
        return [*AnchorConfig.check(self), *above(self, gamma=0), *shares]


def middle(a: Block, h: Rates) -> Params:
    """x, the point at which gradients are taken."""
    return blend(a.y, a.z, h.theta)


def rest(a: Block, x: Params, h: Rates, unsampled: str) -> Block:
    """One iteration of the block that was not drawn; x is its point `middle`."""
    return a if unsampled == "freeze" else Block(x, blend(x, a.z, h.nu))


def descend(a: Block, x: Params, g: Params, h: Rates) -> Block:
    """One iteration of the block that was drawn; g estimates its gradient of F at x, its middle."""
    return Block(add(x, g, -h.eta), add(blend(x, a.z, h.nu), g, -h.gamma))


def beta_step(
    f: Objective, order: Iterate, w: Block, beta: Block, j: Data, unsampled: str
) -> tuple[Block, Block]:
    """An iteration of the private block."""
    h, w_x, x = order.rates, middle(w, order.rates), middle(beta, order.rates)           # [C1]
    g = scale(f.grad_beta(w_x, x, j), 1 / ((1 - h.p_w) * f.M))                           # [C2]
    return rest(w, w_x, h, unsampled), descend(beta, x, g, h)                            # [C3]


def event(
    f: Objective, order: Iterate, w: Block, beta: Block, j: Data, unsampled: str
) -> tuple[BlockGradients, Block]:
    """The gradient in w."""
    x = middle(beta, order.rates)
    g_m = f.grad_w(middle(w, order.rates), x, j)                                         # [C4]
    return BlockGradients(g_m, {}), rest(beta, x, order.rates, unsampled)                # [C5]


class ASCDClient(CoinClient):
    """Takes steps on its private block, one sample each; sends one sample's gradient in w."""

    config: ASCDConfig
    keeps = "yz"

    def beta_step(self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data) -> tuple[Block, Block]:
        """An iteration of the private block."""
        return beta_step(f, order, w, beta, j, self.config.unsampled)

    def event(
        self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data, data: Data
    ) -> tuple[BlockGradients, Block]:
        """The gradient in w."""
        return event(f, order, w, beta, j, self.config.unsampled)
