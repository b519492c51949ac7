"""Floating-point operations of a sample, from the sizes of a model's layers."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedpers.core.data import Data
from fedpers.core.params import Params, split
from fedpers.learning.kernels.plan import layers_of
from fedpers.learning.model import Model

PAIR = 2  # samples that pass through at once: a layer that normalises over them wants more than one


@dataclass(frozen=True)
class SampleFlops:
    """Operations of one sample in products and convolutions; a multiplication and an addition are two."""

    forward: int  # through the body
    backward: int  # of a gradient of the whole model, without that
    head_step: int  # of a gradient of the head alone, on features

    def of(self, gradients: int, forwards: int, head_steps: int) -> int:
        """Operations of gradients through the body, passes forward (gradients' included) and head steps."""
        return gradients * self.backward + forwards * self.forward + head_steps * self.head_step

    def all_passes(self, gradients: float, forwards: float, head_steps: float) -> float:
        """Of so many gradients, passes forward beside them, and head steps: the least that these need.

        A pass whose features head steps are taken on ends at the body; another goes through the head too, at
        half of a head step, whose other half is its weights' gradient.
        """
        through = max(forwards - head_steps, 0) * self.head_step / 2
        return (
            gradients * (self.forward + self.backward)
            + forwards * self.forward
            + through
            + (head_steps * self.head_step)
        )


def flops_of(model: Model, input_shape: tuple[int, ...]) -> SampleFlops:
    """The cost of a sample; for other than dense networks counted by torch while one passes through.

    Element by element work (activations, losses, steps) is not counted, nor what a custom operator of the
    user's own does.
    """
    params = model.init_trained(0)
    layers = layers_of(model)
    if layers is not None:  # known from their sizes, without a pass
        return dense([params[f"{name}.weight"].numel() for name in layers])
    return counted(model, params, input_shape)


def dense(sizes: Sequence[int]) -> SampleFlops:
    """The cost of a sample in a dense network whose layers have so many weights, the head last.

    A layer's product forward, its weights' gradient and its inputs' gradient cost two operations a weight
    each; inputs of the first layer have no gradient, and features in a head step have none.
    """
    *body, head = (2 * n for n in sizes)
    back = [head, head] + body + body[1:] + [head] * bool(body)
    return SampleFlops(sum(body), sum(back), 2 * head)


def counted(model: Model, params: Params, input_shape: tuple[int, ...]) -> SampleFlops:
    """The cost of a sample of any network, by torch's counter."""
    head, _ = split(params, model.is_head)
    x = torch.zeros(PAIR, *input_shape)
    known = model.with_statistics(params, x)  # of BatchNorm, which predicts with some client's alone
    features = model.body(known, x).detach()
    data = Data(x, _targets(model, features), torch.ones(PAIR))
    forward = _counted(lambda: model.body(known, x))
    whole = _counted(lambda: _differentiate(lambda w: model.loss(known | w, data), params))
    alone = _counted(lambda: _differentiate(lambda w: model.head_loss(known | w, features, data), head))
    return SampleFlops(forward, whole - forward, alone)


def _targets(model: Model, features: Tensor) -> Tensor:
    """Zeros in the shape and dtype of the task's targets, for features [n, ..., M]."""
    if model.kind.targets in ("values", "labels"):
        return torch.zeros(PAIR, model.num_outputs)
    return torch.zeros(features.shape[:-1], dtype=torch.int64)


def _differentiate(loss: Callable[[Any], Any], params: Any) -> None:
    leaves = {k: v.detach().requires_grad_(v.is_floating_point()) for k, v in params.items()}
    if leaves:
        with torch.enable_grad():
            loss(leaves).backward()


def _counted(run: Callable[[], Any]) -> int:
    # Without mkldnn a recurrent layer is products, which are counted, and not one operator, which is not.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32")  # of a switch that `flags` sets back
        with torch.backends.mkldnn.flags(enabled=False), _Counter() as counter:
            run()
    return counter.total // PAIR


class _Counter(TorchDispatchMode):
    """Counts operations by torch's formulas, as its FlopCounterMode does, which loads torch's compiler."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would load its compiler to switch it off

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **kwargs or {})
        formula = flop_registry.get(func._overloadpacket)
        self.total += int(formula(*args, **kwargs or {}, out_val=found)) if formula else 0
        return found
