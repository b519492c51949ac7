"""What server and clients of a mixture with memberships tell each other, an order for each block."""

from typing import ClassVar

from torch import Tensor

from fedpers.core.params import Params
from fedpers.core.pytree import record


@record("mixtures.BothBlocks")
class BothBlocks:
    """Order: a mirror step on the membership, then train the canonical models."""

    theta: Params  # canonical models, stacked, and what all share
    c: Tensor  # [K] float64
    pull: Tensor  # [K] a_i = λ (L C)_i
    p: float  # p_i, the weight of f_i in the membership's gradient
    eta_2: float  # η_2 of this round


@record("mixtures.Trained")
class Trained:
    """Reply: the trained models, and the membership that they were trained with."""

    theta: Params
    c: Tensor  # [K]
    ranges: ClassVar = {"c": "simplex"}


@record("mixtures.ThetaBlock")
class ThetaBlock:
    """Order: train the canonical models."""

    theta: Params
    c: Tensor  # [K]


@record("mixtures.TrainedTheta")
class TrainedTheta:
    """Reply: the trained models."""

    theta: Params


@record("mixtures.MembershipBlock")
class MembershipBlock:
    """Order: say the loss's gradient in the membership."""

    theta: Params
    c: Tensor  # [K]
    p: float  # p_i


@record("mixtures.MembershipGradient")
class MembershipGradient:
    """Reply: p_i ∇_c f_i."""

    c: Tensor  # [K], like the order's


@record("mixtures.FullGradients")
class FullGradients:
    """Order: say the gradient and the mirror step on all data, and move nothing."""

    theta: Params
    c: Tensor  # [K]
    pull: Tensor  # [K]
    p: float
    eta_2: float


@record("mixtures.Slopes")
class Slopes:
    """Reply: ∇_θ f_i, and where the membership would go."""

    theta: Params  # a gradient, like the order's theta
    c: Tensor  # [K]
    ranges: ClassVar = {"c": "simplex"}


@record("mixtures.Personal")
class Personal:
    """What a client predicts with."""

    theta: Params
    c: Tensor  # [K]


@record("mixtures.Newcomer")
class Newcomer:
    """What a client that never trained finds its membership with, from `c` on."""

    theta: Params
    c: Tensor  # [K]
