"""Random methods, models and data, the same answers from every runner: `python -m tests.fuzz --minutes 10`.

The orders of a run are answered anew by each runner, so that a difference cannot grow through the server:
bits for chunk sizes and workers on dense models, 1e-5 of the largest entry elsewhere. Where training
diverges, rounding decides: a client is left out from the exchange on in which it answers a number that is
not finite, or in which 1e-6 of its inputs and orders moves its answer as far as the runners differ, or
float64 moves torch's: steps below a weight's last bit add up, too.
"""

import argparse
import math
import random
import sys
import time
from collections import namedtuple
from dataclasses import fields, replace

import numpy as np
import torch

from fedpers.config import registry
from fedpers.core.errors import FedpersError
from fedpers.core.pytree import leaves, tree_map
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.messages import Answer
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.optimizers import LocalConfig
from tests.runners import CLIENTS, answered, case_of, orders_of

SCALES = {"plain": 1.0, "nan": math.nan, "huge": 1e30, "large": 1e3, "tiny": 1e-6, "denormal": 1e-40}
KINDS = (*SCALES, "constant", "one_sample", "one_class")
SPLITS = ("train", "valid", "test")
STACK = RunnerConfig("stack")
FINE = (Answer, FedpersError)  # of what a client can end in: errors that say what is wrong, too


# One configuration: whether all clients are of the kind, or one; sizes of clients go round through `sizes`.
Draw = namedtuple("Draw", "seed method model kind everybody sizes local")


def drawn(seed):
    """The configuration of a seed."""
    rng = random.Random(seed)
    method = rng.choice(list(registry.METHODS))
    models = ["mlp"] if method == "fedbn" else ["logistic", "mlp", "lenet"]
    local = dict(
        lr=rng.choice([0.01, 0.1, 0.5]), epochs=rng.choice([1, 3]), batch_size=rng.choice([0, 1, 5, 16])
    )
    local |= dict(momentum=rng.choice([0.0, 0.0, 0.9]), weight_decay=rng.choice([0.0, 0.01]))
    everybody, sizes = rng.random() < 0.3, rng.choice([(8,), (12, 9, 3, 20)])
    return Draw(seed, method, rng.choice(models), rng.choice(KINDS), everybody, sizes, local)


def of_kind(data, kind):
    """Samples, spoilt."""
    if kind in SCALES:
        return replace(data, x=data.x * SCALES[kind])
    if kind == "constant":
        return replace(data, x=torch.ones_like(data.x))
    if kind == "one_class":
        return replace(data, y=torch.zeros_like(data.y))
    return replace(data, x=data.x[:1], y=data.y[:1], mask=data.mask[:1])


def with_clients(case, change):
    """The case whose clients' training samples are changed by `change(k, samples)`."""
    old = case.federation
    parts = [replace(old.client(k), train=change(k, old.client(k).train)) for k in range(CLIENTS)]
    counts = np.array([np.bincount(p.train.y, minlength=3) for p in parts])
    fed = replace(old, client=parts.__getitem__, num_train=counts.sum(1), label_counts=counts)
    return replace(case, federation=fed)


def case_drawn(draw):
    """The case of a configuration."""
    known = {f.name for f in fields(registry.METHODS[draw.method].config_class())}
    local = {"local": LocalConfig(**draw.local)} if "local" in known else {}
    case = case_of(draw.method, draw.model, draw.sizes, draw.seed, rounds=2, **local)
    bad = set(range(CLIENTS)) if draw.everybody else {draw.seed % CLIENTS}
    return with_clients(case, lambda k, data: of_kind(data, draw.kind) if k in bad else data)


def shaken(case, exchanges, seed):
    """The case's answers if all inputs and orders are changed by about 1e-6 of themselves."""
    rng = torch.Generator().manual_seed(seed)

    def noisy(x):
        real = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x * (1 + 1e-6 * torch.randn(x.shape, generator=rng)) if real else x

    case = with_clients(case, lambda k, data: replace(data, x=noisy(data.x)))
    orders = {id(r.order): r.order for requests in exchanges for r in requests}
    orders = {i: tree_map(noisy, order) for i, order in orders.items()}
    moved = [[r._replace(order=orders[id(r.order)], tree=None) for r in requests] for requests in exchanges]
    return answered(case, moved, STACK)


def in_doubles(case, exchanges):
    """The answers in float64."""
    wide = lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x  # noqa: E731
    parts = [case.federation.client(k) for k in range(CLIENTS)]
    parts = [
        replace(
            p,
            **{
                n: replace(getattr(p, n), x=wide(getattr(p, n).x), mask=wide(getattr(p, n).mask))
                for n in SPLITS
            },
        )
        for p in parts
    ]
    orders = {id(r.order): r.order for requests in exchanges for r in requests}
    orders = {i: tree_map(wide, order) for i, order in orders.items()}
    asked = [[r._replace(order=orders[id(r.order)], tree=None) for r in requests] for requests in exchanges]
    fed = replace(case.federation, client=parts.__getitem__)
    return answered(replace(case, federation=fed, plan=replace(case.plan, dtype="float64")), asked, STACK)


def distances(a, b):
    """(largest difference, largest entry) of each leaf; NaN equals NaN."""
    for pair in zip(leaves(a.body), leaves(b.body), strict=True):
        x, y = (torch.as_tensor(leaf, dtype=torch.float64) for leaf in pair)
        if x.shape != y.shape:
            yield math.inf, 0.0
        elif x.numel():
            apart = torch.where(x.isnan() & y.isnan() | (x == y), 0.0, (x - y).abs())
            yield float(apart.nan_to_num(math.inf).max()), float(x.abs().max())


def check(draw):
    """The configuration's faults, one line each; and clients left out because rounding decides."""
    case = case_drawn(draw)
    exchanges = orders_of(case)
    want = answered(case, exchanges, STACK)
    faults = [f"client {k}: {a!r}" for each in want for k, a in each.items() if not isinstance(a, FINE)]
    moved = [shaken(case, exchanges, i) for i in (1, 2)]
    left_out = set()
    for name, bits, runner in runners(draw):
        with autograd_only() if name == "torch" else torch.no_grad():
            found = answered(case, exchanges, runner)
            exact = in_doubles(case, exchanges) if name == "torch" else None
        faults += [f"{name}: {x}" for x in compared(want, found, moved, bits, left_out, exact)]
    return faults, left_out


def runners(draw):
    """(name, whether its bits are promised, runner)."""
    dense = draw.model != "lenet"
    yield "chunk", dense, RunnerConfig("stack", chunk=1 + draw.seed % 3)
    yield "workers", dense, RunnerConfig("stack", workers=2)
    yield "loop", False, RunnerConfig("loop")
    yield "torch", False, STACK


def compared(want, found, moved, bits, left_out, exact=None):
    """Where two runners' answers differ by more than they may; adds to `left_out` whose training diverges."""
    gone = set()
    for i, k, a in [(i, k, a) for i, each in enumerate(want) for k, a in each.items()]:
        b = found[i][k]
        near = [(a, m[i][k]) for m in moved] + ([(b, exact[i][k])] if exact else [])
        if type(a) is not type(b):
            yield f"exchange {i}, client {k}: {a!r:.200} and {b!r:.200}"
        elif isinstance(a, Answer) and k not in gone:
            apart = list(distances(a, b))
            if all(d <= (0 if bits else 1e-5 * size + 3e-7) for d, size in apart):
                continue  # of answers that are not finite, those that are equal
            gone.add(k)
            if not bits and rounding_decides(apart, near):
                left_out.add(k)
            else:
                yield f"exchange {i}, client {k}: apart by {max(apart)[0]:.3g}"


def rounding_decides(apart, moved):
    """Whether the answer is not finite, or moves as far by 1e-6 of its inputs as the runners differ."""
    if not all(math.isfinite(size) for _, size in apart):
        return True
    by = [
        max(d for d, _ in each)
        for each in zip(*(distances(x, y) for x, y in moved if isinstance(y, Answer)), strict=True)
    ]
    return all(d <= max(1e-5 * size + 3e-7, 10 * m) for (d, size), m in zip(apart, by, strict=True))


def main():
    """Configurations until the time is over; status 1 if any has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="the first; each configuration has the next")
    args = parser.parse_args()
    end, seed, failed = time.monotonic() + 60 * args.minutes, args.seed, 0
    while seed == args.seed or time.monotonic() < end:
        draw = drawn(seed)
        try:
            faults, left_out = check(draw)
        except Exception as error:
            faults, left_out = [f"{type(error).__name__}: {error}"], set()
        print(seed, "FAULT" if faults else "ok", draw, f"left out: {left_out or 'none'}", flush=True)
        print(*(f"    {fault}\n" for fault in faults), sep="", end="", flush=True)
        failed += bool(faults)
        seed += 1
    print(f"{seed - args.seed} configurations from seed {args.seed}, {failed} with faults")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
