"""How fast simulated devices are: speed, bandwidth and availability, by distributions or from a table.

A virtual clock tells how long a round would have taken on them; nothing waits.
"""

import csv
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpers.core.bounds import above, bounds
from fedpers.core.errors import DataError

COLUMNS = ("gflops", "mbit_down", "mbit_up", "available")
NEEDED, SINCE = "client", "since_s"
SYSTEMS = 3  # first key of these streams; those of `rng` are other ones


@dataclass(frozen=True)
class SystemsConfig:
    """What devices there are. Each number is the median over clients, drawn log-normally around it."""

    name: Literal["off", "drawn", "table"] = "off"
    gflops: float = 10.0  # billions of operations a second that a device trains with
    mbit_down: float = 20.0  # millions of bits a second
    mbit_up: float = 5.0
    spread: float = 0.5  # standard deviation of the logarithms; 0: all alike
    available: float = 1.0  # chance that a client can be asked in a round
    path: str | None = None  # table: a csv file; columns that it lacks are drawn
    deadline_s: float | None = None  # simulated seconds after which an exchange's replies are left out
    partial: bool = False  # who would be late trains for as many epochs as fit before the deadline

    @property
    def on(self) -> bool:
        """Whether there is a virtual clock."""
        return self.name != "off"

    def check(self) -> list[str]:
        """Problems of values."""
        found = above(self, gflops=0, mbit_down=0, mbit_up=0, deadline_s=0, available=0)
        found += bounds(self, spread=(0, None), available=(None, 1))
        if self.name == "table" and not self.path:
            found.append(f"path=null: give a csv file with {NEEDED} and any of {', '.join(COLUMNS)}")
        if self.partial and self.deadline_s is None:
            found.append("partial=true: there is no deadline to be done before; set systems.deadline_s")
        if self.name == "drawn" and self.path:
            found.append(f"path={self.path}: without effect for systems=drawn; systems=table would use it")
        return found

    def unfit(self, engine: Any, r: int | None, participation: str, private: bool) -> list[str]:
        """Problems with the rest of the run: its engine, clients a round, how they are drawn, noise."""
        found = []
        if self.on and engine.name == "deployment":
            found.append(f"systems={self.name}: real devices have their own time; leave it off")
        if self.on and private:
            text = "what privacy was spent counts on who is asked, which may not follow from devices"
            found.append(f"systems={self.name} privacy=dp: {text}; leave one of them off")
        if engine.extra and not self.on:
            found.append(f"engine.extra={engine.extra}: nobody is slower than another; set systems=drawn")
        if engine.extra and (r is None or participation != "fixed"):
            text = "set clients_per_round= and participation=fixed, so that there are others to ask"
            found.append(f"engine.extra={engine.extra}: {text}")
        return found


@dataclass(frozen=True)
class Systems:
    """The devices of a run's clients."""

    config: SystemsConfig
    num_clients: int
    seed: int

    def at(self, column: str, now: float) -> np.ndarray:
        """[N] a column's value of each client at `now`, simulated seconds since the run began."""
        values = self._drawn[column].copy()
        for since, changes in self._changes.get(column, []):
            if since > now:
                break
            clients, numbers = changes
            values[clients] = numbers
        return values

    def available(self, t: int, now: float) -> np.ndarray:
        """[N] whether each client can be asked in round t: one draw a client, whoever else is asked."""
        draw = np.random.default_rng([SYSTEMS, 1, self.seed, t]).random(self.num_clients)
        return draw < self.at("available", now)

    @property
    def always(self) -> bool:
        """Whether every client can be asked at any time."""
        changes = self._changes.get("available", [])
        return self.config.available >= 1 and all((numbers >= 1).all() for _, (_, numbers) in changes)

    @cached_property
    def _drawn(self) -> dict[str, np.ndarray]:
        rng, found = np.random.default_rng([SYSTEMS, 0, self.seed]), {}
        for column in COLUMNS[:-1]:
            normal = rng.standard_normal(self.num_clients)
            found[column] = getattr(self.config, column) * np.exp(self.config.spread * normal)
        return found | {"available": np.full(self.num_clients, self.config.available)}

    @cached_property
    def _changes(self) -> dict[str, list[tuple[float, tuple[np.ndarray, np.ndarray]]]]:
        """{column: (since, (clients, values)) in the order of time}."""
        if not self.config.path:
            return {}
        rows = read(Path(self.config.path).expanduser(), self.num_clients)
        found: dict[str, list[tuple[float, tuple[np.ndarray, np.ndarray]]]] = {}
        for column in COLUMNS:
            for since in sorted({r[SINCE] for r in rows if column in r}):
                now = [r for r in rows if r[SINCE] == since and column in r]
                clients = np.array([int(r[NEEDED]) for r in now])
                found.setdefault(column, []).append((since, (clients, np.array([r[column] for r in now]))))
        return found


def read(path: Path, num_clients: int) -> list[dict[str, float]]:
    """The rows of a table of devices: client, since_s (0 where it is left out), and what it has of COLUMNS.

    Raises:
        DataError: names the file, the line and what is wrong with it.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            names = table.fieldnames or []
            lines = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"systems.path={path}: cannot be read: {error}") from error
    known = (NEEDED, SINCE, *COLUMNS)
    if wrong := [n for n in names if n not in known] or [NEEDED] * (NEEDED not in names):
        text = "is no column of such a table" if NEEDED in names else "is missing"
        raise DataError(f"systems.path={path}: column {wrong[0]!r} {text}; columns: {', '.join(known)}")
    rows = [_row(path, i, line, num_clients) for i, line in enumerate(lines, 2)]
    keys = [(r[NEEDED], r[SINCE]) for r in rows]
    if twice := [k for i, k in enumerate(keys) if k in keys[:i]]:
        client, since = twice[0]
        raise DataError(f"systems.path={path}: client {client:g} has two rows since {since:g} s")
    return rows


def _row(path: Path, i: int, line: dict[str, str | None], num_clients: int) -> dict[str, float]:
    found = {SINCE: 0.0}
    for name, text in line.items():
        if name is None or text is None:
            raise DataError(f"systems.path={path}: line {i} has other columns than the first line")
        if not text.strip():
            continue
        try:
            found[name] = float(text)
        except ValueError as error:
            raise DataError(f"systems.path={path}: line {i}: {name}={text}: expected a number") from error
    for name, value in found.items():
        low = 0 if name in (NEEDED, SINCE, "available") else math.ulp(0)
        high = {NEEDED: num_clients - 1, "available": 1}.get(name, math.inf)
        whole = name != NEEDED or value.is_integer()
        if not (low <= value <= high and whole and math.isfinite(value)):
            what = f"a client below {num_clients}" if name == NEEDED else "a number that can be"
            raise DataError(f"systems.path={path}: line {i}: {name}={value:g}: expected {what}")
    if NEEDED not in found:
        raise DataError(f"systems.path={path}: line {i}: no {NEEDED}")
    return found
