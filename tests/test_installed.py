"""The wheel, installed, as a stranger uses it: fresh processes, outside of the repository."""

import os
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import pytest

from fedpers.checks.contract import CHECKS
from tests.test_compiled import slow_compiler
from tests.test_notebook import executed
from tests.test_observers import records
from tests.wheels import ROOT, build, copy_tree

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("installed")]  # one wheel, one environment


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, which sees the packages of this one beneath."""
    root = tmp_path_factory.mktemp("installed")
    copy_tree(root / "tree")
    wheel = build(root / "tree")
    venv.create(root / "venv", with_pip=False, symlinks=True)
    program = root / "venv" / "bin" / "python"
    ask = [str(program), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    beneath = [p for p in sys.path if p.endswith("site-packages")] or [sysconfig.get_path("purelib")]
    (own / "beneath.pth").write_text("\n".join(beneath) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(program)]
    words = ["install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    done = subprocess.run([*pip, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (own / "fedpers" / "strategies" / "fedavg.py").is_file()
    return program


def run(python: Path, folder: Path, code: str) -> str:
    """What a script prints that runs in `folder`, with no trace of the repository around it."""
    check = "import fedpers, sys\nassert fedpers.__file__.startswith(sys.prefix), fedpers.__file__\n"
    (folder / "script.py").write_text(check + textwrap.dedent(code))
    return called(folder, str(python), "script.py")


def called(folder: Path, *command: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "FEDPERS"))}
    done = subprocess.run(
        list(command),
        cwd=folder,
        env=kept | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_five_lines(python: Path, tmp_path: Path) -> None:
    code = """
    run = fedpers.run("fedavg", data="digits", rounds=2, seeds=2, out="runs/a", observers=["mine:Says"])
    assert sorted(run.frame().seed.unique()) == [0, 1]
    assert run.plot().path.is_file()
    assert fedpers.compare(["runs"]).table().loc["fedavg"].runs == 2
    assert fedpers.load("runs/a").seeds == (0, 1)
    print(run.model(), fedpers.__version__)
    """
    (tmp_path / "mine.py").write_text(
        "import fedpers\nclass Says(fedpers.Observer):\n    def on_end(self, summary): print('heard')\n"
    )
    assert run(python, tmp_path, code).count("heard") == 2


def test_a_new_method_and_its_tests(python: Path, tmp_path: Path) -> None:
    called(tmp_path, str(python.with_name("fedpers")), "new-method", "mine")
    out = called(tmp_path, str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "fedpers_mine")
    assert f"{len(CHECKS) + 4} passed" in out  # the contract, and four of its own


def test_own_csv_classification(python: Path, tmp_path: Path) -> None:
    code = """
    import numpy as np, pandas as pd
    rng, frames = np.random.default_rng(0), []
    for client in ("anna", "ben", "cora"):
        label = rng.choice(["cat", "dog"], 60)
        x = rng.normal(size=(60, 3)) + 4 * (label == "cat")[:, None]
        frames.append(pd.DataFrame(x, columns=list("abc")).assign(label=label, client=client))
    pd.concat(frames).to_csv("animals.csv", index=False)
    run = fedpers.run(
        "fedavg", data={"name": "files", "path": "animals.csv"}, model="logistic", rounds=5, out="run",
        metrics=["balanced_accuracy", "auc"],
    )
    table = run.clients()
    assert len(table) == 3 and table.auc.min() > 0.9, table
    assert run.model(client=1).params is not None
    """
    run(python, tmp_path, code)


def test_own_parquet_regression(python: Path, tmp_path: Path) -> None:
    code = """
    import numpy as np, pandas as pd
    from pathlib import Path
    Path("meters").mkdir()
    rng = np.random.default_rng(0)
    for k, n in enumerate((40, 60)):
        x = rng.normal(size=(n, 2))
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "load": x @ [1.0, -2.0]})
        frame.to_parquet(f"meters/house{k}.parquet")
    data = {"name": "files", "path": "meters", "target": "load", "task": "regression"}
    run = fedpers.run("local", data=data, model="linear", rounds=25, out="run", metrics=["r2"])
    assert run.clients().r2.min() > 0.9, run.clients()
    """
    run(python, tmp_path, code)


def test_an_image_folder(python: Path, tmp_path: Path) -> None:
    code = """
    import numpy as np
    from pathlib import Path
    from PIL import Image
    rng = np.random.default_rng(0)
    for client in ("anna", "ben"):
        for kind, level in (("dark", 60), ("light", 190)):
            folder = Path("photos", client, kind)
            folder.mkdir(parents=True)
            for i in range(12):
                noise = rng.integers(-40, 40, (8, 8))
                Image.fromarray((level + noise).astype("uint8")).save(folder / f"{i}.png")
    photos = {"name": "files", "path": "photos"}
    run = fedpers.run("fedper", "method.local.lr=0.2", data=photos, model="mlp", rounds=25, out="run")
    assert run.clients().accuracy.min() == 1.0, run.clients()
    """
    run(python, tmp_path, code)


def test_a_cnn_of_the_users_with_batchnorm_and_dropout(python: Path, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        textwrap.dedent(
            """
            from torch import nn

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body = nn.Sequential(
                        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
                    )
                    self.drop = nn.Dropout(0.2)
                    self.fc = nn.Linear(256, 2)

                def forward(self, x):
                    return self.fc(self.drop(self.body(x)))
            """
        )
    )
    code = """
    import numpy as np, torch
    rng, clients = np.random.default_rng(0), []
    for n in (30, 40):
        y = rng.integers(0, 2, n)
        clients.append((rng.normal(size=(n, 1, 8, 8)) + 2 * y[:, None, None, None], y))
    data = fedpers.Federation.from_arrays(clients)
    model = {"name": "module", "path": "nets:Net", "head": "fc"}
    run = fedpers.run("fedper", data=data, model=model, rounds=3, out="run")
    assert run.clients().accuracy.min() > 0.8, run.clients()
    test = data.client(1).test
    assert run.model(client=1).accuracy(test.x, test.y) == run.clients().accuracy[1]
    """
    run(python, tmp_path, code)


def test_a_hugging_face_dataset(python: Path, tmp_path: Path) -> None:
    """As objects in memory, one a client, and as a stored set by its name."""
    pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets flwr-datasets")
    code = """
    import datasets, numpy as np
    rng, label = np.random.default_rng(0), np.random.default_rng(1).integers(0, 2, 80)
    x = rng.normal(size=(80, 2)) + 6 * label[:, None] - 3
    columns = {"a": x[:, 0], "b": x[:, 1], "label": label, "client": ["anna", "ben"] * 40}
    everybody = datasets.Dataset.from_dict(columns)
    settings = {"model": "logistic", "rounds": 8}

    own = everybody.remove_columns("client")
    objects = [own.select(range(k, 80, 2)) for k in (0, 1)]
    federation = fedpers.Federation.from_arrays(objects, target="label")
    run = fedpers.run("fedavg", "method.local.lr=0.3", data=federation, out="objects", **settings)
    assert len(run.clients()) == 2 and run.clients().accuracy.min() > 0.8, run.clients()

    everybody.save_to_disk("mine")
    data = {"library": "huggingface", "name": "mine", "partition": "natural", "num_clients": None}
    run = fedpers.run("fedavg", "method.local.lr=0.3", data=data, out="stored", **settings)
    assert len(run.clients()) == 2 and run.clients().accuracy.min() > 0.8, run.clients()
    """
    run(python, tmp_path, code)


def test_the_notebook(python: Path, tmp_path: Path) -> None:
    cells = executed(python, tmp_path)
    assert "image/png" in cells["plot"].outputs[-1].data
    assert (tmp_path / "runs" / "pflego").is_dir()


def test_weights_and_biases_offline(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    code = """
    import os
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": os.getcwd()}
    run = fedpers.run("fedavg", data="digits", rounds=2, out="run", observers=["wandb"])
    assert "observer_failures" not in run.summaries[0], run.summaries[0]
    """
    run(python, tmp_path, code)
    (log,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert [float(step["test/accuracy"]) > 0 for step in records(log)["history"]] == [True, True]


def test_an_image_uses_the_kernels_that_it_was_built_with(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of docker/Dockerfile: compiled in its first stage, used in the second without a compiler."""
    assert "/bin/fedpers kernels --portable" in (ROOT / "docker" / "Dockerfile").read_text()
    slow_compiler(tmp_path, monkeypatch, 0.0)
    made = called(tmp_path, str(python), "-P", "-m", "fedpers", "kernels", "--portable").split()
    code = """
    import os
    os.environ |= {"PATH": "/nowhere", "FEDPERS_CACHE": "cache"}
    from fedpers.learning.kernels import library as kernels
    assert kernels.prepare()
    print(kernels.library()._name, kernels.sums.library()._name)
    """
    try:
        used = run(python, tmp_path, code).split()
        assert len(used) == 2 and set(used) < set(made) and not (tmp_path / "cache").exists()
    finally:  # the other tests use this environment with kernels for this processor
        for path in made:
            Path(path).unlink()
