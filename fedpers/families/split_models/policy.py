"""A policy that shares out a sample's features between two heads, and how far features are from others."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.params import Params
from fedpers.learning.model import HEAD

POLICY = "policy."  # before the names of its parameters among the shared ones
WIDTHS = (10.0, 15.0, 20.0, 50.0)  # bandwidths of the kernel


def direction(own: Params) -> Tensor:
    """v / ‖v‖ [M] of the personal head: the sum of its rows."""
    return F.normalize(own[HEAD + "weight"].sum(0), dim=0)


def log_odds(w: Params, z: Tensor, v: Tensor) -> Tensor:
    """log(s / r) [n, M] of features z [n, M], without noise."""
    a = F.linear(z * v, w[POLICY + "weight"], w[POLICY + "bias"])
    a = F.layer_norm(a, a.shape[1:], w[POLICY + "scale"], w[POLICY + "shift"]).relu()
    personal, shared = a.chunk(2, 1)
    return personal - shared


def joint(own: Params, shared: Params) -> Params:
    """The head on features [s z, r z] that is the sum of the personal head on s z and the shared on r z."""
    return {k: torch.cat([v, shared[k]], 1) if v.dim() > 1 else v + shared[k] for k, v in own.items()}


def parted(z: Tensor, s: Tensor) -> Tensor:
    """[n, 2 M] features s z and r z, r = 1 - s."""
    return torch.cat([s * z, (1 - s) * z], 1)


def mmd(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of rows a and b [n, M]; rows of mask [n] 0 are not there."""
    p = mask / mask.sum()
    centre = p @ b  # far from 0 rounding would leave little of small distances
    a, b = a - centre, b - centre
    return p @ (_kernel(a, a) + _kernel(b, b) - 2 * _kernel(a, b)) @ p


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    far = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return sum((-far.clamp(min=0) / (2 * width)).exp() for width in WIDTHS)  # type: ignore[return-value]
