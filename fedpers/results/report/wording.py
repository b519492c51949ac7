"""What a comparison says in words: the verdict, doubts, who gains and who loses."""

import math
from collections.abc import Sequence

from fedpers.results.report import statistics
from fedpers.results.report.paired_tests import MOST_SEEDS, seeds_needed
from fedpers.results.report.runs import StoredRun
from fedpers.results.report.standings import Comparison

MOST = 5  # names in a sentence
FEW = 5  # seeds below which a t test rarely finds anything


def sentence(comparison: Comparison) -> tuple[str, str]:
    """(the verdict in a line, why); p-values are of paired t tests over seeds, corrected for their number."""
    rows = {s.name: s for s in comparison.rows}
    if len(rows) == 1:
        return f"{comparison.rows[0].name}: one method, nothing to compare", ""
    v = comparison.verdict
    top = v.alike[0]
    score = f"{comparison.metric} {value(rows[top].score, comparison)}"
    behind = {name: f"{name} ({_gap(comparison, top, name)})" for name in rows if name != top}
    worse = f"Worse than {top}: {listed([behind[name] for name in v.worse])}." if v.worse else ""
    if v.decided:
        beyond = "above" if comparison.larger_is_better else "below"
        return f"{top} is best on these {v.seeds} seeds", f"Its {score} is {beyond} every other's. {worse}"
    open_ = (
        f"Not settled: {listed([behind[name] for name in v.alike[1:]])}.{_more(comparison)} {worse}".strip()
    )
    if v.seeds < 2:
        return f"One seed is too few to compare: {top} has the best {score}", open_
    best = f"{top} has the best mean ({score})"
    if v.worse:
        return f"{top} is ahead of {listed(v.worse)} on these {v.seeds} seeds", f"{best}. {open_}"
    few = "are too few" if v.seeds < FEW else "do not settle the first place"
    next_ = behind[v.alike[1]].replace(" (", " is ", 1).removesuffix(")")
    return f"{v.seeds} seeds {few}: {next_}", f"{best}. {open_}"


def _more(comparison: Comparison) -> str:
    """How many seeds would settle the first place."""
    rows, v = {s.name: s for s in comparison.rows}, comparison.verdict
    if v.seeds < 2 or len(v.alike) < 2:
        return ""
    gaps = statistics.gaps(rows[v.alike[0]].scores, rows[v.alike[1]].scores)
    n = seeds_needed(gaps, len(rows) - 1)
    many = f"more than {MOST_SEEDS}" if n is None else str(n)
    return f" If gap and spread stay as they are, {many} seeds would settle {v.alike[1]}."


def _gap(comparison: Comparison, top: str, name: str) -> str:
    """How far a method is behind the first, and the p-value of that where there is one."""
    rows, p = {s.name: s for s in comparison.rows}, comparison.verdict.p.get(name, math.nan)
    gap = value(abs(rows[top].score - rows[name].score), comparison, "points")
    where = "below" if comparison.larger_is_better else "above"
    return f"{gap} {where}" + ("" if math.isnan(p) else f", p {p:.2g}")


def listed(names: Sequence[str]) -> str:
    """a, b and c; of more than MOST names only the first."""
    if len(names) > MOST:
        names = [*names[: MOST - 1], f"{len(names) - MOST + 1} others"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def value(x: float, comparison: Comparison, unit: str = "%") -> str:
    """A score as it is read."""
    return f"{100 * x:.2f}\N{NO-BREAK SPACE}{unit}" if comparison.larger_is_better else f"{x:.4g}"


def warnings(runs: Sequence[StoredRun]) -> list[str]:
    """What makes the comparison doubtful."""
    found = []
    commits = {str(run.summary.get("git_commit") or "unknown") for run in runs}
    if len(commits) > 1:
        found.append(
            f"Runs of {len(commits)} commits are compared: {listed(sorted(c[:12] for c in commits))}."
        )
    if any(c.endswith("+") for c in commits):
        found.append("Some source was changed and not committed when it ran (commits with a +).")
    lost = dict.fromkeys(run.summary.get("method", "") for run in runs if run.summary.get("diverged"))
    if lost:
        count = sum(bool(run.summary.get("diverged")) for run in runs)
        names = listed(list(lost))
        found.append(
            f"Training diverged in {count} of {len(runs)} runs: {names}; their numbers mean nothing."
        )
    notes = dict.fromkeys(note for run in runs for note in run.summary.get("notes") or [])
    return found + list(notes)


def clients_note(comparison: Comparison) -> str:
    """Who gains and who loses against local training."""
    against = {s.name: s.clients for s in comparison.rows if s.clients}
    if not against:
        return "A dot is a client of one seed: its test accuracy after the last round."
    shares = sorted((c.hurt, name) for name, c in against.items())
    if len(shares) > MOST:
        shares = [shares[0], shares[-1]]
    return (
        "A dot is a client of one seed: its test accuracy after the last round, above or below what it "
        f"reaches alone. Hurt are {listed([f'{share:.0%} under {name}' for share, name in shares])}."
    )
