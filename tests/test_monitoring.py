"""Logs as JSON lines, and a run's and a device's numbers for Prometheus."""

import csv
import json
import logging
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fedpers
from fedpers import __version__
from fedpers.app.observers import user_observers
from fedpers.config import compose
from fedpers.core import logs
from fedpers.core.errors import ConfigError
from fedpers.deploy import device, frames, resident
from fedpers.deploy.device_grid import DeviceGrid
from fedpers.deploy.device_metrics import DeviceMetrics
from fedpers.results import recorder
from fedpers.results.prometheus import ADDRESS, COUNTS, FILE, PrometheusObserver
from tests.deployment.fake_link import Link, configs, on_devices, with_nan

SMALL = ["data.num_clients=3", "model=logistic", "rounds=2"]
HEADER = {"kind": "train", "t": 3, "e": 1}


def samples(text: str) -> dict[tuple[str, str], float]:
    """{(name, its split, state or outcome): value} of what Prometheus would read."""
    found = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            label = s.labels.get("split") or s.labels.get("state") or s.labels.get("outcome") or ""
            found[s.name, label] = s.value
    return found


# ---- logs ---------------------------------------------------------------------------------------


def test_json_lines_have_the_message_its_fields_and_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, "json")
    try:
        raise ValueError("no\nsuch thing")
    except ValueError:
        made = logging.LogRecord("fedpers", 40, "x.py", 1, "round %d", (7,), sys.exc_info())
    made.round = 7
    line = logs.formatter("%(message)s").format(made)
    said = json.loads(line)
    assert "\n" not in line and said["timestamp"].endswith("+00:00")
    assert [said[k] for k in ("level", "logger", "message", "round")] == ["ERROR", "fedpers", "round 7", 7]
    assert "ValueError: no\nsuch thing" in said["exc_info"]


def test_text_is_the_default_and_other_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(logs.VARIABLE, raising=False)
    made = logging.LogRecord("fedpers", 30, "x.py", 1, "it rains", (), None)
    assert logs.formatter("%(levelname)s %(message)s").format(made) == "WARNING it rains"
    monkeypatch.setenv(logs.VARIABLE, "xml")
    with pytest.raises(ConfigError, match="FEDPERS_LOG=xml: choose one of text, json"):
        logs.formatter()


def test_a_command_prints_records_alone(tmp_path: Path) -> None:
    """Also what people read otherwise: rounds, notes, the result."""
    import os

    words = [sys.executable, "-m", "fedpers", "run", "method=fedavg", *SMALL, "out=run"]
    environment = os.environ | {logs.VARIABLE: "json"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    kept = [json.loads(line) for line in (tmp_path / "run" / "fedpers.log").read_text().splitlines()]
    for lines in (printed, kept):
        assert [line["round"] for line in lines if "accuracy" in line] == [1, 2]
    assert any("fedavg on digits" in line["message"] for line in printed)


# ---- a run --------------------------------------------------------------------------------------


class Scraper(fedpers.Observer):
    """Reads what is served while the run goes on."""

    def __init__(self, watched: PrometheusObserver) -> None:
        self.watched, self.seen = watched, []

    def after_round(self, t: int) -> None:
        port = self.watched._server.server_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
            self.seen.append(samples(reply.read().decode()))


def test_a_run_writes_and_serves_what_metrics_csv_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS, "127.0.0.1:0")
    monkeypatch.setenv(FILE, str(tmp_path / "node" / "fedpers.prom"))
    (tmp_path / "node").mkdir()
    watched = PrometheusObserver()
    scraper = Scraper(watched)
    run = fedpers.run("fedavg", *SMALL, out=tmp_path / "run", observers=[watched, scraper])
    assert "observer_failures" not in run.summaries[0]
    found = samples((tmp_path / "node" / "fedpers.prom").read_text())
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    train, test = ([r for r in rows if r["split"] == split] for split in ("train", "test"))
    for name in ("bytes_up", "bytes_down", "gradient_evals", "failures"):
        assert found[f"fedpers_{name}_total", ""] == sum(float(r[name]) for r in train)
    assert found["fedpers_accuracy", "test"] == float(test[-1]["accuracy"])
    assert found["fedpers_round", ""] == found["fedpers_rounds", ""] == 2
    assert found["fedpers_round_seconds_count", ""] == 2
    states = {s: found["fedpers_run_state", s] for s in ("running", "finished", "failed")}
    assert states == {"running": 0, "finished": 1, "failed": 0}
    assert [s["fedpers_round", ""] for s in scraper.seen] == [1, 2]
    assert scraper.seen[0]["fedpers_run_state", "running"] == 1 and watched._server is None


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    watched = PrometheusObserver()
    config = {"method": {"name": "fedavg"}, "data": {"name": "digits"}, "seed": 0, "rounds": 2}
    watched.on_start(tmp_path, config)
    watched.on_end({"status": "failed"})
    found = samples((tmp_path / "metrics.prom").read_text())
    assert found["fedpers_run_state", "failed"] == 1 and found["fedpers_run_state", "running"] == 0


def test_all_counts_of_a_round_are_summed() -> None:
    counted = DeviceGrid.take_counts(SimpleNamespace(counts=Counter()))  # type: ignore[arg-type]
    assert set(COUNTS) == {*recorder.COSTS, *counted} - {"seconds"}


@pytest.mark.parametrize("text", ["9464", "localhost:", "localhost:http"])
def test_an_address_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, text)
    with pytest.raises(ConfigError, match=f"{ADDRESS}={text}: expected HOST:PORT"):
        user_observers(["prometheus"])


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "pythonjsonlogger.json", None)
    monkeypatch.setenv(logs.VARIABLE, "json")
    remedy = "needs: pip install prometheus-client python-json-logger"
    with pytest.raises(ConfigError, match=rf"observers=\[prometheus\] {remedy}"):
        user_observers(["prometheus"])
    with pytest.raises(ConfigError, match=f"FEDPERS_LOG=json {remedy}"):
        logs.formatter()
    with pytest.raises(ConfigError, match=f"FEDPERS_PROMETHEUS_FILE {remedy}"):
        DeviceMetrics(str(tmp_path / "x"))


def test_it_is_off_by_default() -> None:
    assert compose.load([]).observers == ()


# ---- devices ------------------------------------------------------------------------------------


def test_a_run_on_devices_is_logged_counted_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fedpers.log has a record an exchange, with numbers; a refused reply is among the counts."""
    monkeypatch.setenv(logs.VARIABLE, "json")
    monkeypatch.setattr("fedpers.deploy.device_grid.LOOK_S", 0.01)
    _, cfg = configs("fedavg", 2, "observers=[prometheus]")
    spoilt: list[int] = []

    def spoil_once(who: str, header: dict[str, Any], reply: Any) -> Any:
        if header["kind"] == "train" and not spoilt:
            spoilt.append(1)
            return with_nan(reply)
        return reply

    out = on_devices(Link(tmp_path, cfg, spoil_once), cfg, tmp_path / "out")
    lines = [json.loads(line) for line in (out / "fedpers.log").read_text().splitlines()]
    told = [(line["round"], line["asked"], line["answered"]) for line in lines if line.get("kind") == "train"]
    assert told == [(1, 3, 3), (2, 3, 3)]
    found = samples((out / "metrics.prom").read_text())
    assert found["fedpers_refused_total", ""] == found["fedpers_retried_total", ""] == 1
    assert found["fedpers_run_state", "finished"] == 1
    assert len(list(out.glob("events.out.*"))) == 1  # TensorBoard's


def served(monkeypatch: pytest.MonkeyPatch, metrics: DeviceMetrics | None, fails: bool) -> dict[str, Any]:
    """The answer of a device to one message."""

    def answer(request: Any, arrays: Any) -> Any:
        if fails:
            raise RuntimeError("no disk")
        return {"work": 1}, []

    monkeypatch.setattr(resident, "answer", answer)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(ours, {"header": HEADER}, [])
        resident._serve(theirs, metrics)
        return frames.receive(ours, frames.read_array)[0]


def test_a_device_counts_its_orders_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fedpers.prom"
    assert DeviceMetrics.chosen() is None
    monkeypatch.setenv(FILE, str(file))
    metrics = DeviceMetrics.chosen()
    assert served(monkeypatch, metrics, False) == {"work": 1}
    assert "no disk" in served(monkeypatch, metrics, True)["error"]
    found = samples(file.read_text())
    assert [found["fedpers_device_orders_total", o] for o in ("answered", "failed")] == [1, 1]
    assert found["fedpers_device_round", ""] == 3 and found["process_resident_memory_bytes", ""] > 0
    assert found["fedpers_device_order_seconds_count", ""] == 2


def test_metrics_that_cannot_be_written_cost_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = DeviceMetrics(str(tmp_path / "absent" / "fedpers.prom"))
    with caplog.at_level(logging.INFO, logger="fedpers"):
        assert served(monkeypatch, metrics, False) == {"work": 1}
    assert "round 3, train 1: answered" in caplog.text and "metrics could not be written" in caplog.text


def test_a_process_that_ends_at_once_is_told_apart_from_one_that_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(logs.VARIABLE, "xml")  # it says so in the device's log, and ends
    with pytest.raises(device.Silent, match=r"its process ended at once \(status 1\)"):
        device.ask(tmp_path, {"header": HEADER}, [], 300.0)


def test_a_process_that_reads_nothing_holds_nobody_up(tmp_path: Path) -> None:
    """The order is larger than what a socket takes unread."""
    path = tmp_path / f"resident-{__version__}.sock"
    code = (
        "import socket,sys,time\ns=socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\n"
        "print('there',flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as hung:
        assert hung.stdout is not None and hung.stdout.readline()
        with pytest.raises(device.Silent, match="no answer within 1 s; its process was ended"):
            device.ask(tmp_path, {"header": HEADER}, [bytes(2**24)], 1.0)
        assert hung.wait(timeout=120) == -9
