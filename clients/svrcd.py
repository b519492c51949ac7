"""SVRCD-PFL, client half. The algorithm box is in strategies/svrcd.py."""

from dataclasses import dataclass

from fedpers.core.params import add, sub
from fedpers.families.unified.client import gradients_at
from fedpers.families.unified.coin_client import CoinClient
from fedpers.families.unified.config import AnchorConfig
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.families.unified.objective import Objective
from fedpers.families.unified.step_sizes import Rates
from fedpers.method import Data, Params


@dataclass(frozen=True)
class SVRCDConfig(AnchorConfig):
    """Hyper-parameters of SVRCD-PFL; null is what the theory of ASVRCD gives."""


def descend(a: Block, g: Params, h: Rates) -> Block:
    """One iteration; g estimates the block's gradient of F."""
    return Block(add(a.y, g, -h.eta), {}, a.v, a.G)


class SVRCDClient(CoinClient):
    """Moves its block alone, with control variates; gives differences of gradients in w."""

    config: SVRCDConfig
    keeps = "yvG"
    per_step = 2

    def beta_step(self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data) -> tuple[Block, Block]:
        """A step on the private block, with which the shared one moves."""
        h = order.rates
        d = sub(f.grad_beta(w.y, beta.y, j), f.grad_beta(w.v, beta.v, j))                # [C1]
        g = add(beta.G, d, 1 / ((1 - h.p_w) * f.M))                                      # [C3]
        return descend(w, w.G, h), descend(beta, g, h)                                   # [C4]

    def event(
        self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data, data: Data
    ) -> tuple[BlockGradients, Block]:
        """The difference of gradients in w, a new anchor, or both."""
        D: Params = {}
        at_v: Params = {}
        if order.w_step:
            D = sub(f.grad_w(w.y, beta.y, j), f.grad_w(w.v, beta.v, j))                  # [C2]
            new = descend(beta, beta.G, order.rates)                                     # [C5]
        else:
            new = self.beta_step(f, order, w, beta, j)[1]
        if order.refresh:
            at_v, G = gradients_at(f, w.y, beta.y, data)                                 # [C7]
            new = Block(new.y, {}, beta.y, G)                                            # [C6]
        return BlockGradients(D, at_v), new
