"""`fedpers new-method NAME`: a package with a method of the user's own, which passes its tests as written."""

import importlib.resources
import keyword
import re
from pathlib import Path

from fedpers.config import registry
from fedpers.core.errors import ConfigError

FILES = {  # template: where it goes
    "pyproject.toml": "pyproject.toml",
    "readme.md": "README.md",
    "init.py": "src/fedpers_@name@/__init__.py",
    "client.py": "src/fedpers_@name@/client.py",
    "strategy.py": "src/fedpers_@name@/strategy.py",
    "defaults.yaml": "conf/method/@name@.yaml",
    "tests.py": "tests/test_@name@.py",
}


def new_method(name: str, out: Path | None = None) -> Path:
    """Write the package of a method called `name`; returns its folder.

    Args:
        name: small letters, digits and underscores; `fedpers run method=<name>` once it is installed.
        out: the folder; default: fedpers_<name> in the current one.

    Raises:
        ConfigError: the name cannot be a method's, or the folder is not empty.
    """
    _check(name)
    folder = out or Path(f"fedpers_{name}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists already; choose another folder with --out")
    templates = importlib.resources.files("fedpers.app") / "new_method_files"
    for source, target in FILES.items():
        path = folder / _filled(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (templates / f"{source}.tmpl").read_text(encoding="utf-8")
        path.write_text(_filled(text, name), encoding="utf-8")
    return folder


def _check(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        text = "must be small letters, digits and underscores, and begin with a letter"
        raise ConfigError(f"new-method {name}: a method's name {text}, such as my_method")
    if name in registry.methods():
        raise ConfigError(f"new-method {name}: there is a method of that name; choose another")


def _filled(text: str, name: str) -> str:
    stem = "".join(part.capitalize() for part in name.split("_"))
    return text.replace("@name@", name).replace("@Class@", stem)
