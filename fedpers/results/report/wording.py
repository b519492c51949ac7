"""What a comparison says in words: the verdict, doubts, who gains and who loses."""

from collections.abc import Sequence

from fedpers.results.report.runs import StoredRun
from fedpers.results.report.standings import Comparison

MOST = 5  # names in a sentence


def sentence(comparison: Comparison) -> tuple[str, str]:
    """(the verdict in a line, why)."""
    rows = {s.name: s for s in comparison.rows}
    if len(rows) == 1:
        return f"{comparison.rows[0].name}: one method, nothing to compare", ""
    v = comparison.verdict
    top, seeds = v.alike[0], "one seed" if v.seeds < 2 else f"{v.seeds} seeds"
    score = f"{comparison.metric} {value(rows[top].score, comparison)}"
    if v.decided:
        gap = value(abs(rows[top].score - rows[v.worse[0]].score), comparison, "points")
        why = f"Its {score} is better than every other method's (p < 0.05 each, corrected)"
        return f"{top} is best on these {seeds}", f"{why}; {v.worse[0]} follows at {gap}."
    method = "" if v.seeds < 2 else " (paired t tests, corrected, 95\N{NO-BREAK SPACE}%)"
    why = f"{top} has the best mean ({score}), but {listed(v.alike[1:])} cannot be told apart from it"
    worse = f" Worse than {top}: {listed(v.worse)}." if v.worse else ""
    these = seeds if v.seeds < 2 else f"these {seeds}"
    return f"Not distinguishable on {these}: {listed(v.alike)}", f"{why} with {seeds}{method}.{worse}"


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
    shares = sorted((c.hurt, name) for name, c in against.items())
    if len(shares) > MOST:
        shares = [shares[0], shares[-1]]
    return (
        "A dot is a client of one seed: its test accuracy after the last round, above or below what it "
        f"reaches alone. Hurt are {listed([f'{share:.0%} under {name}' for share, name in shares])}."
    )
