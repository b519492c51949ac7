"""ACD-PFL, client half. The algorithm box is in strategies/acd.py."""

from dataclasses import dataclass

from fedpers.core.params import add, blend, scale
from fedpers.families.unified.client import BlockClient
from fedpers.families.unified.config import ObjectiveConfig
from fedpers.families.unified.messages import Gradients, Iterate
from fedpers.families.unified.step_sizes import ACDRates
from fedpers.method import Data, Params, Stream, record


@dataclass(frozen=True)
class ACDConfig(ObjectiveConfig):
    """Hyper-parameters of ACD-PFL; null is what the theory gives."""

    p_w: float | None = None              # p_w: probability of the w-block


@record
class Sequences:
    """Main and momentum sequence of one block."""

    y: Params
    z: Params


@record
class ClientState:
    """The sequences of the private block; they never leave the client."""

    beta_y: Params
    beta_z: Params


def middle(a: Sequences, h: ACDRates) -> Params:
    """x, the point at which gradients are taken."""
    return blend(a.y, a.z, h.theta)


def drift(a: Sequences, h: ACDRates) -> Sequences:
    """One iteration of a block that was not drawn."""
    x, k = middle(a, h), h.eta * h.nu
    return Sequences(x, scale(add(a.z, x, k), 1 / (1 + k)))


def descend(a: Sequences, g: Params, p: float, L: float, h: ACDRates) -> Sequences:
    """One iteration of a block that was drawn with probability p; g is its gradient of F at x."""
    x, k = middle(a, h), h.eta * h.nu
    return Sequences(add(x, g, -1 / L), scale(add(add(a.z, x, k), g, -h.eta * p / L), 1 / (1 + k)))


class ACDClient(BlockClient):
    """Moves its block alone; gives a gradient in w when it is asked."""

    config: ACDConfig
    private = ("beta_y", "beta_z")
    per_step = 0

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Both sequences start at the model's initial parameters."""
        return ClientState(self.first_block(params), self.first_block(params))

    def iterate(
        self, order: Iterate, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Gradients, ClientState]:
        """T iterations of the private block, then the gradient in w."""
        f, h, w = self.objective(order.M), order.rates, order.w
        beta, p_b = Sequences(state.beta_y, state.beta_z), 1 - order.rates.p_w
        for _ in range(order.T):
            g = f.grad_beta(middle(w, h), middle(beta, h), data)                         # [C1]
            beta = descend(beta, scale(g, 1 / f.M), p_b, h.L_b, h)                       # [C2]
            w = drift(w, h)                                                              # [C3]
        reply = {}
        if order.w_step:
            reply = f.grad_w(middle(w, h), middle(beta, h), data)                        # [C4]
            beta = drift(beta, h)                                                        # [C5]
        return Gradients(reply, {}), ClientState(beta.y, beta.z)

    def block(self, state: ClientState) -> Params:
        """The main sequence."""
        return state.beta_y
