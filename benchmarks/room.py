"""What a limit in floors leaves to a method's own code: without its kernels, and without its exchanges.

Of each method that is above the limit: its kernels' share of a round (`fedpers bench methods --profile`),
and what its exchanges cost if clients answer with what they got (`benchmarks/exchange.py`, the way in which
as much time passes as in FedAvg's kernel), on the same processor. What is left below the limit is for all
else: what a method keeps, weighs, draws and compares. The exchange is that of logistic regression, the
smallest, also beside larger models.

    python benchmarks/room.py [--profiles FOLDER] [--exchange FILE] [--out FOLDER]
"""

import argparse
import json
from pathlib import Path

from fedpers.bench.main import write
from fedpers.bench.work import Result

RESULTS = Path(__file__).parent / "results"
LIMITS = {"logistic": 2.5, "mlp": 1.5}  # floors
WAY = "no training, a loop"


def room(row: Result, exchange: float) -> Result:
    """What is left to the method of a profile's row, if an exchange of its clients takes so many seconds."""
    floor, limit = row["floor"], LIMITS[row["model"]]
    kernel, exchanges = row["kernel"] * row["cpu"], row["exchanges"] * exchange
    own, left = row["cpu"] - kernel - exchanges, limit * floor - kernel - exchanges
    found = {k: row[k] for k in ("model", "method", "clients", "times", "exchanges")}
    parts = {"kernel": kernel / floor, "exchange": exchanges / floor}
    return found | {"limit": limit} | parts | {"own": own, "left": left}


def rooms(profiles: Path, exchanges: Path) -> list[Result]:
    """A row for each method above its limit, the one furthest above first.

    Raises:
        SystemExit: two files are from different processors.
    """
    measured, rows = json.loads(exchanges.read_text()), list[Result]()
    cpu = measured["machine"]["cpu"]
    empty = {r["clients"]: r["rest"] for r in measured["rows"] if r["way"] == WAY}
    for path in sorted(profiles.glob("profile-*.json")):
        content = json.loads(path.read_text())
        if content["machine"]["cpu"] != cpu:
            raise SystemExit(f"{path} is from {content['machine']['cpu']}, {exchanges} from {cpu}")
        rows += [room(r, empty[r["clients"]]) for r in content["rows"] if r["cpu"]]
    above = [r for r in rows if r["times"] > r["limit"]]
    return sorted(above, key=lambda r: (r["model"], r["clients"], -r["times"]))


def main() -> None:
    """Write room.json and the table."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--profiles", type=Path, default=RESULTS / "zen3")
    parser.add_argument("--exchange", type=Path, default=RESULTS / "exchange.json")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    write(rooms(args.profiles, args.exchange), "room", args.out)


if __name__ == "__main__":
    main()
