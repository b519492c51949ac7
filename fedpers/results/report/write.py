"""`fedpers report`: finished runs -> verdict, tables and figures as HTML, Markdown, LaTeX and CSV."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedpers.core.errors import ConfigError, FedpersError
from fedpers.results.report import (
    budgets,
    document,
    drawings,
    optimality_gap,
    record,
    screen,
    standings,
    written,
)
from fedpers.results.report.paper_table import SCORE, paper_table
from fedpers.results.report.runs import Setting, StoredRun, find_runs, group_by_setting
from fedpers.results.report.screen import ReportTable
from fedpers.results.report.tables import beside_paper, costs, tuned, unseen
from fedpers.results.report.view import slug, view

FOOT = "mean ± standard deviation over runs (ddof = 1)"


def write_report(
    paths: Sequence[Path],
    out: Path | None = None,
    json: Path | None = None,
    last: int | None = None,
    target: float | None = None,
    columns: Sequence[str] = (SCORE,),
) -> Path:
    """Print the tables and write report.html, report.md and the folder report/; returns the first's path.

    Args:
        paths: run directories, or folders above them.
        out: where to; by default the only path, else the current folder.
        json: a file for the numbers of the runs' only experiment.
        target: a score; what it took each method to reach it is a table.
        last: ours beside the paper's are means over so many last evaluations; else as the experiment says.
        columns: of report/paper.tex, the table of all data sets; see `paper_table`.

    Raises:
        ConfigError: a path has no run, `json` is asked for several experiments, or `last` is not positive.
        FedpersError: no run is finished, or a file in the way is not ours.
    """
    if last is not None and last < 1:
        raise ConfigError(f"--last {last}: must be at least 1")
    runs = [run.averaged(last) if last else run for run in find_runs(paths)]
    settings = group_by_setting(runs)
    if not settings:
        raise FedpersError("\n".join(["no run to report", *(f"  {r.path}: {r.problem}" for r in runs)]))
    folder = out or (paths[0] if len(paths) == 1 else Path.cwd())
    texts = {json: record.text(settings)} if json else {}
    page, markdown = folder / "report.html", folder / "report.md"
    written.claim([page, markdown, *texts], folder / "report")
    parts = [part for s in settings for part in _parts(s, folder, target)]
    content: dict[str, Any] = {"comparisons": parts, "left_out": _left_out(runs), "foot": FOOT}
    texts |= {page: document.html(**content), markdown: document.markdown(**content)}
    texts[folder / "report" / "paper.tex"] = paper_table(settings, columns)
    for part in parts:
        texts[folder / "report" / f"{part['id']}.tex"] = document.latex(**part)
        texts[folder / "report" / f"{part['id']}.csv"] = document.table_csv(part["records"])
        if part["client_records"]:
            clients = folder / "report" / f"{part['id']}-clients.csv"
            texts[clients] = document.table_csv(part["client_records"])
    written.write(texts)
    screen.show(parts, content["left_out"])
    Console().print(f"{page}", highlight=False, soft_wrap=True)
    return page


def _parts(setting: Setting, folder: Path, target: float | None = None) -> Iterable[dict[str, Any]]:
    """The views of a setting's comparisons; its tables and drawings stand at the first."""
    tables = [*beside_paper(setting), *unseen(setting), *optimality_gap.tables(setting), costs(setting)]
    tables += budgets.tables(setting, target)
    tables += tuned(setting)
    pictures = drawings.draw(setting, folder / "report", slug(setting.name))
    for comparison in standings.compare(setting):
        yield view(comparison, tables, folder) | {"drawings": [p.name for p in pictures]}
        tables, pictures = [], []


def _left_out(runs: Sequence[StoredRun]) -> ReportTable:
    return ReportTable(
        "runs that are not counted", ("run", "why"), [(str(r.path), r.problem) for r in runs if r.problem]
    )
