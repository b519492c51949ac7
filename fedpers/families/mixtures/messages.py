"""What server and clients of a mixture with memberships tell each other, an order for each block."""

from torch import Tensor

from fedpers.core.params import Params
from fedpers.core.pytree import record


@record("mixtures.BothBlocks")
class BothBlocks:
    """Order: a mirror step on the membership, then train the canonical models."""

    theta: Params  # canonical models, stacked, and what all share
    c: Tensor  # [K] float64
    pull: Tensor  # [K] a_i = λ (L C)_i
    num_total: float  # Σ_j n_j over all clients, for p_i


@record("mixtures.ThetaBlock")
class ThetaBlock:
    """Order: train the canonical models."""

    theta: Params
    c: Tensor  # [K]


@record("mixtures.Trained")
class Trained:
    """Reply: the trained models, and the membership that they were trained with."""

    theta: Params
    c: Tensor  # [K]


@record("mixtures.MembershipBlock")
class MembershipBlock:
    """Order: say the loss's gradient in the membership."""

    theta: Params
    c: Tensor  # [K]
    num_total: float


@record("mixtures.MembershipGradient")
class MembershipGradient:
    """Reply: p_i ∇_c f_i."""

    c: Tensor  # [K], like the order's


@record("mixtures.Personal")
class Personal:
    """What a client predicts with."""

    theta: Params
    c: Tensor  # [K]
    steps: int = 0  # mirror steps before it predicts
