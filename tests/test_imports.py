"""Packages lie on floors and import only what is below; every import counts, lazy and for types too."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BELOW = {  # package: all packages that it may import
    "core": set(),
    "learning": {"core"},
    "datasets": {"core"},
    "flower": {"core", "learning"},
    "config": {"core", "datasets", "learning"},
    "engines": {"core", "learning", "flower"},
    "families": {"core", "learning", "flower"},
    "method": {"core", "learning", "flower"},
    "simulate": {"core", "flower", "engines"},
    "registry": {"config"},
    "pytest_plugin": {"checks"},
    "clients": {"core", "learning", "families", "method"},
    "strategies": {"core", "learning", "families", "method", "clients"},
    "results": {"core", "learning", "flower", "config", "datasets"},
    "deploy": {"core", "learning", "datasets", "flower", "config", "engines"},
    "checks": {"core", "learning", "flower", "engines"},
    "bench": {
        "core",
        "learning",
        "datasets",
        "flower",
        "config",
        "engines",
        "families",
        "clients",
        "strategies",
    },
}
TOP = {"app", "__main__"}  # may import everything
EDGE = {  # other people's packages that few may import: these, by package or module
    "flwr": {"flower", "engines", "deploy", "app", "bench"},
    "ray": {"app.backends", "bench"},
    "hydra": {"app.launch", "config.compose", "config.hydra_internals", "config.space"},
    "torchvision": {"core.torchvision"},
    "tensorboard": {"results"},
    "matplotlib": {"results"},
    "jinja2": {"results"},
    "vl_convert": {"results"},
}
FOLDERS = {"": ROOT / "fedpers"} | {n: ROOT / n for n in ("datasets", "clients", "strategies", "conf")}


def modules() -> dict[str, Path]:
    """{name below fedpers: file} of the whole tree."""
    found = {}
    for prefix, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = [prefix, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(p for p in parts if p and p != "__init__")] = path
    return found


FILES = modules()


def imported(path: Path) -> Iterator[str]:
    """The full names that a file imports: at its top, in functions, and for types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(name: str) -> str | None:
    """The module of ours that `name`, a module or something in one, stands for."""
    if name.partition(".")[0] != "fedpers":
        return None
    inside = name.partition(".")[2]
    return inside if inside in FILES else inside.rpartition(".")[0]


@cache
def graph() -> dict[str, set[str]]:
    """{module: the modules of ours that it imports}."""
    return {m: {t for t in map(ours, imported(p)) if t is not None} - {m} for m, p in FILES.items()}


def package(module: str) -> str:
    return module.partition(".")[0]


def test_every_module_is_in_a_known_package() -> None:
    assert {package(m) for m in FILES} - {"", "conf"} == BELOW.keys() | TOP
    assert all(target in FILES for targets in graph().values() for target in targets)


@pytest.mark.parametrize("name", BELOW)
def test_a_package_imports_only_what_is_below_it(name: str) -> None:
    allowed = BELOW[name] | {name, ""}
    wrong = {
        f"{m} -> {t}"
        for m, targets in graph().items()
        if package(m) == name
        for t in targets
        if package(t) not in allowed
    }
    assert not wrong


def test_the_floors_themselves_have_no_circle() -> None:
    assert set(TopologicalSorter(BELOW).static_order()) == BELOW.keys()


def test_there_is_no_circle() -> None:
    try:
        order = list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
    assert set(order) == set(FILES)


UPWARD = [
    "from fedpers.app.run import execute",
    "if TYPE_CHECKING:\n    import fedpers.engines.cohort",
    "def f():\n    from fedpers.strategies.fedavg import FedAvg",
]


@pytest.mark.parametrize("line", UPWARD)
def test_an_upward_import_of_any_kind_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.py").write_text(line)
    found = {ours(name) for name in imported(tmp_path / "x.py")}
    assert {package(m) for m in found if m} & {"app", "engines", "strategies"}


def test_packages_at_the_edge_stay_there() -> None:
    for module, path in FILES.items():
        for name in {target.partition(".")[0] for target in imported(path)} & EDGE.keys():
            allowed = EDGE[name] | TOP if name == "flwr" else EDGE[name]
            assert package(module) in allowed or module in allowed, f"{module} imports {name}"


def test_private_modules_of_hydra_are_used_in_one_file() -> None:
    users = {m for m, path in FILES.items() if any(n.startswith("hydra._") for n in imported(path))}
    assert users == {"config.hydra_internals"}


def test_a_run_in_process_loads_only_what_its_first_round_needs() -> None:
    """Scikit-learn, matplotlib and Flower's SuperLink took longer than all else before that round."""
    methods = [f"fedpers.{m}" for m in FILES if m.startswith(("strategies.", "clients."))]
    app, more = ["fedpers.app.run", "fedpers.app.python_api"], ["fedpers.datasets.digits"]
    engine = [*app, "fedpers.engines.inprocess_grid", *more]
    wanted = ", ".join([*engine, *methods])
    load = "fedpers.datasets.digits.load(None, None)"
    code = f"import sys, {wanted}; {load}; print(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    late = {"ray", "torchvision", "hydra", "omegaconf", "sklearn", "pandas", "matplotlib", "sqlalchemy"}
    assert not late & set(done.stdout.split())
