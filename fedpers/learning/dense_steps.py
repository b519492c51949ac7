"""Steps of dense networks where there is no C compiler: their gradient is written out for a whole stack."""

from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.rng import Stream
from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import ON_DATA, has_block, kernels_allowed, parts_of, whole_rows
from fedpers.learning.kernels.plan import Plan, Training, understood
from fedpers.learning.losses import Loss
from fedpers.learning.minibatches import schedule_of
from fedpers.learning.optimizers import MOMENTS, LocalConfig, OptimizerState, program
from fedpers.learning.step import Grad, Instruction, Mix, Now, Program, Rate, Vectors, pulled, stepped

PLAIN = (Grad(), Mix("w", ((1.0, "w"), (Rate(), "g"))))


def minimise_written_out(
    loss: Loss, params: Params, opt: OptimizerState, data: Data, rng: Stream, cfg: LocalConfig, lr: Any
) -> tuple[Params, OptimizerState] | None:
    """`minimise_from` of a dense network's own loss on a CPU without kernels; None: it is something else."""
    block = data.block is not None and has_block(data, params)
    known = block and isinstance(lr, float) and kernels_allowed() and understood(cfg)
    found = parts_of(loss, ON_DATA, params, opt.step) if known and native.library() is None else None
    if found is None or not _fits(*found, data.block.parts):
        return None
    plan, start = found
    steps, forms = pulled(program(cfg), plan.lam), list[Any]()
    leaves, form = flatten((start, opt))

    def all_clients(index: Tensor, weight: Tensor, *leaves: Tensor) -> list[Tensor]:
        given, state = rebuild(form, leaves)
        parts, (rows,) = whole_rows(data.block.parts, torch.where(weight > 0, index, 0))
        batches = Batches(plan.task, parts, rows, weight)
        flat, after = flatten(_steps(plan, steps, given, state, batches, lr))
        forms.append(after)
        return flat

    values = on_stacks(all_clients, *schedule_of(data, rng, cfg), *leaves)
    w, state = rebuild(forms[0], values)
    return w, state if steps.keeps else opt


def _fits(plan: Plan, start: Training, parts: list[Data]) -> bool:
    """Whether these are dense layers on a CPU, and samples of their type and size."""
    w, rows = start.w, [p.rows for p in parts]
    kinds = {t.dtype for t in w.values()} | {r and r[1] for r in rows}
    inputs = w[f"{plan.layers[0]}.weight"].shape[-1]
    on_cpu = all(t.is_cpu for t in w.values())
    return not plan.convs and on_cpu and len(kinds) == 1 and all(r and r[0] == inputs for r in rows)


class Batches:
    """The minibatches of a stack of clients: rows and their weights [C, S, B]."""

    def __init__(self, task: str, parts: Any, rows: Tensor, weight: Tensor) -> None:
        self.task, self.rows, self.weight = task, rows, weight
        self.x, self.y = [p.x.flatten(1) for p in parts], [p.y for p in parts]
        self.some = weight.sum(2) > 0  # [C, S] whether there is a sample

    def at(self, s: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [C, B, ins], labels or values [C, B, ...] and shares of the loss [C, B, 1] in step s."""
        rows, weight = self.rows[:, s], self.weight[:, s]
        x = self.x[0].new_empty(*rows.shape, self.x[0].shape[1])
        for t, i, to in zip(self.x, rows, x, strict=True):
            torch.index_select(t, 0, i, out=to)
        y = torch.stack([t.index_select(0, i) for t, i in zip(self.y, rows, strict=True)])
        total = weight.sum(1, keepdim=True)
        return x, y, (weight / torch.where(total > 0, total, 1.0)).unsqueeze(2).to(x)


def _steps(
    plan: Plan, steps: Program, given: Training, state: OptimizerState, batches: Batches, lr: float
) -> tuple[Params, OptimizerState]:
    """The parameters and the optimisers of a stack after all steps."""
    starts = {"w": {k: given.w[k] for k in plan.moving}} | {k: getattr(state, k) for k in steps.keeps}
    v = {k: {n: _copy(t) for n, t in m.items()} for k, m in starts.items()}
    v |= {k: own for k, own in given.vectors.items() if k != "w"}
    number, kept = state.step.clone(), ("w", *steps.keeps)
    for s in range(batches.rows.shape[1]):
        some = batches.some[:, s]
        if not some.any():
            continue
        gradient = Written(plan, given.w, *batches.at(s))
        now = Now(gradient, lr, number + 1, given.own, stack=1)
        if steps.instructions == PLAIN:
            gradient.into(v["w"], -lr)  # which is 0 where there is no sample
        elif not some.all():
            new = stepped(steps.instructions, v, now)
            v |= {k: {n: _where(some, new[k][n], t) for n, t in v[k].items()} for k in kept}
        else:
            _in_place(steps, v, now)
        number = torch.where(some, number + 1, number)
    return v["w"], OptimizerState(number, *(v.get(k, {}) for k in MOMENTS))


def _copy(stack: Tensor) -> Tensor:
    return stack.clone(memory_format=torch.contiguous_format)


def _in_place(steps: Program, v: Vectors, now: Now) -> None:
    for i in steps.instructions:
        if isinstance(i, Grad | Mix):
            i.in_place(v, now)
        else:  # other instructions write in place for one client only
            Instruction.in_place(i, v, now)


def _where(some: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(some.reshape(-1, *[1] * (new.dim() - 1)), new, old)


class Written:
    """The gradient of a stack's mean losses in what is trained; other parameters are those of `whole`."""

    def __init__(self, plan: Plan, whole: Params, x: Tensor, y: Tensor, share: Tensor) -> None:
        self.plan, self.whole, self.x, self.y, self.share = plan, whole, x, y, share

    def __call__(self, w: Params) -> Params:
        """New tensors, in the order of w."""
        found = {k: torch.zeros_like(t) for k, t in w.items()}
        self._add(found, w, 1.0)
        return found

    def into(self, w: Params, times: float) -> None:
        """w += times·∇f(w)."""
        self._add(w, w, times)

    def _add(self, to: Params, at: Params, times: float) -> None:
        layers, w, inputs = self.plan.layers, self.whole | at, [self.x]
        lowest = next(i for i, k in enumerate(layers) if f"{k}.weight" in to or f"{k}.bias" in to)
        for k in layers:
            h, weight, bias = inputs[-1], w[f"{k}.weight"].mT, w.get(f"{k}.bias")
            z = h @ weight if bias is None else torch.baddbmm(bias.unsqueeze(1), h, weight)
            inputs.append(z.relu_() if k != layers[-1] else z)
        d = self._derivative(inputs.pop())
        for i in range(len(layers) - 1, lowest - 1, -1):
            matrix, offset = f"{layers[i]}.weight", f"{layers[i]}.bias"
            below = (d @ w[matrix]).mul_(inputs[i] > 0) if i > lowest else d
            if matrix in to:
                to[matrix].baddbmm_(d.mT, inputs[i], alpha=times)
            if offset in to:
                to[offset].add_(d.sum(1), alpha=times)
            d = below

    def _derivative(self, z: Tensor) -> Tensor:
        """Of the mean losses, in the outputs z [C, B, K]."""
        if self.plan.task == "classification":
            label = self.y.unsqueeze(2)
            d = z.softmax(2).scatter_add_(2, label, torch.full_like(label, -1, dtype=z.dtype))
        else:
            y = self.y.to(z).reshape(z.shape)
            d = torch.sigmoid(z) - y if self.plan.task == "binary" else (z - y) * (2 / z.shape[2])
        return d.mul_(self.share)
