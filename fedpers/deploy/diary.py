"""The log of a run's devices: a line per exchange in devices.jsonl, and the run card made from it."""

import html
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpers import __version__

FILE, CARD, PAGE = "devices.jsonl", "card.json", "card.html"  # in a run directory
TOLD = ("num_train", "num_test", "label_counts")


class Diary:
    """Lines of one run; without a directory nothing is kept."""

    def __init__(self, out: Path | None) -> None:
        self.out = out

    def begin(self, clients: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the clients of the run, and what each device reported about itself."""
        self._write({"clients": {n: dict(said) for n, said in clients.items()}, "fedpers": __version__})

    def note(self, about: Mapping[str, Any]) -> None:
        """One exchange: round, kind, exchange, answered (names), missing ({name: why}), policies."""
        self._write(about)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.out is not None:
            text = json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **line})
            with (self.out / FILE).open("a", encoding="utf-8") as file:
                file.write(text + "\n")


def read(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's devices.jsonl; an incomplete last line is left out."""
    found = []
    try:
        for line in (out / FILE).read_text(encoding="utf-8").splitlines():
            found.append(json.loads(line))
    except (OSError, ValueError):
        return found
    return found


def missing(out: Path, t: int) -> dict[str, str]:
    """{client: why} of those that gave no good reply in the training of round t."""
    lines = [x for x in read(out) if x.get("round") == t and x.get("kind") == "train"]
    return {name: why for x in lines for name, why in x["missing"].items()}


def write_card(out: Path, summary: Mapping[str, Any]) -> None:
    """card.json and card.html of a run that has ended, for people: who took part when, and on what terms."""
    card = card_of(read(out), summary)
    (out / CARD).write_text(json.dumps(card, indent=2), encoding="utf-8")
    (out / PAGE).write_text(_page(card), encoding="utf-8")


def card_of(lines: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> dict[str, Any]:
    """The card of a run, from its diary and its summary."""
    clients: dict[str, dict[str, Any]] = {}
    versions: list[str] = []
    for line in lines:
        for name, said in line.get("clients", {}).items():
            clients.setdefault(name, _client(said))
        if "fedpers" in line and line["fedpers"] not in versions:
            versions.append(line["fedpers"])
        if "round" in line:
            _add(clients, line)
    keys = ("method", "model", "seed", "rounds", "rounds_done", "status", "versions", "privacy")
    about = {key: summary[key] for key in keys if key in summary}
    return {**about, "server": versions, "clients": dict(sorted(clients.items()))}


def _client(said: Mapping[str, Any]) -> dict[str, Any]:
    told = [name for name in TOLD if said.get(name) not in (None, [], ())]
    return {"fedpers": said.get("fedpers"), "policies": [said.get("policy")], "told": told,
            "num_train": said.get("num_train"), "first": None, "last": None, "trained": [],
            "evaluated": [], "missing": {}}  # fmt: skip


def _add(clients: dict[str, dict[str, Any]], line: Mapping[str, Any]) -> None:
    t, trains = line["round"], line["kind"] == "train"
    for name in line["answered"]:
        c = clients.setdefault(name, _client({}))
        c["first"], c["last"] = c["first"] or line["at"], line["at"]
        rounds = c["trained" if trains else "evaluated"]
        if t not in rounds:
            rounds.append(t)
        what = "replies of training" if trains else "evaluations"
        c["told"] += [] if what in c["told"] else [what]
        policy = line.get("policies", {}).get(name)
        c["policies"] += [] if policy in (None, *c["policies"]) else [policy]
    for name, why in line["missing"].items():
        clients.setdefault(name, _client({}))["missing"].setdefault(str(t), why)


def spans(rounds: Iterable[int]) -> str:
    """Rounds as a text, such as 1-4, 7."""
    found: list[list[int]] = []
    for t in sorted(rounds):
        if found and found[-1][1] == t - 1:
            found[-1][1] = t
        else:
            found.append([t, t])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


HEAD = ("client", "fedpers", "policy", "trained in rounds", "evaluated in", "missing in", "first answer",
        "last answer", "told")  # fmt: skip


def _page(card: Mapping[str, Any]) -> str:
    rows = [
        (name, c["fedpers"], ", ".join(map(str, c["policies"])), spans(c["trained"]), spans(c["evaluated"]),
         "; ".join(f"{t}: {why}" for t, why in c["missing"].items()), c["first"], c["last"],
         ", ".join(c["told"]))
        for name, c in card["clients"].items()
    ]  # fmt: skip
    about = [(key, value) for key, value in card.items() if key != "clients"]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Run card</title>'
        "<style>body{font:15px sans-serif;margin:2em}td,th{padding:.3em .8em;text-align:left;"
        "border-bottom:1px solid #ccc;vertical-align:top}</style><h1>Run card</h1>"
        + _table((), about) + "<h2>Clients</h2>" + _table(HEAD, rows) + "</html>\n"
    )  # fmt: skip


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    def line(cells: Iterable[Any], tag: str) -> str:
        shown = ("" if c is None else html.escape(c if isinstance(c, str) else json.dumps(c)) for c in cells)
        return "<tr>" + "".join(f"<{tag}>{c}</{tag}>" for c in shown) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table>"
