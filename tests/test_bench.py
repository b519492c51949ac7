"""The benchmarks' bookkeeping; the speed itself is measured by `fedpers bench`, not here."""

import argparse
import ast
import json
import re
import sys
from pathlib import Path

import pytest
import start
import torch

import fedpers
from fedpers.app.cli import main
from fedpers.bench import columns, cuda, population, profile, suites
from fedpers.bench import main as bench
from fedpers.bench import table as benchtable
from fedpers.bench.work import FLOPS, MODELS, AsModule, Work, make_model
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedamp import FedAMPClient, FedAMPConfig
from fedpers.clients.local import LocalClient, LocalTrainingConfig
from fedpers.config import compose
from fedpers.core import sums
from fedpers.core.plan import Plan
from fedpers.learning.kernels import native
from fedpers.learning.model import build_model
from fedpers.strategies.fedamp import FedAMP
from fedpers.strategies.local import Local

SIZES = {"lr": 7850, "mlp": 159010, "lenet": 62006, "cnn": 1663370}


@pytest.mark.parametrize("name", SIZES)
def test_peers_train_the_same_model(name):
    work = Work(name)
    model = make_model(work)
    params = model.init(0)
    assert sum(v.numel() for v in params.values()) == SIZES[name]
    x = torch.randn(2, *work.shape)
    assert torch.equal(AsModule(model)(x), model(params, x))


def test_flops_of_a_round_are_counted_by_hand():
    work = Work("lr", C=100, n=200, E=1)
    assert work.flops == 2 * 2 * 7840 * 20_000  # forwards, and the weights' gradient
    assert set(FLOPS) < set(MODELS)


def row(engine, *seconds):
    return {"engine": engine, "seconds": list(seconds), "cpu": list(seconds), "peak_mb": 10.0}


def test_medians_leave_out_first_rounds_and_ratios_are_to_ours(tmp_path):
    taken = {
        ("floor", 1): [{"sgemm": 100.0, "conv": 50.0, "seconds": [], "cpu": []}],
        ("auto", 1): [row("auto", 9.0, 1.0, 2.0), row("auto", 9.0, 3.0, 2.0)],
        ("flower-ray", 2): [row("flower-ray", 99.0, 20.0)],
        ("pfl-research", 1): [],
    }
    rows = bench.summarise(Work("lr"), taken)
    assert [r["engine"] for r in rows] == ["auto", "flower-ray"]
    assert [r["seconds"] for r in rows] == [2.0, 20.0]
    assert [r["times_ours"] for r in rows] == [1.0, 10.0]  # ours was not run in two processes
    taken["auto", 2] = [row("auto", 9.0, 1.0)]
    taken["floor", 1] = [{"sgemm": 100.0, "conv": 50.0, "seconds": [], "cpu": []}]
    beside = {(r["engine"], r["processes"]): r["times_ours"] for r in bench.summarise(Work("lr"), taken)}
    assert beside == {("auto", 1): 1.0, ("auto", 2): 1.0, ("flower-ray", 2): 20.0}
    assert rows[0]["first"] == 9.0
    text = benchtable.table(rows, columns.ROUNDS)
    assert "| lr M=1000 C=100 | flower-ray | 2 | 20000 | 10x |" in text
    path = bench.write(rows, "rounds-lr", tmp_path)
    content = json.loads(path.read_text())
    assert content["rows"] == rows
    assert content["machine"]["versions"]["torch"]


def test_results_go_into_the_document_between_its_marks(tmp_path):
    document, results = tmp_path / "benchmarks" / "tables.md", tmp_path / "benchmarks" / "results"
    document.parent.mkdir()
    document.write_text(
        f"before\n<!-- results: {benchtable.OURS} -->\nstale\n<!-- end of results -->\nafter\n"
    )
    row = {"clients": 10**6, "way": "processes", "count": 2, "cpus": 1, "startup": 2.0, "seconds": 0.5}
    rows = [row | {"peak_mb": 900.0, "disk_mb": 20.0}]
    for _ in range(2):  # a second time changes nothing
        bench.write(rows, "population", results)
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "stale" not in text
    assert "| 1,000,000 | 2 processes | 1 | 2.0 s | 500 | 2 | 900 | 20 |" in text
    assert "Not measured yet: `fedpers bench gpu`" in text
    assert "Not measured yet: `python benchmarks/pflego_cost.py`" in text


def test_the_page_of_tables_has_the_numbers_of_the_files():
    benchmarks = Path(fedpers.__file__).parents[1] / "benchmarks"
    assert benchtable.render(benchmarks / "results").strip() in (benchmarks / "tables.md").read_text()


def test_several_gpus_are_measured_beside_one(tmp_path, monkeypatch):
    asked = []

    def run(words, args):
        asked.append(words[-1])
        compose.load([w for w in words if not w.startswith(("devices", "engine.precision"))])
        return 1.0 / len(asked)

    monkeypatch.setattr(bench.granted, "gpus", lambda: ["0", "1", "2"])
    monkeypatch.setattr(suites, "_run_method", run)
    assert bench.main(["cuda", "--devices", "3", "--out", str(tmp_path)]) == 0
    assert asked == ["devices=[0]", "devices=[0,1]", "devices=[0,1,2]"]
    rows = json.loads((tmp_path / "devices.json").read_text())["rows"]
    assert [r["times"] for r in rows] == pytest.approx([1, 2, 3])
    assert "| 3 | 333 | 3x |" in benchtable.table(rows, columns.SUITES["devices"][2])


def test_a_population_is_measured_in_a_process_of_its_own(capsys):
    assert population.main([json.dumps([1500, population.PROCESSES, 1, 1, 2])]) == 0
    found = json.loads(capsys.readouterr().out.removeprefix("RESULT "))
    assert len(found["seconds"]) == 1 and found["seconds"][0] > 0 and found["startup"] > 0
    row = population._row((1500, population.PROCESSES, 2, 1), [found | {"peak_mb": m} for m in (90.0, 80.0)])
    assert row["peak_mb"] == 90 and row["seconds"] == found["seconds"][0] and row["count"] == 2


def test_one_engine_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPERS_BENCH", str(tmp_path))
    work = Work("lr", M=4, C=2, n=20, B=10, rounds=2)
    for engine in ("auto", "tight"):
        found = bench.run_one(engine, work)
        assert len(found["seconds"]) == 2
        assert found["peak_mb"] >= 0
    assert bench.run_one("no-such-engine", work) is None


def test_rounds_on_a_gpu_run_without_one_too(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPERS_BENCH", str(tmp_path))
    monkeypatch.setattr(cuda, "Work", lambda *a, **k: Work(*a, **(k | {"M": 4, "n": 6, "B": 3, "rounds": 4})))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setitem(cuda.OF_METHODS, "fedbn", "mlp")
    words = [
        "--models",
        "lr,lenet",
        "--methods",
        "fedper,fedbn",
        "--clients",
        "4",
        "--out",
        str(tmp_path / "out"),
    ]
    assert bench.main(["cuda", *words]) == 0
    rows = json.loads((tmp_path / "out" / "cuda.json").read_text())["rows"]
    found = [(r["model"], r["method"], r["way"]) for r in rows]
    ways = [("fedavg", way) for way in ("stack", "tight")]
    assert found == [*(("lr", *w) for w in ways), *(("lenet", *w) for w in ways),
                     ("mlp", "fedper", "stack"), ("mlp", "fedbn", "stack")]  # fmt: skip
    assert all(r["seconds"] > 0 and r["device"] == "the CPU" for r in rows[:-1])
    assert rows[0]["times"] == 1 and rows[1]["times"] == rows[1]["seconds"] / rows[0]["seconds"]
    assert rows[-1]["seconds"] is rows[-1]["times"] is None  # FedBN has nothing to keep in an MLP
    text = benchtable.table(rows, columns.SUITES["cuda"][2])
    assert "| the CPU | mlp | fedbn | stack | float32 | failed |" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--models", "lrr"], "did you mean 'lr'"),
        (["--engines", "auto,fedjaxx"], "did you mean 'fedjax'"),
        (["methods", "--methods", "fedavgg"], "did you mean 'fedavg'"),
        (["methods", "--profile", "--models", "lenet"], "Known: logistic, mlp"),
        (["cuda", "--devices", "2"], "--devices 2: torch finds 0 CUDA devices here"),
        (["cuda", "--devices", "1"], "must be at least 2"),
        (["--devices", "2"], "--devices 2: it is for `cuda`"),
        (["methods", "--clients", "0"], "--clients 0: must be at least 1"),
        (["--rounds", "-1"], "--rounds -1: must be at least 0"),
        (["--passes", "0"], "--passes 0: must be at least 1"),
        (["--python", "fedjax"], "expected ENGINE=PATH"),
    ],
)
def test_a_mistake_is_one_message_and_nothing_is_written(words, text, tmp_path, capsys):
    assert main(["bench", *words, "--out", str(tmp_path / "results")]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("fedpers: error: ") and err.count("\n") == 1
    assert text in err
    assert out == ""
    assert not (tmp_path / "results").exists()


def test_the_readme_has_the_factors_of_the_files():
    """Each peer beside ours in as many processes, logistic regression / MLP."""
    root = Path(__file__).parents[1]
    readme = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    rows = {
        (model, r["engine"], r["processes"]): r
        for model in ("lr", "mlp")
        for r in json.loads((root / f"benchmarks/results/rounds-{model}.json").read_text())["rows"]
    }
    times = [rows[m, "flower-ray", 2]["seconds"] / rows[m, "auto", 2]["seconds"] for m in ("lr", "mlp")]
    assert f"{times[0]:.0f} / {times[1]:.0f} times as fast as Flower's own simulation on Ray" in readme
    files = (root / "benchmarks/results").glob("libraries*.json")
    beside = [row for file in files for row in json.loads(file.read_text())["rows"]]
    for model, text in (("logistic", "on logistic regression"), ("mlp", "on an MLP"), ("lenet", "on LeNet")):
        here = [r for r in beside if (r["model"], r["clients"]) == (model, 100)]
        times = [r[f"times_{k}"] for k in ("pflib", "pflib_ram") for r in here if r.get(f"times_{k}")]
        factor = f"{min(times):.1f} to {max(times):.2g} times"
        assert f"{factor} {text}" in readme or f"{factor} as fast as PFLlib {text}" in readme


def test_the_readme_says_what_a_gpu_took():
    """The page's numbers are in test_more_page_numbers.py."""
    root = Path(__file__).parents[1]
    readme = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    rows = json.loads((root / "benchmarks/results/cuda.json").read_text())["rows"]
    (mlp,) = (
        r["times"] for r in rows if (r["model"], r["precision"], r["way"]) == ("mlp", "float32", "tight")
    )
    assert f"{mlp:.0f} times as fast as a plain loop on one H200 (MLP)" in readme


def test_a_processor_is_named_with_its_generation(tmp_path):
    info = tmp_path / "cpuinfo"
    assert bench.processor(info)  # what Python knows
    first = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n"
    info.write_text(f"{first}\nprocessor\t: 1\n")
    assert bench.processor(info) == "AMD EPYC (family 25, model 17)"
    info.write_text("processor\t: 0\nmodel name\t: ARMv8\n")
    assert bench.processor(info) == "ARMv8"


RUN = """
import sys, time, pathlib
folder = pathlib.Path(sys.argv[-1].removeprefix("out="))
folder.mkdir()
if "dies" in sys.argv:
    sys.exit("no such key")
(folder / "metrics.csv").write_text("round\\n")
time.sleep(0.3)
(folder / "metrics.csv").write_text("round\\n1\\n")
"""


def test_a_start_ends_with_the_first_row(monkeypatch):
    monkeypatch.setattr(start, "FEDPERS", [sys.executable, "-c", RUN])
    monkeypatch.setattr(start, "PAUSE", 0.001)
    assert start.first_round([]) > 0.3  # when there are names of columns alone it is not over


def test_a_run_without_a_round_says_why(monkeypatch):
    monkeypatch.setattr(start, "FEDPERS", [sys.executable, "-c", RUN])
    with pytest.raises(SystemExit, match="dies: no round\nno such key"):
        start.first_round(["dies"])


def test_a_profile_has_every_part_of_a_round_and_the_gradients_that_were_taken():
    fed, model = (
        toy_federation(),
        build_model("logistic", input_shape=(5,), num_outputs=3, task="classification"),
    )
    config = LocalTrainingConfig()
    strategy = Local(config, model, Plan(clients_per_round=3, eval_every=0))
    found = profile.measure(strategy, LocalClient(config, model), fed, rounds=2)
    assert found["gradients"] == pytest.approx(36, abs=9)  # one epoch of 3 clients with 9 to 15 samples
    assert (found["forwards"], found["head_steps"], found["pairs"]) == (0, 0, 0)
    assert found["exchanges"] == 1
    assert found["cpu"] > 0
    shares = [found[part] for part in profile.PARTS]
    assert sum(shares) == pytest.approx(1) and min(shares) >= 0
    assert found["Python"] > 0 and found["torch"] > 0


def test_of_several_passes_the_median_is_the_row(monkeypatch):
    took = iter([3.0, None, 1.0, None, 2.0, None, 9.0, None])
    monkeypatch.setattr(profile, "one", lambda *how: {"how": how, "times": next(took)})
    args = argparse.Namespace(methods="local,fedbn", clients=None, rounds=None, passes=4)
    first, second = profile.profile(args, "mlp")
    assert first == {"how": ("local", "mlp", 20, 10), "times": 2.0}
    assert second == {"how": ("fedbn", "mlp", 20, 10), "times": None}


def test_profiled_rounds_are_compared_with_timed_ones_of_their_length():
    """2 s a sample in rounds of 3, 5, 1 and 4 samples; rounds without samples count alike."""
    cpu, profiled, timed = [60.0, 10.0, 2.0, 80.0], [0, 3], [1, 2]
    assert profile.unprofiled(cpu, [3, 5, 1, 4], profiled, timed) == pytest.approx(2 * (3 + 4))
    assert profile.unprofiled(cpu, [0] * 4, profiled, timed) == pytest.approx(10 + 2)


def test_the_floor_counts_models_that_a_server_compares_and_mixes():
    """FedAMP: each of the 3 clients drawn with each of the 6 that have sent a model, twice."""
    fed = toy_federation()
    model = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
    strategy = FedAMP(FedAMPConfig(), model, Plan(clients_per_round=3, eval_every=0))
    found = profile.measure(strategy, FedAMPClient(FedAMPConfig(), model), fed, rounds=5)
    assert len(strategy.state.models) == 6
    assert found["pairs"] == 2 * 3 * 6


@pytest.mark.parametrize(
    ("file", "name", "part"),
    [
        *[(f"/x/{file}", name, "kernel") for file, names in profile.IN_C.items() for name in names],
        ("/x/fedpers/core/params.py", "sums", "Python"),
        ("/x/fedpers/core/params.py", "sums", "Python"),
        ("/x/fedpers/learning/kernels/native.py", "fits", "Python"),
        ("~", "<built-in method torch.stack>", "torch"),
        ("~", "<built-in method builtins.len>", "Python"),
        ("/x/site-packages/torch/_functorch/vmap.py", "vmap_impl", "torch"),
        ("/x/site-packages/flwr/app/message.py", "__init__", "Flower"),
        ("/x/fedpers/flower/transport.py", "open", "Flower"),
        ("/x/fedpers/engines/memory/row_store.py", "put", "storage"),
        ("/x/clients/fedavg.py", "answer", "Python"),
    ],
)
def test_a_function_belongs_to_one_part(file, name, part):
    assert profile.part_of((file, 1, name)) == part


def test_a_profile_knows_every_call_into_c():
    """But for larger convolutions, of which no profile is made."""
    package, found = Path(fedpers.__file__).parent, {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and re.search(r"\.fedpers_\w+\(", ast.unparse(node)):
                found.setdefault(f"{path.parent.name}/{path.name}", set()).add(node.name)
    del found["kernels/pooled.py"]
    own = {file: set(names) for file, names in profile.IN_C.items()}
    assert own.pop("kernels/native.py") == {"call"}  # which is given the function
    own["core/sums.py"].remove("look")  # of all_finite, which chooses it by the kind of numbers
    assert found == own
    assert callable(native.call) and callable(sums.all_finite)
