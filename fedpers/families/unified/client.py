"""Client half of what the optimisers of the unified framework share."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpers.core.data import ClientData, Data
from fedpers.core.params import Params, add, scale, sq_dist, zeros_like
from fedpers.core.rng import Stream
from fedpers.core.vmap import all_at_once
from fedpers.core.work import Work
from fedpers.families.disclosures import COIN_STEPS
from fedpers.families.unified.config import BlockConfig
from fedpers.families.unified.linear import Sequences, Step, recurrence_of
from fedpers.families.unified.messages import (
    Anchor,
    Block,
    BlockGradients,
    Describe,
    Described,
    Iterate,
    LocalSteps,
    Measure,
    Plain,
    SharedBlock,
    Value,
)
from fedpers.families.unified.objective import Base, Objective, make_objective
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.unseen_clients import UnseenClientOrder
from fedpers.learning.gradients import is_linear
from fedpers.learning.kernels.dispatch import kernels_allowed
from fedpers.learning.kernels.programs import Draw
from fedpers.learning.kernels.recurrent import Recurrence, steps_recurrent
from fedpers.learning.model import Model


class BlockClient(PersonalizedClient, ABC):
    """Client half of an optimiser of the unified framework."""

    config: BlockConfig
    keeps: ClassVar[str] = "y"  # the sequences of a Block that the method has
    private = ("y", "z", "v", "G")
    read_only_orders = (Anchor, Describe, Measure)
    disclosure = COIN_STEPS
    per_step: ClassVar[int] = 1  # sample gradients of a step; 0: the whole gradient

    def __init__(self, config: Any, model: Model) -> None:
        super().__init__(config, model)
        self.origin = {} if is_linear(model) else model.init_trained(0)  # where curvature is estimated
        self._objectives: dict[tuple[int, int], Objective] = {}  # asked for several times a round
        self._recurrences: dict[Any, Recurrence | None] = {}

    @abstractmethod
    def iterate(self, order: Any, state: Any, data: Data, rng: Stream) -> tuple[Any, Any]:
        """The iterations of one order; where the objective `stacks`, those of a whole stack at once."""

    def in_one_call(
        self, f: Objective, order: Any, state: Any, data: Data, rng: Stream
    ) -> tuple[Any, Any] | None:
        """What `iterate` gives, where a kernel makes all iterations; else None, and nothing is drawn."""
        return None

    @classmethod
    def exposed(cls, config: Any) -> list[str]:
        """The questions about f_m, whose answers are no declared delta."""
        unset = [f"method.objective.{k}" for k in ("mu", "L", "cL") if getattr(config.objective, k) is None]
        found = [f"set {', '.join(unset)} (else clients tell the constants of their losses)"] if unset else []
        if getattr(config, "output", "last") != "last":
            found.append("set method.output=last (else the mean of the steps is sent too)")
        return found + ["set method.report=false (else clients tell f_m)"] * config.report

    def block(self, state: Any) -> Params:
        """β_m where it is evaluated."""
        return state.y  # type: ignore[no-any-return]

    def initial_state(self, params: Params, data: Data, rng: Stream) -> Any:
        """All sequences start at the model's initial parameters; F's gradient there is not known yet."""
        beta = self.first_block(params)
        G = {"G": zeros_like(beta)} if "G" in self.keeps else {}
        return Block(**dict.fromkeys(set(self.keeps) - {"G"}, beta), **G)

    def answer(self, order: Any, state: Any, data: Data, rng: Stream) -> tuple[Any, Any]:
        """The method's iterations, or one of the two questions about f_m."""
        f = self.objective(order.M, order.m)
        if isinstance(order, Measure):
            return Value(f.value(order.w, self.block(state), data)), state
        if isinstance(order, Anchor):
            return self.anchor(order, state, data)
        if isinstance(order, Describe):
            return Described(self.describe(f, data)), state
        if (found := self.in_one_call(f, order, state, data, rng)) is not None:
            return found
        if f.stacks and data.block is not None:
            return all_at_once(self.iterate, order, state, data, rng)  # type: ignore[no-any-return]
        return self.iterate(order, state, data, rng)

    def describe(self, f: Objective, data: Data) -> Base:
        """The constants of the client's plain loss."""
        return f.measure({k: v.to(data.x) for k, v in self.origin.items()}, data)

    def anchor(self, order: Anchor, state: Any, data: Data) -> tuple[BlockGradients, Any]:
        """The first anchor (methods with control variates), where the block is; all sequences start there."""
        g, G = gradients_at(self.objective(order.M, order.m), order.w, state.y, data)
        return BlockGradients({}, g), Block(**dict.fromkeys(set(self.keeps) - {"G"}, state.y), G=G)

    def objective(self, M: int, m: int = 0) -> Objective:
        """f_m in a federation of M clients."""
        if (M, m) not in self._objectives:
            self._objectives[M, m] = make_objective(self.config.objective, self.model, M).of(m)
        return self._objectives[M, m]

    def recurrence(self, step: Step, f: Objective, sequences: Sequences, *key: Any) -> Recurrence | None:
        """`recurrence_of` the step, found once for each `key`, on which it depends; None without kernels."""
        if not (f.sums_gradients and kernels_allowed()):
            return None
        key = (*key, f.M, *sequences.names)
        if key not in self._recurrences:
            self._recurrences[key] = recurrence_of(step, f, sequences)
        return self._recurrences[key]

    def sample_by_sample(
        self, f: Objective, order: LocalSteps, beta: Params, data: Data, draw: Draw, of: tuple[float, float]
    ) -> tuple[Params, Params] | None:
        """Steps of these sizes on one sample each, where all in them but the model's gradient is linear."""
        sequences = Sequences(Block(order.w), Block(beta))

        def step(f: Any, w: Block, beta: Block) -> tuple[Block, Block]:
            g_w, g_b = f.grads(w.y, beta.y, None)
            return Block(add(w.y, g_w, -of[0])), Block(add(beta.y, g_b, -of[1]))

        how = self.recurrence(step, f, sequences, of, order.m)
        if how is None:
            return None
        moving = sequences.unit(how.moving)
        moved = steps_recurrent(f.model.loss, how, sequences.values, moving, data.block, draw)
        if moved is None:
            return None
        now = dict(enumerate(sequences.values)) | dict(zip(how.moving, moved, strict=True))
        w_now, b_now = sequences.blocks(list(now.values()))
        return w_now.y, b_now.y

    def first_block(self, params: Params) -> Params:
        """β_m before the first iteration; it does not depend on M."""
        return self.objective(1).start(params)[1]

    def samples(self, order: Iterate, data: Data, rng: Stream) -> list[Data]:
        """A uniformly drawn sample for each iteration, as batches of size 1; or all data, each time."""
        if not self.per_step:
            return [data] * (order.T + order.event)
        index, weight = self.drawn(order, data, rng)
        return data.take(index, weight) if index.numel() else []

    def drawn(self, order: Iterate, data: Data, rng: Stream) -> tuple[Tensor, Tensor]:
        """(index, weight 1) of these samples, each [T, 1], or one row more."""
        if order.seed is not None:
            rng = Stream(order.seed, 0, 0)
        return rows_at(data, rng.uniform(order.T + order.event).unsqueeze(-1))

    def personal(self, shared: SharedBlock, state: Any) -> Params | None:
        """The personal model, where the objective has one."""
        f = self.objective(shared.M, shared.m)
        return f.personal(shared.w, self.block(state)) if f.one_model else None

    def assess(
        self, shared: SharedBlock | UnseenClientOrder, state: Any, data: ClientData, rng: Stream
    ) -> dict[str, Tensor]:
        """Adds `apart`, ‖β_m - u‖: how far the client's own block is from the shared model."""
        found = super().assess(shared, state, data, rng)
        sent = shared.order if isinstance(shared, UnseenClientOrder) else shared
        f = self.objective(sent.M, sent.m)
        if f.one_space and self.config.report:
            found["apart"] = sq_dist(self.block(state), f.shared(sent.w)).sqrt()
        return found

    def predict(self, shared: SharedBlock, state: Any, x: Tensor) -> Tensor:
        """The personal model's outputs."""
        w = shared.w
        return self.objective(shared.M, shared.m).outputs(w, self.block(state), x)

    def local_model(self, order: Any, reply: Any) -> SharedBlock:
        """The shared block as it was sent, with the client's own one as it is now."""
        return SharedBlock(getattr(order.w, "y", order.w), order.M, order.m)

    @property
    def adapts(self) -> bool:
        """Where there is no private block but a personal model, it is made from the data."""
        return self.objective(1).adapts

    def adapt(self, shared: SharedBlock, state: Any, data: Data, rng: Stream) -> tuple[Any, Any]:
        """The shared model after what the objective does with the client's own data."""
        return replace(shared, w=self.objective(shared.M, shared.m).adapted(shared.w, data)), state

    def work(self, order: Any, n: int) -> Work:
        """The gradients in both blocks, as the objective takes them."""
        if isinstance(order, Anchor):
            return self.objective(order.M, order.m).gradient_work("both").times(n)
        if not isinstance(order, Iterate):
            return Work()
        cost = self.objective(order.M, order.m).gradient_work
        a_step = (1 if isinstance(order, Plain) else self.per_step) or n
        steps_w = int(order.w_step)
        steps_b = order.T + int(order.event) - steps_w
        steps = cost("w").times(a_step * steps_w).plus(cost("beta").times(a_step * steps_b))
        sets_anchor = order.refresh and self.per_step > 0
        return steps.plus(cost("both").times(n * sets_anchor))


def gradients_at(f: Objective, w: Params, beta: Params, data: Data) -> tuple[Params, Params]:
    """(∇_w f_m, 1/M ∇_β f_m), whole: what a client sends of an anchor, and what it keeps."""
    g_w, g_b = f.grads(w, beta, data)
    return g_w, scale(g_b, 1 / f.M)


def batches(data: Data, u: Tensor) -> list[Data]:
    """Batches of the samples at `u` [..., S, B], uniform numbers in [0, 1)."""
    index, weight = rows_at(data, u)
    return data.take(index, weight) if index.numel() else []


def rows_at(data: Data, u: Tensor) -> tuple[Tensor, Tensor]:
    """(index, weight 1) of those samples, both of the shape of `u`."""
    num = data.num[..., None, None]
    index = (u.to(num.device, torch.float64) * num).long()
    return index, torch.ones_like(index, dtype=num.dtype)
