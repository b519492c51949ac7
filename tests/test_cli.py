"""The command line: statuses, exact messages, run directories. `fedpers.app.run` is a fake here."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import fedpers.app.run
from fedpers import __version__
from fedpers.app import launch
from fedpers.app.cli import main
from fedpers.config import compose
from fedpers.core.errors import DataError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Relative folders, such as runs/, are in a temporary folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def runs(monkeypatch):
    """What was run: (config, folder). The fake leaves a summary like a real run."""
    seen = []

    def fake(cfg, out, *_):
        seen.append((cfg, out))
        (out / "summary.json").write_text('{"status": "finished"}')
        return {"final": {"loss": 0.25, "accuracy": 0.5}}

    monkeypatch.setattr(fedpers.app.run, "_make", fake)
    return seen


def failing(monkeypatch, error, when=lambda cfg: True):
    def fake(cfg, out, *_):
        if when(cfg):
            raise error
        return {}

    monkeypatch.setattr(fedpers.app.run, "_make", fake)


def complaint(capsys):
    """The only message on stderr."""
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert text.startswith("fedpers: error: ")
    return text.removeprefix("fedpers: error: ").rstrip("\n")


# ---- run ----------------------------------------------------------------------------------------


def test_a_run_in_its_default_folder(runs, capsys):
    assert main(["run", "method=fedavg", "seed=3"]) == 0
    ((cfg, out),) = runs
    assert out.match("runs/*/*-fedavg-digits-s3")
    assert (cfg.method_name, cfg.seed, cfg.out) == ("fedavg", 3, str(out))
    said = capsys.readouterr()
    assert "fedavg on digits: loss 0.2500, accuracy 0.5000" in said.out
    assert str(out) in said.out
    assert said.err == ""


def test_the_last_line_tells_the_last_round_from_the_one_that_reports_rank_by():
    cfg = compose.load(["method=fedavg"])
    summary = {"final": {"round": 20, "accuracy": 0.83}, "best": {"round": 7, "accuracy": 0.79}}
    said = "accuracy 0.8300 after the last round; accuracy 0.7900 in round 7, which validation chose"
    assert launch._sentence(cfg, summary).endswith(said)
    assert launch._sentence(cfg, summary | {"best": summary["final"]}).endswith("digits: accuracy 0.8300")


def test_out_names_the_folder_and_hydra_the_resolved_config(runs):
    assert main(["run", "out=a b/c", "rounds=4"]) == 0
    assert runs[0][1] == Path("a b/c")
    saved = yaml.safe_load(Path("a b/c/.hydra/config.yaml").read_text())
    assert (saved["rounds"], saved["method"]["name"]) == (4, "pflego")
    assert "hydra" not in saved


def test_a_sweep_gives_each_run_a_folder_that_says_what_it_is(runs, capfd):
    assert main(["run", "-m", "out=s", "method=fedavg,local", "seed=0,1", "device=cpu"]) == 0
    names = sorted(p.name for p in Path("s").iterdir() if p.is_dir())
    assert names == [f"method={m},seed={s}" for m in ("fedavg", "local") for s in (0, 1)]
    assert [(c.method_name, c.seed) for c, _ in runs] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("local", 0),
        ("local", 1),
    ]


PATH = "data.path={}/t.csv"
KEYS = "lr=0.1 epochs=2 batch_size=10 momentum=0.5 weight_decay=0.1 optimizer=sgd steps=0"
MANY = [f"method.local.{key}" for key in KEYS.split()]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([PATH, "data=files", "data.target=y", "data.client=h", "seed=0,1"],
         ["data.client=h,data.target=y,data=files,seed=0", "data.client=h,data.target=y,data=files,seed=1"]),
        ([*MANY, "data.num_clients=10", "data.classes_per_client=5", "method=fedavg", "rounds=1,2"],
         ["rounds=1", "rounds=2"]),
        ([*MANY, "rounds=2"], [f"{','.join(sorted([*MANY, 'method=fedavg']))},rounds=2"]),
        (["rounds=2", "eval_every=1,2", "hydra.job.config.override_dirname.exclude_keys=[rounds,method]"],
         ["eval_every=1", "eval_every=2"]),
    ],
    ids=["a path", "too long", "nearly too long", "the user's choice"],
)  # fmt: skip
def test_a_folders_name_has_no_path_and_is_never_too_long(runs, tmp_path, words, names):
    """What all runs have in common is left out first: only what differs has to be in a name."""
    (tmp_path / "t.csv").write_text("a,y,h\n" + "1,0,x\n2,1,x\n3,0,y\n4,1,y\n" * 9)
    words = [w.format(tmp_path) for w in words]
    method = [] if "method=fedavg" in words or "data=files" in words else ["method=fedavg"]
    assert main(["run", "-m", "out=s", *method, *words]) == 0
    assert sorted(p.name for p in Path("s").iterdir() if p.is_dir()) == names


def handlers():
    """Of each logger that has some, with their levels."""
    known = [logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    return {x.name: (x.level, [(h, h.level) for h in x.handlers]) for x in known if x.handlers or x.level}


@pytest.mark.parametrize("mode", ["text", "json"])
@pytest.mark.parametrize(
    ("words", "status"),
    [(["out=a"], 0), (["-m", "seed=0,1", "out=b"], 0), (["rounds=ten"], 2), (["--cfg", "job"], 0),
     (["resume=old", "rounds=30"], 0)],
)  # fmt: skip
def test_a_command_leaves_the_loggers_of_its_process_as_they_were(runs, words, status, mode, monkeypatch):
    """Hydra takes all handlers away and sets up its own; those of a host are back afterwards."""
    assert main(["run", "method=fedavg", "out=old"]) == 0
    monkeypatch.setenv("FEDPERS_LOG", mode)
    theirs = logging.StreamHandler()
    theirs.setLevel(logging.ERROR)
    logging.root.addHandler(theirs)
    try:
        before = handlers()
        assert main(["run", *words]) == status
        assert handlers() == before and theirs in logging.root.handlers
    finally:
        logging.root.removeHandler(theirs)


def test_cfg_job_prints_the_config(runs, capsys):
    assert main(["run", "--cfg", "job", "rounds=7"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["rounds"] == 7
    assert not runs


# ---- mistakes -----------------------------------------------------------------------------------


def test_one_mistake(runs, capsys):
    assert main(["run", "rounds=ten"]) == 2
    assert complaint(capsys) == "rounds=ten: expected an integer"
    assert not runs
    assert not list(Path().iterdir())


def test_many_mistakes(capsys):
    assert main(["run", "rounds=ten", "seed=-1"]) == 2
    assert complaint(capsys) == (
        "2 mistakes\n  - rounds=ten: expected an integer\n  - seed=-1: must be at least 0"
    )


def test_an_error_from_deep_inside(monkeypatch, capsys):
    failing(monkeypatch, DataError("a9a is not in /data; run: fedpers data fetch a9a"))
    assert main(["run", "out=a"]) == 2
    assert complaint(capsys) == "a9a is not in /data; run: fedpers data fetch a9a"
    assert "DataError" in Path("a/summary.json").read_text()


def test_a_bug_keeps_its_traceback(monkeypatch):
    failing(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        main(["run"])


def test_a_sweep_goes_on_past_a_run_that_fails(monkeypatch, capfd):
    failing(monkeypatch, DataError("no file"), when=lambda cfg: cfg.seed == 0)
    assert main(["run", "-m", "out=s", "seed=0,1"]) == 2
    assert complaint(capfd) == "1 of 2 runs failed\ns/seed=0: no file"


def test_a_mistake_that_all_runs_share_is_said_once(monkeypatch, capfd):
    failing(monkeypatch, DataError("no file"), when=lambda cfg: cfg.seed != 1)
    assert main(["run", "-m", "out=s", "seed=0,1,2"]) == 2
    assert complaint(capfd) == "2 of 3 runs failed\ns/seed=0 and 1 more: no file"


def test_an_occupied_folder_is_left_alone(runs, capsys):
    assert main(["run", "out=a"]) == 0
    assert main(["run", "out=a"]) == 2
    assert complaint(capsys) == (
        "out=a: there is a run already (.hydra/config.yaml, summary.json); "
        "choose another folder, or go on with it: fedpers run resume=a"
    )


def test_a_folder_that_cannot_be_written(runs, capsys):
    Path("file").write_text("")
    assert main(["run", "out=file/a"]) == 2
    assert complaint(capsys) == (
        f"out=file/a: cannot be written ({Path('file').absolute()} is no folder); choose another folder"
    )


def test_a_full_disk(monkeypatch, capsys):
    failing(monkeypatch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/metrics.csv"))
    assert main(["run", "out=a"]) == 2
    assert complaint(capsys) == (
        "a/metrics.csv: No space left on device; choose another folder with out=, or make room there"
    )


def test_ctrl_c_tells_how_to_go_on(monkeypatch, capsys):
    failing(monkeypatch, KeyboardInterrupt())
    assert main(["run", "out=a"]) == 130
    assert capsys.readouterr().err == "\ninterrupted; to go on:  fedpers run resume=a\n"
    (Path("a") / "checkpoint" / "round-000001").mkdir(parents=True)
    assert main(["run", "resume=a"]) == 130
    assert capsys.readouterr().err == "\ninterrupted; to go on:  fedpers run resume=a\n"


# ---- resume -------------------------------------------------------------------------------------


def test_resume_goes_on_in_the_same_folder(runs):
    main(["run", "out=a", "method=fedavg", "rounds=4"])
    (Path("a") / "checkpoint" / "round-000004").mkdir(parents=True)
    assert main(["run", "resume=a", "rounds=9"]) == 0
    cfg, out = runs[1]
    assert (out, cfg.resume, cfg.rounds, cfg.method_name) == (Path("a"), "a", 9, "fedavg")
    assert main(["run", "resume=a"]) == 0
    assert runs[2][0].rounds == 9


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ["resume=nowhere"],
            "resume=nowhere: no run there (nowhere/.hydra/config.yaml does not exist);"
            " give a run directory, such as runs/<date>/<time>-...",
        ),
        (["-m", "resume=x"], "resume=x: one run is resumed at a time; leave out -m"),
    ],
)
def test_resume_mistakes(args, text, capsys):
    assert main(["run", *args]) == 2
    assert complaint(capsys) == text


# ---- the rest -----------------------------------------------------------------------------------


def test_version_and_help(capsys):
    for args, text in ((["--version"], f"fedpers {__version__}"), (["--help"], "run")):
        with pytest.raises(SystemExit) as left:
            main(args)
        assert left.value.code == 0
        assert text in capsys.readouterr().out


@pytest.mark.parametrize("args", [[], ["rnu"], ["list", "x"]])
def test_wrong_commands(args, capsys):
    with pytest.raises(SystemExit) as left:
        main(args)
    assert left.value.code == 2


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for word in ("pflego", "fedavg", "dirichlet", "digits", "mlp", "inprocess", "ray"):
        assert word in text


def test_help_and_list_do_not_import_what_is_slow():
    code = (
        "import sys; from fedpers.app.cli import main; main(['list']); "
        "print([m for m in ('torch', 'flwr', 'ray', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_m_is_the_same_and_quiet_settings_are_defaults():
    code = (
        "import os, sys; os.environ['FLWR_TELEMETRY_ENABLED'] = '1'; sys.argv = ['fedpers', 'list']; "
        "from fedpers.app.cli import main; main(); "
        "print(os.environ['FLWR_TELEMETRY_ENABLED'], os.environ['RAY_USAGE_STATS_ENABLED'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert said.split()[-2:] == ["1", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "fedpers", "run", "rounds=ten"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "fedpers: error: rounds=ten: expected an integer\n")
