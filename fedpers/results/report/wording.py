"""What a comparison says in words: the verdict, doubts, who gains and who loses."""

from collections.abc import Sequence

from fedpers.results.report import statistics
from fedpers.results.report.runs import StoredRun
from fedpers.results.report.standings import Comparison


def sentence(comparison: Comparison) -> tuple[str, str]:
    """(the verdict in a line, why)."""
    rows = {s.name: s for s in comparison.rows}
    if len(rows) == 1:
        return f"{comparison.rows[0].name}: one method, nothing to compare", ""
    v = comparison.verdict
    seeds = "1 seed" if v.seeds == 1 else f"{v.seeds} seeds"
    top = f"{comparison.metric} {value(rows[v.alike[0]].score, comparison)}"
    if v.decided:
        gap = statistics.paired(rows[v.alike[0]].scores, rows[v.worse[0]].scores)
        assert gap is not None
        second = f"{v.worse[0]} follows at {value(abs(gap.mean), comparison, 'points')}"
        return (
            f"{v.alike[0]} is best on these {seeds}",
            f"Its {top} is above every other method's (p < 0.05 each, corrected); {second}.",
        )
    reason = f"{v.alike[0]} has the best mean ({top}), but {listed(v.alike[1:])} cannot be told apart from it"
    reason += " with one seed." if v.seeds < 2 else f" with {seeds} (paired t tests, corrected, 95 %)."
    if v.worse:
        reason += f" Worse than {v.alike[0]}: {listed(v.worse)}."
    return f"Not distinguishable on these {seeds}: {listed(v.alike)}".replace(
        "these 1 seed", "one seed"
    ), reason


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def value(x: float, comparison: Comparison, unit: str = "%") -> str:
    """A score as it is read."""
    return f"{100 * x:.2f}\N{NO-BREAK SPACE}{unit}" if comparison.larger_is_better else f"{x:.4g}"


def warnings(runs: Sequence[StoredRun]) -> list[str]:
    """What makes the comparison doubtful."""
    found = []
    commits = {str(run.summary.get("git_commit")) for run in runs}
    if len(commits) > 1:
        found.append(
            f"Runs of {len(commits)} commits are compared: {listed(sorted(c[:12] for c in commits))}."
        )
    if any(c.endswith("+") for c in commits):
        found.append("Some source was changed and not committed when it ran (commits with a +).")
    notes = dict.fromkeys(note for run in runs for note in run.summary.get("notes") or [])
    return found + list(notes)


def clients_note(comparison: Comparison) -> str:
    """Who gains and who loses against local training."""
    against = {s.name: s.clients for s in comparison.rows if s.clients}
    if not against:
        return "A dot is a client of one seed: its test accuracy after the last round."
    parts = [f"{name} {c.hurt:.0%} hurt, {c.gained:.0%} gain" for name, c in against.items()]
    return (
        "A dot is a client of one seed: its test accuracy after the last round, above or below what it "
        f"reaches alone. {'; '.join(parts)}."
    )
