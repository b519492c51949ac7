"""The run directory's writer: metrics.csv, clients.csv, arrays.npz, summary.json, plots, events.

metrics.csv has up to four rows a round. `split` is "train" for what the round cost (seconds, bytes,
gradient evaluations, failures) and the method's own columns, "valid", "test" and "new" (clients that
never trained) for an evaluation after it. It is appended to and flushed at each event; all other
files are written beside and renamed, so that a run may be killed at any moment.
"""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from fedpers.config.run_config import RunConfig
from fedpers.core.data import Federation
from fedpers.core.metrics import of_centers, on_training_data, summarise
from fedpers.flower.strategy import Observer, RoundLog
from fedpers.results import files, membership_recovery, summary
from fedpers.results.files import Row
from fedpers.results.plots import curves

COLUMNS = (
    "round",
    "split",
    "seconds",
    "loss",
    "accuracy",
    "accuracy_mean",
    "worst_decile",
    "bytes_up",
    "bytes_down",
    "gradient_evals",
    "failures",
)
SPLITS = ("valid", "test", "new")
LARGE = 2**18  # bytes; of a larger array only the last evaluation's is kept


class Recorder(Observer):
    """Writes everything that a run leaves behind.

    `start` is the number of rounds that a resumed run has behind it; what the run directory holds
    of later rounds is dropped, for they will be run again.
    """

    def __init__(self, out: Path, config: RunConfig, federation: Federation, start: int = 0) -> None:
        self.out, self.config, self.federation = out, config, federation
        self.rows: list[Row] = []
        self.facts: dict[str, Any] = {}  # for summary.json as they are
        self.columns = list(COLUMNS)
        self.arrays: dict[int, dict[str, np.ndarray]] = {}  # round -> what explains it
        self._began = time.monotonic()
        out.mkdir(parents=True, exist_ok=True)
        (out / "summary.json").unlink(missing_ok=True)  # it says that a run is finished
        if start:
            self._read_back(start)
        files.replace_csv(out / "metrics.csv", self.rows, self.columns)
        self._seconds_before = sum(r.get("seconds", 0.0) for r in self.rows)
        self._events = EventFileWriter(str(out))
        if start:
            self._events.add_event(_restart(start + 1))

    # ---- events ---------------------------------------------------------------------------------

    def on_round(self, t: int, log: RoundLog) -> None:
        """A row of what the round cost."""
        row = {
            "round": t,
            "split": "train",
            "seconds": log.seconds,
            "bytes_up": log.bytes_up,
            "bytes_down": log.bytes_down,
            "gradient_evals": log.gradient_evals,
            "failures": log.failures,
            **log.extra,
        }
        self._write([row])

    def on_evaluation(self, t: int, clients: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
        """A row a split, the table of clients, and what the method explains itself with."""
        more = {
            "test": {
                **on_training_data(clients),
                **self._center_columns(arrays),
                **membership_recovery.columns(arrays, self.federation.truth),
            }
        }
        rows = {s: {**summarise(clients, s), **more.get(s, {})} for s in SPLITS if f"{s}_num" in clients}
        self._write(
            [{"round": t, "split": s, **row} for s, row in rows.items() if any(v == v for v in row.values())]
        )  # nobody may have such samples
        table, columns = _client_table(clients, self.federation)
        files.replace_csv(self.out / "clients.csv", table, columns)
        self._keep(t, arrays)

    def flush(self) -> None:
        """Bring everything to disk; called before a checkpoint is written."""
        self._events.flush()
        if stacked := _stack(self.arrays, self.federation.truth):
            files.replace_arrays(self.out / "arrays.npz", stacked)

    def close(self, notes: Iterable[str] = ()) -> dict[str, Any]:
        """Write summary.json and the plots; returns the summary."""
        self.flush()
        self._events.close()
        wall = time.monotonic() - self._began + self._seconds_before
        result = {
            "status": "finished",
            **summary.describe(self.config),
            **summary.results(self.rows),
            **self.facts,
            "wall_seconds": wall,
            "notes": [*self.federation.notes, *notes],
        }
        files.replace_json(self.out / "summary.json", result)  # even if a picture fails
        pictures = curves.draw_run(self.out, self.federation, self._last_arrays())
        result["plots"] = [str(p.relative_to(self.out)) for p in pictures]
        files.replace_json(self.out / "summary.json", result)
        return result

    # ---- rows -----------------------------------------------------------------------------------

    def _write(self, rows: list[Row]) -> None:
        rows = [{k: v for k, v in row.items() if v == v} for row in rows]  # nan: no value
        self.rows += rows
        new = dict.fromkeys(k for row in rows for k in row if k not in self.columns)
        if new:  # a column that no row had before: a new header
            self.columns += new
            files.replace_csv(self.out / "metrics.csv", self.rows, self.columns)
        else:
            files.append_csv(self.out / "metrics.csv", rows, self.columns)
        for row in rows:
            self._events.add_event(_scalars(row))

    def _read_back(self, start: int) -> None:
        path = self.out / "metrics.csv"
        if path.is_file():
            rows, columns = files.read_csv(path)
            self.rows = [r for r in rows if r["round"] <= start]
            self.columns = columns or self.columns
        self.arrays = _unstack(self.out / "arrays.npz", start)

    def _keep(self, t: int, arrays: Mapping[str, np.ndarray]) -> None:
        large = {k for k, v in arrays.items() if v.nbytes > LARGE}
        for earlier in self.arrays.values():
            for name in large & earlier.keys():
                del earlier[name]
        self.arrays[t] = {k: np.array(v) for k, v in arrays.items()}

    def _center_columns(self, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
        table = arrays.get("center_metric")
        return {} if table is None else of_centers(table, self.federation.task == "regression")

    def _last_arrays(self) -> dict[str, np.ndarray]:
        return self.arrays[max(self.arrays)] if self.arrays else {}


def note_failure(out: Path, text: str) -> None:
    """Leave a summary.json that says why the run has no result."""
    files.replace_json(out / "summary.json", {"status": "failed", "error": text})


def read_summary(out: Path) -> dict[str, Any]:
    """The summary of a run; empty while the run goes on or if it was killed."""
    path = out / "summary.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return {"status": "failed", "error": f"summary.json is damaged: {error}"}
    return found if isinstance(found, dict) else {"status": "failed", "error": "no summary in it"}


def _client_table(clients: Mapping[str, np.ndarray], federation: Federation) -> tuple[list[Row], list[str]]:
    """(rows, columns) of clients.csv: the test split's numbers without a prefix, then the rest."""
    ids = np.asarray(clients["partition_id"]).astype(int)
    table: dict[str, np.ndarray] = {
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
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    return rows, list(table)


# ---- arrays.npz: NAME [evaluations, ...], NAME_round [evaluations], truth_* as it is -----------


def _stack(
    arrays: Mapping[int, Mapping[str, np.ndarray]], truth: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    stacked = {f"truth_{k}": np.asarray(v) for k, v in truth.items()}
    for name in dict.fromkeys(k for found in arrays.values() for k in found):
        have = {t: found[name] for t, found in arrays.items() if name in found}
        shape = have[max(have)].shape
        have = {t: v for t, v in have.items() if v.shape == shape}
        stacked[name] = np.stack(list(have.values()))
        stacked[f"{name}_round"] = np.array(list(have))
    return stacked


def _unstack(path: Path, start: int) -> dict[int, dict[str, np.ndarray]]:
    arrays: dict[int, dict[str, np.ndarray]] = {}
    if not path.is_file():
        return arrays
    with np.load(path) as stored:
        for name in stored.files:
            if f"{name}_round" not in stored.files:
                continue
            for t, value in zip(stored[f"{name}_round"].tolist(), stored[name], strict=True):
                if t <= start:
                    arrays.setdefault(t, {})[name] = value
    return dict(sorted(arrays.items()))


# ---- TensorBoard ---------------------------------------------------------------------------------


def _scalars(row: Row) -> Event:
    values = [
        Summary.Value(tag=f"{row['split']}/{name}", simple_value=float(value))
        for name, value in row.items()
        if name not in ("round", "split")
    ]
    return Event(wall_time=time.time(), step=row["round"], summary=Summary(value=values))


def _restart(step: int) -> Event:
    """Makes TensorBoard forget what was written of `step` and later."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    return Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START))
