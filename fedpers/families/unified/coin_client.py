"""Client half of what the optimisers share that draw a block in each iteration."""

from abc import abstractmethod
from typing import Any

from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.rng import Stream
from fedpers.families.unified.client import BlockClient
from fedpers.families.unified.linear import Sequences
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.families.unified.objective import Objective
from fedpers.learning.kernels.recurrent import Recurrence, steps_recurrent


class CoinClient(BlockClient):
    """T iterations of the private block, then perhaps one that communicates."""

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
        sequences, rows = Sequences(order.w, state), list[tuple[Tensor, Tensor]]()
        how = self._recurrence(f, order, sequences)
        if how is None:
            return None

        def draw() -> Tensor:
            rows.append(self.drawn(order, data, rng))
            return rows[0][0][: order.T, 0]

        moved = steps_recurrent(f.model.loss, how, sequences.values, sequences.kept(how), data.block, draw)
        if moved is None:
            return None
        w, beta = sequences.after(how, order.T, moved)
        last = data.take(*(t[order.T :] for t in rows[0])) if order.event else []
        return self._ended(f, order, w, beta, last, data)

    def _recurrence(self, f: Objective, order: Iterate, sequences: Sequences) -> Recurrence | None:
        if not (self.per_step and order.T):
            return None
        nothing: Any = None  # in place of the sample

        def step(f: Objective, w: Block, beta: Block) -> tuple[Block, Block]:
            return self.beta_step(f, order, w, beta, nothing)

        return self.recurrence(step, f, sequences, type(order), order.rates, order.m)

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
