"""The run directory: what is in it, after a whole run, after a kill, after resuming."""

import dataclasses
import importlib.metadata
import json
import math
import re
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.event_file_writer import AtomicCounter

from fedpers.config import compose
from fedpers.config.registry import METHODS
from fedpers.core.data import ClientData, Federation
from fedpers.flower.strategy import RoundLog
from fedpers.results import files, summary
from fedpers.results import recorder as recorder_module
from fedpers.results.plots import curves as plots
from fedpers.results.plots import heatmaps
from fedpers.results.plots import style as figures
from fedpers.results.recorder import COLUMNS, Recorder
from fedpers.results.summary import note_failure, read_summary

CONFIG = compose.load(["method=fedavg", "rounds=4"])
PNG = b"\x89PNG"


def nobody(k: int) -> ClientData:
    raise AssertionError("the recorder reads no data")


FEDERATION = Federation(
    "toy",
    2,
    (3,),
    2,
    "classification",
    nobody,
    np.array([4, 6]),
    np.array([1, 3]),
    np.array([[4, 0], [1, 5]]),
    {"group": np.array([0, 1])},
    ("a note",),
)


def clients(accuracy, valid=None, loss=1.0):
    """Two clients with 1 and 3 test samples."""
    valid = accuracy if valid is None else valid
    return {
        "partition_id": np.array([0, 1]),
        "valid_num": np.array([1, 1]),
        "valid_loss": np.array([loss, loss]),
        "valid_accuracy": np.array([valid, valid]),
        "test_num": np.array([1, 3]),
        "test_loss": np.array([loss, 2 * loss]),
        "test_accuracy": np.array([accuracy, 0.0]),
    }


def play(recorder, rounds):
    """Tell the recorder of rounds; accuracy is t/10, best on validation at round 2."""
    for t in rounds:
        recorder.on_round(t, RoundLog(0.5, 10 * t, 20, 30, 0, extra={"step": t / 2}))
        recorder.on_evaluation(
            t,
            clients(t / 10, valid=1 - abs(t - 2) / 10),
            {"membership": np.full((2, 2), t), "big": np.zeros((200, 200))},
        )


@pytest.fixture(scope="module")
def out(tmp_path_factory, drawing):
    """The directory of a run of four rounds, with its pictures; tests only read it."""
    folder = tmp_path_factory.mktemp("run")
    recorder = Recorder(folder, CONFIG, FEDERATION)
    play(recorder, range(1, 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw_run", drawing)
        recorder.close(["said at the end"])
    return folder


def test_metrics_csv(out):
    rows, columns = files.read_csv(out / "metrics.csv")
    assert columns == [*COLUMNS, "step", "recovery"]
    assert [(r["round"], r["split"]) for r in rows] == [
        (t, s) for t in range(1, 5) for s in ("train", "valid", "test")
    ]
    assert "between_seconds" not in rows[0]  # before the first round nothing is between rounds
    assert rows[3].pop("between_seconds") >= 0
    assert rows[3] == {
        "round": 2,
        "split": "train",
        "seconds": 0.5,
        "bytes_up": 20,
        "bytes_down": 20,
        "gradient_evals": 30,
        "body_forwards": 0,
        "head_steps": 0,
        "failures": 0,
        "step": 1.0,
    }
    assert rows[5] == {
        "round": 2,
        "split": "test",
        "loss": 1.75,
        "accuracy": 0.05,
        "accuracy_mean": 0.1,
        "worst_decile": 0.0,
        "recovery": 1.5,
    }  # ½ (|1 - 2| + |0 - 2|) for both clients


def test_what_the_user_waits_for_is_in_one_of_two_columns(tmp_path, monkeypatch):
    """Rounds of 2 s end at 10, 15 and 17.5 s: 3 s and half a second went into something else."""
    now = iter([0.0, 10.0, 15.0, 17.5, 20.0])
    monkeypatch.setattr(recorder_module, "time", SimpleNamespace(monotonic=lambda: next(now)))
    recorder = Recorder(tmp_path, CONFIG, FEDERATION)
    for t in (1, 2, 3):
        recorder.on_round(t, RoundLog(seconds=2.0))
    summary = recorder.close()
    rows, _ = files.read_csv(tmp_path / "metrics.csv")
    assert [r.get("between_seconds") for r in rows] == [None, 3.0, 0.5]
    assert (summary["round_seconds"], summary["between_seconds"], summary["wall_seconds"]) == (6.0, 3.5, 20.0)


def test_clients_csv(out):
    rows, columns = files.read_csv(out / "clients.csv")
    assert columns[:5] == ["partition_id", "num_train", "num_test", "loss", "accuracy"]
    assert [tuple(r.values())[:5] for r in rows] == [(0, 4, 1, 1.0, 0.4), (1, 6, 3, 2.0, 0.0)]


def test_clients_csv_has_their_names(tmp_path):
    """Last, as text whatever they look like; a comma, quotation marks and a line break are part of a name."""
    names = ("007", 'A, "B"\nC')
    recorder = Recorder(tmp_path, CONFIG, dataclasses.replace(FEDERATION, clients=names))
    play(recorder, [1])
    recorder.close()
    rows, columns = files.read_csv(tmp_path / "clients.csv")
    assert columns[-1] == "name" and tuple(r["name"] for r in rows) == names
    assert pd.read_csv(tmp_path / "clients.csv", dtype={"name": str})["name"].tolist() == list(names)


def test_arrays_npz_has_the_history_and_the_truth(out):
    with np.load(out / "arrays.npz") as arrays:
        assert arrays["membership"].tolist() == [[[t, t], [t, t]] for t in range(1, 5)]
        assert arrays["membership_round"].tolist() == [1, 2, 3, 4]
        assert arrays["big"].shape == (1, 200, 200)  # of a large one only the last
        assert arrays["big_round"].tolist() == [4]
        assert arrays["truth_group"].tolist() == [0, 1]


def test_a_nightly_build_stands_for_its_package(monkeypatch):
    def version(name):
        if name != "flwr-nightly":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.43.0.dev20261026"

    monkeypatch.setattr(summary.importlib.metadata, "version", version)
    assert summary.versions()["flwr"] == "1.43.0.dev20261026"


def test_summary_json(out):
    found = json.loads((out / "summary.json").read_text())
    assert (found["status"], found["method"], found["data"]) == ("finished", "fedavg", "digits")
    assert (found["seed"], found["rounds"], found["rounds_done"]) == (0, 4, 4)
    assert found["engine"] == "inprocess"
    assert found["final"] == {
        "round": 4,
        "loss": 1.75,
        "accuracy": 0.1,
        "accuracy_mean": 0.2,
        "worst_decile": 0.0,
    }
    assert (found["best"]["round"], found["best"]["accuracy"]) == (2, 0.05)
    assert (found["best"]["valid_accuracy"], found["best"]["chosen_by"]) == (1, "valid accuracy")
    assert found["bytes"] == {"up": 100, "down": 80}
    assert (found["gradient_evals"], found["round_seconds"]) == (120, 2.0)
    assert found["notes"] == ["a note", "said at the end"]
    assert {"fedpers", "python", "torch", "flwr"} <= found["versions"].keys()
    assert sorted(found["plots"]) == [
        "plots/big.png",
        "plots/learning_curves.png",
        "plots/membership.png",
        "plots/memberships.png",
        "plots/partition.png",
        "plots/recovery.png",
    ]
    assert all((out / p).read_bytes()[:4] == PNG for p in found["plots"])


def test_tensorboard_events(out):
    events = EventAccumulator(str(out)).Reload()
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("test/accuracy")] == [
        (1, 0.025),
        (2, 0.05),
        (3, 0.075),
        (4, 0.1),
    ]
    assert events.Scalars("train/bytes_up")[0].value == 10


# ---- killed and resumed -------------------------------------------------------------------------


def test_rows_are_on_disk_at_once(tmp_path):
    play(Recorder(tmp_path, CONFIG, FEDERATION), [1])
    assert len(files.read_csv(tmp_path / "metrics.csv")[0]) == 3
    assert not (tmp_path / "summary.json").exists()


def test_resumed_is_as_if_never_stopped(tmp_path, out):
    folder = tmp_path / "resumed"
    killed = Recorder(folder, CONFIG, FEDERATION)
    play(killed, [1, 2])
    killed.flush()
    play(killed, [3])  # after the checkpoint
    with (folder / "metrics.csv").open("a") as file:
        file.write("4,train,0.")  # cut off
    again = Recorder(folder, CONFIG, FEDERATION, start=2)
    play(again, [3, 4])
    again.close()
    assert (folder / "clients.csv").read_text() == (out / "clients.csv").read_text()
    (resumed, columns), (whole, others) = (files.read_csv(f / "metrics.csv") for f in (folder, out))
    assert columns == others
    for row in (*resumed, *whole):
        row.pop("between_seconds", None)  # a time
    assert resumed == whole
    with np.load(folder / "arrays.npz") as a, np.load(out / "arrays.npz") as b:
        assert sorted(a.files) == sorted(b.files)
        assert all(np.array_equal(a[k], b[k]) for k in a.files)
    events = EventAccumulator(str(folder)).Reload()
    assert [e.step for e in events.Scalars("test/accuracy")] == [1, 2, 3, 4]


def test_events_resumed_within_the_second_are_read_in_order(tmp_path, monkeypatch):
    """99 sorts after 100: TensorBoard would read what was resumed first."""
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer._global_uid", AtomicCounter(99))
    killed = Recorder(tmp_path, CONFIG, FEDERATION)
    play(killed, [1, 2, 3])
    killed.flush()
    again = Recorder(tmp_path, CONFIG, FEDERATION, start=2)
    play(again, [3, 4])
    again.close()
    assert {p.suffix for p in tmp_path.glob("events.out.*")} == {".99", ".100"}
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [e.step for e in events.Scalars("test/accuracy")] == [1, 2, 3, 4]


def test_a_clock_set_back_is_told(tmp_path, caplog):
    (tmp_path / f"events.out.tfevents.{int(time.time()) + 3600}.host.1.0").touch()
    Recorder(tmp_path, CONFIG, FEDERATION, start=1)
    assert re.search(r"clock is 3(599|600) s behind .* out of order", caplog.text)


def test_a_finished_run_that_goes_on_is_unfinished_again(tmp_path):
    (tmp_path / "summary.json").write_text('{"status": "finished"}')
    Recorder(tmp_path, CONFIG, FEDERATION, start=4)
    assert read_summary(tmp_path) == {}


# ---- corners ------------------------------------------------------------------------------------


def test_a_column_that_comes_later(tmp_path):
    recorder = Recorder(tmp_path, CONFIG, FEDERATION)
    recorder.on_round(1, RoundLog())
    recorder.on_round(2, RoundLog(extra={"late": 3.0}))
    rows, columns = files.read_csv(tmp_path / "metrics.csv")
    assert columns[-1] == "late"
    assert ["late" in r for r in rows] == [False, True]


def test_no_evaluation_no_validation_and_nan(tmp_path):
    recorder = Recorder(tmp_path, CONFIG, FEDERATION)
    recorder.on_round(1, RoundLog())
    found = recorder.close()
    assert (found["final"], found["best"]) == ({}, {})
    table = clients(0.5, valid=math.nan, loss=math.inf)
    table["valid_num"] = np.zeros(2)
    recorder = Recorder(tmp_path / "b", CONFIG, FEDERATION)
    recorder.on_evaluation(1, table, {})
    recorder.close()
    rows, _ = files.read_csv(tmp_path / "b" / "metrics.csv")
    assert [r["split"] for r in rows] == ["test"]  # no row for samples that nobody has
    stored = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert stored["best"] == {}
    assert stored["final"]["loss"] is None  # JSON has no infinity


def test_clients_whose_model_is_no_number_are_named(tmp_path, caplog):
    table = clients(0.5)
    table["test_loss"] = np.array([1.0, math.nan])
    recorder = Recorder(tmp_path, CONFIG, FEDERATION)
    recorder.on_evaluation(1, table, {})
    found = recorder.close()
    assert found["diverged"] and "training diverged (clients 1): test loss nan" in found["warnings"][0]
    assert found["warnings"][0] in caplog.text
    fine = Recorder(tmp_path / "b", CONFIG, FEDERATION)
    fine.on_evaluation(1, clients(0.5), {})
    assert (fine.close()["diverged"], read_summary(tmp_path / "b")["warnings"]) == (False, [])


def test_a_loss_far_above_guessing_is_divergence_from_the_first_round_on():
    """Of one evaluation: cross entropy of a blind guess among 10 classes is log 10."""
    rows = [{"round": 1, "split": "test", "loss": 1e6, "accuracy": 0.3}]
    assert summary.warnings(rows, (), math.log(10)) and not summary.warnings(rows)
    assert not summary.warnings([rows[0] | {"loss": 20.0}], (), math.log(10))


def test_best_prefers_accuracy_then_loss_then_the_earlier_round():
    def rows(*valid):
        for t, numbers in enumerate(valid, 1):
            yield {"round": t, "split": "valid", **numbers}
            yield {"round": t, "split": "test", "accuracy": t / 10, "loss": 0.0}

    def chosen(*valid):
        return summary.best(list(rows(*valid)))["round"]

    assert chosen({"accuracy": 0.1, "loss": 0}, {"accuracy": 0.2, "loss": 9}) == 2
    assert chosen({"accuracy": 0.2, "loss": 2}, {"accuracy": 0.2, "loss": 1}) == 2
    assert chosen({"accuracy": 0.2, "loss": 1}, {"accuracy": 0.2, "loss": 1}) == 1
    assert chosen({"loss": 3}, {"loss": 2}, {"loss": 4}) == 2
    assert summary.best([{"round": 1, "split": "test", "accuracy": 1.0}]) == {}


def test_a_failed_run_and_a_damaged_summary(tmp_path):
    note_failure(tmp_path, "no data")
    assert read_summary(tmp_path) == {"status": "failed", "error": "no data"}
    (tmp_path / "summary.json").write_text("{")
    assert read_summary(tmp_path)["error"].startswith("summary.json is damaged")


def test_the_commit_is_the_one_that_a_run_began_with(tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "git_commit", lambda: "before")
    recorder = Recorder(tmp_path, CONFIG, FEDERATION)
    monkeypatch.setattr(summary, "git_commit", lambda: "after")  # somebody pulled while it ran
    recorder.pictures = False
    assert recorder.close()["git_commit"] == "before" == read_summary(tmp_path)["git_commit"]


def test_git_commit_outside_a_repository(tmp_path, monkeypatch):
    assert summary._git(tmp_path, "rev-parse", "HEAD") is None
    monkeypatch.setenv("PATH", str(tmp_path))  # no git at all
    assert summary._git(tmp_path, "rev-parse", "HEAD") is None


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 5), (200, 200), (90, 40)])
def test_heat_maps_of_every_shape(tmp_path, shape):
    values = np.linspace(-1, 1, math.prod(shape)).reshape(shape)
    assert heatmaps.heat_map(values, tmp_path / "a.png", "a").read_bytes()[:4] == PNG


@pytest.mark.parametrize(("n", "classes"), [(3, 2), (100, 10), (5, 0)])
def test_partition_pictures(tmp_path, n, classes):
    counts = np.ones((n, classes), int)
    federation = Federation(
        "toy", n, (3,), classes, "classification", nobody, np.ones(n), np.ones(n), counts, {}
    )
    assert heatmaps.partition(federation, tmp_path / "a.png").read_bytes()[:4] == PNG


def test_clients_are_ordered_by_true_group_then_by_class():
    counts = np.array([[0, 5], [5, 0], [0, 5], [5, 0]])
    truth = {"group": np.array([1, 1, 0, 0])}
    federation = Federation(
        "toy", 4, (3,), 2, "classification", nobody, np.ones(4), np.ones(4), counts, truth
    )
    assert heatmaps.client_order(federation).tolist() == [3, 2, 1, 0]


def test_series_leaves_out_what_is_missing():
    rows = [
        {"round": 1, "split": "test", "loss": 2.0},
        {"round": 2, "split": "test"},
        {"round": 3, "split": "valid", "loss": 1.0},
    ]
    assert plots.series(rows, "test", "loss") == ([1], [2.0])


def test_colours_are_kept_and_never_shared_in_a_picture():
    known = list(METHODS)
    twins = known[0], known[len(figures.PALETTE)]
    assert figures.colour(twins[0]) == figures.colour(twins[1])  # each alone has its own
    many = [*known[: len(figures.PALETTE) - 1], twins[1]]
    assert len({figures.colour(n, many) for n in many}) == len(many)
    assert all(figures.colour(n, many) == figures.colour(n) for n in many[:-1])
    assert figures.colour("nobody") in figures.PALETTE


def test_a_picture_that_fails_loses_no_number(tmp_path, monkeypatch):
    """And summary.json, which says that a run is finished, is not there before the pictures are."""
    there = []

    def fail(folder, *_):
        there.append((folder / "summary.json").exists())
        raise ValueError("no font")

    monkeypatch.setattr("fedpers.results.plots.curves.draw_run", fail)
    recorder = Recorder(tmp_path, CONFIG, FEDERATION)
    play(recorder, range(1, 3))
    recorder.close()
    stored = json.loads((tmp_path / "summary.json").read_text())
    assert there == [False]
    assert (stored["status"], stored["final"]["accuracy"]) == ("finished", 0.05)  # 0.2 on 1 of 4 samples
    assert "the pictures could not be drawn: ValueError: no font" in stored["notes"]
