"""Personalised federated learning on Flower."""

# In the source tree (and in a Flower App Bundle) strategies/, clients/, datasets/ and conf/ are
# this folder's siblings; once installed they are inside it. One line serves both.
import importlib as _importlib
from pathlib import Path as _Path

_root = _Path(__file__).resolve().parent.parent
_in_tree = (_root / "strategies").is_dir() and (_root / "pyproject.toml").is_file()
if _in_tree:
    __path__.append(str(_root))
del _Path

# Where the public names are; imported when they are first used, so that `import fedpers` is quick.
# Editors and type checkers read __init__.pyi, docs/api.md is for people; tests compare all three.
_HOMES = {
    "run": "fedpers.app.python_api",
    "load": "fedpers.app.python_api",
    "compare": "fedpers.app.python_api",
    "Run": "fedpers.app.stored_runs",
    "Comparison": "fedpers.app.stored_runs",
    "load_exported": "fedpers.app.exported",
    "Federation": "fedpers.core.data",
    "Observer": "fedpers.flower.observer",
    "FedpersError": "fedpers.core.errors",
    "ConfigError": "fedpers.core.errors",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    if name == "__version__":
        found: object = _version()
    elif name in _HOMES:
        found = getattr(_importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'fedpers' has no attribute '{name}'")
    globals()[name] = found
    return found


def _version() -> str:
    """What pyproject.toml says, the one place where the version stands."""
    if not _in_tree:
        import importlib.metadata

        return importlib.metadata.version("fedpers")
    import tomllib

    with (_root / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
