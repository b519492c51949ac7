"""The writer of a run directory: metrics.csv, clients.csv, arrays.npz, summary.json, plots, events.

metrics.csv has up to four rows a round. `split` is "train" for what the round cost (seconds, bytes,
gradient evaluations, failures) and the method's own columns; "valid", "test" and "new" (clients that
never trained) for an evaluation after it. Rows are appended and flushed at each event; all other
files are written beside and renamed, so that a run may be killed at any moment.
"""

import logging
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from fedpers.config.run_config import RunConfig
from fedpers.core.data import Federation
from fedpers.core.metrics import of_centers, on_training_data, summarise
from fedpers.core.scores import measured
from fedpers.core.tasks import task_of
from fedpers.flower.strategy import Observer, RoundLog
from fedpers.results import files, membership_recovery, summary
from fedpers.results.array_history import ArrayHistory
from fedpers.results.files import CsvRow

BETWEEN = "between_seconds"
COLUMNS = ("round", "split", "seconds", BETWEEN, "loss", "accuracy", "accuracy_mean", "worst_decile",
           "bytes_up", "bytes_down", "gradient_evals", "body_forwards", "head_steps", "failures")  # fmt: skip
COSTS = ("seconds", "bytes_up", "bytes_down", "gradient_evals", "body_forwards", "head_steps", "failures")
log = logging.getLogger("fedpers")
SPLITS = ("valid", "test", "new")


class Recorder(Observer):
    """Writes everything that a run leaves behind.

    `start` is the number of rounds that a resumed run has behind it; what the run directory holds
    of later rounds is dropped, because they will be run again.
    """

    def __init__(self, out: Path, config: RunConfig, federation: Federation, start: int = 0) -> None:
        self.out, self.config, self.federation = out, config, federation
        self.rows: list[CsvRow] = []
        self.facts: dict[str, Any] = {}  # added to summary.json as they are
        self.listener = Observer()  # told of the rows
        self.pictures = True  # drawn at the end
        self.columns = list(COLUMNS)
        self.arrays = ArrayHistory()
        self._began = time.monotonic()
        self._described = summary.describe(config)  # now: the sources may change while it runs
        self._told: float | None = None  # when the last round ended
        self._lost: list[int] = []  # clients whose last test loss is no finite number
        out.mkdir(parents=True, exist_ok=True)
        (out / "summary.json").unlink(missing_ok=True)  # its presence says that a run is finished
        if start:
            self._read_back(start)
        files.replace_csv(out / "metrics.csv", self.rows, self.columns)
        self._seconds_before = sum(r.get("seconds", 0.0) for r in self.rows)
        _wait_for_a_later_name(out)
        tensorboard: Any = SummaryWriter(str(out), purge_step=start + 1 if start else None)
        self._events = tensorboard.file_writer  # an event a row; add_scalar, one a number, is 5x slower

    def _read_back(self, start: int) -> None:
        path = self.out / "metrics.csv"
        if path.is_file():
            rows, columns = files.read_csv(path)
            self.rows = [r for r in rows if r["round"] <= start]
            self.columns = columns or self.columns
        self.arrays.read(self.out / "arrays.npz", start)

    # ---- events ---------------------------------------------------------------------------------

    def on_round(self, t: int, log: RoundLog) -> None:
        """Write a row of what the round cost."""
        now = time.monotonic()
        costs = {name: getattr(log, name) for name in COSTS}
        if self._told is not None:  # what this run spent since then, in no round
            costs[BETWEEN] = max(now - self._told - log.seconds, 0.0)
        self._told = now
        self._write([{"round": t, "split": "train", **costs, **log.extra}])

    def on_evaluation(self, t: int, clients: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
        """Write a row a split and the table of clients; keep the method's arrays."""
        rows = {s: summarise(clients, s, self._measured) for s in SPLITS if f"{s}_num" in clients}
        if "test" in rows:
            rows["test"] |= on_training_data(clients) | self._truth_columns(arrays)
        known = {s: row for s, row in rows.items() if any(v == v for v in row.values())}  # not all nan
        self._write([{"round": t, "split": s, **row} for s, row in known.items()])
        table, columns = _client_table(clients, self.federation)
        files.replace_csv(self.out / "clients.csv", table, columns)
        bad = (clients["test_num"] > 0) & ~np.isfinite(clients["test_loss"])
        self._lost = np.asarray(clients["partition_id"])[bad].astype(int).tolist()
        self.arrays.add(t, arrays)

    @property
    def _measured(self) -> tuple[str, ...]:
        return measured(self.config.metrics, self.config.task or self.federation.task)

    def _chance(self) -> float | None:
        """The mean loss of guessing blindly; None where nobody knows it: of values, of a loss of a user's."""
        kind = task_of(self.config.task or self.federation.task)
        if kind.outputs == "values" or ":" in (self.config.task or ""):
            return None
        return math.log(self.federation.num_classes if kind.outputs == "softmax" else 2)

    def _truth_columns(self, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Columns about centers and memberships, for methods that have them."""
        found = membership_recovery.columns(arrays, self.federation.truth)
        if "center_metric" not in arrays:
            return found
        return of_centers(arrays["center_metric"], self.federation.task == "regression") | found

    def flush(self) -> None:
        """Bring everything to disk; called before a checkpoint is written."""
        self._events.flush()
        self.arrays.write(self.out / "arrays.npz", self.federation.truth)

    def release(self) -> None:
        """End the thread that writes events, of a run that failed too; again it is nothing."""
        self._events.close()

    def close(self, notes: Iterable[str] = ()) -> dict[str, Any]:
        """Write summary.json and the plots; returns the summary."""
        self.flush()
        self._events.close()
        result = {
            "status": "finished",
            **self._described,
            **summary.results(self.rows, self._lost, self._chance(), self._measured),
            **self.facts,
            "wall_seconds": time.monotonic() - self._began + self._seconds_before,
            "notes": [*self.federation.notes, *notes],
        }
        for doubt in result["warnings"]:
            log.warning("%s", doubt)
        if "new_clients" in result:
            cfg = self.config
            result["new_clients"] |= {"count": cfg.new_clients, "epochs": cfg.new_epochs, "lr": cfg.new_lr}
        try:
            arrays = self.arrays.last()
            from fedpers.results.plots import curves  # no run waits for matplotlib before its first round

            pictures = curves.draw_run(self.out, self.federation, arrays) if self.pictures else []
            result["plots"] = [str(p.relative_to(self.out)) for p in pictures]
        except Exception as error:  # whatever a drawing library trips over: no number is lost by it
            log.warning("the pictures could not be drawn", exc_info=error)
            result["notes"].append(f"the pictures could not be drawn: {type(error).__name__}: {error}")
        files.replace_json(self.out / "summary.json", result)  # last: a run that has one is finished
        return result

    def _write(self, rows: list[CsvRow]) -> None:
        rows = [{k: v for k, v in row.items() if v == v} for row in rows]  # nan: no value
        self.rows += rows
        new = dict.fromkeys(k for row in rows for k in row if k not in self.columns)
        if new:  # the header changes
            self.columns += new
            files.replace_csv(self.out / "metrics.csv", self.rows, self.columns)
        else:
            files.append_csv(self.out / "metrics.csv", rows, self.columns)
        for row in rows:
            self._events.add_summary(_scalars(row), row["round"])
        self.listener.on_rows(rows)


def _scalars(row: CsvRow) -> Summary:
    values = {f"{row['split']}/{k}": float(v) for k, v in row.items() if k not in ("round", "split")}
    return Summary(value=[Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()])


def _wait_for_a_later_name(out: Path) -> None:
    """Wait for the second after the newest file of events.

    TensorBoard reads such files in the order of their names, which begin with the second of their
    creation and go on with a process and a counter that are not ordered.
    """
    seconds = [int(p.name.split(".")[3]) for p in out.glob("events.out.tfevents.*")]
    wait = max(seconds) + 1 - time.time() if seconds else 0
    if wait > 1:
        log.warning("The clock is %.0f s behind %s's newest file of events: TensorBoard will show "
                    "the rounds out of order; metrics.csv has them in order.", wait - 1, out)  # fmt: skip
    elif wait > 0:
        time.sleep(wait)


def _client_table(
    clients: Mapping[str, np.ndarray], federation: Federation
) -> tuple[list[CsvRow], list[str]]:
    """(rows, columns) of clients.csv: the test split's columns without a prefix, the others, then names."""
    ids = np.asarray(clients["partition_id"]).astype(int)
    table = {
        "partition_id": ids,
        "num_train": np.asarray(federation.num_train)[ids],
        "num_test": clients["test_num"].astype(int),
        "loss": clients["test_loss"],
        "accuracy": clients["test_accuracy"],
    }
    for name, values in clients.items():
        short = name.removeprefix("test_")
        if name not in ("partition_id", "test_num") and short not in table:
            table[short] = values.astype(int) if name.endswith("_num") else values
    if federation.clients:
        table["name"] = np.asarray(federation.clients)[ids]
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    return rows, list(table)
