"""What a round of PFLEGO costs for several τ, beside FedPer at equal τ: the paper's Table 3.

Two settings: the demo (digits, 20 clients) and Table 1's Fashion-MNIST High-Pers (20 of 100 clients
a round), without evaluations. CPU seconds of this one process; the middle of the rounds after the first two.

    python benchmarks/pflego_cost.py [--rounds 10]
"""

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from fedpers.app.build import assemble
from fedpers.bench.engines import play
from fedpers.bench.main import write
from fedpers.bench.work import Clock, Result
from fedpers.config import compose
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig

EXPERIMENTS = {
    "demo": ("demo", ["data.valid_fraction=0"]),
    "fashion": ("pflego_table1_fashion", ["data.classes_per_client=2"]),
}
WAYS = {f"pflego τ={tau}": ["method=pflego", f"method.tau={tau}"] for tau in (1, 2, 10, 50)} | {
    f"fedper τ={tau}": ["method=fedper", f"method.local.steps={tau}", "method.local.batch_size=0"]
    for tau in (10, 50)
}
DEMO = {"fedper as in the demo": ["method=fedper"]}


def measure(setting: str, rounds: int) -> list[Result]:
    """A row for each way of one setting."""
    experiment, fixed = EXPERIMENTS[setting]
    rows = []
    for way, chosen in (WAYS | (DEMO if setting == "demo" else {})).items():
        cfg = compose.load([f"+experiment={experiment}", *chosen, *fixed, "eval_every=0"])
        parts, clock = assemble(cfg), Clock()
        parts.strategy.plan = replace(
            parts.strategy.plan, eval_protocol="all_after"
        )  # no evaluation is timed
        play(parts.strategy, parts.client, parts.federation, RamStore(), RunnerConfig(), rounds,
             lambda t, log, clock=clock: clock.done())  # fmt: skip
        found = {key: median(values[2:]) for key, values in clock.result().items()}
        rows.append({"setting": setting, "way": way, **found, "rounds": rounds})
        print("{setting}, {way}: {cpu:.4f} s of CPU a round".format(**rows[-1]), flush=True)
    least = next(row["cpu"] for row in rows if row["way"] == "pflego τ=50")
    return [{**row, "times": row["cpu"] / least} for row in rows]


def main() -> None:
    """Measure, write pflego_cost.json and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    parser.add_argument("--settings", default=",".join(EXPERIMENTS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name in args.settings.split(",") for row in measure(name, args.rounds)]
    write(rows, "pflego_cost", Path(args.out))


if __name__ == "__main__":
    main()
