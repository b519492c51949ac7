"""ACD-PFL, client half. The algorithm box is in strategies/acd.py."""

from dataclasses import dataclass

from fedpers.core.params import add, scale
from fedpers.families.unified.client import BlockClient
from fedpers.families.unified.config import ObjectiveConfig
from fedpers.families.unified.messages import BlockGradients, Iterate
from fedpers.families.unified.momentum import Sequences, middle
from fedpers.families.unified.step_sizes import ACDRates
from fedpers.method import Data, Params, Stream


@dataclass(frozen=True)
class ACDConfig(ObjectiveConfig):
    """Hyper-parameters of ACD-PFL; null is what the theory gives."""

    p_w: float | None = None              # p_w: probability of the w-block


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
    variables, private = Sequences, ("y", "z")
    per_step = 0

    def iterate(
        self, order: Iterate, state: Sequences, data: Data, rng: Stream
    ) -> tuple[BlockGradients, Sequences]:
        """T iterations of the private block, then the gradient in w."""
        f, h, w = self.objective(order.M), order.rates, order.w
        beta, p_b = state, 1 - h.p_w
        for _ in range(order.T):
            g = f.grad_beta(middle(w, h), middle(beta, h), data)                         # [C1]
            beta = descend(beta, scale(g, 1 / f.M), p_b, h.L_b, h)                       # [C2]
            w = drift(w, h)                                                              # [C3]
        reply = {}
        if order.w_step:
            reply = f.grad_w(middle(w, h), middle(beta, h), data)                        # [C4]
            beta = drift(beta, h)                                                        # [C5]
        return BlockGradients(reply, {}), beta
