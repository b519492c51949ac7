"""Every method on every architecture of benchmarks/nets.py: trained and evaluated, or refused and why.

Three clients with eight samples each, two rounds, the method's own settings one epoch in batches of four.

    python -m benchmarks.architectures [--jobs 2] [--methods fedavg ifca]     (needs transformers and peft)
"""

import argparse
import logging
import math
import re
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from benchmarks.nets import ARCHITECTURES
from fedpers.bench.main import keep
from fedpers.bench.work import Result
from fedpers.config import compose
from fedpers.config.registry import METHODS, method
from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError
from fedpers.core.plan import Plan
from fedpers.learning.model import Model
from fedpers.simulate import simulate

NAMED = re.compile(r"model=\w+\b(?! has)|model '\w+'")
OK, LETTERS = "ok", "abcdefghijklmnopqrstuvwxyz"
COMMAND = "python -m benchmarks.architectures"


def outcome(name: str, model: Model, data: Federation) -> str:
    """OK, or why the method does not take the model.

    Raises:
        AssertionError: it ends without numbers.
    """
    row = method(name)
    try:
        config = compose.load([f"method={name}", *_shorter(name)]).method
        strategy = row.strategy_class()(config, model, Plan(eval_every=2, num_clients=data.num_clients))
        simulate(strategy, row.client_class()(config, model), data, 2)
    except ConfigError as error:
        return str(error)
    losses = strategy.client_metrics["test_loss"]
    assert all(map(math.isfinite, losses)), f"{name}: {losses}"
    return OK


def _shorter(name: str) -> list[str]:
    """Settings for three clients and short local training, where the method has such settings."""
    config = compose.load([f"method={name}"]).method
    words = ["method.num_neighbours=2"] if hasattr(config, "num_neighbours") else []
    local = getattr(config, "local", None)
    return (
        [*words, "method.local.epochs=1", "method.local.batch_size=4"] if hasattr(local, "epochs") else words
    )


@cache
def models() -> dict[str, Model]:
    """Those of all architectures, once a process."""
    logging.getLogger("fedpers").setLevel(logging.ERROR)
    return {name: architecture.model() for name, architecture in ARCHITECTURES.items()}


def outcomes(name: str) -> dict[str, str]:
    """What becomes of a method on each architecture."""
    found = {}
    for what, model in models().items():
        text = outcome(name, model, ARCHITECTURES[what].federation(clients=3, train=8, test=4))
        found[what] = NAMED.sub("the model", text.split("\n")[0].split("; ")[0])
    return found


def main() -> None:
    """Try all, write architectures.json and architectures_refused.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="*", default=sorted(METHODS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    given = parser.parse_args()
    refusals: dict[str, str] = {}  # reason: letter
    rows: list[Result] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for name, found in zip(given.methods, pool.map(outcomes, given.methods), strict=True):
            cells = {
                what: OK if text == OK else refusals.setdefault(text, LETTERS[len(refusals)])
                for what, text in found.items()
            }
            rows.append({"method": name, **cells})
            print(rows[-1], flush=True)
    out = Path(given.out)
    keep(rows, COMMAND, out / "architectures.json")
    refused = [{"refused": letter, "why": text} for text, letter in refusals.items()]
    keep(refused, COMMAND, out / "architectures_refused.json")


if __name__ == "__main__":
    main()
