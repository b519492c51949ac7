"""What an experiment's `paper:` says: the paper's numbers, and which of our metrics they are."""

from collections.abc import Mapping
from typing import Any


def paper_columns(paper: Mapping[str, Any]) -> dict[str, str]:
    """{column of the paper's table: our metric} of the cells that one run fills.

    `metric` is one column of metrics.csv, or several: {label: column of metrics.csv}; then each
    label is put behind `column`.
    """
    metric, column = paper.get("metric", "accuracy"), paper.get("column")
    if isinstance(metric, Mapping):
        return {f"{column} {label}" if column else str(label): str(m) for label, m in metric.items()}
    return {str(column or metric): str(metric)}


def paper_scale(paper: Mapping[str, Any]) -> float:
    """What our values are multiplied with to be in the paper's units: 100 for percent, else 1."""
    return 100.0 if paper.get("percent") else 1.0


def paper_value(
    paper: Mapping[str, Any], method: str, column: str | None = None
) -> tuple[float, float | None] | None:
    """(mean, spread) that the paper prints for a method, in the paper's units; None if it has not.

    The entry of `values` is a value or {column: value}, a value a number or [mean, spread];
    `column` says which one, by default the first that this run fills.
    """
    entry = (paper.get("values") or {}).get(method)
    if isinstance(entry, Mapping):
        entry = entry.get(column or next(iter(paper_columns(paper))))
    if entry is None:
        return None
    mean, std = entry if isinstance(entry, (list, tuple)) else (entry, None)
    return float(mean), None if std is None else float(std)
