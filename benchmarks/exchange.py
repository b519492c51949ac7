"""What a round of FedAvg costs besides its kernel, and how much of that is because time passes.

Rounds of five ways in turns, in one process and thread: as they are; with a kernel that makes no step, and
with a loop on registers in place of these, which touches no memory, for as long as the kernel takes; without
any training, clients answering with what they got, again with such a loop or nothing. *Floor* as in
`fedpers bench methods --profile`. If the rest of a round is as slow after a loop on registers as after the
kernel, what makes it slow is not what the kernel does to the caches, but that time passes: others may fill
those that they share with us.

    python benchmarks/exchange.py [--clients 20 100]
"""

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedpers.bench.engines import play
from fedpers.bench.main import write
from fedpers.bench.profile import SIDE, WARM
from fedpers.bench.work import Clock, Result, Work, federation, make_model, tensors
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.core.plan import Plan
from fedpers.engines.memory.row_store import RowStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.global_model.client import Weights
from fedpers.learning.flops import flops_of
from fedpers.learning.kernels import native
from fedpers.learning.optimizers import LocalConfig
from fedpers.strategies.fedavg import FedAvg

WAYS = ("a round", "no step, a loop", "no step", "no training, a loop", "no training")
SLOWLY = 0.05  # how much a running mean takes of what is new
TURN, SKIPPED = 8, 2  # rounds of a way at a time, and those of them after which caches forget the last one


class Probe(FedAvgClient):
    """FedAvg's client in one of WAYS."""

    way = WAYS[0]
    spent = 0.0  # seconds of this round in the kernel, or in the loop
    kernel = 0.0  # what the kernel's steps take, as a running mean
    per_second = 1e6  # turns of the loop, as a running mean

    def answer(self, order: Weights, state: None, data: Any, rng: Any) -> tuple[Weights, None]:
        """FedAvg's answer, or the weights as they came."""
        if not self.way.startswith("no training"):
            return super().answer(order, state, data, rng)
        w = {name: value + 0.0 for name, value in order.params.items()}
        self.loop()
        return Weights(w), None

    def loop(self) -> None:
        """For as long as the kernel takes, if the way has a loop: on registers, by a hash of a few bytes."""
        if not self.way.endswith("a loop"):
            return
        began, count = time.process_time(), max(int(self.kernel * self.per_second), 1)
        hashlib.pbkdf2_hmac("sha256", b"", b"", count)
        took = time.process_time() - began
        self.spent += took
        self.per_second += SLOWLY * (count / took - self.per_second)

    def timed(self, function: Callable[..., int], *args: Any) -> int:
        """What the kernel returns; its seconds are counted."""
        began = time.process_time()
        found = function(*args)
        took = time.process_time() - began
        self.spent += took
        if self.way == WAYS[0]:
            self.kernel += SLOWLY * (took - self.kernel)
        else:
            self.loop()
        return found

    def call(self, whole: Callable[..., None], function: Any, plan: Any, given: Any, *own: Any) -> None:
        """`native.call`, without steps if the way has none."""
        *rest, index, weight = given
        if self.way != WAYS[0]:
            index, weight = index[:, :0], weight[:, :0]
        whole(partial(self.timed, function), plan, (*rest, index, weight), *own)


def measured(clients: int, turns: int) -> list[Result]:
    """A row for each way: medians of CPU seconds."""
    work = Work("lr", M=100, C=clients)
    config, model = FedAvgConfig(local=LocalConfig(batch_size=work.B)), make_model(work)
    probe, clock, products = Probe(config, model), Clock(), Clock()
    square, found = torch.randn(SIDE, SIDE), {way: list[tuple[float, float]]() for way in WAYS}

    def done(t: int, log: Any) -> None:
        clock.done()
        if t >= WARM and t % TURN >= SKIPPED:
            found[probe.way].append((probe.spent, clock.cpu[-1] - probe.spent))
        probe.spent = 0.0
        if t >= WARM and t % TURN == TURN - 1:
            probe.way = WAYS[(t // TURN + 1) % len(WAYS)]
            products.resume()
            _ = square @ square
            products.done()
        clock.resume()

    strategy = FedAvg(config, model, Plan(clients_per_round=clients, eval_every=0))
    fed = federation(*tensors(work), test=slice(work.n // 10))
    whole, native.call = native.call, partial(probe.call, native.call)
    try:
        play(strategy, probe, fed, RowStore(), RunnerConfig(), WARM + turns * TURN * len(WAYS), done)
    finally:
        native.call = whole
    rate = 2 * SIDE**3 / statistics.median(products.cpu)
    floor = flops_of(model, work.shape).all_passes(clients * work.n * work.E, 0, 0) / rate
    rows: list[Result] = []
    for way in WAYS:
        inner, rest = map(statistics.median, zip(*found[way], strict=True))
        rows.append({"clients": clients, "way": way, "inner": inner, "rest": rest, "floor": floor})
    return [r | {"times": r["rest"] / floor, "total": (r["inner"] + r["rest"]) / floor} for r in rows]


def main() -> None:
    """Measure, write exchange.json and the table."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--clients", nargs="+", type=int, default=[20, 100])
    parser.add_argument("--turns", type=int, default=40, help="of each way")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    write([row for n in args.clients for row in measured(n, args.turns)], "exchange", Path(args.out))


if __name__ == "__main__":
    main()
