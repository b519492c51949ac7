"""Local training of dense networks (linear, logistic, mlp), for a stack of clients, without autograd.

The gradient of such a network is three lines of algebra. `local.minimise` comes here by itself if the
loss is the model's own, also pulled or with parts held fixed. A kernel in C does it (fedpers/native.c);
where there is none, plain SGD is a handful of batched products that update the weights in place, and
all else is left to autograd.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers import native
from fedpers.data import Data
from fedpers.layers import Dense, Flatten, Relu, Stack
from fedpers.losses import Given, Loss, Pulled
from fedpers.models import HEAD, Model
from fedpers.params import Params
from fedpers.record import flatten, rebuild, record

if TYPE_CHECKING:
    from fedpers.local import LocalConfig, Slots


class Block(Protocol):
    """The clients' data: one client's, or a chunk's."""

    @property
    def parts(self) -> Sequence[Data]:
        """A client each."""

    def gather(self, name: str, index: Tensor) -> Tensor:
        """Rows index [C, ...] of a field, each client's own, [C, ..., *row]."""


@dataclass(frozen=True)
class Plan:
    """What a local training is."""

    layers: tuple[str, ...]          # parameter prefixes, the head last
    bias: bool                       # of the head
    task: str
    trained: frozenset[str]          # the parameters that move
    lr: float
    decay: float                     # weight decay
    momentum: float
    adam: bool
    lam: float                       # of the pull
    per_pass: int                    # steps of one pass over the data

    @property
    def places(self) -> list[str]:
        """Names of each layer's weight and bias in turn, whether it has one or not."""
        return [f"{layer}.{part}" for layer in self.layers for part in ("weight", "bias")]

    @property
    def names(self) -> list[str]:
        """The parameters."""
        return self.places if self.bias else self.places[:-1]

    @property
    def plain(self) -> bool:
        """SGD on the model's own loss, in all parameters."""
        return not (self.momentum or self.adam or self.lam) and len(self.trained) == len(self.names)


@record
class Training:
    """The tensors of a local training, one client's or stacks of them."""

    w: Params        # weights, also those that are held fixed
    cbar: Params     # c̄ of the pull; {} without
    ubar: Tensor     # ū of the pull, scalar
    m: Params        # the optimiser's memory
    v: Params
    step: Tensor     # scalar


def plan_of(
    loss: Loss, params: Params, slots: "Slots", data: Data, cfg: "LocalConfig", lr: Any
) -> tuple[Plan, Training] | None:
    """How to train without autograd, and on what; None if that cannot be done here."""
    pull = loss if isinstance(loss, Pulled) else Pulled(loss, 0.0, 0.0, {})
    given = pull.loss if isinstance(pull.loss, Given) else Given(pull.loss, {})
    model: Any = getattr(given.loss, "__self__", None)
    own = getattr(given.loss, "__func__", None) is Model.loss        # and not a subclass's
    layers = layers_of(model) if own else None
    if layers is None or data.block is None or not isinstance(lr, float):
        return None
    n = len(data)
    plan = Plan(
        layers, model.bias, model.task, frozenset(params), lr, cfg.weight_decay, cfg.momentum,
        cfg.optimizer == "adam", pull.lam, -(-n // min(cfg.batch_size or n, n)),
    )
    whole = given.fixed | params
    if not set(plan.names) <= whole.keys():
        return None
    w = {name: whole[name] for name in plan.names}
    if not (plan.plain and cfg.batch_size) and not native.fits(list(w.values()), data.block.parts):
        return None
    cbar = {k: pull.cbar[k] for k in params} if plan.lam else {}
    ubar = torch.as_tensor(pull.ubar, dtype=slots.step.dtype)
    return plan, Training(w, cbar, ubar, slots.m, slots.v, slots.step)


def layers_of(model: Model) -> tuple[str, ...] | None:
    """The parameter prefixes of a purely dense network, or None if it is something else."""
    if not isinstance(model.network, Stack):
        return None
    kinds = [type(layer) for _, layer, _ in model.network.steps]
    if kinds[:1] != [Flatten] or kinds[1:] != [Dense, Relu] * (len(kinds) // 2):
        return None
    dense = [name for name, layer, _ in model.network.steps if isinstance(layer, Dense)]
    return (*dense, HEAD.rstrip("."))


def train(plan: Plan, given: Training, block: Block, index: Tensor, weight: Tensor) -> Training:
    """Each client's weighted mean loss; a step whose weights are all 0 changes nothing.

    Args:
        given: stacks [C, ...].
        block: the clients' data.
        index, weight: minibatches [C, S, B].
    """
    if native.fits(list(given.w.values()), block.parts):
        return native.train(plan, given, block.parts, index, weight)
    w = {k: v.clone(memory_format=torch.contiguous_format) for k, v in given.w.items()}
    _descend(plan, w, block, index, weight)
    return replace(given, w=w)


def _descend(plan: Plan, params: Params, block: Block, index: Tensor, weight: Tensor) -> None:
    """Plain SGD, in place."""
    total = weight.sum(-1, keepdim=True)
    rate = (weight * (-plan.lr / total.clamp(min=1e-30))).unsqueeze(-1)          # [C, S, B, 1]
    keep = 1 - plan.lr * plan.decay * (total > 0).to(weight).unsqueeze(-1)       # [C, S, 1, 1]
    for i, r, q in zip(*(t.split(plan.per_pass, 1) for t in (index, rate, keep)), strict=True):
        x = block.gather("x", i).flatten(3)
        target = _target(plan, block.gather("y", i), params[HEAD + "weight"])
        for s in range(i.shape[1]):
            left = q[:, s] if plan.decay else None
            _step(plan, params, x[:, s], target[:, s], r[:, s], left)


def _target(plan: Plan, y: Tensor, like: Tensor) -> Tensor:
    """Targets [C, S, B, K]."""
    if plan.task == "classification":
        return F.one_hot(y, like.shape[1]).to(like.dtype)
    return y.to(like.dtype).reshape(*y.shape[:3], -1)


def _step(
    plan: Plan, params: Params, x: Tensor, target: Tensor, rate: Tensor, left: Tensor | None
) -> None:
    """One step: forwards, then from the head down; weights [C, out, in], inputs [C, B, in].

    `rate` [C, B, 1] is minus the step size times a sample's weight; `left` [C, 1, 1] is what weight
    decay leaves of the weights.
    """
    inputs = [x]
    for name in plan.layers[:-1]:
        inputs.append(_affine(params, name, inputs[-1]).relu_())
    delta = _slope(plan.task, _affine(params, plan.layers[-1], inputs[-1]), target).mul_(rate)
    for name, h in zip(reversed(plan.layers), reversed(inputs), strict=True):
        below = None
        if h is not x:
            below = torch.bmm(delta, params[f"{name}.weight"]).mul_(h > 0)
        weight, bias = params[f"{name}.weight"], params.get(f"{name}.bias")
        if left is not None:
            weight.mul_(left)
        weight.baddbmm_(delta.transpose(1, 2), h)
        if bias is not None:
            if left is not None:
                bias.mul_(left[:, 0])
            bias.add_(delta.sum(1))
        if below is not None:
            delta = below


def _affine(params: Params, name: str, x: Tensor) -> Tensor:
    weight, bias = params[f"{name}.weight"].transpose(1, 2), params.get(f"{name}.bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)


def _slope(task: str, z: Tensor, target: Tensor) -> Tensor:
    """The derivative of a sample's loss in its outputs."""
    if task == "classification":
        return torch.softmax(z, -1).sub_(target)
    if task == "binary":
        return torch.sigmoid(z).sub_(target)
    return (z - target).mul_(2 / z.shape[-1])


class _Train(torch.autograd.Function):
    """`train` seen from inside vmap: one client's tensors in, one client's tensors out."""

    @staticmethod
    def forward(
        plan: Plan, block: Block, form: Any, index: Tensor, weight: Tensor, *leaves: Tensor
    ) -> Any:
        """One client alone is a stack of one."""
        stacks: Training = rebuild(form, (x.unsqueeze(0) for x in leaves))
        done = train(plan, stacks, block, index.unsqueeze(0), weight.unsqueeze(0))
        return tuple(x.squeeze(0) for x in _moved(plan, done))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is differentiated through."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: Plan, block: Block, form: Any, *tensors: Tensor) -> Any:
        """All clients of the stack at once."""
        index, weight, *leaves = (
            t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)
            for t, d in zip(tensors, in_dims[3:], strict=True)
        )
        done = _moved(plan, train(plan, rebuild(form, iter(leaves)), block, index, weight))
        return tuple(done), (0,) * len(done)


def _moved(plan: Plan, done: Training) -> list[Tensor]:
    """What a training changes."""
    names = [k for k in plan.names if k in plan.trained]
    return [kind[k] for kind in (done.w, done.m, done.v) if kind for k in names] + [done.step]


def minimise_dense(
    plan: Plan, given: Training, block: Block, index: Tensor, weight: Tensor
) -> Training:
    """The training of one client, alone or under vmap."""
    leaves, form = flatten(given)
    moved = iter(_Train.apply(plan, block, form, index, weight, *leaves))
    names = [k for k in plan.names if k in plan.trained]
    w, m, v = ({k: next(moved) for k in names} if kind else {} for kind in (given.w, given.m, given.v))
    return replace(given, w=w, m=m, v=v, step=next(moved))
