"""SCD-PFL, client half. The algorithm box is in strategies/scd.py."""

from dataclasses import dataclass

from fedpers.core.params import add
from fedpers.families.unified.client import BlockClient
from fedpers.families.unified.config import CoordinateConfig
from fedpers.families.unified.messages import Gradients, Iterate
from fedpers.method import Data, Params, Stream, record


@dataclass(frozen=True)
class SCDConfig(CoordinateConfig):
    """Hyper-parameters of SCD-PFL."""


@record
class ClientState:
    """The private block; it never leaves the client."""

    beta: Params


class SCDClient(BlockClient):
    """Moves its block alone, a sample at a time; gives a sample's gradient in w."""

    config: SCDConfig
    private = ("beta",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """The model's initial parameters."""
        return ClientState(self.first_block(params))

    def iterate(
        self, order: Iterate, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Gradients, ClientState]:
        """T steps on the private block, then a gradient in w."""
        f, h, w, beta = self.objective(order.M), order.rates, order.w, state.beta
        j = self.samples(order, data, rng)                                               # [C1]
        for i in range(order.T):
            g = f.grad_beta(w, beta, j[i])
            beta = add(beta, g, -h.eta / ((1 - h.p_w) * f.M))                            # [C2]
        reply = f.grad_w(w, beta, j[order.T]) if order.w_step else {}                    # [C3]
        return Gradients(reply, {}), ClientState(beta)

    def block(self, state: ClientState) -> Params:
        """The block."""
        return state.beta
