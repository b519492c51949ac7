"""A wheel of the tree, built without a network."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSIDE = ("strategies", "clients", "datasets", "conf")  # siblings here, children once installed
TAKEN = ("fedpers", *INSIDE, "pyproject.toml", "README.md", "LICENSE", "CITATION.cff")


def copy_tree(copy: Path) -> None:
    """What a build needs, so that it leaves no trace in the tree itself."""
    for name in TAKEN:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)


def build(copy: Path, what: str = "wheel") -> Path:
    """Build the "wheel" or "sdist" of the tree in `copy`; returns its path."""
    code = f"import setuptools.build_meta as b; print(b.build_{what}('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return copy / "dist" / done.stdout.splitlines()[-1]
