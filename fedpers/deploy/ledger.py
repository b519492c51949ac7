"""The server's record of a run's clients: names in the order of partition ids, facts, versions of states.

It is saved with each checkpoint, so a run that goes on asks every client for the state of that time.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpers.core.errors import CheckpointError
from fedpers.core.serialization import read_record, write_record
from fedpers.deploy.private_state import Recall, Version

FILE = "devices.safetensors"  # in the folder of a checkpoint


@dataclass(frozen=True)
class Facts:
    """What a device reports about its data in the roll call."""

    num_train: int
    num_test: int
    label_counts: tuple[int, ...]  # of the training samples; empty for regression
    num_valid: int = 0
    left_out: int = 0  # rows without a value
    columns: tuple[str, ...] = ()  # of its table, in the order of names
    sums: tuple[float, ...] = ()  # of each feature over the training samples, for data.standardise
    squares: tuple[float, ...] = ()
    kind: str = "numbers"  # of its samples, one of pipeline.KINDS

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "Facts":
        """From the plain values of an answer to the roll call; other entries are ignored."""
        told: dict[str, Any] = {f.name: said[f.name] for f in fields(cls)}
        told |= {k: tuple(v) for k, v in told.items() if not isinstance(v, int | str)}
        return cls(**told)


@dataclass
class Ledger:
    """One run's clients and versions; saved and loaded like a store of states."""

    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    names: tuple[str, ...] = ()  # of partition 0, 1, ...
    facts: tuple[Facts, ...] = ()
    since: dict[int, Version] = field(default_factory=dict)  # the last version taken
    pipeline: str = ""  # a Pipeline in JSON, that all devices apply; "": not agreed on yet
    keep: dict[int, Version] = field(default_factory=dict)  # that of the newest checkpoint
    _saved: dict[int, Version] = field(default_factory=dict)

    def enrol(self, clients: Mapping[str, Facts]) -> None:
        """Fix the clients of the run, sorted by name."""
        self.names = tuple(sorted(clients))
        self.facts = tuple(clients[name] for name in self.names)

    def recall(self, k: int) -> Recall:
        """The versions of its state that an order to client k names."""
        return Recall(self.since.get(k), self.keep.get(k))

    def take(self, k: int, version: Version) -> None:
        """The server took a reply after which client k has this version."""
        self.since[k] = version

    @property
    def num_train(self) -> np.ndarray:
        """[N] training samples."""
        return np.array([f.num_train for f in self.facts], dtype=np.int64)

    @property
    def num_test(self) -> np.ndarray:
        """[N] test samples."""
        return np.array([f.num_test for f in self.facts], dtype=np.int64)

    @property
    def label_counts(self) -> np.ndarray:
        """[N, classes] training labels, 0 of clients that do not tell them; [N, 0] for regression."""
        width = max((len(f.label_counts) for f in self.facts), default=0)
        rows = [f.label_counts or (0,) * width for f in self.facts]
        return np.array(rows, dtype=np.int64).reshape(len(self.facts), -1)

    @property
    def untold(self) -> list[str]:
        """Names of clients whose owners do not allow label counts to be sent."""
        return [n for n, f in zip(self.names, self.facts, strict=True) if not f.label_counts]

    def save(self, folder: Path) -> None:
        """Write into a checkpoint's folder."""
        body = {
            "run": self.run,
            "names": self.names,
            "num": torch.tensor([[f.num_train, f.num_test, f.num_valid, f.left_out] for f in self.facts]),
            "pipeline": self.pipeline,
            "label_counts": torch.from_numpy(self.label_counts),
            "since": [[k, *version] for k, version in sorted(self.since.items())],
        }
        write_record(folder / FILE, body)
        self._saved = dict(self.since)

    def committed(self) -> None:
        """The checkpoint that was saved last is in place: no client needs to go back further."""
        self.keep = self._saved

    def load(self, folder: Path) -> None:
        """Go back to what `save` wrote.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        try:
            self._load(read_record(folder / FILE))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{folder / FILE} holds no clients' versions: {error!r}") from error

    def _load(self, body: Any) -> None:
        pairs = zip(body["num"].tolist(), body["label_counts"].tolist(), strict=True)
        self.facts = tuple(
            Facts(train, test, tuple(counts) if any(counts) else (), *rest)
            for (train, test, *rest), counts in pairs
        )
        self.pipeline = str(body["pipeline"])
        self.run, self.names = str(body["run"]), tuple(map(str, body["names"]))
        self.since = {int(k): (int(t), int(e)) for k, t, e in body["since"]}
        self.keep = self._saved = dict(self.since)
