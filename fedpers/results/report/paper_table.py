"""A table for a paper in LaTeX: methods by data sets and metrics, the best bold, what is open marked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpers.core.errors import ConfigError
from fedpers.core.metrics import in_words
from fedpers.results.report import statistics
from fedpers.results.report.document import TEX
from fedpers.results.report.runs import Setting
from fedpers.results.report.standings import Comparison, Standing, compare, seed_of
from fedpers.results.report.statistics import Scores
from fedpers.results.report.written import MARK

SCORE = "score"  # what ranks: the test accuracy (or loss) in the round that validation chose
SMALLER = ("loss", "ece", "brier", "mae", "variance")  # columns of which the smallest is the best
NOTE = (
    "% Mean and standard deviation over seeds. The best mean of a column is bold, as is one printed alike;\n"
    "% a dagger marks methods whose difference from the best is not significant (paired t tests over seeds,\n"
    "% 5 % together by Bonferroni)."
)

DAGGER = r"$^\dagger$ not significantly different from the best of the column"


@dataclass(frozen=True)
class Column:
    """One metric on one data set: each method's value by seed."""

    data: str
    metric: str
    scores: Mapping[str, Scores]
    scale: float
    verdict: statistics.Verdict


def paper_table(settings: Sequence[Setting], metrics: Sequence[str] = (SCORE,)) -> str:
    """The table of all runs.

    Args:
        settings: what `fedpers report` compares.
        metrics: "score", or columns of metrics.csv, whose last test value counts.

    Raises:
        ConfigError: no run has such a column.
    """
    found = [_column(c, metric) for s in settings for c in compare(s) for metric in metrics]
    methods = list(dict.fromkeys(name for column in found for name in column.scores))
    lines = [
        rf"\begin{{tabular}}{{l{'r' * len(found)}}}",
        r"\toprule",
        _line("", [(c.data, len(metrics)) for c in found[:: len(metrics)]]),
        _line("method", [(in_words(c.metric).replace("_", " ") + " %" * (c.scale == 100), 1) for c in found]),
        r"\midrule",
        *(" & ".join([_tex(name), *(_cell(column, name) for column in found)]) + r" \\" for name in methods),
        r"\bottomrule",
        *([rf"\multicolumn{{{len(found) + 1}}}{{l}}{{\footnotesize {DAGGER}}} \\"] if _marked(found) else []),
        r"\end{tabular}",
    ]
    return "\n".join([f"% {MARK}", r"% Needs \usepackage{booktabs}.", NOTE, *lines]) + "\n"


def _marked(columns: Sequence[Column]) -> bool:
    return any(len(column.verdict.alike) > 1 for column in columns)


def _column(comparison: Comparison, metric: str) -> Column:
    if metric == SCORE:
        scores = {s.name: s.scores for s in comparison.rows}
        metric, larger = comparison.metric, comparison.larger_is_better
    else:
        scores, larger = {s.name: _last(s, metric) for s in comparison.rows}, metric not in SMALLER
    scores = {name: values for name, values in scores.items() if values}
    if not scores:
        raise ConfigError(f"--columns {metric}: no run of {comparison.name} has such a column of metrics.csv")
    everything = [v for values in scores.values() for v in values.values()]
    percent = larger and min(everything) >= 0 and max(everything) <= 1
    return Column(
        comparison.name, metric, scores, 100.0 if percent else 1.0, statistics.verdict(scores, larger)
    )


def _last(standing: Standing, metric: str) -> Scores:
    values: dict[int, list[float]] = {}
    for run in standing.group.runs:
        value = run.value(metric)
        if not math.isnan(value):
            values.setdefault(seed_of(run), []).append(value)
    return {seed: float(np.mean(many)) for seed, many in values.items()}


def _cell(column: Column, name: str) -> str:
    if name not in column.scores:
        return "--"
    values = column.scale * np.array(list(column.scores[name].values()))
    digits = 2 if column.scale == 100 else 4
    mean = f"{values.mean():.{digits}f}"
    best = column.scale * np.mean(list(column.scores[column.verdict.alike[0]].values()))
    is_best = mean == f"{best:.{digits}f}"
    text = rf"\textbf{{{mean}}}" if is_best and len(column.scores) > 1 else mean
    spread = rf" $\pm$ {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return text + spread + (r"$^\dagger$" if name in column.verdict.alike[1:] else "")


def _line(first: str, cells: Sequence[tuple[str, int]]) -> str:
    shown = [rf"\multicolumn{{{width}}}{{c}}{{{_tex(text)}}}" for text, width in cells]
    return " & ".join([first, *shown]) + r" \\"


def _tex(text: str) -> str:
    return text.translate(TEX)
