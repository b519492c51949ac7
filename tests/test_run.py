"""Whole runs: the run directory, resuming after a kill at any moment, Ray beside in-process."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from fedpers.app.run import Checkpointer, execute
from fedpers.app.server_app import on_grid
from fedpers.checks.contract import same
from fedpers.config import compose
from fedpers.core.errors import CheckpointError, ConfigError, FedpersError
from fedpers.engines.memory.row_store import RowStore
from fedpers.results import checkpoint

SMALL = ["data.num_clients=6", "rounds=5", "checkpoint_every=2", "clients_per_round=3", "seed=4"]


def config(*overrides):
    return compose.load([*SMALL, *overrides])


def final(out):
    """(round, state, memories) of a run's last checkpoint."""
    store = RowStore(out / "memory")
    t, state = checkpoint.load(out, store)
    return t, state, store.states


def assert_same_end(a, b):
    (t_a, state_a, memories_a), (t_b, state_b, memories_b) = final(a), final(b)
    assert t_a == t_b
    assert same(state_a, state_b)
    assert memories_a.keys() == memories_b.keys()
    assert all(same(memories_a[k], memories_b[k]) for k in memories_a)
    ours, theirs = pd.read_csv(a / "metrics.csv"), pd.read_csv(b / "metrics.csv")
    pd.testing.assert_frame_equal(
        ours.drop(columns=["seconds", "between_seconds"]), theirs.drop(columns=["seconds", "between_seconds"])
    )


@pytest.mark.parametrize("method", ["pflego", "fedavg", "fedper", "local"])
def test_a_run_leaves_its_directory(tmp_path, method, pictures):
    summary = execute(config(f"method={method}"), tmp_path)
    names = {"metrics.csv", "clients.csv", "summary.json", "plots", "checkpoint"}
    assert names <= {p.name for p in tmp_path.iterdir()}
    assert any(p.name.startswith("events.out") for p in tmp_path.iterdir())
    assert {"loss", "accuracy", "accuracy_mean", "worst_decile"} <= summary["final"].keys()
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert set(table["split"]) == {"train", "valid", "test"}
    assert sorted(table["round"].unique()) == [1, 2, 3, 4, 5]
    assert len(pd.read_csv(tmp_path / "clients.csv")) == 6


def test_the_arithmetic_of_a_stack_can_be_chosen(tmp_path):
    """bfloat16 rounds differently, by a little; the loss says that it was used, and used well."""
    small = ["method=fedavg", "model=mlp", "eval_every=0"]
    exact = execute(config(*small), tmp_path / "exact")["final"]
    rough = execute(config(*small, "engine.precision=bf16"), tmp_path / "rough")["final"]
    assert exact["loss"] != rough["loss"]
    assert exact["loss"] == pytest.approx(rough["loss"], rel=0.05)


def test_two_runs_never_write_one_directory(tmp_path):
    code = "import sys; from pathlib import Path; from fedpers.results.files import claimed\n"
    code += "with claimed(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    other.stdout.readline()
    with pytest.raises(FedpersError, match=r"being written by another process.*out="):
        execute(config("method=fedavg"), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]
    other.kill()
    other.wait()
    execute(config("method=fedavg", "rounds=1"), tmp_path)  # a kill lets go of it


class Crash(Exception):
    pass


@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
@pytest.mark.parametrize("method", ["pflego", "local"])
def test_resumed_is_uninterrupted(tmp_path, monkeypatch, method, stop_after):
    cfg = config(f"method={method}", "checkpoint_every=1")
    execute(cfg, tmp_path / "whole")
    saved = Checkpointer.after_round

    def crash(self, t):
        saved(self, t)
        if t == stop_after:
            raise Crash

    monkeypatch.setattr(Checkpointer, "after_round", crash)
    with pytest.raises(Crash):
        execute(cfg, tmp_path / "part")
    monkeypatch.undo()
    execute(replace(cfg, resume=str(tmp_path / "part")), tmp_path / "part")
    assert_same_end(tmp_path / "whole", tmp_path / "part")


def test_a_crash_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path, monkeypatch):
    cfg = config()
    execute(cfg, tmp_path / "whole")
    write = RowStore.save

    def crash(store, folder):
        write(store, folder)
        if "000004" in str(folder):
            raise Crash

    monkeypatch.setattr(RowStore, "save", crash)
    with pytest.raises(Crash):
        execute(cfg, tmp_path / "part")
    monkeypatch.undo()
    assert checkpoint.last_round(tmp_path / "part") == 2
    execute(replace(cfg, resume="x"), tmp_path / "part")
    assert_same_end(tmp_path / "whole", tmp_path / "part")


def test_a_truncated_checkpoint_is_named(tmp_path):
    execute(config(), tmp_path)
    state = tmp_path / "checkpoint" / "round-000005" / checkpoint.STATE
    state.write_bytes(state.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match=r"round-000005.state.safetensors is missing, truncated"):
        execute(replace(config("rounds=7"), resume=str(tmp_path)), tmp_path)
    assert (tmp_path / "metrics.csv").exists()


def test_more_rounds_after_the_end(tmp_path):
    execute(config("rounds=5"), tmp_path / "a")
    execute(replace(config("rounds=7"), resume="x"), tmp_path / "a")
    execute(config("rounds=7"), tmp_path / "b")
    assert_same_end(tmp_path / "a", tmp_path / "b")


@pytest.fixture(scope="module")
def sixty_rounds(tmp_path_factory):
    """An undisturbed run, and its config."""
    out, cfg = tmp_path_factory.mktemp("whole"), config("rounds=60", "checkpoint_every=3", "eval_every=5")
    execute(cfg, out)
    return out, cfg


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 30])
def test_killed_at_any_moment_and_resumed(tmp_path, rows, sixty_rounds):
    """SIGKILL once metrics.csv has some rows, before the first checkpoint or after some of them.

    Sweeps that are killed ten times are in tests/test_kills.py.
    """
    overrides = [*SMALL, "rounds=400", "checkpoint_every=3", "eval_every=5"]
    command = [sys.executable, "-m", "fedpers", "run", *overrides, f"out={tmp_path / 'part'}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    metrics, deadline = tmp_path / "part" / "metrics.csv", time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < rows:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    whole, cfg = sixty_rounds
    execute(replace(cfg, resume="x"), tmp_path / "part")
    assert_same_end(whole, tmp_path / "part")


@pytest.mark.ray
def test_ray_equals_inprocess_and_resumes(tmp_path):
    """Bit for bit: state, metrics and memories; also when the Ray run was stopped half-way."""
    whole = config("method=pflego", "rounds=4")
    execute(whole, tmp_path / "inprocess")
    ray = ["engine=ray", "method=pflego", "clients_per_round=3"]
    execute(config(*ray, "rounds=2"), tmp_path / "ray")
    execute(replace(config(*ray, "rounds=4"), resume="x"), tmp_path / "ray")
    t, state = checkpoint.load(tmp_path / "ray", None)
    _, expected, memories = final(tmp_path / "inprocess")
    assert t == 4
    assert same(state, expected)
    store = RowStore(tmp_path / "ray" / "memory")
    checkpoint.load(tmp_path / "ray", store)
    for k, memory in memories.items():
        assert same(store.get(k, (99, 0)), memory)
    ours = pd.read_csv(tmp_path / "inprocess" / "metrics.csv")
    theirs = pd.read_csv(tmp_path / "ray" / "metrics.csv")
    for column in ("accuracy", "loss", "bytes_up", "gradient_evals"):
        np.testing.assert_array_equal(ours[column], theirs[column])


def test_a_deployment_takes_data_on_devices_only(tmp_path):
    with pytest.raises(ConfigError, match=r"engine=deployment data=digits: .*data=device"):
        execute(config("engine=deployment"), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.parametrize("asked", ["inprocess", "ray", "deployment"])
def test_a_run_of_flowers_has_the_engine_of_its_grid(asked):
    cfg = config(f"engine={asked}")
    assert on_grid(cfg, InMemoryGrid.__new__(InMemoryGrid)).engine.name == "ray"
    assert on_grid(cfg, HttpGrid.__new__(HttpGrid)).engine.name == "deployment"


def test_a_run_of_flowers_refuses_what_its_engine_cannot():
    cfg = replace(config(), optimum=True)
    with pytest.raises(ConfigError, match="needs engine=inprocess"):
        on_grid(cfg, InMemoryGrid.__new__(InMemoryGrid))


@pytest.mark.ray
def test_flowers_own_command_line_runs_the_same_app(tmp_path):
    """`flwr run .` from a copy of the tree: builds the app bundle and simulates it."""
    import shutil
    from pathlib import Path

    root = Path(__file__).parent.parent
    flwr = shutil.which("flwr", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name in ("fedpers", "strategies", "clients", "datasets", "conf"):
        shutil.copytree(root / name, tmp_path / "app" / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(root / name, tmp_path / "app" / name)
    env = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "home"),
        "FEDPERS_STATE": str(tmp_path / "state"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    words = "method=fedper data.num_clients=3 seed=4 rounds="

    def run(rounds):
        overrides = f"overrides='{words}{rounds} out={tmp_path / f'run{rounds}'}'"
        federation = "num-supernodes=3 client-resources-num-cpus=1"
        command = [flwr, "run", ".", "--stream", "--run-config", overrides, "--federation-config", federation]
        app, limit = tmp_path / "app", 300
        return subprocess.run(
            command, cwd=app, env=env, capture_output=True, text=True, timeout=limit, check=False
        )

    try:
        done = [run(3), run(2)]  # the second must not find the states of the first
    finally:
        subprocess.run(["pkill", "-f", f"{tmp_path / 'home'}"], check=False)
    assert (tmp_path / "run2" / "summary.json").exists(), "".join(d.stdout + d.stderr for d in done)
    assert json.loads((tmp_path / "run2" / "summary.json").read_text())["engine"] == "ray"
    assert f"results: {tmp_path / 'run2'}" in done[1].stdout + done[1].stderr
    execute(compose.load(f"{words}2".split()), tmp_path / "inprocess")
    _, theirs = checkpoint.load(tmp_path / "run2", None)
    _, ours, _ = final(tmp_path / "inprocess")
    assert same(ours, theirs)
    tables = [pd.read_csv(tmp_path / name / "metrics.csv") for name in ("run2", "inprocess")]
    theirs, ours = (t[t["split"] == "test"]["loss"].tolist() for t in tables)
    assert len(ours) == 2 and theirs == ours
