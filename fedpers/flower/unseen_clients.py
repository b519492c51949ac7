"""Clients that never trained: what they are sent to predict with, and their local training before that."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import LEAF, flatten, rebuild, record
from fedpers.core.rng import Stream
from fedpers.learning.local_training import minimise
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig

BATCH = 32  # samples of a step of the local training


@record("flower.Unseen")
class UnseenClientOrder:
    """Order: predict with `order` after so many epochs of SGD at this rate on your own training data."""

    order: Any  # what the method's strategy sends to be predicted with
    epochs: int
    lr: float


def train_locally(
    predict: Callable[[Any, Any, Tensor], Tensor],
    model: Model,
    held: tuple[Any, Any],
    data: Data,
    rng: Stream,
    order: UnseenClientOrder,
) -> Any:
    """(shared, state) in which every model was trained on the client's data, by the loss of its predictions.

    A model is a dict of tensors, wherever it stands; what weighs several of them stays as it was found.

    Args:
        predict: outputs [n, K] of (shared, state, inputs).
        held: (shared, state) before.
    """
    flat, structure = flatten(held)
    trained: Params = {
        str(i): x
        for i, (x, inside) in enumerate(zip(flat, _in_models(structure), strict=True))
        if inside and isinstance(x, Tensor) and x.is_floating_point()
    }

    def put_together(params: Params) -> Any:
        return rebuild(structure, [params.get(str(i), x) for i, x in enumerate(flat)])

    def loss(params: Params, batch: Data) -> Tensor:
        shared, state = put_together(params)
        losses = model.sample_losses(predict(shared, state, batch.x), batch.y)
        return (losses * batch.mask).sum() / batch.num

    cfg = LocalConfig(lr=0.0, epochs=order.epochs, batch_size=BATCH)
    return put_together(minimise(loss, trained, data, rng, cfg, order.lr))


def _in_models(structure: Any, inside: bool = False) -> Iterator[bool]:
    """For each leaf of a tree whether it is in a dict."""
    if structure is LEAF:
        yield inside
        return
    kind, _, parts = structure
    for part in parts:
        yield from _in_models(part, inside or kind is dict)
