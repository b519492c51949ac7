"""A step's program as the C runner has it: see steps.c. What it does not know is left to torch."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from fedpers.learning.step import (
    Adam,
    Clip,
    ClipNorm,
    Coefficient,
    Grad,
    Instruction,
    Mix,
    Mul,
    Own,
    Program,
    Rate,
)

TERMS = 12  # of an instruction
GRAD, MIX, MUL, CLIP, CLIP_NORM, ADAM = range(6)
GIVEN, ROOM, WRITTEN = range(3)  # vectors: read alone; with room of their own; changed after they were copied
CODES = {Grad: GRAD, Mix: MIX, Mul: MUL, Clip: CLIP, ClipNorm: CLIP_NORM, Adam: ADAM}


class Code(ctypes.Structure):
    """`instr` in passes.h."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("op", "dst", "n")),
        *((name, ctypes.c_int * TERMS) for name in ("src", "number")),
        *((name, ctypes.c_float * TERMS) for name in ("plus", "times")),
        *((name, ctypes.c_int) for name in ("other", "beside", "adds")),
        ("c", ctypes.c_float * TERMS),
    ]


class Line(NamedTuple):
    """An instruction with its sources and coefficients apart."""

    op: int
    dst: str
    sources: tuple[str, ...]
    factors: tuple[Coefficient, ...] = ()
    grad: Grad | None = None
    adds: bool = False


class Compiled(NamedTuple):
    """A program for the C runner."""

    vectors: tuple[str, ...]  # in order, those that are given first
    kinds: tuple[int, ...]  # what becomes of each
    numbers: tuple[str, ...]  # clients' own
    code: bytes
    lines: int
    ahead: int  # of the last lines: they are also made once before the first step
    then: int  # lines behind all that are the last step instead


def known(steps: Program) -> bool:
    """Whether the runner knows every instruction and every coefficient."""
    return all(type(i) in CODES and _fits(_line(i)) for i in steps.instructions)


def _fits(line: Line) -> bool:
    plain = all(type(c) in (float, int, Rate, Own) for c in line.factors)
    return plain and 0 < max(len(line.sources), 1) <= TERMS


def _line(i: Instruction) -> Line:
    """An instruction that is one of `CODES`."""
    if isinstance(i, Grad):
        return Line(GRAD, i.dst, (i.at, *filter(None, [i.beside])), (), i)
    if isinstance(i, Mix):
        return Line(MIX, i.dst, tuple([name for _, name in i.terms]), tuple([c for c, _ in i.terms]))
    if isinstance(i, Mul):
        return Line(MUL, i.dst, (i.src, i.u, i.v), (i.c,))
    if isinstance(i, Clip):
        return Line(CLIP, i.dst, (), (i.low, i.high))
    if isinstance(i, ClipNorm):
        return Line(CLIP_NORM, i.dst, (), (i.most,))
    assert isinstance(i, Adam)
    return Line(ADAM, i.dst, ("m", "v", "g"), (Rate(1.0), *i.betas, i.eps))


@lru_cache(256)
def compiled(steps: Program, given: tuple[str, ...], wanted: tuple[str, ...], then: str = "") -> Compiled:
    """The program, of which `known` holds.

    Args:
        given: the vectors before the first step, the weights first.
        wanted: those that are to be had after the last one.
        then: one of these, which the last step makes and no other: the gradient; "" without.
    """
    lines, ahead = _turned(_fused([_line(i) for i in steps.instructions], wanted), given, wanted)
    made = [x.dst for x in lines if x.dst not in given]
    last = [_line(Grad(then))] if then else []
    vectors = tuple(dict.fromkeys([*given, *made, *wanted]))
    written = {x.dst for x in lines} | ({"m", "v"} if any(x.op == ADAM for x in lines) else set())
    roomy = _with_room(lines, set(made)) | set(wanted)
    kinds = tuple(
        [(WRITTEN if k in written else GIVEN) if k in given else ROOM * (k in roomy) for k in vectors]
    )
    factors = [c for x in lines for c in x.factors if isinstance(c, Own)]
    numbers = tuple(dict.fromkeys([c.name for c in factors]))
    code = (Code * len([*lines, *last]))(*[_code(x, vectors, numbers) for x in [*lines, *last]])
    return Compiled(vectors, kinds, numbers, bytes(code), len(lines), ahead, len(last))


def _fused(lines: Sequence[Line], wanted: tuple[str, ...]) -> list[Line]:
    """The same, in which a gradient is added at once where the next line adds it, if nobody else reads it."""
    done = list[Line]()
    for i, line in enumerate(lines):
        before = done[-1] if done else line
        alone = before.op == GRAD and not before.adds and not _read(before.dst, lines[i + 1 :])
        adds = line.op == MIX and line.sources == (line.dst, before.dst) and line.factors[0] == 1
        if alone and adds and before.dst not in wanted:
            done[-1] = before._replace(dst=line.dst, factors=line.factors[1:], adds=True)
        else:
            done.append(line)
    return done


def _turned(lines: list[Line], given: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[list[Line], int]:
    """The lines before the first gradient behind the others, where they make what the next step begins with.

    There a mixture is made block by block as soon as its parts are. Returns also how many have moved: none
    where it would change what a line reads, or what is wanted.
    """
    ahead = next((k for k, x in enumerate(lines) if x.op == GRAD), 0)
    first, others = lines[:ahead], lines[ahead:]
    made = {x.dst for x in first}
    apart = made.isdisjoint({*wanted, *[x.dst for x in others]})
    if not apart or any(x.op != MIX or not made.union(given).issuperset(x.sources) for x in first):
        return lines, 0
    return [*others, *first], ahead


def _read(name: str, lines: Sequence[Line]) -> bool:
    """Whether one of these lines reads the vector before one makes it anew."""
    for line in lines:
        if name in line.sources or (line.op in (CLIP, CLIP_NORM) and line.dst == name):
            return True
        if line.dst == name:
            return False
    return False


def _with_room(lines: Sequence[Line], made: set[str]) -> set[str]:
    """Vectors that are made and read elsewhere than right after the gradient that they are."""
    roomy = set[str]()
    fresh = ""  # the gradient that is there block by block
    for line in lines:
        whole = line.op in (GRAD, CLIP_NORM)
        if whole:
            fresh = line.dst if line.op == GRAD and not line.adds else ""
        roomy |= {*line.sources, *([] if line.op == GRAD else [line.dst])} - {fresh}
        roomy |= {line.dst} if line.op == CLIP_NORM or line.adds else set()
        roomy |= set(line.sources) if whole else set()
    return roomy & made


def _code(line: Line, vectors: tuple[str, ...], numbers: tuple[str, ...]) -> Code:
    found, grad = Code(op=line.op, dst=vectors.index(line.dst), n=len(line.sources), beside=-1), line.grad
    for k, name in enumerate(line.sources):
        found.src[k] = vectors.index(name)
    for k in range(TERMS):
        found.number[k] = -1
    for k, c in enumerate(line.factors):
        if isinstance(c, Own):
            found.number[k], found.plus[k] = numbers.index(c.name), c.times
        else:
            found.plus[k], found.times[k] = (c.plus, c.times) if isinstance(c, Rate) else (c, 0.0)
    if grad is not None:
        found.other, found.adds = grad.other, line.adds
        found.beside = vectors.index(grad.beside) if grad.beside else -1
    return found
