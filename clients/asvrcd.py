"""ASVRCD-PFL, client half. The algorithm box is in strategies/asvrcd.py."""

from dataclasses import dataclass, replace
from typing import Literal

from fedpers.core.params import add, blend, scale, sub, zeros_like
from fedpers.families.unified.client import BlockClient, gradients_at
from fedpers.families.unified.config import CoordinateConfig
from fedpers.families.unified.messages import Anchor, BlockGradients, Iterate
from fedpers.families.unified.step_sizes import Rates
from fedpers.method import Data, Params, Stream, record


@dataclass(frozen=True)
class ASVRCDConfig(CoordinateConfig):
    """Hyper-parameters of ASVRCD-PFL; null is what the theory gives."""

    rho: float | None = None              # ρ: probability of a new anchor
    refresh: Literal["w", "beta"] = "w"   # ρ = p_w/n (fewest communications) or p_β/n
    theta_1: float | None = None          # θ_1: weight of z in x
    theta_2: float | None = None          # θ_2 = 1/2: weight of v in x
    gamma: float | None = None            # γ: step size of z
    nu: float | None = None               # ν = 1 - γμ


@record
class AnchoredSequences:
    """Main, momentum and anchor sequence of one block, and F's gradient at the anchor.

    w's on the server, β_m's on client m.
    """

    y: Params
    z: Params
    v: Params
    G: Params            # 0 before the first anchor

    @classmethod
    def start(cls, block: Params) -> "AnchoredSequences":
        """All sequences at the same point."""
        return cls(block, block, block, zeros_like(block))


def middle(a: AnchoredSequences, h: Rates) -> Params:
    """x, the point at which gradients are taken."""
    return add(add(scale(a.y, 1 - h.theta_1 - h.theta_2), a.z, h.theta_1), a.v, h.theta_2)


def descend(a: AnchoredSequences, x: Params, g: Params, h: Rates) -> AnchoredSequences:
    """One iteration; g estimates the block's gradient of F at x, its middle."""
    return replace(a, y=add(x, g, -h.eta), z=add(blend(x, a.z, h.nu), g, -h.gamma))


class ASVRCDClient(BlockClient):
    """Moves its block alone, with control variates; gives differences of gradients in w."""

    config: ASVRCDConfig
    variables, private = AnchoredSequences, ("y", "z", "v", "G")
    per_step = 2

    def anchor(
        self, order: Anchor, state: AnchoredSequences, data: Data
    ) -> tuple[BlockGradients, AnchoredSequences]:
        """The first anchor, where the block is."""
        g, G = gradients_at(self.objective(order.M), order.w, state.y, data)
        return BlockGradients({}, g), replace(state, v=state.y, G=G)

    def iterate(
        self, order: Iterate, state: AnchoredSequences, data: Data, rng: Stream
    ) -> tuple[BlockGradients, AnchoredSequences]:
        """T steps on the private block, then the iteration that communicates."""
        f, h, w, beta = self.objective(order.M), order.rates, order.w, state
        reply: Params = {}
        anchor: Params = {}
        j = self.samples(order, data, rng)                                               # [C1]
        for i in range(order.T + order.event):
            w_old, old, g = w, beta, beta.G
            w_x, x = middle(w, h), middle(beta, h)                                       # [C2]
            if i == order.T and order.w_step:
                reply = sub(f.grad_w(w_x, x, j[i]), f.grad_w(w.v, beta.v, j[i]))         # [C3]
            else:
                d = sub(f.grad_beta(w_x, x, j[i]), f.grad_beta(w.v, beta.v, j[i]))       # [C4]
                g = add(beta.G, d, 1 / ((1 - h.p_w) * f.M))
                w = descend(w, w_x, w.G, h)                                              # [C5]
            beta = descend(beta, x, g, h)                                                # [C6]
            if i == order.T and order.refresh:
                anchor, G = gradients_at(f, w_old.y, old.y, data)                        # [C7]
                beta = replace(beta, v=old.y, G=G)                                       # [C8]
        return BlockGradients(reply, anchor), beta
