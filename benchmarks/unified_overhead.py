"""What a round costs beyond the clients' arithmetic, beside the same rounds in plain NumPy.

    python benchmarks/unified_overhead.py [--rounds 200] [--clients 20] [--methods lsgd acd]

M logistic clients, objective MX2, the six methods of the unified framework, one process. `arithmetic`
is what `answer` takes inside the rounds, `overhead` the rest of them (messages, bookkeeping, stacking,
coins, states). `numpy` is the same round written out with arrays of all clients at once, nothing else:
the same constants, the same law of coins and samples, timed in turn with ours. Times are of the process
(CPU), since a busy machine would be measured otherwise; the least over `--repeats` is given.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpers.app.build import assemble
from fedpers.bench.main import write
from fedpers.bench.work import Result
from fedpers.config import compose
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig

METHODS = ("lsgd", "acd", "scd", "ascd", "svrcd", "asvrcd")
Pair = tuple[Any, Any]  # of the blocks w [d] and β [M, d]


class Plain:
    """MX2 on logistic regressions and its optimisers, in NumPy; F = 1/M Σ f_m, u = s·w."""

    def __init__(self, method: str, x: Any, y: Any, lam: float, rates: Any, tau: int) -> None:
        self.x, self.y, self.lam, self.h, self.tau = x, y, lam, rates, tau
        self.M, self.n, d = x.shape
        self.s, self.rows = self.M**-0.5, np.arange(self.M)
        self.rng = np.random.default_rng(0)
        zero = (np.zeros(d), np.zeros((self.M, d)))
        self.main = self.momentum = self.anchor = zero
        self.run: Callable[[], None] = getattr(self, method)
        if method in ("svrcd", "asvrcd"):
            self.slopes = (self.of_w(*zero), self.whole(*zero))

    def of_w(self, w: Any, beta: Any) -> Any:
        """∇_w F."""
        return self.s * self.lam * (self.s * w - beta.mean(0))

    def pull(self, w: Any, beta: Any) -> Any:
        """λ(β_m - u)."""
        return self.lam * (beta - self.s * w)

    def whole(self, w: Any, beta: Any) -> Any:
        """∇_β F on all samples."""
        away = 1 / (1 + np.exp(-np.matmul(self.x, beta[:, :, None])[:, :, 0])) - self.y
        slope = np.matmul(away[:, None], self.x)[:, 0] / self.n
        return (slope + self.pull(w, beta)) / self.M

    def sampled(self, w: Any, beta: Any, j: Any) -> Any:
        """∇_β F on one sample of each client."""
        x = self.x[self.rows, j]
        away = 1 / (1 + np.exp(-(x * beta).sum(1))) - self.y[self.rows, j]
        return (away[:, None] * x + self.pull(w, beta)) / self.M

    def draw(self) -> Any:
        """A sample of each client."""
        return self.rng.integers(0, self.n, self.M)

    def lsgd(self) -> None:
        """τ local steps, one mean."""
        w, beta = np.repeat(self.main[0][None], self.M, 0), self.main[1]
        for _ in range(self.tau):
            g_w = self.s * self.lam * (self.s * w - beta)
            g_b = self.sampled(w, beta, self.draw())
            w, beta = w - self.h.eta * g_w, beta - self.h.eta * g_b
        self.main = w.mean(0), beta

    def acd(self) -> None:
        """Iterations up to one of the w-block."""
        h, on_w = self.h, False
        k = h.eta * h.nu
        while not on_w:
            on_w = self.rng.random() < h.p_w
            x = [y + h.theta * (z - y) for y, z in zip(self.main, self.momentum, strict=True)]
            g = self.of_w(*x) if on_w else self.whole(*x)
            i, p, L = (0, h.p_w, h.L_w) if on_w else (1, 1 - h.p_w, h.L_b)
            z = [(c + k * a) / (1 + k) for c, a in zip(self.momentum, x, strict=True)]
            x[i], z[i] = x[i] - g / L, z[i] - h.eta * p / L / (1 + k) * g
            self.main, self.momentum = tuple(x), tuple(z)

    def scd(self) -> None:
        """Iterations up to one of the w-block."""
        h, (w, beta) = self.h, self.main
        while self.rng.random() >= h.p_w:
            beta = beta - h.eta / (1 - h.p_w) * self.sampled(w, beta, self.draw())
        self.main = w - h.eta / h.p_w * self.of_w(w, beta), beta

    def ascd(self) -> None:
        """Iterations up to one of the w-block; the other block rests."""
        h, on_w = self.h, False
        while not on_w:
            on_w = self.rng.random() < h.p_w
            x = [y + h.theta * (z - y) for y, z in zip(self.main, self.momentum, strict=True)]
            g = self.of_w(*x) / h.p_w if on_w else self.sampled(*x, self.draw()) / (1 - h.p_w)
            i, y, z = 0 if on_w else 1, list(self.main), list(self.momentum)
            y[i], z[i] = x[i] - h.eta * g, h.nu * z[i] + (1 - h.nu) * x[i] - h.gamma * g
            self.main, self.momentum = tuple(y), tuple(z)

    def estimate(self, x: Pair, on_w: bool) -> list[Any]:
        """Gradients of both blocks with control variates."""
        g, h = list(self.slopes), self.h
        if on_w:
            g[0] = (self.of_w(*x) - self.of_w(*self.anchor)) / h.p_w + g[0]
        else:
            j = self.draw()
            g[1] = (self.sampled(*x, j) - self.sampled(*self.anchor, j)) / (1 - h.p_w) + g[1]
        return g

    def svrcd(self) -> None:
        """Iterations up to one of the w-block or a new anchor."""
        h, on_w, refresh = self.h, False, False
        while not (on_w or refresh):
            on_w, refresh, old = self.rng.random() < h.p_w, self.rng.random() < h.rho, self.main
            g = self.estimate(old, on_w)
            self.main = old[0] - h.eta * g[0], old[1] - h.eta * g[1]
        self.renew(old, refresh)

    def asvrcd(self) -> None:
        """Iterations up to one of the w-block or a new anchor."""
        h, on_w, refresh = self.h, False, False
        a, b, c = 1 - h.theta_1 - h.theta_2, h.theta_1, h.theta_2
        while not (on_w or refresh):
            on_w, refresh, old = self.rng.random() < h.p_w, self.rng.random() < h.rho, self.main
            parts = zip(self.main, self.momentum, self.anchor, strict=True)
            w, beta = (a * y + b * z + c * v for y, z, v in parts)
            g, z = self.estimate((w, beta), on_w), self.momentum
            self.main = w - h.eta * g[0], beta - h.eta * g[1]
            of_w = h.nu * z[0] + (1 - h.nu) * w - h.gamma * g[0]
            self.momentum = of_w, h.nu * z[1] + (1 - h.nu) * beta - h.gamma * g[1]
        self.renew(old, refresh)

    def renew(self, old: Pair, refresh: bool) -> None:
        """A new anchor, if there is to be one."""
        if refresh:
            self.anchor, self.slopes = old, (self.of_w(*old), self.whole(*old))


class Ours:
    """The same problem as a run has it, with the time that its clients take to answer."""

    def __init__(self, method: str, clients: int, runner: Any) -> None:
        self.parts, self.spent, self.done = assemble(_config(method, clients)), 0.0, 5
        self.answer = self.parts.client.answer
        self.parts.client.answer = self._timed  # type: ignore[method-assign]
        how = RunnerConfig(runner=runner)
        cohort = Cohort(self.parts.client, self.parts.federation, RamStore(), self.parts.plan, how)
        self.grid, self.strategy = InProcessGrid(cohort), self.parts.strategy
        self.strategy.connect(self.grid)
        self.strategy.evaluates = lambda t: False  # type: ignore[method-assign]
        self.strategy.start(self.grid, num_rounds=self.done)

    def _timed(self, *args: Any) -> Any:
        began = time.process_time()
        found = self.answer(*args)
        self.spent += time.process_time() - began
        return found

    def run(self, rounds: int) -> tuple[float, float]:
        """(seconds of a round, of them in the clients' answers)."""
        self.spent, began, self.done = 0.0, time.process_time(), self.done + rounds
        self.strategy.start(self.grid, num_rounds=self.done)
        return (time.process_time() - began) / rounds, self.spent / rounds

    def plain(self, method: str) -> Plain:
        """This problem, written out."""
        fed, h = self.parts.federation, self.strategy.config
        data = [fed.client(m).train for m in range(fed.num_clients)]
        x, y = (np.stack([getattr(d, k).numpy().astype(float) for d in data]) for k in "xy")
        return Plain(method, x, y, LAM, self.strategy.state.rates, getattr(h, "tau", 1))


LAM = 0.1


def _config(method: str, clients: int) -> Any:
    return compose.load(
        [
            "+experiment=unified_fig1_mx2",
            f"method={method}",
            f"data.num_clients={clients}",
            "data.sigma_h=0.1",
            f"method.objective.lam={LAM}",
            "data.train_per_client=100",
            "method.report=false",
            "optimum=false",
            "eval_every=0",
            "device=cpu",
        ]
    )


def measure(method: str, clients: int, rounds: int, repeats: int, runner: Any) -> Result:
    """A row of the table, in seconds a round."""
    ours = Ours(method, clients, runner)
    plain, runs, least = ours.plain(method), [], np.inf
    for _ in range(repeats):
        runs.append(ours.run(rounds))
        began = time.process_time()
        for _ in range(rounds):
            plain.run()
        least = min(least, (time.process_time() - began) / rounds)
    whole, own = min(runs, key=lambda r: r[0] - r[1])
    found = {"seconds": whole, "arithmetic": own, "overhead": whole - own, "numpy": float(least)}
    ratios = {"times_overhead": (whole - own) / least, "times": whole / least}
    return {"method": method, "clients": clients, "rounds": rounds, "repeats": repeats, **found, **ratios}


def main() -> None:
    """Measure, write unified_overhead.json and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--runner", default="auto", choices=["auto", "loop", "stack"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for method in args.methods:
        rows.append(measure(method, args.clients, args.rounds, args.repeats, args.runner))
        print("{method}: {seconds:.5f} s a round, {numpy:.5f} s in NumPy".format(**rows[-1]), flush=True)
    write(rows, "unified_overhead", args.out)


if __name__ == "__main__":
    main()
