"""ASCD-PFL, client half. The algorithm box is in strategies/ascd.py."""

from dataclasses import dataclass
from typing import Literal

from fedpers.core.params import add, blend, scale
from fedpers.families.unified.client import BlockClient
from fedpers.families.unified.config import CoordinateConfig
from fedpers.families.unified.messages import BlockGradients, Iterate
from fedpers.families.unified.momentum import Sequences, middle
from fedpers.families.unified.step_sizes import Rates
from fedpers.method import Data, Params, Stream


@dataclass(frozen=True)
class ASCDConfig(CoordinateConfig):
    """Hyper-parameters of ASCD-PFL; null is what the theory of ASVRCD gives."""

    rho: float | None = None              # ρ: only θ_1, and so γ, depends on it here
    refresh: Literal["w", "beta"] = "w"   # ρ = p_w/n or p_β/n
    theta_1: float | None = None          # θ_1: not used but for γ
    gamma: float | None = None            # γ: step size of z
    nu: float | None = None               # ν = 1 - γμ
    theta: float | None = None            # θ = min{0.8, 1/η}: weight of z in x
    unsampled: Literal["freeze", "drift"] = "freeze"    # what the block not drawn does


def rest(a: Sequences, h: Rates, unsampled: str) -> Sequences:
    """One iteration of the block that was not drawn."""
    if unsampled == "freeze":
        return a
    x = middle(a, h)
    return Sequences(x, blend(x, a.z, h.nu))


def descend(a: Sequences, g: Params, h: Rates) -> Sequences:
    """One iteration of the block that was drawn; g estimates its gradient of F at x."""
    x = middle(a, h)
    return Sequences(add(x, g, -h.eta), add(blend(x, a.z, h.nu), g, -h.gamma))


class ASCDClient(BlockClient):
    """Moves its block alone, a sample at a time; gives a sample's gradient in w."""

    config: ASCDConfig
    variables, private = Sequences, ("y", "z")

    def iterate(
        self, order: Iterate, state: Sequences, data: Data, rng: Stream
    ) -> tuple[BlockGradients, Sequences]:
        """T steps on the private block, then a gradient in w."""
        f, h, w = self.objective(order.M), order.rates, order.w
        beta, p_b = state, 1 - h.p_w
        j, idle = self.samples(order, data, rng), self.config.unsampled                  # [C1]
        for i in range(order.T):
            g = f.grad_beta(middle(w, h), middle(beta, h), j[i])                         # [C2]
            beta = descend(beta, scale(g, 1 / (p_b * f.M)), h)                           # [C3]
            w = rest(w, h, idle)
        reply = {}
        if order.w_step:
            reply = f.grad_w(middle(w, h), middle(beta, h), j[order.T])                  # [C4]
            beta = rest(beta, h, idle)                                                   # [C5]
        return BlockGradients(reply, {}), beta
