"""The results of benchmarks as Markdown: one table a suite, with machine and versions.

`fedpers bench` leaves one JSON file a suite (and setting) in its results folder; the tables of all
that is there stand between two marks of docs/performance.md.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- results: written by `fedpers bench` -->", "<!-- end of results -->"
Row = dict[str, Any]


def update(document: Path, folder: Path) -> None:
    """Put the tables of all results in `folder` into a document, in place of those it had."""
    text = document.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    if found:
        whole = f"{before}{BEGIN}\n\n{render(folder)}\n{END}{after}"
        document.write_text(whole, encoding="utf-8")


def render(folder: Path) -> str:
    """All tables; a suite without results says how to get them."""
    parts = []
    for suite, (title, note, columns) in SUITES.items():
        files = sorted(folder.glob(f"{suite}*.json"))
        parts.append(f"### {title}\n\n{note}\n")
        if not files:
            parts.append(f"Not measured yet: `fedpers bench {suite}`.\n")
            continue
        content = [json.loads(f.read_text(encoding="utf-8")) for f in files]
        rows = [row for c in content for row in c["rows"]]
        parts += [table(rows, columns), ""]
        parts += [*_machines([c["machine"] for c in content]), ""]
    return "\n".join(parts)


def table(rows: Sequence[Row], columns: dict[str, Callable[[Row], str]]) -> str:
    """Rows as Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(r) for cell in columns.values()) + " |" for r in rows]
    return "\n".join(lines)


def _machines(found: Sequence[Row]) -> list[str]:
    """A line for each day and machine, with the versions of all that was measured there."""
    versions: dict[str, dict[str, str]] = {}
    for m in found:
        where = f"{m['date']} on {m['cpu']}, {m['cores']} cores, Python {m['python']}"
        versions.setdefault(where, {}).update(m["versions"])
    return [
        f"Measured {where}: {', '.join(f'{n} {v}' for n, v in sorted(of.items()))}."
        for where, of in sorted(versions.items())
    ]


def _ms(key: str) -> Callable[[Row], str]:
    return lambda r: "failed" if r.get(key) is None else _short(r[key] * 1e3)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _times(key: str) -> Callable[[Row], str]:
    return lambda r: "" if r.get(key) is None else f"{r[key]:.3g}x"


def _text(key: str) -> Callable[[Row], str]:
    return lambda r: str(r[key])


def _whole(key: str) -> Callable[[Row], str]:
    return lambda r: f"{r[key]:.0f}"


ROUNDS = {
    "work": lambda r: f"{r['model']} M={r['M']} C={r['C']}",
    "engine": _text("engine"),
    "processes": _text("processes"),
    "ms a round": _ms("seconds"),
    "times our fastest": _times("times_ours"),
    "peak MB": _whole("peak_mb"),
    "of the cores' GFLOP/s": lambda r: f"{r['share_of_ceiling']:.0%} of {r['ceiling_gflops']:.0f}",
}
SUITES: dict[str, tuple[str, str, dict[str, Callable[[Row], str]]]] = {
    "rounds": (
        "A round of FedAvg",
        "C of M clients, 200 samples each, one epoch of batches of 20, then the average. *auto*, "
        "*loop*, *stack*: ours; *tight*: the best plain loop, with no server; *flower-grid*: stock "
        "`flwr` FedAvg and a stock ClientApp on our in-process grid; *no-kernels*: auto by autograd alone.",
        ROUNDS,
    ),
    "methods": (
        "Each method in process and on Ray",
        "100 clients, digits; the same command with `engine=inprocess`, with as many workers as cores, "
        "with `engine=ray`, which sends each of as many actors one message for a bundle of clients, and "
        "with `engine.chunk=1`, a message a client as Flower has it. Ratios to the faster of ours; medians "
        "of the second half of 20 rounds.",
        {
            "model": _text("model"),
            "method": _text("method"),
            "in process, ms a round": _ms("inprocess"),
            "with workers": _ms("workers"),
            "Ray, bundles": _ms("ray"),
            "ratio": _times("times_ray"),
            "Ray, a message a client": _ms("messages"),
            "ratio ": _times("times_messages"),
        },
    ),
    "population": (
        "A population of a million",
        "FedPer with private heads of 20 KB, 1,000 clients a round, out of so many clients.",
        {
            "clients": lambda r: f"{r['clients']:,}",
            "ms a round": _ms("seconds"),
            "peak MB": _whole("peak_mb"),
            "MB on disk": _whole("disk_mb"),
            "ratio": _times("times"),
        },
    ),
    "evaluation": (
        "Evaluation",
        "500 personal models (shared body, own head), 50 test samples each.",
        {
            "model": _text("model"),
            "engine": _text("engine"),
            "ms": _ms("seconds"),
            "faster than a DataLoader loop": _times("times"),
        },
    ),
    "parts": (
        "Parts and what libraries offer instead",
        "Ways of one case take turns in one process, one thread each; medians, and CPU time of all processes "
        "that take part. *training*: one epoch of 100 clients, 200 samples each, batches of 20. "
        "*evaluation*: 500 personal models, 50 samples each. *worker channel*: one order for 100 clients "
        "to another process, 100 replies back, added up. *row store*: 1,000 clients get and put a state of "
        "20 KB, any out of 20,000 that have one or the same each time, with 128 MB of RAM.",
        {
            "part": _text("part"),
            "case": _text("case"),
            "way": _text("way"),
            "ms": _ms("seconds"),
            "ms of CPU": _ms("cpu"),
            "CPU, times ours": _times("times"),
        },
    ),
    "gpu": (
        "One GPU",
        "pfl-research's CIFAR-10 benchmark: 1,000 users of 50 images, 50 a round, 5 local steps of "
        "batch 10, 1,500 rounds, its simple_cnn without dropout.",
        {
            "device": _text("device"),
            "way": _text("way"),
            "rounds": _text("rounds"),
            "seconds in all": _whole("seconds"),
            "ms a round": _ms("median_round"),
            "accuracy": lambda r: f"{r['accuracy']:.3f} ({r['data']})",
        },
    ),
}
