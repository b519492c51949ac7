"""A local step as data: a few instructions on named vectors, and the optimisers that are written with them.

A vector is a dict like the parameters that are trained. A step begins with "w", the parameters, and the
moments that its program keeps, "m" and "v"; what else it names, it makes. SGD with momentum is

>>> from fedpers.learning.optimizers import LocalConfig, program
>>> print(program(LocalConfig(momentum=0.9)))
g = ∇f(w)
m = 0.9 m + g
w = w - lr m

Optimisers are in optimizers.py. Whoever runs a program asks each instruction what it makes: one that somebody
else has written is obeyed as those here are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedpers.core.params import Params

Vectors = dict[str, Params]


@dataclass(frozen=True)
class Rate:
    """A coefficient plus + times·lr of the step's learning rate."""

    times: float = -1.0
    plus: float = 0.0

    def at(self, lr: Any) -> Any:
        """Its value."""
        return self.plus + self.times * lr

    def __str__(self) -> str:
        own = {1.0: "lr", -1.0: "-lr"}.get(self.times, f"{self.times:g} lr")
        return f"({self.plus:g} + {own})" if self.plus else own


@dataclass(frozen=True)
class Own:
    """A coefficient times·(a number of the client's own, by its name)."""

    name: str
    times: float = 1.0

    def __str__(self) -> str:
        return f"{self.times:g} {self.name}"


Coefficient = float | Rate | Own | Tensor


class Now(NamedTuple):
    """What a step is told beside its vectors."""

    gradient: Callable[[Params], Params]  # of the loss of the step's samples, at parameters
    lr: Any  # a number, or a scalar tensor
    number: Tensor  # scalar: which step of the optimiser this is, from 1 on
    own: Mapping[str, Any] = MappingProxyType({})  # numbers of the client
    stack: int = 0  # dimensions of clients in front of vectors, and of tensors among the numbers

    def value(self, c: Coefficient) -> Any:
        """Of a coefficient."""
        if isinstance(c, Own):
            return c.times * self.own[c.name]
        return c.at(self.lr) if isinstance(c, Rate) else c


class Instruction(ABC):
    """One line of a step: what becomes of the vector `dst`."""

    dst: str

    @abstractmethod
    def run(self, v: Vectors, now: Now) -> Params:
        """The new value of `dst`; nothing of `v` is written, which under vmap could not be done."""

    def in_place(self, v: Vectors, now: Now) -> None:
        """The same, written where `dst` is; `v` belongs to who calls."""
        new = self.run(v, now)
        if self.dst not in v:  # it may be another vector, which is written in its turn
            v[self.dst] = {k: t.clone() for k, t in new.items()}
            return
        for k, t in v[self.dst].items():
            t.copy_(new[k])


@dataclass(frozen=True)
class Grad(Instruction):
    """dst = ∇f(at).

    Torch takes plain ones only. In programs of methods that have a loop of their own for torch it may also
    be of other samples, which pair with the step's, or of the sum of two models' outputs.
    """

    dst: str = "g"
    at: str = "w"
    other: bool = False
    beside: str = ""  # the model whose outputs are added, as constants

    def run(self, v: Vectors, now: Now) -> Params:
        if self.other or self.beside:
            raise NotImplementedError(f"torch has no way to take {self}")
        return now.gradient(v[self.at])

    def in_place(self, v: Vectors, now: Now) -> None:
        v[self.dst] = self.run(v, now)

    def __str__(self) -> str:
        at = f"outputs of {self.at} + {self.beside}" if self.beside else self.at
        return f"{self.dst} = ∇f({at}{'; D' if self.other else ''})"


@dataclass(frozen=True)
class Mix(Instruction):
    """dst = Σ_k c_k src_k."""

    dst: str
    terms: tuple[tuple[Coefficient, str], ...]

    def run(self, v: Vectors, now: Now) -> Params:
        terms = [(now.value(c), v[name]) for c, name in self.terms]
        return {k: _mixed([(c, x[k]) for c, x in terms]) for k in terms[0][1]}

    def in_place(self, v: Vectors, now: Now) -> None:
        names = [name for _, name in self.terms]
        factors = [now.value(c) for c, _ in self.terms]
        if names[0] != self.dst or names.count(self.dst) > 1 or any(isinstance(c, Tensor) for c in factors):
            super().in_place(v, now)
            return
        own = list(v[self.dst].values())
        if factors[0] != 1:
            torch._foreach_mul_(own, factors[0])
        for c, name in zip(factors[1:], names[1:], strict=True):
            torch._foreach_add_(own, list(v[name].values()), alpha=c)  # type: ignore[arg-type]

    def __str__(self) -> str:
        shown = [(f"{c:g}" if isinstance(c, float) else c, name) for c, name in self.terms]
        text = " ".join(f"+ {name}" if c == "1" else f"+ {c} {name}" for c, name in shown)
        return f"{self.dst} = {text.removeprefix('+ ')}".replace("+ -", "- ")


def _mixed(terms: list[tuple[Any, Tensor]]) -> Tensor:
    (c, total), *others = terms
    total = total if isinstance(c, float | int) and c == 1 else _times(c, total)
    for c, x in others:
        total = total + _times(c, x) if isinstance(c, Tensor) else torch.add(total, x, alpha=c)
    return total


def _times(c: Any, x: Tensor) -> Tensor:
    """c·x, where c may be a number a client."""
    return c.reshape(*c.shape, *[1] * (x.dim() - c.dim())) * x if isinstance(c, Tensor) else c * x


@dataclass(frozen=True)
class Mul(Instruction):
    """dst = src + c (u ⊙ v)."""

    dst: str
    src: str
    c: Coefficient
    u: str
    v: str

    def run(self, v: Vectors, now: Now) -> Params:
        c = now.value(self.c)
        return {k: x + c * v[self.u][k] * v[self.v][k] for k, x in v[self.src].items()}

    def __str__(self) -> str:
        return f"{self.dst} = {self.src} + {self.c} {self.u} ⊙ {self.v}".replace("+ -", "- ")


@dataclass(frozen=True)
class Clip(Instruction):
    """dst, each entry into [low, high]."""

    dst: str
    low: float
    high: float

    def run(self, v: Vectors, now: Now) -> Params:
        return {k: x.clamp(self.low, self.high) for k, x in v[self.dst].items()}

    def __str__(self) -> str:
        return f"{self.dst} = {self.dst} clipped to [{self.low:g}, {self.high:g}]"


@dataclass(frozen=True)
class ClipNorm(Instruction):
    """dst, scaled down to a norm if it is longer; as torch.nn.utils.clip_grad_norm_."""

    dst: str
    most: float

    def run(self, v: Vectors, now: Now) -> Params:
        squares = [x.square().flatten(now.stack).sum(-1) for x in v[self.dst].values()]
        factor = (self.most / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
        return {k: _times(factor, x) for k, x in v[self.dst].items()}

    def __str__(self) -> str:
        return f"{self.dst} = {self.dst} · min(1, {self.most:g} / ‖{self.dst}‖)"


@dataclass(frozen=True)
class Moments(Instruction):
    """dst = β dst + (1 - β) g^power: a moment of gradients, as Adam has two."""

    dst: str
    beta: float
    power: int

    def run(self, v: Vectors, now: Now) -> Params:
        b, square = self.beta, self.power == 2
        return {
            k: b * x + (1 - b) * (v["g"][k] * v["g"][k] if square else v["g"][k])
            for k, x in v[self.dst].items()
        }

    def __str__(self) -> str:
        return f"{self.dst} = {self.beta:g} {self.dst} + {1 - self.beta:g} g{'²' if self.power == 2 else ''}"


@dataclass(frozen=True)
class Adam(Instruction):
    """w steps by two moments, which it moves first (Kingma & Ba, Algorithm 1)."""

    betas: tuple[float, float]
    eps: float
    dst: str = "w"

    @property
    def moments(self) -> tuple[Moments, Moments]:
        """How both moments move."""
        return Moments("m", self.betas[0], 1), Moments("v", self.betas[1], 2)

    def run(self, v: Vectors, now: Now) -> Params:
        for moment in self.moments:
            v[moment.dst] = moment.run(v, now)
        m, s, (b1, b2) = v["m"], v["v"], self.betas
        rate, root = now.lr / (1 - b1**now.number), 1 - b2**now.number
        return {
            k: x - _times(rate, m[k]) / (_times(1 / root, s[k]).sqrt() + self.eps) for k, x in v["w"].items()
        }

    def in_place(self, v: Vectors, now: Now) -> None:
        """In one pass; torch's takes memory in its order, so that gradients are laid out as parameters."""
        params, m, s = (list(v[name].values()) for name in ("w", "m", "v"))
        given = zip(v["g"].values(), params, strict=True)
        g = [a if a.stride() == p.stride() else torch.empty_like(p).copy_(a) for a, p in given]
        how = {"beta1": self.betas[0], "beta2": self.betas[1], "eps": self.eps, "lr": now.lr}
        torch._fused_adam_(
            params, g, m, s, [], [now.number.float()] * len(m),
            weight_decay=0.0, amsgrad=False, maximize=False, **how,
        )  # fmt: skip

    def __str__(self) -> str:
        first, second = self.moments
        return f"{first}\n{second}\nw = w - lr m̂ / (√v̂ + {self.eps:g})"


def stepped(instructions: Iterable[Instruction], v: Vectors, now: Now) -> Vectors:
    """The vectors after one step; those that are given stay as they are."""
    v = dict(v)
    for instruction in instructions:
        v[instruction.dst] = instruction.run(v, now)
    return v


class Rule(NamedTuple):
    """An optimiser: what it makes of a gradient "g", and which moments it keeps."""

    instructions: tuple[Instruction, ...]
    keeps: tuple[str, ...] = ()


class Program(NamedTuple):
    """The instructions of a step, and which moments it keeps."""

    instructions: tuple[Instruction, ...]
    keeps: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.instructions))


def pulled(steps: Program, lam: float) -> Program:
    """The step with the gradient λ(ū w - c) beside the loss's: of a vector "c" and a client's own "ū"."""
    if not lam:
        return steps
    grad, *others = steps.instructions
    return Program((grad, Mix("g", ((1.0, "g"), (Own("ū", lam), "w"), (-lam, "c"))), *others), steps.keeps)
