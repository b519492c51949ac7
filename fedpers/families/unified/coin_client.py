"""Client half of what the optimisers share that draw a block in each iteration."""

from abc import abstractmethod
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.rng import Stream
from fedpers.families.unified.client import BlockClient
from fedpers.families.unified.linear import Ending, Sequences, ending_of
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.families.unified.objective import Objective
from fedpers.learning.kernels.recurrent import Recurrence, steps_recurrent
from fedpers.learning.model import Model

NOTHING: Any = None  # in place of samples that nobody looks at


class CoinClient(BlockClient):
    """T iterations of the private block, then perhaps one that communicates."""

    def __init__(self, config: Any, model: Model) -> None:
        super().__init__(config, model)
        self._endings: dict[Any, Ending | None] = {}

    @abstractmethod
    def beta_step(self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data) -> tuple[Block, Block]:
        """(w, β) after an iteration of the private block; j is its sample."""

    @abstractmethod
    def event(
        self, f: Objective, order: Iterate, w: Block, beta: Block, j: Data, data: Data
    ) -> tuple[BlockGradients, Block]:
        """The iteration that communicates."""

    def in_one_call(
        self, f: Objective, order: Iterate, state: Block, data: Data, rng: Stream
    ) -> tuple[BlockGradients, Block] | None:
        """`iterate` by a kernel, where all in an iteration but the model's gradients is linear."""
        sequences = Sequences(order.w, state)
        how = self._recurrence(f, order, sequences)
        if how is None:
            return None
        drawn = cache(lambda: self._drawn(order, data, rng))

        def draw() -> tuple[Tensor, Tensor]:
            index, weight = drawn()
            return index[: order.T], weight[: order.T]

        end = self._ending(f, order, sequences, how)
        rows = end.rows if end else sequences.unit(sequences.kept(how))
        if not (end or order.T):
            return None
        found = steps_recurrent(f.model.loss, how, sequences.values, rows, data.block, draw)
        if end or found is None:
            return end.read(sequences, found, state) if end and found else None
        w, beta = sequences.after(how, order.T, found)
        last = data.take(*(t[order.T :] for t in drawn())) if self.per_step else [data]
        return self._ended(f, order, w, beta, last * order.event, data)

    def _drawn(self, order: Iterate, data: Data, rng: Stream) -> tuple[Tensor, Tensor]:
        """(index, weight), a row an iteration, of the samples that these take."""
        if self.per_step:
            return self.drawn(order, data, rng)
        n, T = data.mask.shape[-1], order.T
        return torch.arange(n).expand(T, n), data.mask.expand(T, n)

    def _recurrence(self, f: Objective, order: Iterate, sequences: Sequences) -> Recurrence | None:
        if order.rates.p_w == 1:  # the private block is never moved, and its steps have no size
            return None

        def step(f: Objective, w: Block, beta: Block) -> tuple[Block, Block]:
            return self.beta_step(f, order, w, beta, NOTHING)

        return self.recurrence(step, f, sequences, type(order), order.rates, order.m)

    def _ending(self, f: Objective, order: Iterate, sequences: Sequences, how: Recurrence) -> Ending | None:
        def finish(f: Objective, w: Block, beta: Block) -> tuple[BlockGradients, Block]:
            return self._ended(f, order, w, beta, [NOTHING] * order.event, NOTHING)

        moving = how.moving if order.T else []
        key = type(order), order.rates, order.m, order.w_step, order.refresh, f.M, *moving, *sequences.names
        if key not in self._endings:
            self._endings[key] = ending_of(finish, f, sequences, moving)
        return self._endings[key]

    def iterate(self, order: Iterate, state: Block, data: Data, rng: Stream) -> tuple[BlockGradients, Block]:
        """The iterations of one order."""
        f, w, beta, samples = self.objective(order.M, order.m), order.w, state, self.samples(order, data, rng)
        for j in samples[: order.T]:
            w, beta = self.beta_step(f, order, w, beta, j)
        return self._ended(f, order, w, beta, samples[order.T :], data)

    def _ended(
        self, f: Objective, order: Iterate, w: Block, beta: Block, last: list[Data], data: Data
    ) -> tuple[BlockGradients, Block]:
        return self.event(f, order, w, beta, last[0], data) if last else (BlockGradients({}, {}), beta)
