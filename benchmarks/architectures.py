"""Every method on every architecture of benchmarks/nets.py: trained and evaluated, or refused and why.

Three clients with eight samples each, two rounds, the method's own settings one epoch in batches of four.

    python -m benchmarks.architectures [--jobs 2] [--methods fedavg ifca]     (needs transformers and peft)

--add renews the rows of --methods and keeps those of all other methods.
"""

import argparse
import json
import logging
import math
import re
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

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


def kept(path: Path) -> list[Result]:
    """The rows of a file; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []


def joined(old: list[Result], refused: list[Result], new: dict[str, dict[str, str]]) -> tuple[Any, Any]:
    """(rows by method, reasons by letter) of rows that were there and what was found now."""
    why = {row["refused"]: row["why"] for row in refused}
    rows = {row["method"]: {k: why.get(v, v) for k, v in row.items()} for row in old}
    rows |= {name: {"method": name, **found} for name, found in new.items()}
    reasons = [text for _, row in sorted(rows.items()) for k, text in row.items() if k != "method"]
    letters = dict(zip([t for t in dict.fromkeys(reasons) if t != OK], LETTERS, strict=False))
    cells = [{k: letters.get(v, v) for k, v in rows[name].items()} for name in sorted(rows)]
    return cells, [{"refused": letter, "why": text} for text, letter in letters.items()]


def main() -> None:
    """Try all, write architectures.json and architectures_refused.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="*", default=sorted(METHODS))
    parser.add_argument("--add", action="store_true", help="keep the rows of other methods")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    given = parser.parse_args()
    files = [Path(given.out) / f"architectures{what}.json" for what in ("", "_refused")]
    new: dict[str, dict[str, str]] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for name, found in zip(given.methods, pool.map(outcomes, given.methods), strict=True):
            new[name] = found
            print(name, found, flush=True)
    old = map(kept, files) if given.add else ([], [])
    for rows, path in zip(joined(*old, new), files, strict=True):
        keep(rows, COMMAND, path)


if __name__ == "__main__":
    main()
