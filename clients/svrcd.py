"""SVRCD-PFL, client half. The algorithm box is in strategies/svrcd.py."""

from dataclasses import dataclass
from typing import Literal

from fedpers.core.params import add, sub, zeros_like
from fedpers.families.unified.client import BlockClient, gradients_at
from fedpers.families.unified.config import CoordinateConfig
from fedpers.families.unified.messages import Anchor, Gradients, Iterate
from fedpers.method import Data, Params, Stream, record


@dataclass(frozen=True)
class SVRCDConfig(CoordinateConfig):
    """Hyper-parameters of SVRCD-PFL; null is what the theory of ASVRCD gives."""

    rho: float | None = None              # ρ: probability of a new anchor
    refresh: Literal["w", "beta"] = "w"   # ρ = p_w/n or p_β/n


@record
class Block:
    """The server's variables: w, the anchor and F's w-gradient there ({} before the first)."""

    y: Params
    v: Params
    G: Params


@record
class ClientState:
    """The private block, its anchor and F's gradient there; they never leave the client."""

    beta_y: Params
    beta_v: Params
    G: Params


class SVRCDClient(BlockClient):
    """Moves its block alone, with control variates; gives differences of gradients in w."""

    config: SVRCDConfig
    private = ("beta_y", "beta_v", "G")
    per_step = 2

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Block and anchor start at the model's initial parameters."""
        beta = self.first_block(params)
        return ClientState(beta, beta, zeros_like(beta))

    def anchor(self, order: Anchor, state: ClientState, data: Data) -> tuple[Gradients, ClientState]:
        """The first anchor, where the block is."""
        g, G = gradients_at(self.objective(order.M), order.w, state.beta_y, data)
        return Gradients({}, g), ClientState(state.beta_y, state.beta_y, G)

    def iterate(
        self, order: Iterate, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Gradients, ClientState]:
        """T steps on the private block, then the iteration that communicates."""
        f, h, M = self.objective(order.M), order.rates, order.M
        w, v, y, beta_v, G = order.w.y, order.w.v, state.beta_y, state.beta_v, state.G
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
        return Gradients(reply, anchor), ClientState(y, beta_v, G)

    def block(self, state: ClientState) -> Params:
        """The block."""
        return state.beta_y
