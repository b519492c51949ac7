"""SVRCD-PFL, client half. The algorithm box is in strategies/svrcd.py."""

from dataclasses import dataclass
from typing import Literal

from fedpers.core.params import add, sub, zeros_like
from fedpers.families.unified.client import BlockClient, gradients_at
from fedpers.families.unified.config import CoordinateConfig
from fedpers.families.unified.messages import Anchor, BlockGradients, Iterate
from fedpers.method import Data, Params, Stream, record


@dataclass(frozen=True)
class SVRCDConfig(CoordinateConfig):
    """Hyper-parameters of SVRCD-PFL; null is what the theory of ASVRCD gives."""

    rho: float | None = None              # ρ: probability of a new anchor
    refresh: Literal["w", "beta"] = "w"   # ρ = p_w/n or p_β/n


@record
class Anchored:
    """One block, its anchor and F's gradient there: w's on the server, β_m's on client m."""

    y: Params
    v: Params
    G: Params            # 0 before the first anchor

    @classmethod
    def start(cls, block: Params) -> "Anchored":
        """Block and anchor at the same point."""
        return cls(block, block, zeros_like(block))


class SVRCDClient(BlockClient):
    """Moves its block alone, with control variates; gives differences of gradients in w."""

    config: SVRCDConfig
    variables, private = Anchored, ("y", "v", "G")
    per_step = 2

    def anchor(self, order: Anchor, state: Anchored, data: Data) -> tuple[BlockGradients, Anchored]:
        """The first anchor, where the block is."""
        g, G = gradients_at(self.objective(order.M), order.w, state.y, data)
        return BlockGradients({}, g), Anchored(state.y, state.y, G)

    def iterate(
        self, order: Iterate, state: Anchored, data: Data, rng: Stream
    ) -> tuple[BlockGradients, Anchored]:
        """T steps on the private block, then the iteration that communicates."""
        f, h, M = self.objective(order.M), order.rates, order.M
        w, v, y, beta_v, G = order.w.y, order.w.v, state.y, state.v, state.G
        j = self.samples(order, data, rng)                                               # [C1]
        reply: Params = {}
        anchor: Params = {}
        for i in range(order.T + order.event):
            w_old, y_old, step = w, y, G
            if i == order.T and order.w_step:
                reply = sub(f.grad_w(w, y, j[i]), f.grad_w(v, beta_v, j[i]))             # [C2]
            else:
                d = sub(f.grad_beta(w, y, j[i]), f.grad_beta(v, beta_v, j[i]))           # [C3]
                step = add(G, d, 1 / ((1 - h.p_w) * M))
                w = add(w, order.w.G, -h.eta)                                            # [C4]
            y = add(y, step, -h.eta)                                                     # [C5]
            if i == order.T and order.refresh:
                beta_v = y_old                                                           # [C6]
                anchor, G = gradients_at(f, w_old, beta_v, data)                         # [C7]
        return BlockGradients(reply, anchor), Anchored(y, beta_v, G)
