"""Cells of the tables of benchmarks: functions of a row's entries."""

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Columns = dict[str, str | Callable[[Row], str]]  # a cell: a format of the row's entries, or a function of it


def ms(key: str) -> Callable[[Row], str]:
    """Milliseconds of an entry in seconds."""

    def cell(row: Row) -> str:
        if row.get(key) is None:
            return "failed"
        found = row[key] * 1e3
        return f"{found:.0f}" if found >= 100 else f"{found:.3g}"

    return cell


def theirs(way: str) -> Callable[[Row], str]:
    """Another library's milliseconds, and times ours."""

    def cell(row: Row) -> str:
        if way not in row:
            return ""
        return ms(way)(row) + (f" ({row[f'times_{way}']:.3g}x)" if row.get(f"times_{way}") else "")

    return cell


def times(key: str) -> Callable[[Row], str]:
    """A ratio."""
    return lambda r: "" if r.get(key) is None else f"{r[key]:.3g}x"


def each(key: str) -> Callable[[Row], str]:
    """Milliseconds of each way."""
    return lambda r: ", ".join(f"{way} {t * 1e3:.3g}" for way, t in r[key].items())


def mb(key: str) -> Callable[[Row], str]:
    """Megabytes."""
    return lambda r: "" if r.get(key) is None else f"{r[key]:.0f}"


def share(key: str) -> Callable[[Row], str]:
    """A part of the whole, in percent."""
    return lambda r: "" if r.get(key) is None else f"{r[key]:.0%}"
