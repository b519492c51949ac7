"""SVRCD-PFL, client half. The algorithm box is in strategies/svrcd.py."""

from dataclasses import dataclass

from fedpers.core.params import add, sub
from fedpers.families.unified.client import BlockClient, gradients_at
from fedpers.families.unified.config import AnchorConfig
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.families.unified.step_sizes import Rates
from fedpers.method import Data, Params, Stream


@dataclass(frozen=True)
class SVRCDConfig(AnchorConfig):
    """Hyper-parameters of SVRCD-PFL; null is what the theory of ASVRCD gives."""


def descend(a: Block, g: Params, h: Rates) -> Block:
    """One iteration; g estimates the block's gradient of F."""
    return Block(add(a.y, g, -h.eta), {}, a.v, a.G)


class SVRCDClient(BlockClient):
    """Moves its block alone, with control variates; gives differences of gradients in w."""

    config: SVRCDConfig
    keeps = "yvG"
    per_step = 2

    def iterate(
        self, order: Iterate, state: Block, data: Data, rng: Stream
    ) -> tuple[BlockGradients, Block]:
        """T steps on the private block, then the iteration that communicates."""
        f, h, w, beta = self.objective(order.M, order.m), order.rates, order.w, state
        D: Params = {}
        at_v: Params = {}
        for j, zeta, refresh in order.steps(self.samples(order, data, rng)):             # [C1]
            w_old, old, g = w, beta, beta.G
            if zeta:
                D = sub(f.grad_w(w.y, beta.y, j), f.grad_w(w.v, beta.v, j))              # [C2]
            else:
                d = sub(f.grad_beta(w.y, beta.y, j), f.grad_beta(w.v, beta.v, j))        # [C3]
                g = add(beta.G, d, 1 / ((1 - h.p_w) * f.M))
                w = descend(w, w.G, h)                                                   # [C4]
            beta = descend(beta, g, h)                                                   # [C5]
            if refresh:
                at_v, G = gradients_at(f, w_old.y, old.y, data)                          # [C7]
                beta = Block(beta.y, {}, old.y, G)                                       # [C6]
        return BlockGradients(D, at_v), beta
