"""Imports go one way: core <- datasets <- clients <- strategies <- app."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("datasets", "clients", "strategies")
APP = {"config", "registry", "engines", "run", "cli", "report", "server_app", "client_app"}
FLOWER = {
    "client", "client_app", "exchange", "fleet", "flower", "grid", "post", "roll", "run", "server",
    "server_app",
}
ENGINES = ("engine", "bench")  # engines.py, bench*.py may start what they drive and measure
ALLOWED = {
    "flwr": FLOWER,
    "ray": set(),
    "hydra": {"cli", "compose", "config", "launch", "listing"},
    "torchvision": {"compat"},
}
SUBMODULES = {f"fedpers.{folder}": ROOT / folder for folder in FOLDERS} | {
    "fedpers": ROOT / "fedpers"
}
FILES = {
    f"{package}.{path.relative_to(folder).with_suffix('').as_posix().replace('/', '.')}": path
    for package, folder in SUBMODULES.items()
    for path in folder.rglob("*.py")
}


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, at its top or inside its functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = [n for n in ast.walk(tree) if isinstance(n, ast.If) and _for_types(n.test)]
    skipped = {id(inner) for n in typing_only for inner in ast.walk(n)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def ours(name: str) -> str | None:
    """The file of ours that `name`, a module or something in one, stands for."""
    return (
        name if name in FILES else next((p for p in [name.rpartition(".")[0]] if p in FILES), None)
    )


def reach(module: str) -> set[str]:
    """All modules of ours that are imported, directly or not, with `module`."""
    seen, todo = set(), [module]
    while todo:
        name = todo.pop()
        seen.add(name)
        todo += [m for m in map(ours, imports(FILES[name])) if m and m not in seen]
    return seen


def test_methods_and_data_know_nothing_above_them() -> None:
    forbidden = {f"fedpers.{name}" for name in APP}
    checked = 0
    for level, folder in enumerate(FOLDERS):
        above = tuple(f"fedpers.{name}." for name in FOLDERS[level + 1 :])
        for module in (m for m in FILES if m.startswith(f"fedpers.{folder}.")):
            wrong = {m for m in reach(module) if m in forbidden or m.startswith(above or ("-",))}
            assert not wrong, f"{module} leads to {sorted(wrong)}"
            checked += 1
    assert checked == sum(1 for folder in FOLDERS for _ in (ROOT / folder).rglob("*.py")) > 0


def test_what_clients_use_loads_no_data_set() -> None:
    for module in (m for m in FILES if m.startswith("fedpers.clients.")):
        wrong = {m for m in reach(module) if m.startswith("fedpers.datasets.")}
        assert not wrong, f"{module} leads to {sorted(wrong)}"


def test_packages_at_the_edge_stay_there() -> None:
    for module, path in FILES.items():
        _, _, name = module.partition(".")
        for package in {target.partition(".")[0] for target in imports(path)}:
            engine = package in {"flwr", "ray"} and name.startswith(ENGINES)
            allowed = ALLOWED.get(package, {name}) | ({name} if engine else set())
            assert name in allowed, f"{module} imports {package}; only {sorted(allowed)} may"


def test_a_run_in_process_loads_neither_ray_nor_torchvision_nor_hydra() -> None:
    methods = [m for m in FILES if m.startswith(("fedpers.strategies.", "fedpers.clients."))]
    wanted = ", ".join(["fedpers.run", "fedpers.grid", "fedpers.datasets.digits", *methods])
    code = f"import sys, {wanted}; print(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not {"ray", "torchvision", "hydra", "omegaconf"} & set(done.stdout.split())
