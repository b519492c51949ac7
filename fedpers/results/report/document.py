"""The report's documents, made from the templates in page/: HTML, Markdown and LaTeX."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedpers.results.report.written import MARK

VEGA_LITE = "6.4"  # the version that page/script.js is written for
PAGE = PackageLoader("fedpers.results.report", "page")
TEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "\N{MINUS SIGN}": "$-$", "…": r"\ldots{}", "·": r"$\cdot$", "\N{EN DASH}": "--"}
)


def html(**content: Any) -> str:
    """The whole page in one file that needs no network: style, data, pictures and Vega-Lite inside."""
    page = _environment(autoescape=True)
    inside = {"style": _source("style.css"), "script": _source("script.js"), "library": _library()}
    return page.get_template("report.html.j2").render(mark=MARK, **content, **inside)


def markdown(**content: Any) -> str:
    """Verdicts and tables, with links to the drawings in report/."""
    environment = _environment()
    environment.filters["cell"] = lambda text: text.replace("|", "\\|").replace("\n", " ")
    return environment.get_template("report.md.j2").render(mark=MARK, **content)


def latex(**comparison: Any) -> str:
    """The ranking as a tabular with the rules of booktabs."""
    signs = {"variable_start_string": "<<", "variable_end_string": ">>"}
    signs |= {"block_start_string": "<%", "block_end_string": "%>", "comment_start_string": "<#"}
    environment = _environment(**signs)
    environment.filters["tex"] = lambda text: text.translate(TEX)
    environment.filters["comment"] = lambda text: text.replace("\n", " ")
    return environment.get_template("table.tex.j2").render(mark=MARK, **comparison)


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the columns of the first; nan is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in r.items()} for r in rows
    )
    return text.getvalue()


def _environment(**more: Any) -> Environment:
    tidy: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    return Environment(loader=PAGE, undefined=StrictUndefined, **tidy, **more)


@cache
def _library() -> Markup:
    """Vega, Vega-Lite and Vega-Embed: 0.9 MB, put together in about two seconds."""
    return Markup(vl_convert.javascript_bundle(vl_version=VEGA_LITE))


def _source(name: str) -> Markup:
    return Markup(PAGE.get_source(Environment(), name)[0])
