"""Runs from Python: the command's folders and rules, tables, pictures, models."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedpers
import fedpers.checks
import fedpers.method
import fedpers.registry
from fedpers.app.python_api import _words
from fedpers.config import compose
from fedpers.core.data import ClientData, Data

ROOT = Path(__file__).parents[1]
QUICK = {"rounds": 2, "data": {"name": "digits", "num_clients": 4}, "model": {"name": "mlp", "hidden": [8]}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """FedAvg, two seeds, and local training beside it."""
    out = tmp_path_factory.mktemp("runs")
    averaged = fedpers.run("fedavg", "method.local.lr=0.1", seeds=2, out=out / "fedavg", **QUICK)
    return averaged, fedpers.run("local", out=out / "local", **QUICK)


def test_a_value_is_chosen_by_validation(runs, tmp_path):
    slow = fedpers.run("fedavg", "method.local.lr=1e-6", out=tmp_path / "slow", **QUICK)
    both = fedpers.compare([slow, runs[0]])
    assert both.chosen("method.local.lr") == 0.1
    scores = [s["best"]["valid_accuracy"] for r in (slow, runs[0]) for s in r.summaries]
    assert scores[0] < min(scores[1:])
    with pytest.raises(fedpers.ConfigError, match=r"method\.num_canonical: no finished run has it"):
        both.chosen("method.num_canonical")


def test_import_is_quick():
    code = "import sys, fedpers; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "flwr", "pandas", "hydra"} & set(done.stdout.split())


def test_settings_are_the_words_of_the_command_line():
    settings = {"rounds": 3, "model": {"name": "mlp", "hidden": [8, 4]}, "clients_per_round": None}
    settings |= {
        "method": "fedavg",
        "data": {"num_clients": np.int64(5), "root": "/a b/it's"},
        "optimum": False,
    }
    cfg = compose.load([*_words(settings)])
    assert (cfg.method_name, cfg.rounds, cfg.data.num_clients, cfg.data.root) == ("fedavg", 3, 5, "/a b/it's")
    assert cfg.model.options["hidden"] == [8, 4]
    assert cfg == compose.load(
        ["method=fedavg", "rounds=3", "model.hidden=[8,4]", "data.num_clients=5", 'data.root="/a b/it\'s"']
    )


def test_a_run_is_what_the_command_makes(runs, tmp_path):
    from fedpers.app.run import execute

    run = runs[0]
    words = [
        "method=fedavg",
        "method.local.lr=0.1",
        "rounds=2",
        "data.num_clients=4",
        "model.hidden=[8]",
        "seed=1",
    ]
    execute(compose.load(words), tmp_path / "same")
    columns = ["round", "split", "loss", "accuracy"]
    theirs = fedpers.load(tmp_path / "same").frame()[columns]
    frame = run.frame()
    mine = frame[frame.seed == 1][columns].reset_index(drop=True)
    assert mine.equals(theirs)
    assert list(frame.columns[:4]) == ["method", "seed", "round", "split"]
    assert sorted(frame.seed.unique()) == [0, 1]


def test_clients_and_summaries(runs):
    table = runs[0].clients()
    assert len(table) == 2 * 4 and {"partition_id", "accuracy", "seed"} <= set(table.columns)
    assert [s["status"] for s in runs[0].summaries] == ["finished"] * 2


def test_pictures_are_shown_by_notebooks(runs, tmp_path):
    picture = runs[0].plot(tmp_path / "a.png")
    assert picture._repr_png_().startswith(b"\x89PNG") and picture.path == tmp_path / "a.png"


def test_the_same_run_is_left_alone_and_another_is_refused(runs):
    folder = runs[1].paths[0]
    before = (folder / "summary.json").stat().st_mtime_ns
    again = fedpers.run("local", out=folder, **QUICK)
    assert (folder / "summary.json").stat().st_mtime_ns == before and again.paths == runs[1].paths
    with pytest.raises(fedpers.ConfigError, match="another run is there"):
        fedpers.run("fedavg", out=folder, **QUICK)


def test_loading_runs_that_differ_in_more_than_their_seed_says_what_to_do(runs):
    root = runs[1].paths[0].parent
    assert fedpers.load(root / "fedavg").seeds == (0, 1)
    with pytest.raises(fedpers.ConfigError, match=r"differs from .* in .*fedpers\.compare"):
        fedpers.load(root)


def test_a_comparison_is_the_reports(runs, tmp_path):
    found = fedpers.compare([runs[0], runs[1].paths[0]])
    assert set(found.groups) == {"fedavg", "local"} and not found.left_out
    last = runs[0].frame().query("split == 'test' and round == 2").accuracy
    row = found.table().loc["fedavg"]
    assert row.runs == 2
    assert row.accuracy == pytest.approx(last.mean(), rel=1e-12)
    assert row.accuracy_std == pytest.approx(last.std(ddof=1), rel=1e-12)
    assert np.isnan(found.table().loc["local"].accuracy_std)
    assert found.plot(tmp_path / "c.png").path.is_file()


def test_mistakes_have_one_message_each(tmp_path):
    for call, text in (
        (lambda: fedpers.run("fedavgg"), "did you mean 'fedavg'"),
        (lambda: fedpers.run("fedavg", round=3), "did you mean rounds"),
        (lambda: fedpers.run("fedavg", seeds=0), "at least 1"),
        (lambda: fedpers.run("fedavg", seed=3), "there is no seed= here"),
        (lambda: fedpers.run("fedavg", data="digit"), "did you mean 'digits'"),
        (lambda: fedpers.load(tmp_path), "no run in it"),
        (lambda: fedpers.load(tmp_path / "x"), "no such folder"),
        (lambda: fedpers.compare([tmp_path]), "no run in it"),
    ):
        with pytest.raises(fedpers.ConfigError, match=text):
            call()


# ---- a Federation of the caller -----------------------------------------------------------------


def federation(shift: float = 0.0, dtype: torch.dtype = torch.float32) -> fedpers.Federation:
    """Three clients with 12, 14 and 16 samples of two classes."""

    def part(n: int, seed: int) -> Data:
        rng = np.random.default_rng(seed)
        y = torch.from_numpy(rng.integers(0, 2, n))
        x = torch.from_numpy(rng.normal(size=(n, 3)) + shift).to(dtype) + y[:, None]
        return Data(x.to(dtype), y, torch.ones(n, dtype=dtype))

    clients = [ClientData(part(12 + 2 * k, k), part(2, 10 + k), part(6, 20 + k)) for k in range(3)]
    sizes = np.array([[len(c.train), len(c.test)] for c in clients])
    counts = np.array([np.bincount(c.train.y, minlength=2) for c in clients])
    return fedpers.Federation(
        "mine", 3, (3,), 2, "classification", clients.__getitem__, sizes[:, 0], sizes[:, 1], counts
    )


@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_digest_is_of_every_clients_samples_in_each_split(k, split):
    one, other = federation(), federation()
    assert one.digest() == other.digest()
    getattr(other.client(k), split).x[-1, -1] += 1e-3
    assert one.digest() != other.digest()


def test_a_federation_of_the_caller(tmp_path):
    run = fedpers.run("fedavg", data=federation(), rounds=2, model="logistic", out=tmp_path / "a")
    assert run.clients().num_train.tolist() == [12, 14, 16]
    assert run.data is not None
    fedpers.run("fedavg", data=federation(), rounds=2, model="logistic", out=tmp_path / "a")  # the same
    with pytest.raises(fedpers.ConfigError, match=r"another run is there \(data.digest"):
        fedpers.run("fedavg", data=federation(1.0), rounds=2, model="logistic", out=tmp_path / "a")
    with pytest.raises(fedpers.ConfigError, match="cannot reach a Federation"):
        fedpers.run("fedavg", data=federation(), engine="ray")
    with pytest.raises(fedpers.ConfigError, match="the Federation has float64"):
        fedpers.run("fedavg", data=federation(dtype=torch.float64), model="logistic")
    with pytest.raises(fedpers.ConfigError, match="data=python: the data is a Federation"):
        fedpers.run("fedavg", data="python", out=tmp_path / "b")


def test_a_model_of_a_run_predicts(runs):
    assert runs[0].model(seed=1)(torch.zeros(2, 64)).shape == (2, 10)
    with pytest.raises(fedpers.ConfigError, match="seed=7: no run has this seed"):
        runs[0].model(seed=7)
    with pytest.raises(fedpers.ConfigError, match="client"):
        runs[0].model(client=4)


def test_a_clients_model_is_the_one_that_was_evaluated(tmp_path):
    data = federation()
    run = fedpers.run("local", data=data, rounds=2, model="logistic", out=tmp_path)
    for k in range(3):
        test = data.client(k).test
        assert run.model(client=k).accuracy(test.x, test.y) == pytest.approx(run.clients().accuracy[k])
    again = fedpers.load(tmp_path, data=data).model(client=1)
    x = data.client(1).test.x
    assert torch.equal(again(x), run.model(client=1)(x))


# ---- what is public -----------------------------------------------------------------------------


def test_the_page_lists_what_is_public_and_nothing_else():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = {}
    for part in text.split("\n## ")[1:]:
        module = part.partition("\n")[0].strip("`")
        listed[module] = set(re.findall(r"^\| `([\w.]+)` \|", part, re.M))
    expected = {
        "fedpers": set(fedpers.__all__),
        "fedpers.method": set(fedpers.method.__all__),
        "fedpers.checks": set(fedpers.checks.__all__),
        "fedpers.simulate": {"simulate"},
        "fedpers.registry": set(fedpers.registry.__all__),
    }
    assert listed == expected


def test_every_public_name_is_there_and_type_checkers_see_it():
    stub = (ROOT / "fedpers" / "__init__.pyi").read_text(encoding="utf-8")
    for name in fedpers.__all__:
        assert getattr(fedpers, name) is not None
        assert re.search(rf"(import|as|^) ?{name}\b", stub, re.M), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fedpers.nonsense
