"""Personalised federated learning on Flower."""

# In the source tree (and in a Flower App Bundle) strategies/, clients/, datasets/ and conf/ are
# this folder's siblings; once installed they are inside it. One line serves both.
import os as _os
from pathlib import Path as _Path

__version__ = "0.1.0"

# MKL rounds by where a matrix lies in memory (seen on AMD processors, matrices of under 4 rows), unless
# it is asked not to; that costs nothing measurable. It reads this at its first product.
_os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_LAZY = {  # names that are imported when they are first used: the package itself imports nothing
    "Federation": "fedpers.core.data",
    "load_exported": "fedpers.app.exported",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'fedpers' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


_root = _Path(__file__).resolve().parent.parent
if (_root / "strategies").is_dir() and (_root / "pyproject.toml").is_file():
    __path__.append(str(_root))
del _Path, _os, _root
