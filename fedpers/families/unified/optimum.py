"""The optimum of a convex objective, solved once where all data are at hand.

For experiments and tests in one process: no client of a real federation could compute this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.errors import FedpersError
from fedpers.core.params import Params
from fedpers.families.unified.objective import Objective

LARGEST = 1000  # parameters of both blocks of one client: Hessians are squares of it


@dataclass(frozen=True)
class Optimum:
    """Where F is least."""

    w: Params
    betas: list[Params]
    value: float


class Flat:
    """Blocks as vectors and back."""

    def __init__(self, block: Params) -> None:
        self.like = block
        self.size = sum(v.numel() for v in block.values())

    def vector(self, block: Params) -> Tensor:
        """All entries, in order."""
        parts = [v.reshape(-1).double() for v in block.values()]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def block(self, vector: Tensor) -> Params:
        """`vector`'s undoing."""
        parts = vector.split([v.numel() for v in self.like.values()])
        return {k: p.reshape(v.shape) for (k, v), p in zip(self.like.items(), parts, strict=True)}


@dataclass(frozen=True)
class Expansion:
    """Each client's f_m to second order at one point: values [M], gradients [M, d], Hessians [M, d, d].

    The first `size` of the d = d_0 + d_m entries are w's.
    """

    values: Tensor
    gradients: Tensor
    hessians: Tensor
    size: int

    @property
    def value(self) -> float:
        """F."""
        return float(self.values.mean())

    def newton(self) -> tuple[Tensor, Tensor, float]:
        """(step of w [d_0], steps of the β_m [M, d_m], what F falls by to second order).

        Private blocks are eliminated first: F's Hessian has no entries between two of them.

        Raises:
            FedpersError: F has no one minimum.
        """
        M, d = len(self.values), self.size
        g, H = self.gradients / M, self.hessians / M
        H_bb = _regular(H[:, d:, d:])
        own = torch.linalg.solve(H_bb, torch.cat([H[:, d:, :d], g[:, d:, None]], dim=2))
        C, c = own[:, :, :d], own[:, :, d]
        S = _regular((H[:, :d, :d] - H[:, :d, d:] @ C).sum(0))
        of_w = torch.linalg.solve(S, (g[:, :d] - (H[:, :d, d:] @ c[:, :, None])[:, :, 0]).sum(0))
        of_b = c - C @ of_w
        return of_w, of_b, float((g[:, :d].sum(0) * of_w).sum() + (g[:, d:] * of_b).sum()) / 2


def solve(
    f: Objective, parts: Sequence[Data], params: Params, *, tol: float = 1e-12, steps: int = 100
) -> Optimum:
    """Newton's method with step halving on F, in float64; state is M (d_0 + d_m)².

    Args:
        parts: the clients' training data.
        params: the model's initial parameters.
        tol: the last step may promise to lower F by so much, relative to 1 + |F|.

    Raises:
        FedpersError: F is too large for it, or has no one minimum.
    """
    w, beta = f.start({k: v.double().cpu() for k, v in params.items()})
    of_w, of_b = Flat(w), Flat(beta)
    if of_w.size + of_b.size > LARGEST:
        raise FedpersError(
            f"no optimum is solved for {of_w.size} shared and {of_b.size} private "
            f"parameters; there may be {LARGEST} of both"
        )
    data = [Data(p.x.double().cpu(), p.y.cpu(), p.mask.double().cpu()) for p in parts]
    shared, own = of_w.vector(w), of_b.vector(beta).expand(len(parts), -1)
    for _ in range(steps):
        at = expand(f, data, shared, own, of_w, of_b)
        to_w, to_b, gain = at.newton()
        found, (shared, own) = at.value, _descend(f, data, shared, own, to_w, to_b, at, of_w, of_b)
        still = max(float(torch.cat([v.reshape(-1).abs(), v.new_zeros(1)]).max()) for v in (to_w, to_b))
        if gain < tol * (1 + abs(found)) and still < 1e-4 * (1 + float(own.norm() + shared.norm())):
            value = expand(f, data, shared, own, of_w, of_b).value
            return Optimum(of_w.block(shared), [of_b.block(b) for b in own], value)
    raise FedpersError(
        f"no minimum of F found in {steps} Newton steps: it may lie at infinity, as "
        "for separable classes; give method.l2 a positive value"
    )


def expand(
    f: Objective, parts: Sequence[Data], shared: Tensor, own: Tensor, of_w: Flat, of_b: Flat
) -> Expansion:
    """All f_m to second order at w = `shared` [d_0], β_m = `own` [M, d_m]."""
    values, gradients, hessians = [], [], []
    for m, (data, b) in enumerate(zip(parts, own, strict=True)):
        f_m, point = _one(f.of(m), data, of_w, of_b), torch.cat([shared, b])
        gradient, value = torch.func.grad_and_value(f_m)(point)
        values.append(value)
        gradients.append(gradient)
        hessians.append(torch.func.hessian(f_m)(point))
    return Expansion(torch.stack(values), torch.stack(gradients), torch.stack(hessians), of_w.size)


def _regular(H: Tensor) -> Tensor:
    """`H` [..., d, d], if its smallest eigenvalues are more than rounding."""
    if H.numel():
        low, high = torch.linalg.eigvalsh(H)[..., [0, -1]].unbind(-1)
        if not bool((low > 1e-13 * high).all()):
            raise FedpersError(
                "F has no one minimum (its Hessian is singular): give method.l2 a "
                "positive value, and method.lam where the objective has it"
            )
    return H


def _one(f: Objective, data: Data, of_w: Flat, of_b: Flat) -> Any:
    def value(v: Tensor) -> Tensor:
        return f.value(of_w.block(v[: of_w.size]), of_b.block(v[of_w.size :]), data)

    return value


def _descend(
    f: Objective,
    parts: Sequence[Data],
    shared: Tensor,
    own: Tensor,
    to_w: Tensor,
    to_b: Tensor,
    at: Expansion,
    of_w: Flat,
    of_b: Flat,
) -> tuple[Tensor, Tensor]:
    """The point after as much of the Newton step as lowers F."""
    size, most = 1.0, at.value + 1e-14 * abs(at.value)
    while size > 1e-6:
        w, b = shared - size * to_w, own - size * to_b
        each = enumerate(zip(parts, b, strict=True))
        values = [_one(f.of(m), p, of_w, of_b)(torch.cat([w, b_m])) for m, (p, b_m) in each]
        if float(sum(values)) / len(parts) <= most:
            return w, b
        size /= 2
    return shared - to_w, own - to_b
