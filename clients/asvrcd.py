"""ASVRCD-PFL, client half. The algorithm box is in strategies/asvrcd.py."""

from dataclasses import dataclass, replace

from fedpers.clients.ascd import steps
from fedpers.core.bounds import above, bounds
from fedpers.core.params import add, blend, scale, sub
from fedpers.families.unified.client import BlockClient, gradients_at
from fedpers.families.unified.config import AnchorConfig, probabilities
from fedpers.families.unified.messages import Block, BlockGradients, Iterate, Plain
from fedpers.families.unified.objective import objective_class
from fedpers.families.unified.step_sizes import Rates
from fedpers.method import Data, Params, Stream


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


class ASVRCDClient(BlockClient):
    """Moves its block alone, with control variates; gives differences of gradients in w."""

    config: ASVRCDConfig
    keeps = "yzvG"
    per_step = 2

    def iterate(
        self, order: Iterate, state: Block, data: Data, rng: Stream
    ) -> tuple[BlockGradients, Block]:
        """T steps on the private block, then the iteration that communicates."""
        if isinstance(order, Plain):                                                     # [C0]
            samples = self.samples(order, data, rng)
            reply, new = steps(self.objective(order.M, order.m), order, state, samples, "freeze")
            return reply, replace(state, y=new.y, z=new.z)
        f, h, w, beta = self.objective(order.M, order.m), order.rates, order.w, state
        D: Params = {}
        at_v: Params = {}
        for j, zeta, refresh in order.steps(self.samples(order, data, rng)):             # [C1]
            w_old, old, g = w, beta, beta.G
            w_x, x = middle(w, h), middle(beta, h)                                       # [C2]
            if zeta:
                D = sub(f.grad_w(w_x, x, j), f.grad_w(w.v, beta.v, j))                   # [C3]
            else:
                d = sub(f.grad_beta(w_x, x, j), f.grad_beta(w.v, beta.v, j))             # [C4]
                g = add(beta.G, d, 1 / ((1 - h.p_w) * f.M))
                w = descend(w, w_x, w.G, h)                                              # [C5]
            beta = descend(beta, x, g, h)                                                # [C6]
            if refresh:
                at_v, G = gradients_at(f, w_old.y, old.y, data)                          # [C7]
                beta = Block(beta.y, beta.z, old.y, G)                                   # [C8]
        return BlockGradients(D, at_v), beta
