"""ASCD-PFL, client half. The algorithm box is in strategies/ascd.py."""

from dataclasses import dataclass
from typing import Literal

from fedpers.core.bounds import above
from fedpers.core.params import add, blend, scale
from fedpers.families.unified.client import BlockClient
from fedpers.families.unified.config import AnchorConfig, probabilities
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.families.unified.objective import Objective
from fedpers.families.unified.step_sizes import Rates
from fedpers.method import Data, Params, Stream


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
    """One iteration of the block that was not drawn; x is its middle."""
    return a if unsampled == "freeze" else Block(x, blend(x, a.z, h.nu))


def descend(a: Block, x: Params, g: Params, h: Rates) -> Block:
    """One iteration of the block that was drawn; g estimates its gradient of F at x, its middle."""
    return Block(add(x, g, -h.eta), add(blend(x, a.z, h.nu), g, -h.gamma))


def steps(
    f: Objective, order: Iterate, beta: Block, samples: list[Data], unsampled: str
) -> tuple[BlockGradients, Block]:
    """T steps on the private block, then a gradient in w."""
    h, w, g_m = order.rates, order.w, {}
    for j, zeta, _ in order.steps(samples):                                              # [C1]
        w_x, x = middle(w, h), middle(beta, h)
        if zeta:
            g_m = f.grad_w(w_x, x, j)                                                    # [C4]
            beta = rest(beta, x, h, unsampled)                                           # [C5]
        else:
            g = scale(f.grad_beta(w_x, x, j), 1 / ((1 - h.p_w) * f.M))                   # [C2]
            beta = descend(beta, x, g, h)                                                # [C3]
            w = rest(w, w_x, h, unsampled)
    return BlockGradients(g_m, {}), beta


class ASCDClient(BlockClient):
    """Moves its block alone, a sample at a time; gives a sample's gradient in w."""

    config: ASCDConfig
    keeps = "yz"

    def iterate(
        self, order: Iterate, state: Block, data: Data, rng: Stream
    ) -> tuple[BlockGradients, Block]:
        """The iterations of one order."""
        samples = self.samples(order, data, rng)
        return steps(self.objective(order.M, order.m), order, state, samples, self.config.unsampled)
