"""What server and clients of the unified framework's optimisers tell each other, and its cost."""

from dataclasses import field, fields
from typing import Any

from torch import Tensor

from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.families.unified.objective import Base, Objective


@record("unified.Describe")
class Describe:
    """Order: what are the constants of your plain loss?"""

    M: int
    base: Base  # shapes of the reply
    m: int = 0  # as in LocalSteps


@record("unified.Described")
class Described:
    """Reply: the constants."""

    base: Base


@record("lsgd.LocalSteps")
class LocalSteps:
    """Order: make τ steps from here, of these sizes."""

    w: Params
    etas: tuple[float, ...]
    M: int
    mean: Params  # average of the iterates so far; {} where none is asked for
    shares: tuple[float, ...]  # of each step's iterate in the average
    m: int = 0  # which client this is, where each has settings of its own


@record("lsgd.SharedCopy")
class SharedCopy:
    """Reply: the client's copy of the shared block, and of its average."""

    w: Params
    mean: Params


@record("unified.Measure")
class Measure:
    """Order: what is f_m where you are?"""

    w: Params
    M: int
    value: Tensor  # shape of the reply
    m: int = 0  # as in LocalSteps


@record("unified.Value")
class Value:
    """Reply: f_m(w, β_m), one number."""

    value: Tensor


@record("unified.Block")
class Block:
    """The sequences of one block, w on the server and β_m on its client; {} where a method has none."""

    y: Params  # main: where the method is evaluated
    z: Params = field(default_factory=dict)  # momentum
    v: Params = field(default_factory=dict)  # anchor
    G: Params = field(default_factory=dict)  # F's gradient in this block at the anchor


@record("unified.Iterate")
class Iterate:
    """Order: make T β-iterations, then the iteration that communicates (if there is one)."""

    w: Block  # the server's, before these iterations
    T: int
    w_step: bool  # the last iteration is one of the w-block
    refresh: bool  # it also sets a new anchor
    rates: Any
    M: int
    seed: int | None  # of the sample indices, where all clients have the same
    g: Params  # shapes of the reply: tensors of w, so they cost nothing to send
    g_v: Params
    m: int = 0  # as in LocalSteps

    @property
    def event(self) -> bool:
        """Whether there is a communicating iteration."""
        return self.w_step or self.refresh


@record("unified.Plain")
class Plain(Iterate):
    """Order: the same without control variates, as long as there is no anchor."""


def as_plain(order: Iterate) -> Plain:
    """The same order without control variates."""
    return Plain(**{f.name: getattr(order, f.name) for f in fields(Iterate)})


@record("unified.Anchor")
class Anchor:
    """Order: set your anchor where you are, and w's at `w`; all sequences go on from there."""

    w: Params
    M: int
    g: Params  # shapes of the reply, as in Iterate
    g_v: Params
    m: int = 0  # as in LocalSteps


@record("unified.BlockGradients")
class BlockGradients:
    """Reply: what the server averages; empty where it was not asked for."""

    g: Params  # a gradient in w, or for control variates a difference of two
    g_v: Params  # the gradient in w at the new anchor


@record("unified.SharedBlock")
class SharedBlock:
    """What a client predicts with, beside its own block."""

    w: Params
    M: int
    m: int = 0  # as in LocalSteps


@record("unified.Counts")
class Counts:
    """What was spent so far; gradients are of one client (all clients do the same)."""

    iterations: int = 0
    communications: int = 0
    w_grads: int = 0  # whole gradients of f_m in w
    beta_grads: int = 0
    w_sample_grads: int = 0  # gradients of one sample's f_{m,i}; a whole one counts n
    beta_sample_grads: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """The sum."""
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def spent(order: Iterate | Anchor, n: int, per_step: int, f: Objective) -> Counts:
    """What one order costs a client with n samples; `per_step` 0 stands for whole gradients."""
    if isinstance(order, Anchor):
        return Counts(0, int(f.has_w), 1, 1, n if f.w_uses_data else 0, n)
    per_step = 1 if isinstance(order, Plain) else per_step
    steps_w = int(order.w_step)
    steps_b = order.T + int(order.event) - steps_w
    whole_w, whole_b = (steps_w, steps_b) if not per_step else (int(order.refresh),) * 2
    sample_w, sample_b = n * whole_w + per_step * steps_w, n * whole_b + per_step * steps_b
    return Counts(
        order.T + int(order.event),
        int(order.event and f.has_w),
        whole_w,
        whole_b,
        sample_w if f.w_uses_data else 0,
        sample_b,
    )
