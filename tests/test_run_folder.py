"""A run directory is inviolable: refused runs change nothing in it, repeated sweeps go on with it."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

import fedpers
from fedpers.app.cli import main
from fedpers.app.run import execute
from fedpers.app.run_folder import stored_config
from fedpers.config import compose
from fedpers.core.errors import ConfigError
from fedpers.results.summary import read_summary

QUICK = ["data.num_clients=3", "rounds=2", "checkpoint_every=1"]
SWEEP = ["run", "-m", "seed=0,1,2", "method=fedavg", *QUICK]
HOLD = (
    "import sys, time; from pathlib import Path; from fedpers.results.files import claimed\n"
    "with claimed(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)


def content(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def numbers(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv").drop(columns=["seconds", "between_seconds"])


def test_a_run_beside_another_changes_nothing(tmp_path, capsys):
    out = tmp_path / "d"
    assert main(["run", *QUICK, f"out={out}"]) == 0
    before = content(out)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert main(["run", *QUICK, "method=fedavg", f"out={out}"]) == 2
        assert "written by another process" in capsys.readouterr().err
        holder.kill()
    assert main(["run", *QUICK, "method=fedavg", f"out={out}"]) == 2
    assert "there is a run already" in capsys.readouterr().err
    assert content(out) == before


def test_the_same_sweep_again_leaves_finished_runs_alone(tmp_path, capsys):
    sweep = tmp_path / "s"
    command = [*SWEEP[:2], "seed=0,1", *SWEEP[3:], f"out={sweep}"]
    assert main(command) == 0
    runs = sorted(p.parent.parent for p in sweep.glob("*/.hydra/config.yaml"))
    before = [content(r) for r in runs]
    assert len(runs) == 2
    assert main(command) == 0
    assert [content(r) for r in runs] == before
    assert main([*command, "method.local.lr=0.3"]) == 0  # other runs, in other folders
    shutil.rmtree(runs[0] / "checkpoint")
    (runs[0] / "summary.json").unlink()
    assert main(command) == 0  # half done: made again
    assert read_summary(runs[0])["status"] == "finished"


def test_the_words_of_a_longer_run_make_it_from_nothing(tmp_path):
    out, words = tmp_path / "a", tmp_path / "a/.hydra/overrides.yaml"
    assert main(["run", *QUICK, "method=fedavg", f"out={out}"]) == 0
    first = yaml.safe_load(words.read_text())
    assert main(["run", f"resume={out}"]) == 0
    assert yaml.safe_load(words.read_text()) == first
    assert main(["run", f"resume={out}", "rounds=3"]) == 0
    longer = yaml.safe_load(words.read_text())
    assert longer == [w if w != "rounds=2" else "rounds=3" for w in first] != first
    assert main(["run", f"resume={out}", "rounds=4", "eval_every=1"]) == 0
    assert yaml.safe_load(words.read_text())[len(first) :] == ["eval_every=1"]
    shutil.rmtree(out / "checkpoint")
    assert main(["run", f"resume={out}", "rounds=2"]) == 0  # as killed before its first checkpoint
    assert yaml.safe_load(words.read_text()) == [*first, "eval_every=1"]
    anew = compose.load([w for w in yaml.safe_load(words.read_text()) if not w.startswith("out=")])
    assert anew == replace(stored_config(out), out=anew.out)


def test_another_run_in_a_sweeps_folder_is_refused(tmp_path):
    cfg = compose.load([*QUICK, "method=fedavg"])
    execute(cfg, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"another run is there \(seed: 0 there, 1 here\)"):
        execute(replace(cfg, seed=1), tmp_path / "a", repeat=True)


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path, capsys):
    out = tmp_path / "d"
    assert main(["run", *QUICK, "method=fedavg", f"out={out}"]) == 0
    want = numbers(out)
    shutil.rmtree(out / "checkpoint")
    (out / "summary.json").unlink()
    assert main(["run", f"resume={out}"]) == 0
    assert "starts anew from its stored config" in capsys.readouterr().out
    assert numbers(out).equals(want)


def test_a_mistake_that_the_method_finds_leaves_the_folder_free(tmp_path, capsys):
    """The server half refuses it when the run begins, with a folder made."""
    words = ["run", *QUICK, "method=fedper", f"out={tmp_path / 'd'}"]
    assert main([*words, "method.personal=[odd.*]"]) == 2
    assert "'odd.*' fits no parameter" in capsys.readouterr().err
    assert main([*words, "method.personal=head"]) == 0
    assert read_summary(tmp_path / "d")["status"] == "finished" and len(numbers(tmp_path / "d")) >= 2


def test_python_follows_the_same_rules(tmp_path):
    cfg = compose.load([*QUICK, "method=fedavg"])
    execute(cfg, tmp_path / "a")
    before = content(tmp_path / "a")
    with pytest.raises(ConfigError, match="there is a run already"):
        execute(replace(cfg, seed=5), tmp_path / "a")
    assert content(tmp_path / "a") == before
    assert stored_config(tmp_path / "a") == cfg


def test_a_resumed_run_is_stored_as_the_same_run(tmp_path):
    out = tmp_path / "a"
    assert main(["run", *QUICK, "method.tau=2", f"out={out}"]) == 0
    before = (out / ".hydra" / "config.yaml").read_text()
    assert main(["run", f"resume={out}", "rounds=3"]) == 0
    assert (out / ".hydra" / "config.yaml").read_text() == before.replace("rounds: 2", "rounds: 3")


def test_training_that_diverged_ends_with_a_warning(tmp_path, capsys):
    command = ["run", *QUICK, "method=fedavg", "method.local.lr=1e6", f"out={tmp_path / 'a'}"]
    assert main(command) == 0
    text = "".join(capsys.readouterr())
    assert "training diverged: test loss" in text and "lower the learning rate" in text
    assert "training diverged" in (tmp_path / "a" / "fedpers.log").read_text()
    assert read_summary(tmp_path / "a")["diverged"] and "fedavg on digits: diverged: " in text
    assert main(["report", str(tmp_path / "a")]) == 0
    assert "Training diverged in 1 of 1 runs: fedavg" in " ".join(capsys.readouterr().out.split())


def test_a_key_without_effect_says_where_it_has_one(capsys):
    assert main(["run", "data.alpha=0.1", "engine.num_cpus=2"]) == 2
    text = capsys.readouterr().err
    assert "data.alpha=0.1: without effect for data=digits and data.partition=classes; dirichlet" in text
    assert "engine.num_cpus=2: without effect for engine=inprocess; ray would use it" in text


def test_details_of_a_resumed_run_go_to_its_log(tmp_path, capsys, monkeypatch):
    from fedpers.app import run

    out = tmp_path / "a"
    assert main(["run", *QUICK, "method=fedavg", f"out={out}"]) == 0
    prepare = run.prepare

    def chatty(*args, **more):
        run.logging.getLogger("fedpers").info("stacks of 8 clients")
        return prepare(*args, **more)

    monkeypatch.setattr(run, "prepare", chatty)
    assert main(["run", f"resume={out}", "rounds=3"]) == 0
    assert "stacks of 8" not in "".join(capsys.readouterr())
    assert "stacks of 8 clients" in (out / "fedpers.log").read_text()


def test_a_job_returns_what_a_search_may_go_by(tmp_path, monkeypatch):
    """Hydra's sweepers that search get the validation metric, and never one of the test split."""
    from fedpers.app import launch

    found, run_hydra = [], launch.hydra_internals.run_hydra

    def recording(args, program, package, job):
        run_hydra(args, program, package, lambda cfg: found.append(job(cfg)))

    monkeypatch.setattr(launch.hydra_internals, "run_hydra", recording)
    assert main(["run", *QUICK, "method=fedavg", "rounds=3", f"out={tmp_path / 'a'}"]) == 0
    table = pd.read_csv(tmp_path / "a" / "metrics.csv")
    assert found == [table.loc[table["split"] == "valid", "accuracy"].max()]
    assert launch.objective({"best": {"valid_loss": 0.5, "loss": 0.1, "accuracy": 0.9}}) == 0.5
    assert launch.objective({"best": {}}) is None


def test_a_run_goes_on_forwards_only(tmp_path, capsys):
    out = tmp_path / "a"
    assert main(["run", *QUICK, "method=fedavg", f"out={out}", "rounds=3"]) == 0
    before = read_summary(out)
    assert main(["run", f"resume={out}", "rounds=2"]) == 2
    assert "rounds=2: the run in" in (said := capsys.readouterr().err) and "has 3 rounds done" in said
    assert read_summary(out) == before and stored_config(out).rounds == 3
    cfg = compose.load([*QUICK, "method=fedavg", "rounds=2"])
    with pytest.raises(ConfigError, match="the run there has 3 rounds, this one 2"):
        execute(replace(cfg, out=str(out)), out, repeat=True)


@pytest.mark.parametrize("word", ["resume=", "out=", "resume=''", "resume= "])
def test_an_empty_folder_is_no_folder(word, capsys, tmp_path, monkeypatch):
    """A shell's variable that was never set: no new run begins, and none in the folder one stands in."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", *QUICK, "method=fedavg", word]) == 2
    key = word.partition("=")[0]
    assert capsys.readouterr().err == f"fedpers: error: {key}=: give a folder, or leave {key}= out\n"
    assert not list(tmp_path.iterdir())


def test_runs_do_not_stand_in_each_other(tmp_path, capsys):
    one, many = tmp_path / "one", tmp_path / "many"
    assert main(["run", *QUICK, "method=fedavg", f"out={one}"]) == 0
    assert main([*SWEEP, f"out={one}"]) == 2
    assert "several runs need a folder of their own" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="several runs need a folder"):
        fedpers.run("fedavg", seeds=2, out=one)
    assert main([*SWEEP, f"out={many}"]) == 0
    assert main(["run", *QUICK, "method=fedavg", f"out={many}"]) == 2
    assert "there are runs in folders below it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("method=fedavg method.local.epochs=0", "method.local.epochs=0"),
        ("method=fedavg method.local.lr=0", "method.local.lr=0"),
        ("method=fedrep method.head.epochs=0 method.body.epochs=0", "method.head.epochs=0"),
    ],
)
def test_a_run_in_which_nobody_trains_is_refused(words, key, capsys):
    assert main(["run", *words.split()]) == 2
    assert f"{key}: no client would train; give more than 0" in capsys.readouterr().err
    compose.load(["method=fedrep", "method.head.epochs=0"])  # FedBABU's: the body trains
    compose.load(["method=fedavg", "method.local.epochs=0", "method.local.steps=3"])
