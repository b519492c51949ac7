"""ASVRCD-PFL, client half. The algorithm box is in strategies/asvrcd.py."""

from dataclasses import dataclass
from typing import Literal

from fedpers.core.params import add, blend, scale, sub, zeros_like
from fedpers.families.unified.client import BlockClient, gradients_at
from fedpers.families.unified.config import CoordinateConfig
from fedpers.families.unified.messages import Anchor, Gradients, Iterate
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
class Block:
    """Main, momentum and anchor sequence of one block, and F's gradient at the anchor."""

    y: Params
    z: Params
    v: Params
    G: Params            # {} for w before the first anchor


@record
class ClientState:
    """The private block; it never leaves the client."""

    beta_y: Params
    beta_z: Params
    beta_v: Params
    G: Params


def middle(a: Block, h: Rates) -> Params:
    """x, the point at which gradients are taken."""
    return add(add(scale(a.y, 1 - h.theta_1 - h.theta_2), a.z, h.theta_1), a.v, h.theta_2)


def descend(a: Block, x: Params, g: Params, h: Rates) -> Block:
    """One iteration; g estimates the block's gradient of F at x, its middle."""
    return Block(add(x, g, -h.eta), add(blend(x, a.z, h.nu), g, -h.gamma), a.v, a.G)


class ASVRCDClient(BlockClient):
    """Moves its block alone, with control variates; gives differences of gradients in w."""

    config: ASVRCDConfig
    private = ("beta_y", "beta_z", "beta_v", "G")
    per_step = 2

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All sequences start at the model's initial parameters."""
        beta = self.first_block(params)
        return ClientState(beta, beta, beta, zeros_like(beta))

    def anchor(self, order: Anchor, state: ClientState, data: Data) -> tuple[Gradients, ClientState]:
        """The first anchor, where the block is."""
        beta = state.beta_y
        g, G = gradients_at(self.objective(order.M), order.w, beta, data)
        return Gradients({}, g), ClientState(beta, state.beta_z, beta, G)

    def iterate(
        self, order: Iterate, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Gradients, ClientState]:
        """T steps on the private block, then the iteration that communicates."""
        f, h, w = self.objective(order.M), order.rates, order.w
        reply: Params = {}
        anchor: Params = {}
        beta = Block(state.beta_y, state.beta_z, state.beta_v, state.G)
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
                beta = Block(beta.y, beta.z, old.y, G)                                   # [C8]
        return Gradients(reply, anchor), ClientState(beta.y, beta.z, beta.v, beta.G)

    def block(self, state: ClientState) -> Params:
        """The main sequence."""
        return state.beta_y
