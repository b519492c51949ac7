"""Steps and gradients of a stack on a GPU, recorded once as a CUDA graph and played from then on.

A step is dozens of short launches, each of which takes the CPU longer than the GPU; a graph takes one. What
is played are the operations that torch would make, so the numbers are the same.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import flatten, rebuild, record_name
from fedpers.core.scope import holding
from fedpers.core.vmap import mapped_once, on_stacks, over_rows, stack_size
from fedpers.core.witness import RECORDED, took
from fedpers.learning.convolution import current_way
from fedpers.learning.kernels.dispatch import ON_DATA, of_model_alone
from fedpers.learning.losses import Frozen, Loss, soft_proximal, taken_apart
from fedpers.learning.model import Model
from fedpers.learning.module import ModuleNetwork
from fedpers.learning.optimizers import OptimizerState

log = logging.getLogger("fedpers")
SHARE = 8  # of the GPU's memory, a part in so many is for what recordings read and write
Gradient = Callable[[Params, Data], Params]
Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Step = Callable[[Gradient, Params, OptimizerState, Data], tuple[Params, OptimizerState]]  # of one client


class Recorder:
    """The recordings of one run. What is to be recorded is when it comes for the second time."""

    def __init__(self) -> None:
        self.kept: dict[Any, Recording] = {}
        self.not_capturable: set[Any] = set()  # could not be recorded
        self._seen: set[Any] = set()
        self._pool: Any = None  # memory for what is made on the way: recordings never run side by side

    def due(self, key: Any) -> bool:
        """Whether this is to be recorded, or was; not what has no hash, such as arrays of NumPy."""
        try:
            known = key in self._seen
        except TypeError:
            return False
        self._seen.add(key)
        return known and key not in self.not_capturable

    def play(self, key: Any, run: Run, given: Sequence[Tensor], times: int = 1) -> list[Tensor]:
        """What `run` makes in the end; not recorded if that fails, and the next time not tried."""
        recording = self.kept.get(key)
        if recording is None:
            recording = Recording(run, given)
            try:
                recording.record(self._allowed(given[0].device))
                self.kept[key] = recording
            except RuntimeError as error:  # out of memory, or an operation that waits for the GPU
                log.warning("steps are not recorded on the GPU, so they are slower: %s", str(error)[:300])
                self.not_capturable.add(key)
        return recording.play(given, times)

    def _allowed(self, device: torch.device) -> Any:
        """The pool to record in.

        Raises:
            RuntimeError: recordings hold all the memory that is meant for them.
        """
        if device.type != "cuda":
            return None
        whole = torch.cuda.get_device_properties(device).total_memory
        held = sum(recording.nbytes for recording in self.kept.values())
        if held * SHARE > whole:
            raise RuntimeError(f"{len(self.kept)} recordings take {held >> 20} of {whole >> 20} MiB")
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        return self._pool


class Recording:
    """Operations on tensors that lie where they lay when these were recorded."""

    def __init__(self, run: Run, like: Sequence[Tensor]) -> None:
        self.own = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in like]
        self.nbytes = sum(t.nbytes for t in self.own)
        self.found: Sequence[Tensor] = ()
        self._run, self._again = run, self._anew

    def record(self, pool: Any) -> None:
        """Play a graph from now on."""
        self._again = capture(self._anew, pool)

    def play(self, given: Sequence[Tensor], times: int) -> list[Tensor]:
        """What is made of `given`, which what is run may write to, in the last of so many times."""
        took(RECORDED)
        for own, t in zip(self.own, given, strict=True):
            own.copy_(t)
        for _ in range(times):
            self._again()
        return [t.clone() for t in self.found]  # the next recording takes the same memory

    def _anew(self) -> None:
        self.found = self._run(self.own)


def capture(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """Record what `step` launches, without running it; calling what is returned runs it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph.replay  # type: ignore[no-any-return]


_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def recorded_by(recorder: Recorder | None) -> AbstractContextManager[None]:
    """While this is open, trainings of stacks are recorded; None: they are not."""
    return holding(_recorder, recorder)


def minimise_recorded(
    loss: Loss,
    params: Params,
    opt: OptimizerState,
    data: Data,
    how: tuple[Any, ...],
    schedule: Callable[[], tuple[Tensor, Tensor]],
    step: Step,
) -> tuple[Params, OptimizerState] | None:
    """Step after step of one client's minibatches, in a stack; None if there is no recording of it.

    Args:
        how: all that `step` depends on beside its arguments; hashable.
        schedule: draws the minibatches' rows and weights, [S, B].
    """
    recorder = _recorder.get()
    if recorder is None or type(data) is Data or data.block is None or not mapped_once():
        return None
    if (parts := _parts(loss)) is None:
        return None
    tensors, form = taken((params, opt, parts))
    moving, moved = taken((params, opt))
    block, like = data.block, data.block.parts[0]
    key = form, how, len(block.parts), len(data), _kinds([like.x[:1], like.y[:1], *tensors]), _arithmetic()
    if not recorder.due(key):
        return None

    def client(x: Tensor, y: Tensor, mask: Tensor, *rows: Tensor) -> list[Tensor]:
        w, opt, parts = form.filled(rows)
        return taken(step(torch.func.grad(_whole(*parts)), w, opt, Data(x, y, mask)))[0]

    def all_clients(index: Tensor, weight: Tensor, *stacks: Tensor) -> list[Tensor]:
        first = torch.zeros(1, dtype=torch.int64, device=index.device)
        batches = block.stack("x"), block.stack("y"), index.transpose(0, 1), weight.transpose(0, 1)
        run = partial(_step, client, len(moving))
        return recorder.play(key, run, [first, *batches, *stacks], index.shape[1])

    found: tuple[Params, OptimizerState] = moved.filled(on_stacks(all_clients, *schedule(), *tensors))
    return found


def gradient_recorded(loss: Loss, params: Params, data: Data) -> Params | None:
    """The gradient of one client's loss, in a stack; None if there is no recording of it."""
    recorder = _recorder.get()
    if recorder is None or not mapped_once() or (parts := _parts(loss)) is None:
        return None
    tensors, form = taken((params, parts))
    given = [data.x, data.y, data.mask, *tensors]
    key = form, stack_size(given), _kinds(given), _arithmetic()
    if not recorder.due(key):
        return None

    def client(x: Tensor, y: Tensor, mask: Tensor, *rows: Tensor) -> list[Tensor]:
        w, parts = form.filled(rows)
        return list(torch.func.grad(_whole(*parts))(w, Data(x, y, mask)).values())

    found = on_stacks(lambda *s: recorder.play(key, lambda own: over_rows(client, *own), s), *given)
    return dict(zip(params, found, strict=True))


class Form(NamedTuple):
    """All of a tree but its tensors; the same for all clients of a stack."""

    structure: Any
    others: tuple[Any, ...]  # its leaves, `Tensor` for each tensor

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The tree with these tensors."""
        values = iter(tensors)
        return rebuild(self.structure, [next(values) if x is Tensor else x for x in self.others])


def taken(tree: Any) -> tuple[list[Tensor], Form]:
    """The tensors of a tree, in order, and what is left."""
    flat, structure = flatten(tree)
    others = tuple(Tensor if isinstance(t, Tensor) else t for t in flat)
    return [t for t in flat if isinstance(t, Tensor)], Form(structure, others)


def _kinds(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((t.shape, t.dtype) for t in tensors)


def _parts(loss: Loss) -> tuple[Any, ...] | None:
    """(loss, frozen parameters, λ, ū, c̄) of a model's loss or a record; None: it could hold other tensors."""
    near, frozen = taken_apart(loss)
    inner: Any = frozen.loss
    of_model = getattr(inner, "__func__", None) in ON_DATA and of_model_alone(inner.__self__)
    if not of_model and record_name(type(inner)) is None:
        return None
    models = [inner.__self__] if of_model else [x for x in flatten(inner)[0] if isinstance(x, Model)]
    if any(isinstance(model.network, ModuleNetwork) for model in models):  # which may draw numbers
        return None
    return inner, frozen.fixed, near.lam, near.ubar, near.cbar


def _whole(loss: Loss, fixed: Params, lam: float, ubar: float | Tensor, cbar: Params) -> Loss:
    """The loss that `_parts` took apart."""
    return soft_proximal(Frozen(loss, fixed) if fixed else loss, lam, ubar, cbar)


def _arithmetic() -> tuple[Any, ...]:
    """How torch computes products now; a recording keeps to it."""
    cudnn: Any = torch.backends.cudnn
    products = [x.fp32_precision for x in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    return current_way(), *products, torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")


def _step(client: Callable[..., list[Tensor]], moving: int, own: Sequence[Tensor]) -> Sequence[Tensor]:
    """A step of all clients of a stack, which writes the first `moving` of its stacks and counts itself.

    Args:
        own: number of the step [1]; samples x [C, n, ...] and y [C, n]; rows and weights of the minibatches
            [S, C, B]; stacks [C, ...] of what the training starts from.
    """
    number, x, y, index, weight, *stacks = own
    rows, mask = (t.index_select(0, number).squeeze(0) for t in (index, weight))
    first = torch.arange(len(x), device=x.device).unsqueeze(1) * x.shape[1]
    chosen = (rows + first).reshape(-1)
    batch = [t.flatten(0, 1).index_select(0, chosen).unflatten(0, rows.shape) for t in (x, y)]
    for old, new in zip(stacks, over_rows(client, *batch, mask, *stacks), strict=False):
        old.copy_(new)
    number.add_(1)
    return stacks[:moving]
