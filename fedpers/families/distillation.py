"""Scores of samples that all know: the messages of methods that exchange them, and a distance of outputs."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.learning.model import Model

NEAR = 1e-3  # of outputs; below it the sign of a difference may be that of rounding


@record("fedmd.Known")
class Known:
    """All public samples, for a client's first training."""

    x: Tensor  # [P, ...]
    y: Tensor | None  # [P]; None: nobody knows their labels


@record("fedmd.Ask")
class Ask:
    """Order: score the public samples of this round."""

    x: Tensor  # [S, ...]
    num_outputs: int
    known: Known | None  # for who takes part for the first time

    @property
    def expects(self) -> dict[str, tuple[int, ...]]:
        """The shape of the reply's scores."""
        return {"scores": (len(self.x), self.num_outputs)}


@record("fedmd.Scores")
class Scores:
    """Reply: the outputs of the client's own model, for classes logits."""

    scores: Tensor  # [S, K]


@record("fedmd.Digest")
class Digest:
    """Order: approach the consensus, then train on your own samples."""

    x: Tensor  # [S, ...]
    consensus: Tensor  # [S, K]


@record("fedmd.Done")
class Done:
    """Reply: empty."""


@record("fedmd.ClientState")
class ClientState:
    """The client's own model; it never leaves the client."""

    params: Params


def sent(x: Tensor, y: Tensor) -> Data:
    """Samples of an order: none of them is padding, whoever else it was sent to."""
    return Data(x, y, torch.ones(len(x), dtype=x.dtype, device=x.device))


@dataclass(frozen=True)
class Distance:
    """1/|B| Σ_i ‖f(x_i) - y_i‖₁ / K: the mean absolute error of outputs [n, K], where y are other outputs.

    Differences below NEAR count by their squares (Huber's loss): models that agree are left alone.
    """

    model: Model

    def __call__(self, w: Params, batch: Data) -> Tensor:
        """On a batch."""
        outputs = self.model(w, batch.x)
        away = F.smooth_l1_loss(outputs, batch.y, reduction="none", beta=NEAR).mean(1)
        return (away * batch.mask).sum() / batch.num
