"""ASVRCD-PFL, client half. The algorithm box is in strategies/asvrcd.py."""

from dataclasses import dataclass, replace

from fedpers.clients import ascd
from fedpers.core.bounds import above, bounds
from fedpers.core.params import add, blend, scale, sub
from fedpers.families.unified.client import gradients_at
from fedpers.families.unified.coin_client import CoinClient
from fedpers.families.unified.config import AnchorConfig, probabilities
from fedpers.families.unified.messages import Block, BlockGradients, Iterate, Plain
from fedpers.families.unified.objective import Objective, objective_class
from fedpers.families.unified.step_sizes import Rates
from fedpers.method import Data, Params


@dataclass(frozen=True)
class ASVRCDConfig(AnchorConfig):
    """Hyper-parameters of ASVRCD-PFL; null is what the theory gives."""

    theta_1: float | None = None          # θ_1: weight of z in x
    theta_2: float | None = None          # θ_2 = 1/2: weight of v in x
    gamma: float | None = None            # γ: step size of z
    nu: float | None = None               # ν = 1 - γμ
    ascd: int = 0                         # communications that ASCD makes first, without anchors

    def check(self) -> list[str]:
        """Problems of values."""
        found = [*AnchorConfig.check(self), *above(self, gamma=0), *bounds(self, ascd=(0, None))]
        if self.ascd and not objective_class(self.objective.name).has_w:
            found.append(f"ascd={self.ascd}: must be 0, objective={self.objective.name} never communicates")
        return found + probabilities(self, "theta_1", "theta_2", "nu")


def middle(a: Block, h: Rates) -> Params:
    """x, the point at which gradients are taken."""
    return add(add(scale(a.y, 1 - h.theta_1 - h.theta_2), a.z, h.theta_1), a.v, h.theta_2)


def descend(a: Block, x: Params, g: Params, h: Rates) -> Block:
    """One iteration; g estimates the block's gradient of F at x, its middle."""
    return Block(add(x, g, -h.eta), add(blend(x, a.z, h.nu), g, -h.gamma), a.v, a.G)


class ASVRCDClient(CoinClient):
    """Takes steps on its private block with control variates; sends differences of gradients in w."""

    config: ASVRCDConfig
    keeps = "yzvG"
    per_step = 2

    def beta_step(self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data) -> tuple[Block, Block]:
        """An iteration of the private block, in which the shared block moves too."""
        if isinstance(order, Plain):                                                     # [C0]
            w_now, now = ascd.beta_step(f, order, w, beta, j, "freeze")
            return replace(w, y=w_now.y, z=w_now.z), replace(beta, y=now.y, z=now.z)
        h, w_x, x = order.rates, middle(w, order.rates), middle(beta, order.rates)       # [C2]
        d = sub(f.grad_beta(w_x, x, j), f.grad_beta(w.v, beta.v, j))                     # [C1]
        g = add(beta.G, d, 1 / ((1 - h.p_w) * f.M))                                      # [C4]
        return descend(w, w_x, w.G, h), descend(beta, x, g, h)                           # [C5]

    def event(
        self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data, data: Data
    ) -> tuple[BlockGradients, Block]:
        """The difference of gradients in w, a new anchor, or both."""
        if isinstance(order, Plain):
            reply, now = ascd.event(f, order, w, beta, j, "freeze")
            return reply, replace(beta, y=now.y, z=now.z)
        D: Params = {}
        at_v: Params = {}
        if order.w_step:
            x = middle(beta, order.rates)
            D = sub(f.grad_w(middle(w, order.rates), x, j), f.grad_w(w.v, beta.v, j))    # [C3]
            new = descend(beta, x, beta.G, order.rates)                                  # [C6]
        else:
            new = self.beta_step(f, order, w, beta, j)[1]
        if order.refresh:
            at_v, G = gradients_at(f, w.y, beta.y, data)                                 # [C7]
            new = Block(new.y, new.z, beta.y, G)                                         # [C8]
        return BlockGradients(D, at_v), new
