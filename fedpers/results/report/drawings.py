"""The pictures of a report for readers of Markdown."""

from pathlib import Path

from fedpers.results.plots import curves
from fedpers.results.plots import optimality_gap as gap_curves
from fedpers.results.report.paper import paper_columns, paper_scale, paper_value
from fedpers.results.report.runs import Setting


def draw(setting: Setting, folder: Path, stem: str) -> list[Path]:
    """Curves of all methods, and their final values beside the paper's, as PNG in `folder`."""
    rows = {g.name: [run.rows for run in g.runs] for g in setting.groups}
    metric = next(iter(paper_columns(setting.paper).values()))
    if not any(v == v for g in setting.groups for v in g.values(metric)):
        metric = "loss"  # regression
    last, scale = int(setting.paper.get("last", 1)), paper_scale(setting.paper)
    values = {g.name: [v for v in g.values(metric, last) if v == v] for g in setting.groups}
    theirs = {g.name: paper_value(g.paper, g.method) for g in setting.groups}
    return [
        *gap_curves.compare(rows, folder / f"{stem}-objective.png"),
        curves.compare(rows, folder / f"{stem}-curves.png"),
        curves.final_values(
            {name: many for name, many in values.items() if many},
            folder / f"{stem}-final.png",
            f"Final test {metric.replace('_', ' ')}",
            {name: value[0] / scale for name, value in theirs.items() if value},
            share=metric.startswith("accuracy"),
        ),
    ]
