"""One chunk of clients in one call: `answer` or `assess` under vmap."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import ClientData
from fedpers.core.pytree import TreeSpec, flatten, neighbours, own, rebuild, spec_of
from fedpers.core.rng import Stream
from fedpers.core.sums import stack_of
from fedpers.core.vmap import PerClient, numbers, over_rows
from fedpers.engines.population import Population
from fedpers.engines.stacked_data import Block, StackedData, StackedStream
from fedpers.flower.messages import Answer, Header
from fedpers.learning.draws import drawing
from fedpers.learning.gradients import stacked
from fedpers.learning.training_round import answer, own_state

Sizes = tuple[int, int, int]  # what the splits of clients are padded to
NUMBERS = count(1)  # of stacks, in this process


def run_chunk(
    population: Population,
    chunk: Sequence[Any],
    sizes: Sizes,
    structure: Any,
    scratch: Any,
    shared: bool = False,
) -> tuple[list[Answer], list[Any]]:
    """(answers, new states) of clients that may share a stack, from one call under vmap.

    Args:
        chunk: jobs of the runner; their leaves are those of (order, state).
        sizes: what the three splits are padded to.
        structure: that of (order, state).
        scratch: memory for the stacks of the three splits that evaluations use again.
        shared: states may stay rows of a stack: the store knows how to free it, or all clients are asked,
            so that its rows live equally long. Else each gets memory of its own, or one that is kept
            would keep the whole stack.
    """
    if len(chunk) == 1:
        # a stack of one is reduced by other code, whose last bits differ
        answers, states = run_chunk(population, [chunk[0]] * 2, sizes, structure, scratch)
        return answers[:1], states[:1]
    requests = [job.request for job in chunk]
    header = requests[0].header
    data = [job.data for job in chunk]
    streams = [Stream(population.plan.seed, header.t, r.k, header.e) for r in requests]
    given: Columns | Rows
    if population.client.apart and header.kind != "evaluate":
        given = Rows([r.order for r in requests], [job.state for job in chunk])
    else:
        leaves = [job.leaves for job in chunk]
        given = Columns(leaves, structure, population.device, not population.convolves, shared)
    scratch = scratch if header.kind == "evaluate" else None
    work = _Work(population.client, header, data, streams, sizes, given, scratch)
    i = numbers(len(chunk), population.device)
    with stacked(), population.client.model.network.turn(None, None):
        flat = over_rows(work, i, *given.stacks)
    return work.answers(population, requests, flat, torch.unbind if shared else torch.unbind_copy)


class Columns:
    """Trees of one structure, a row a client, turned into stacks, a column a leaf.

    A leaf that is one object for all clients is not copied. With `repeat` it is still handed over
    as a stack (of one row, repeated): vmap would multiply all clients' samples with a shared matrix
    in one product, whose last bits depend on how many clients there are. Shared kernels of
    convolutions are never repeated; that would be slow. `shared` is that of `run_chunk`.
    """

    def __init__(
        self, flat: Sequence[list[Any]], structure: Any, device: str, repeat: bool, shared: bool
    ) -> None:
        self.structure, self.leaves = structure, list(flat[0])
        self._flat, self._place, self._shared = flat, dict[int, int](), shared
        self.stacks: list[Tensor] = []
        self.places: list[int] = []
        for place, column in enumerate(zip(*flat, strict=True)):
            stack = _stack_column(column, device, repeat)
            if stack is not None:
                self.stacks.append(stack)
                self.places.append(place)

    def row(self, values: Sequence[Any]) -> Any:
        """The tree of one client, from its rows of the stacks."""
        whole = list(self.leaves)
        for place, value in zip(self.places, values, strict=True):
            whole[place] = value
            self._place[id(value)] = place
        return rebuild(self.structure, whole)

    def unchanged(self, value: Tensor) -> list[Tensor] | None:
        """Each client's leaf that `value`, which vmap gave, is the row of; None if it is newly made."""
        place = self._place.get(id(value))
        if place is None:
            return None
        column = [leaves[place] for leaves in self._flat]
        if all(x is column[0] for x in column):
            return [own(column[0])] * len(column)
        stack = self.stacks[self.places.index(place)]
        if self._shared and isinstance(column[0], Tensor):
            whole = stack._base
            if whole is None:
                return list(stack.unbind())  # the copy that was made of them is theirs from now on
            if stack.numel() == whole.numel():
                return column  # all that this memory holds: they go on together
        return [own(x) for x in column]


class Rows:
    """Orders and states as they are; `row` gives them as `PerClient`, for a client that reads each alone."""

    def __init__(self, orders: Sequence[Any], states: Sequence[Any]) -> None:
        self.stacks: list[Tensor] = []
        self._given = PerClient(orders), PerClient(states)

    def row(self, values: Sequence[Any]) -> tuple[PerClient, PerClient]:
        """(order, state) for all clients."""
        return self._given

    def unchanged(self, value: Tensor) -> None:
        """Nothing was stacked, so nothing comes back as it was."""


def _stack_column(column: tuple[Any, ...], device: str, repeat: bool) -> Tensor | None:
    """The stack of a column; None where all clients share one value."""
    first = column[0]
    if all([x is first for x in column]):
        if isinstance(first, Tensor) and (repeat or first.dim() < 3):
            return first.expand(len(column), *first.shape)
        return None
    if isinstance(first, Tensor):
        stack = neighbours(column)
        return stack_of(column) if stack is None else stack
    if isinstance(first, float) and any(x != first for x in column):
        return torch.tensor(column, dtype=torch.float64, device=device)
    return None


class _Work:
    """The function that vmap runs; it keeps what vmap cannot return: structures and plain values."""

    def __init__(
        self,
        client: Any,
        header: Header,
        data: list[ClientData],
        streams: list[Stream],
        sizes: Sizes,
        given: Columns | Rows,
        scratch: Any,
    ) -> None:
        self.client, self.header, self.data, self.streams = client, header, data, streams
        self.given = given
        scratch, all_splits = scratch or (None,) * 3, header.kind == "evaluate" or header.assess
        splits = range(3 if all_splits else 1)  # training sees but its own
        self.blocks = [Block.of_clients(data, at, sizes[at], scratch[at]) for at in splits]
        self.specs: list[TreeSpec] = []  # of reply, state and metrics
        self.old: list[list[Tensor] | None] = []  # leaves of the state as it was, where they did not change
        self.sent: list[int | None] = []  # which leaf of the reply each of the state is

    def __call__(self, i: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        order, state = self.given.row(rows)
        train = self.blocks[0]
        rng = StackedStream(i, self.streams, train.sizes, train.size)
        draws = self.client.draws or self.client.model.network.draws
        with drawing(self.streams, i) if draws else nullcontext():
            found = self._one(i, order, state, rng)
        flats = [flatten(part) for part in found]
        self.specs = [spec_of(*each, numbers=False) for each in flats]
        reply, kept, metrics = ([x for x in flat if isinstance(x, Tensor)] for flat, _ in flats)
        self.old = [self.given.unchanged(x) for x in kept]
        places = {id(x): i for i, x in enumerate(reply)}
        self.sent = [places.get(id(x)) for x in kept]
        rest = zip(kept, self.old, self.sent, strict=True)
        made = [x for x, old, place in rest if old is None and place is None]
        return *reply, *made, *metrics

    def _one(self, i: Tensor, order: Any, state: Any, rng: Stream) -> tuple[Any, Any, Any]:
        """(reply, state, metrics)."""
        splits = [StackedData.of(i, block) for block in self.blocks]
        if self.header.kind == "evaluate":
            return None, None, self.client.assess(order, own_state(state), ClientData(*splits), rng)
        reply, kept = answer(self.client, order, state, splits[0], rng, self.header.t, self.header.passes)
        found = None
        if self.header.assess and not isinstance(order, self.client.read_only_orders):
            model = self.client.local_model(order, reply)
            found = self.client.assess(model, own_state(kept), ClientData(*splits), rng)
        return reply, None if kept is state else kept, found  # what did not change is not kept anew

    def answers(
        self,
        population: Population,
        requests: list[Any],
        flat: Sequence[Tensor],
        keep: Callable[[Tensor], Any],
    ) -> tuple[list[Answer], list[Any]]:
        """What came out of vmap, client by client; None in place of states that did not change.

        `keep` takes a stack of states apart.
        """
        stacks, evaluated = iter(flat), self.header.kind == "evaluate"
        reply, kept, metrics = self.specs
        sent = [next(stacks) for _ in reply.tensors]
        rows = [_rows(stack, torch.unbind) for stack in sent]

        def kept_rows(old: list[Tensor] | None, place: int | None) -> Sequence[Tensor]:
            if old is not None:
                return old
            if place is None:
                return _rows(next(stacks), keep)
            return rows[place] if keep is torch.unbind else _rows(sent[place], keep)

        columns = [
            reply.unstack(rows, len(requests)),
            kept.unstack(list(map(kept_rows, self.old, self.sent)), len(requests)),
            metrics.unstack([next(stacks).double().tolist() for _ in metrics.tensors], len(requests)),
        ]
        number = next(NUMBERS)
        answers = [
            population.settle(r, reply, kept, metrics, d.sizes[2 if evaluated else 0], number)
            for r, d, reply, kept, metrics in zip(requests, self.data, *columns, strict=True)
        ]
        return answers, columns[1]


def _rows(stack: Tensor, unbind: Callable[[Tensor], Any]) -> Sequence[Tensor]:
    """Each client's row: a view, or in memory of its own, as `unbind` gives it."""
    count = stack.shape[0]
    if count > 1 and stack.stride(0) == 0:  # the same for all
        return [own(stack[0]) if unbind is torch.unbind_copy else stack[0]] * count
    return unbind(stack)  # type: ignore[no-any-return]
