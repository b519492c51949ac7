"""`fedpers run --help`: every key of the chosen groups, from the comments of the YAML files.

Imports neither torch nor Hydra: the text is there at once.
"""

import importlib.resources
import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpers.config.keys import Row, rows
from fedpers.core.errors import ConfigError, unknown
from fedpers.datasets.keys import USED_BY

FIELD = re.compile(r"^    (\w+): .* = (.*?)  # (.*)$", re.MULTILINE)  # of a dataclass: name, default, comment
HEAD = """fedpers run [key=value ...]: one run
fedpers run -m key=value,value ...: a sweep, a run for each combination
fedpers run resume=FOLDER: go on with a run      fedpers list: what the groups may be
fedpers run --cfg job: the configuration, resolved      fedpers run --hydra-help: Hydra's own options"""


def show(overrides: Sequence[str], console: Console | None = None) -> None:
    """Print the keys of a run, and those of the files that `overrides` choose.

    Raises:
        ConfigError: a group has no such file.
    """
    console = console or Console()
    console.print(HEAD, highlight=False, markup=False, soft_wrap=True)
    base = _text("config.yaml")
    console.print(_table("a run", list(rows(base, ""))))
    for group, name in chosen(base, overrides).items():
        text = _text(f"{group}/{name}.yaml")
        first = next((x.lstrip("# ") for x in text.splitlines() if x.startswith("#")), "")
        console.print(
            _table(
                f"{group}={name}: {first}", [r for r in rows(text, f"{group}.") if r[0] != f"{group}.name"]
            )
        )
        if group == "data":
            shown = {row[0] for row in rows(text, "data.")}
            if found := [row for row in of_partition(_partition(text, overrides)) if row[0] not in shown]:
                console.print(_table(f"data.partition={_partition(text, overrides)}", found))


def _partition(text: str, overrides: Sequence[str]) -> str:
    """The partition that is asked for, or that of the data set's file."""
    given = [word.partition("=")[2] for word in overrides if word.lstrip("+").startswith("data.partition=")]
    return (given or re.findall(r"^partition: (\w+)", text, re.MULTILINE) or [""])[-1]


def of_partition(name: str) -> list[Row]:
    """The keys of a partition, from the comments of the dataclass that has them."""
    source = (importlib.resources.files("fedpers.datasets") / "config.py").read_text(encoding="utf-8")
    fields = {m[1]: (m[2], m[3]) for m in FIELD.finditer(source)}
    keys = [key for key, users in USED_BY.items() if name in users]
    return [(f"data.{key}", fields[key][0].lower().replace("none", "null"), fields[key][1]) for key in keys]


def chosen(base: str, overrides: Sequence[str]) -> dict[str, str]:
    """{group: name of its file}: the defaults of config.yaml, and what the overrides choose instead."""
    found = dict(re.findall(r'^  - (\w+): "?(\w+)', base, re.MULTILINE))
    for word in overrides:
        key, _, value = word.lstrip("+").partition("=")
        if key in found and value:
            folder = importlib.resources.files("fedpers.conf") / key
            names = [f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")]
            if value not in names:
                raise ConfigError(unknown(key, value, names))
            found[key] = value
    return found


def _text(name: str) -> str:
    path = importlib.resources.files("fedpers.conf")
    for part in name.split("/"):
        path = path / part
    return path.read_text(encoding="utf-8")


def _table(title: str, found: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
    table.pad_edge = False
    for style in ("bold", "cyan", ""):
        table.add_column(style=style, no_wrap=style == "bold")
    for row in found:
        table.add_row(*map(Text, row))
    return table
