"""The pictures of a report for readers of Markdown: curves and final values of all methods."""

from pathlib import Path

from fedpers.results.plots import curves, optimality_gap
from fedpers.results.report.paper import paper_columns, paper_value
from fedpers.results.report.runs import Setting


def draw(setting: Setting, folder: Path, stem: str) -> list[Path]:
    """Learning curves of all methods and their final values, as PNG in `folder`."""
    rows = {g.name: [run.rows for run in g.runs] for g in setting.groups}
    metric = next(iter(paper_columns(setting.paper).values()))
    last = int(setting.paper.get("last", 1))
    if not any(v == v for g in setting.groups for v in g.values(metric)):
        metric = "loss"  # regression
    values = {g.name: [v for v in g.values(metric, last) if v == v] for g in setting.groups}
    factor = 100.0 if setting.paper.get("percent") else 1.0
    known = {g.name: paper_value(g.runs[0].config.get("paper") or {}, g.method) for g in setting.groups}
    title = f"Final test {metric.replace('_', ' ')}"
    return [
        *optimality_gap.compare(rows, folder / f"{stem}-objective.png"),
        curves.compare(rows, folder / f"{stem}-curves.png"),
        curves.final_values(
            {k: v for k, v in values.items() if v},
            folder / f"{stem}-final.png",
            title,
            {k: v[0] / factor for k, v in known.items() if v},
            share=metric.startswith("accuracy"),
        ),
    ]
