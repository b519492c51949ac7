"""Gradients of a mean loss over many images, piece by piece: what layers make of one stays in the cache.

Of 2,000 images a layer of 64 channels makes 400 MB, in pages that the system first fills with zeros; on a CPU
that took as long as the arithmetic.
"""

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.learning.kernels.dispatch import kernels_allowed, of_model_alone
from fedpers.learning.kernels.pooled import differentiated_once
from fedpers.learning.layers import PIECE
from fedpers.learning.losses import Loss, taken_apart
from fedpers.learning.model import Model

Pieces = list[tuple[float, Data]]  # (share, samples)


def pieces(loss: Loss, data: Data) -> Pieces:
    """Shares and samples, of which loss(w, data) = Σ share · loss(w, samples) for every w.

    One piece where there is nothing to gain, or the loss is not known to be a mean over its samples, perhaps
    with a proximal term or frozen parameters.
    """
    if len(data) <= PIECE or not piecewise(loss, data):
        return [(1.0, data)]
    cut = [Data(*part) for part in zip(*(t.split(PIECE) for t in (data.x, data.y, data.mask)), strict=True)]
    total = float(data.num)
    return [(float(part.num) / total, part) for part in cut if part.num] or [(1.0, data)]


def piecewise(loss: Loss, data: Data) -> bool:
    """Whether the loss is a mean over images on a CPU, perhaps with a proximal term or frozen parameters."""
    plain = taken_apart(loss)[1].loss
    model = getattr(plain, "__self__", None)
    if getattr(plain, "__func__", None) is not Model.loss or not of_model_alone(model):
        return False
    return data.y.is_cpu and model.network.piecewise  # type: ignore[union-attr]


def slopes(loss: Loss, w: Params, parts: Pieces) -> list[Tensor]:
    """The gradient of Σ share · loss(w, samples) in each tensor of w, leaves that require gradients."""
    leaves, total = list(w.values()), list[Tensor]()
    for share, part in parts:
        with differentiated_once(kernels_allowed()), torch.enable_grad():
            value = loss(w, part)
        found = torch.autograd.grad(value, leaves, materialize_grads=True)
        if total:
            torch._foreach_add_(total, found, alpha=share)
        else:
            total = list(found) if share == 1 else list(torch._foreach_mul(found, share))
    return total


def layout(weight: Tensor) -> Tensor:
    """A copy to write on; kernels of convolutions channels last, which is a quarter faster."""
    form = torch.channels_last if weight.dim() == 4 else torch.contiguous_format
    return weight.detach().clone(memory_format=form)
