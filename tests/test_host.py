"""A host's process is as it was after fedpers was imported, called, or merely installed."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from fedpers.core.host import WANTED, borrowed, current_folder
from fedpers.engines.processor import arithmetic
from tests.test_imports import FILES

ROOT = Path(__file__).parents[1]
QUIET = ("MKL_CBWR", "FLWR_", "RAY_", "FEDPERS_", "OMP_", "PYTEST", "COV_")
# What other people's packages do once, when they are first imported, is theirs: a host who needs them has it.
LIBRARIES = """
import ray, pandas, hydra, torch.utils.tensorboard, torch._dynamo, scipy.stats, scipy.special
import sklearn.datasets, matplotlib.pyplot, flwr.serverapp, flwr.simulation.run_simulation, absl.flags
import rich.progress, jinja2
import flwr.server.superlink.fleet.vce.backend.raybackend, numpy.matlib, optuna
"""
START = """
import sys, time, torch, numpy
from host_state import changes, snapshot
torch.set_num_threads(2)  # as a host has them
"""


def changed(folder: Path, code: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """{kind: what it was and is} that differs between `before = snapshot()` and the end of the code."""
    end = """
    until = time.monotonic() + 20
    while (found := changes(before, snapshot())) and set(found) == {"threads"} and time.monotonic() < until:
        time.sleep(0.1)  # of an engine that has ended, which its last thread learns a moment later
    print({k: repr(v) for k, v in found.items()})
    """
    (folder / "script.py").write_text(START + textwrap.dedent(code) + textwrap.dedent(end))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(QUIET) or k == "FEDPERS_CACHE"}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT / "tests")} | (env or {}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = ast.literal_eval(done.stdout.splitlines()[-1])
    return found


def test_a_change_of_each_kind_is_seen(tmp_path: Path) -> None:
    """Else the tests below could not fail."""
    code = """
    import ctypes, gc, locale, logging, os, random, signal, threading, warnings, resource
    from fedpers.core.host import owned
    before = snapshot()
    os.environ["MKL_CBWR"] = "COMPATIBLE"
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    logging.getLogger("somebody").setLevel(5)
    signal.signal(signal.SIGTERM, lambda *a: None)
    sys.path.append("/somewhere")
    random.random(), torch.rand(1), numpy.random.rand(1)
    os.chdir("/")
    os.umask(0o077)
    gc.set_threshold(1)
    owned()
    threading.Thread(target=time.sleep, args=(60,), daemon=True, name="left").start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    """
    kinds = {"os.environ", "torch.threads", "torch", "warnings.filters", "loggers", "signals", "sys.path"}
    kinds |= {"random", "torch.random", "numpy.random", "cwd", "umask", "gc", "malloc", "threads"}
    assert kinds <= changed(tmp_path, code).keys()


def test_an_import_changes_nothing_and_brings_nothing_heavy(tmp_path: Path) -> None:
    code = """
    before, there = snapshot(), set(sys.modules)
    import fedpers
    assert not {"flwr", "ray", "hydra", "matplotlib", "pandas"} & {m.partition(".")[0] for m in sys.modules}
    assert {m for m in set(sys.modules) - there if m.startswith("fedpers")} == {"fedpers"}
    """
    assert changed(tmp_path, code) == {}


def test_no_module_changes_anything_when_it_is_imported(tmp_path: Path) -> None:
    """With `MKL_CBWR`, `FLWR_*` and `RAY_*` unset; the libraries beneath are there already."""
    own = ("bench", "conf", "__main__", "deploy.resident")  # programs, and what only they import
    names = sorted(f"fedpers.{name}" for name in FILES if name and not name.startswith(own))
    code = f"""
    import importlib
    before = snapshot()
    for name in {names!r}:
        importlib.import_module(name)
    """
    assert changed(tmp_path, LIBRARIES + textwrap.dedent(code)) == {}


def test_a_run_leaves_its_host_as_it_was(tmp_path: Path) -> None:
    """A worker process, a module of the current folder and an observer by name among it."""
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom fedpers.method import Observer\n\n\nclass Watcher(Observer):\n"
        '    """Tells nothing."""\n\n\nclass Net(torch.nn.Sequential):\n'
        '    """Draws numbers in each step."""\n\n    def __init__(self, num_outputs=10):\n'
        "        parts = torch.nn.Flatten(), torch.nn.Dropout(0.1), torch.nn.Linear(64, num_outputs)\n"
        "        super().__init__(*parts)\n"
    )
    code = """
    import fedpers
    before = snapshot()
    sys.path.remove(sys.path[0])  # as a command's path, that does not begin where the user is
    before["sys.path"] = list(sys.path)
    run = fedpers.run("fedper", data="digits", rounds=2, out="run", observers=["mine:Watcher"], seeds=2)
    own = fedpers.run("fedavg", data="digits", rounds=1, out="own", model={"name": "module",
                      "path": "mine:Net"}, engine={"workers": 2})
    again = fedpers.load("run")
    again.frame(), again.model(client=0), own.model(), fedpers.compare([run, own])
    assert torch.get_num_threads() == 2
    class Bad(fedpers.Observer):
        def on_start(self, out, cfg):
            raise KeyboardInterrupt
    try:
        fedpers.run("fedper", data="digits", rounds=2, out="bad", observers=[Bad()])
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("it did not fail")
    """
    assert changed(tmp_path, LIBRARIES + textwrap.dedent(code)) == {}


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_on_ray_leaves_its_host_as_it_was(tmp_path: Path) -> None:
    """Ray sets PYTHONPATH, SIGTERM's handler and the levels of loggers; Flower reports no usage."""
    code = """
    import fedpers
    from flwr.supercore import telemetry
    telemetry.FLWR_TELEMETRY_ENABLED = "1"  # somebody imported Flower before
    sent = []
    telemetry.urllib.request.urlopen = lambda *a, **k: sent.append(a) or (_ for _ in ()).throw(OSError())
    before = snapshot()
    fedpers.run("fedper", data="digits", rounds=1, out="run", engine={"name": "ray", "num_cpus": 1})
    assert not sent and telemetry.FLWR_TELEMETRY_ENABLED == "1"
    """
    assert changed(tmp_path, LIBRARIES + textwrap.dedent(code)) == {}


def test_what_the_owner_has_set_holds_during_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WANTED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    before = dict(os.environ)
    with borrowed():
        assert os.environ["FLWR_TELEMETRY_ENABLED"] == "1"
        with borrowed():
            assert os.environ["MKL_CBWR"] == "AUTO,STRICT"
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"  # until the last run is over
        os.environ |= {"PYTHONPATH": "/ray", "WANDB_RUN_ID": "7"}
    assert dict(os.environ) == before | {"WANDB_RUN_ID": "7"}  # somebody's observer
    del os.environ["WANDB_RUN_ID"]


def test_the_current_folder_is_found_while_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = [p for p in sys.path if p]
    monkeypatch.setattr(sys, "path", list(path))
    with current_folder(), current_folder():
        assert sys.path == [*path, str(tmp_path)]
    assert sys.path == path


HOSTS = [  # who says it, in whichever of torch's two ways
    "pass",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cudnn.allow_tf32 = False",
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.set_float32_matmul_precision('medium')",
]
PRODUCTS = """
import os
from fedpers.engines.processor import _products
places = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]
def state():
    return [x.fp32_precision for x in (torch.backends, torch.backends.mkldnn.matmul, *places)]
before = {}
"""


def test_products_on_a_gpu_are_as_they_were(tmp_path: Path) -> None:
    """A fork for each host, since torch keeps what was said."""
    code = f"""
    for host in {HOSTS!r}:
        for precision in ("ieee", "tf32"):
            if not (child := os.fork()):
                exec(host)
                was = state()
                with _products(precision):
                    assert [x.fp32_precision for x in places] == [precision] * 3
                assert state() == was, (host, precision, was, state())
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, (host, precision)
    """
    assert changed(tmp_path, PRODUCTS + textwrap.dedent(code)) == {}


PLAIN = """
import sys, os
def test_it():
    assert not [m for m in sys.modules if m.partition(".")[0] in ("fedpers", "flwr", "torch", "ray")]
    assert not [v for v in os.environ if v.startswith(("MKL_CBWR", "FLWR_", "RAY_"))]
"""


def test_a_pytest_of_somebody_else_sees_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(PLAIN)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(QUIET)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--trace-config",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    said = done.stdout.replace(str(tmp_path), "").replace(sys.prefix, "")  # a clone is called fedpers
    assert "fedpers" not in said


ASKED = """
import pytest
from fedpers.strategies.fedavg import FedAvg
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig

@pytest.mark.fedpers_method(FedAvg, FedAvgClient, FedAvgConfig())
def test_contract(fedpers_check):
    fedpers_check()
"""


def test_the_fixture_is_there_where_a_conftest_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["fedpers.pytest_plugin"]\n')
    (tmp_path / "test_contract.py").write_text(ASKED)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-k", "same_seed", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_a_command_of_its_own_keeps_freed_memory(tmp_path: Path) -> None:
    """The library's call does not: see above."""
    code = """
    from fedpers.app.cli import main
    before = snapshot()
    sys.argv = ["fedpers", "list"]
    main()
    """
    assert {"malloc", "os.environ"} <= changed(tmp_path, code).keys()


def test_arithmetic_leaves_autocast_alone() -> None:
    before = torch.is_autocast_enabled("cpu")
    with arithmetic("bf16", "auto", "cpu"):
        assert torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_enabled("cpu") == before
