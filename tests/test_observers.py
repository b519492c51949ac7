"""Observers of users: told of everything, by name or as objects, and unable to harm a run."""

import importlib.metadata
import json
import logging
import os
import struct
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedpers
from fedpers.app.observers import user_observers
from fedpers.app.run import execute
from fedpers.config import compose
from fedpers.core.errors import ConfigError

SMALL = ["method=fedavg", "data.num_clients=3", "model=logistic", "rounds=2", "checkpoint_every=1"]


class Noting(fedpers.Observer):
    """Notes the events and what came with them."""

    told: list = []  # noqa: RUF012  (of all objects: one is made by its name)

    def on_start(self, out, config):
        self.told.append(("start", out.name, config["method"]["name"]))

    def on_round(self, t, log):
        self.told.append(("round", t, log.gradient_evals > 0))

    def on_evaluation(self, t, clients, arrays):
        self.told.append(("evaluation", t, len(clients["partition_id"])))

    def on_rows(self, rows):
        self.told.extend(("row", r["round"], r["split"]) for r in rows)

    def after_round(self, t):
        self.told.append(("after", t))

    def on_end(self, summary):
        self.told.append(("end", summary["status"]))


class Failing(fedpers.Observer):
    """Fails in each round and at the end."""

    def on_round(self, t, log):
        raise ValueError(f"round {t}")

    def on_end(self, summary):
        raise OSError("no network")


class Demanding(fedpers.Observer):
    """Wants an argument."""

    def __init__(self, what):
        self.what = what


def in_round(t):
    rows = [("row", t, split) for split in ("train", "valid", "test")]
    return [rows[0], ("round", t, True), *rows[1:], ("evaluation", t, 3), ("after", t)]


def test_an_observer_is_told_of_everything_in_order(tmp_path):
    Noting.told.clear()
    execute(compose.load([*SMALL, f"observers=['{__name__}:Noting']"]), tmp_path / "run")
    first, last = ("start", "run", "fedavg"), ("end", "finished")
    assert Noting.told == [first, *in_round(1), *in_round(2), last]
    Noting.told.clear()  # goes on, with no observer named: it may change
    execute(compose.resumed(tmp_path / "run", ["rounds=3"]), tmp_path / "run")
    assert Noting.told == [first, *in_round(3), last]
    Noting.told.clear()
    execute(compose.resumed(tmp_path / "run", ["rounds=4", "observers=[]"]), tmp_path / "run")
    assert not Noting.told


def test_one_that_fails_is_logged_and_counted_and_changes_no_number(tmp_path, caplog):
    Noting.told.clear()
    fedpers.run(*words(), out=tmp_path / "plain")
    with caplog.at_level(logging.WARNING, logger="fedpers"):
        fedpers.run(*words(), out=tmp_path / "watched", observers=[Failing(), Noting()])
    assert Noting.told[-1] == ("end", "finished")
    plain, watched = (
        fedpers.load(tmp_path / n).frame().drop(columns=["seconds", "between_seconds"])
        for n in ("plain", "watched")
    )
    assert plain.equals(watched)
    summary = json.loads((tmp_path / "watched" / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["observer_failures"] == {"Failing": 3}
    assert len([r for r in caplog.records if "observer Failing failed" in r.message]) == 1
    assert "ValueError: round 1" in (tmp_path / "watched" / "fedpers.log").read_text()


def words():
    return ["fedavg", *SMALL[1:]]


def test_a_run_that_fails_tells_its_observers(tmp_path, monkeypatch):
    Noting.told.clear()
    monkeypatch.setattr("fedpers.app.run.Checkpointer.after_round", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fedpers.run(*words(), out=tmp_path / "run", observers=[Noting()])
    assert Noting.told[-1] == ("end", "failed")


def test_entry_points_have_names(monkeypatch):
    entry = EntryPoint("noting", f"{__name__}:Noting", "fedpers.observers")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    assert [type(o).__name__ for o in user_observers(["noting"]).observers] == ["Noting"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("wandbb", "observer 'wandbb' is unknown; did you mean 'wandb'"),
        ("no.such:Thing", r"'no.such:Thing': cannot import no.such:Thing \(ModuleNotFoundError"),
        (f"{__name__}:Nothing", "has no attribute 'Nothing'"),
        (f"{__name__}:Demanding", "cannot be made without arguments"),
        ("math:floor", "cannot be made without arguments"),
        ("fractions:Fraction", "Fraction is no fedpers.Observer"),
    ],
)
def test_a_mistake_is_one_message_and_leaves_no_folder(tmp_path, given, text):
    with pytest.raises(ConfigError, match=text):
        fedpers.run(*words(), out=tmp_path / "run", observers=[given])
    assert not (tmp_path / "run").exists()


def test_a_class_in_the_current_folder_is_found_by_the_command(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import fedpers\nclass Says(fedpers.Observer):\n"
        "    def on_end(self, summary):\n        print('heard', summary['status'])\n"
    )
    command = Path(sys.executable).with_name("fedpers")
    args = [str(command), "run", *SMALL, "observers=['mine:Says']", "out=run"]
    done = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "heard finished" in done.stdout


# ---- the two that we bring ----------------------------------------------------------------------


def test_wandb_offline_holds_the_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    for key, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    run = fedpers.run(*words(), out=tmp_path / "run", observers=["wandb"])
    assert "observer_failures" not in run.summaries[0]
    (log,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    until = time.monotonic() + 60  # W&B's own process writes the file
    while not (kept := records(log))["history"] and time.monotonic() < until:
        time.sleep(0.2)
    steps = kept["history"]
    final = run.frame().query("split == 'test' and round == 2").accuracy.item()
    assert float(steps[-1]["test/accuracy"]) == final
    assert [s["_step"] for s in steps] == ["1", "2"]
    assert float(kept["summary"]["final/accuracy"]) == final
    assert json.loads(kept["config"]["method"])["name"] == "fedavg"


def records(log: Path) -> dict:
    """History, summary and config of W&B's own file."""
    from wandb.proto import wandb_internal_pb2

    found = {"history": [], "summary": {}, "config": {}}
    for data in pieces(log.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            found["history"].append({name(i): i.value_json for i in record.history.item})
        found["summary"] |= {name(i): i.value_json for i in record.summary.update}
        updates = [*record.run.config.update, *record.config.update]
        found["config"] |= {name(i): i.value_json for i in updates}
    return found


def name(item) -> str:
    return item.key or "/".join(item.nested_key)


def pieces(content: bytes, block: int = 32768, head: int = 7) -> list[bytes]:
    """The records of a log in LevelDB's format: pieces with a head (checksum, length, kind), in blocks."""
    at, open_, done = head, b"", []  # a head of the file's own comes first
    while at + head <= len(content):
        if block - at % block < head:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        open_ += content[at + head : at + head + length]
        at += head + length
        if kind in (1, 4):  # whole, or the last piece
            done.append(open_)
            open_ = b""
    return done


def test_mlflow_in_a_folder_holds_the_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = fedpers.run(*words(), out=tmp_path / "run", observers=["mlflow"])
    assert "observer_failures" not in run.summaries[0]
    client = mlflow.tracking.MlflowClient()
    experiment = client.get_experiment_by_name("fedpers")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED" and kept.data.params["method.name"] == "fedavg"
    history = client.get_metric_history(kept.info.run_id, "test/accuracy")
    table = run.frame().query("split == 'test'")
    assert [(m.step, m.value) for m in history] == list(zip(table["round"], table.accuracy, strict=True))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_one_that_is_not_installed_says_what_to_install(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.tracking", None)
    package = {"mlflow": "mlflow-skinny"}.get(name, name)  # the name at the index
    with pytest.raises(ConfigError, match=rf"observers=\[{name}\] needs: pip install {package}"):
        fedpers.run(*words(), out=tmp_path / "run", observers=[name])


class KnowsWhat(fedpers.Observer):
    def on_start(self, out, config):
        raise ConfigError("observers: set THIS")


def test_one_that_cannot_begin_and_says_what_to_do_ends_the_run_before_its_first_round(tmp_path):
    with pytest.raises(ConfigError, match="set THIS"):
        fedpers.run(*words(), out=tmp_path / "run", observers=[KnowsWhat()])
    assert rounds(tmp_path / "run") == 0


def rounds(folder) -> int:
    """Lines of metrics.csv below its head."""
    path = folder / "metrics.csv"
    return len(path.read_text().splitlines()[1:]) if path.exists() else 0


def test_wandb_without_a_key_is_one_message_before_the_run(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'fedpers[wandb]'")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB") and k != "NETRC"}
    command = [sys.executable, "-m", "fedpers", "run", *SMALL, "observers=[wandb]", "out=run"]
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, cwd=tmp_path, env=kept | {"HOME": str(tmp_path)}, **quiet)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedpers: error: observers=[wandb]: W&B has no key")
    assert all(word in line for word in ("wandb login", "WANDB_API_KEY", "WANDB_MODE=offline"))
    assert rounds(tmp_path / "run") == 0


class NoServer:
    """W&B with a key and without its server."""

    def setup(self):
        return SimpleNamespace(settings=SimpleNamespace(mode="online"))

    def login(self):
        return True

    def init(self, **_):
        raise OSError("timed out\nConsider ...")


def test_wandb_without_its_server_ends_the_run_before_its_first_round(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", NoServer())
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(ConfigError, match=r"cannot begin the run \(OSError: timed out\).*WANDB_MODE=offline"):
        fedpers.run(*words(), out=tmp_path / "run", observers=["wandb"])
    assert rounds(tmp_path / "run") == 0


def test_none_is_on_by_default():
    assert compose.load([]).observers == ()
