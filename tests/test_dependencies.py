"""Every third-party module that we import is a declared dependency, and every declared one is imported."""

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("fedpers", "strategies", "clients", "datasets")
UNDECLARED = {  # imported, and why pyproject.toml does not name it
    "ray": "comes with flwr[simulation], which bounds its version",
    "pytest": "is there where its plugin of ours is loaded",
    "jax": "comes with fedjax, which bounds its version",
}
NOT_IMPORTED = {  # declared, and why nothing imports it
    "grpcio-health-checking": "a bound that spares pip ten downloads",
    "onnx": "what onnxscript writes, for torch",
}
MODULES = {  # {module: distribution} of what is often not installed
    "fedjax": "fedjax",
    "pfl": "pfl",
    "wandb": "wandb",
    "mlflow": "mlflow-skinny",
    "onnxscript": "onnxscript",
}


def imported() -> set[str]:
    """The top names of all modules that the source imports, lazily or not, but ours and Python's."""
    names: set[str] = set()
    for path in (p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").partition(".")[0])
    return names - sys.stdlib_module_names - {"fedpers"}


def declared() -> set[str]:
    """The distributions that running needs, peers too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    used = ["peers", "bench", "parquet", "monitoring", "wandb", "mlflow", "onnx", "huggingface", "timm"]
    used.append("hdf5")
    wanted = [*project["dependencies"], *(text for name in used for text in extras[name])]
    return {re.split(r"[\[<>=;! ]", text, maxsplit=1)[0].lower().replace("_", "-") for text in wanted}


@cache
def installed() -> Mapping[str, list[str]]:
    """{module: distributions} of this environment, which takes seconds to read."""
    return packages_distributions()


def providers(module: str) -> set[str]:
    """The distributions that have a module."""
    found = installed().get(module, [MODULES.get(module, module)])
    return {d.lower().replace("_", "-").removesuffix("-nightly") for d in found}


def test_what_is_imported_is_declared() -> None:
    assert not {m for m in imported() - UNDECLARED.keys() if not providers(m) & declared()}


def test_what_is_declared_is_imported() -> None:
    used = {d for m in imported() for d in providers(m)}
    assert declared() - used == set(NOT_IMPORTED)


def test_the_exceptions_are_still_needed() -> None:
    assert imported() >= UNDECLARED.keys()
    assert not declared() & UNDECLARED.keys()


def test_the_images_versions_are_those_that_the_project_allows() -> None:
    """Every dependency is pinned within its range; no pin is older than a fault that was mended since."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    lines = (ROOT / "docker" / "constraints.txt").read_text(encoding="utf-8").split()
    pins = {name: Version(pin) for name, pin in (line.split("==") for line in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *extras["monitoring"], *extras["parquet"]):
        wanted = Requirement(text)
        assert pins[wanted.name.lower().replace("_", "-")] in wanted.specifier, text
    assert pins["hydra-core"] >= Version("1.3.4") and pins["certifi"] >= Version("2026.10.19")
