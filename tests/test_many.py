"""jobs=N and tune=N: many runs at once, and searches on validation data."""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fedpers.app import pool, tuning
from fedpers.app.cli import main
from fedpers.app.places import Places
from fedpers.config import compose
from fedpers.config.registry import METHODS
from fedpers.config.run_config import flatten, from_mapping, to_mapping
from fedpers.config.search import SweepConfig
from fedpers.config.space import design, dimensions
from fedpers.core.errors import ConfigError
from fedpers.results.progress import SweepBoard
from fedpers.results.report.record import record
from fedpers.results.report.runs import find_runs, group_by_setting
from fedpers.results.report.tables import costs, tuned

CONF = Path(__file__).parents[1] / "conf"
QUICK = ["data.num_clients=3", "data.limit=90", "rounds=2", "checkpoint_every=1", "model.hidden=[4]"]
SWEEP = ["run", "-m", "method=fedavg,local", "seed=0,1,2", *QUICK]


def numbers(folder: Path) -> dict[str, pd.DataFrame]:
    """metrics.csv of each run, without times."""
    found = {p.parent.name: pd.read_csv(p) for p in sorted(folder.glob("*/metrics.csv"))}
    return {name: table.drop(columns=["seconds", "between_seconds"]) for name, table in found.items()}


def same(one: Path, other: Path) -> None:
    first, second = numbers(one), numbers(other)
    assert first.keys() == second.keys() and len(first) == 6
    for name, table in first.items():
        pd.testing.assert_frame_equal(table, second[name], check_exact=True)


# ---- spaces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_states_a_space_that_it_accepts(method):
    """Its keys exist, its defaults lie in it, its corners are valid; not to adapt is among the choices."""
    written = yaml.safe_load((CONF / "method" / f"{method}.yaml").read_text(encoding="utf-8"))
    space, run = dimensions(written["search"]), compose.load([f"method={method}"])
    plain, task = flatten(to_mapping(run)["method"]), pool.Task(run, Path())
    assert space
    for d in space:
        assert d.key in plain
        assert plain[d.key] is None or d.holds(plain[d.key]), d
    ends = [(d.choices[0], d.choices[-1]) if d.choices else (d.low, d.high) for d in space]
    for values in itertools.islice(itertools.product(*ends), 16):
        tuning._with(task, dict(zip((d.key for d in space), values, strict=True)))
    adapts = {"finetune_epochs", "adapt_steps"}
    for d in space:
        if d.key in adapts:
            assert 0 in d.choices
    if any(plain.get(key) for key in adapts) and method != "fedavg":
        assert adapts & {d.key for d in space}


@pytest.mark.parametrize("line", ["local.lr=0.1", "local.lr", "local.lr=range(1,5)", "a=choice("])
def test_what_is_no_space_is_refused(line):
    with pytest.raises(ConfigError, match=r"is no search space; write KEY=choice\(A, B\)"):
        dimensions([line])


def test_the_space_is_no_part_of_a_run():
    run = compose.load(["method=fedavg", "method.search=[]"])
    assert "search" not in to_mapping(run)["method"]
    assert from_mapping(to_mapping(run)) == run
    with pytest.raises(ConfigError, match="jobs= is for the command"):
        compose.load(["jobs=2"])


# ---- jobs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The sweep in one process, run after run."""
    out = tmp_path_factory.mktemp("one") / "sweep"
    assert main([*SWEEP, f"out={out}"]) == 0
    return out


def test_a_sweep_killed_at_work_goes_on_and_ends_as_one_in_a_single_process(undisturbed, tmp_path):
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "fedpers", *SWEEP, "jobs=2", f"out={out}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    deadline = time.monotonic() + 300
    while len(list(out.glob("*/summary.json"))) < 2 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    _, errors = child.communicate(timeout=120)  # returns once its runs' processes have gone too
    assert len(list(out.glob("*/summary.json"))) >= 2, errors
    done = {p: p.stat().st_mtime_ns for p in out.glob("*/summary.json")}
    assert main([*SWEEP, "jobs=2", f"out={out}"]) == 0
    same(undisturbed, out)
    assert all(p.stat().st_mtime_ns == t for p, t in done.items())  # finished runs are left alone


def test_a_failing_run_leaves_the_others_alone(tmp_path, capsys):
    words = [
        "run",
        "-m",
        "method=fedavg",
        "clients_per_round=2,9,3",
        *QUICK,
        "jobs=2",
        f"out={tmp_path / 'a'}",
    ]
    assert main(words) == 2
    text = capsys.readouterr()
    assert "1 of 3 runs failed" in text.err and "clients_per_round=9: there are 3 clients" in text.err
    assert "[3/3]" in text.out and "failed: clients_per_round=9" in text.out
    assert len(list((tmp_path / "a").glob("*/metrics.csv"))) == 2


def test_a_run_whose_process_dies_is_named_and_ctrl_c_ends_all(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(
        "import os, sys\nimport fedpers\n"
        "class Deadly(fedpers.Observer):\n"
        "    def on_round(self, t, log):\n"
        "        print('last words', flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    cfg = compose.load(["method=fedavg", *QUICK])
    tasks = [
        pool.Task(replace(cfg, observers=("deadly:Deadly",)), tmp_path / "a", label="a"),
        pool.Task(cfg, tmp_path / "b", label="b"),
    ]
    with SweepBoard(2, 4) as board:
        dead, alive = pool.run_all(tasks, Places(2), board)
        assert isinstance(dead, pool.Crash) and "SIGKILL: by hand, or for want of memory" in str(dead)
        assert "last words" in str(dead)
        assert isinstance(alive, dict) and alive["status"] == "finished" and alive["peak_memory_mb"] > 50

        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(board, "step", interrupted)
        again = [pool.Task(cfg, tmp_path / name, label=name) for name in "cd"]
        with pytest.raises(KeyboardInterrupt):
            pool.run_all(again, Places(2), board)
    assert not multiprocessing.active_children()


def test_runs_are_made_by_the_installed_package_wherever_the_user_is(tmp_path):
    """Not by a folder of that name beside the user, such as another source tree."""
    (tmp_path / "fedpers").mkdir()
    (tmp_path / "fedpers" / "__init__.py").write_text("raise RuntimeError('of another source tree')")
    program = [str(Path(sys.executable).with_name("fedpers")), "run", "-m", *QUICK, "method=fedavg"]
    done = subprocess.run(
        [*program, "seed=0,1", "jobs=2", "out=sweep"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(find_runs([tmp_path / "sweep"])) == 2


def test_jobs_needs_several_runs(capsys):
    assert main(["run", *QUICK, "jobs=2"]) == 2  # refused before any folder is made
    assert "this command makes one run only; add -m" in capsys.readouterr().err
    assert main(["run", "-m", *QUICK, "jobs=0"]) == 2
    assert "jobs=0: must be at least 1" in capsys.readouterr().err


# ---- tune -----------------------------------------------------------------------------------------


def test_methods_that_share_keys_try_the_same_values_of_them():
    """By hand: Halton's first points are 1/2, 1/4, 3/4 in base 2, 1/3, 2/3, 1/9 in base 3, 1/5, 2/5, 3/5."""
    shared = ["local.lr=tag(log, interval(0.01, 1.0))", "local.epochs=choice(1, 2, 5)"]
    more = [*shared, "tau=int(interval(0, 100))"]
    found = design(dimensions(more), 3)
    assert [p["local.lr"] for p in found] == pytest.approx([0.1, 10**-1.5, 10**-0.5])
    assert [(p["local.epochs"], p["tau"]) for p in found] == [(2, 20), (5, 40), (1, 60)]
    assert [{k: p[k] for k in ("local.lr", "local.epochs")} for p in found] == design(dimensions(shared), 3)


def test_a_search_goes_by_validation_is_seeded_and_goes_on(tmp_path, monkeypatch, capsys, pictures):
    """The winner is the best on validation; the same words do no run again; one job finds the same."""
    out = tmp_path / "a"
    words = ["run", "-m", "method=fedavg_ft", "seed=0,1", *QUICK, "method.local.epochs=1", "tune=5"]
    words += ["new_clients=1", "new_epochs=1"]
    assert main([*words, "jobs=2", f"out={out}"]) == 0
    assert "[7/7]" in capsys.readouterr().out
    (path,) = out.glob(".search/*/search.json")
    found = json.loads(path.read_text())
    assert found["space"] == ["local.lr", "finetune_epochs", "finetune"]  # epochs were given
    trials = sorted(path.parent.glob("trial=*"))
    valid = [json.loads((t / "summary.json").read_text())["best"]["valid_accuracy"] for t in trials]
    assert len(trials) == len(found["trials"]) == 5
    assert [t["score"] for t in found["trials"]] == valid
    assert found["found"] in [t["values"] for t in found["trials"] if t["score"] == max(valid)]
    assert {yaml.safe_load((t / ".hydra/config.yaml").read_text())["seed"] for t in trials} == {1000}
    assert not list(path.parent.glob("*/plots/*"))
    runs = find_runs([out])  # the trials are none of the runs that are compared
    assert [r.config["seed"] for r in runs] == [0, 1]
    for key, value in found["found"].items():
        assert all(r.flat[f"method.{key}"] == value for r in runs)
    (setting,) = group_by_setting(runs)
    assert tuned(setting)[0].rows[0][:2] == ["fedavg_ft", "5"]
    assert costs(setting).columns[-1] == "peak MB"
    kept = record(setting)
    assert kept["found"] == {"fedavg_ft": found["found"]}
    columns = {row["column"]: row["values"] for row in kept["results"]}
    summaries = [r.summary for r in setting.groups[0].runs]
    assert columns["peak MB"] == [s["peak_memory_mb"] for s in summaries]
    assert columns["gradients, thousands"] == [s["gradient_evals"] / 1e3 for s in summaries]
    assert columns["MB sent"] == [(s["bytes"]["up"] + s["bytes"]["down"]) / 1e6 for s in summaries]
    new = [s["new_clients"]["after"]["accuracy"] for s in summaries]
    assert columns["unseen clients, after adaptation"] == [pytest.approx(100 * v) for v in new]

    times = {p: p.stat().st_mtime_ns for p in out.rglob("metrics.csv")}
    (trials[4] / "summary.json").unlink()  # as if killed at its end
    assert main([*words, f"out={out}"]) == 0
    assert json.loads(path.read_text()) == found
    changed = [p.parent for p, t in times.items() if p.stat().st_mtime_ns != t]
    assert changed == [trials[4]]

    versions = path.parent / "versions.json"  # another sampler would try other values from here on
    versions.write_text(versions.read_text().replace('"optuna": "', '"optuna": "9.'))
    assert main([*words, f"out={out}"]) == 2
    assert "begun with other versions (optuna 9." in capsys.readouterr().err


def test_a_search_is_judged_on_other_seeds_and_needs_validation_data(tmp_path, capsys):
    for words, line in (
        (["seed=1000"], "seed=1000: that seed is the search's"),
        (["data.valid_fraction=0"], "set data.valid_fraction"),
        (["method.search=['a=choice(1,2)']"], "the method has no key a"),
        (["method.search=[]"], "has no space to search"),
    ):
        assert main(["run", "method=fedavg", *QUICK, "tune=2", *words, f"out={tmp_path}"]) == 2
        assert line in capsys.readouterr().err


def test_a_search_without_validation_samples_ends_at_its_first_trials(tmp_path, capsys):
    """0.001 of 24 samples is none, which is known once the data are there."""
    words = [*QUICK, "data.valid_fraction=0.001", "tune=9", f"out={tmp_path}"]
    assert main(["run", "-m", "method=fedavg", "seed=0,1", *words]) == 2
    said = capsys.readouterr()
    assert "trial 1: no validation samples" in said.out
    assert "every trial failed: no client has validation samples; give a larger data.valid_f" in said.err
    assert len(list(tmp_path.glob(".search/*/trial=*"))) == tuning.BATCH


def test_a_search_is_told_of_failures_and_of_ties(tmp_path):
    """Worst cases of the bookkeeping: a failed trial never wins; of equal accuracies the lower loss does."""
    cfg = compose.load(["method=fedavg"])
    tasks = [pool.Task(cfg, tmp_path / "r", label="r")]
    (search,) = tuning.searches(tasks, [["local.epochs=choice(1,2,5)"]], SweepConfig(tune=8), tmp_path)
    values = {1: (0.5, 2.0), 2: (0.5, 1.0), 5: None}
    ran = []
    while search.left:
        asked = search.ask()
        ran += [t.cfg.method.local.epochs for t in asked]
        scores = [values[t.cfg.method.local.epochs] for t in asked]
        search.tell(
            [
                {"best": {"valid_accuracy": s[0], "valid_loss": s[1]}} if s else pool.Crash("no")
                for s in scores
            ]
        )
    assert ran[0] == 1  # as it was asked for comes first
    assert len(ran) == len(set(ran)) and len(search.trials) == 8  # nothing is tried twice
    assert search.winner() == {"local.epochs": 2}
    assert search.finish()[0].cfg.method.local.epochs == 2


def test_hydras_optuna_plugin_gets_the_validation_metric(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")  # it needs optuna 2
    words = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1"]
    words += ["hydra.sweeper.direction=maximize", "method.local.lr=interval(0.01,0.3)", "method=fedavg"]
    assert main(["run", "-m", *QUICK, *words, f"out={tmp_path}"]) == 0
    found = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    valid = [json.loads(p.read_text())["best"]["valid_accuracy"] for p in tmp_path.glob("*/summary.json")]
    assert found["best_value"] == max(valid)
