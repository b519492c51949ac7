"""The model of a device's client, stored at each evaluation beside its private state."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpers.core.errors import CheckpointError, ConfigError
from fedpers.core.serialization import read_record, write_record

MODEL, ABOUT = "model.safetensors", "model.json"  # in the folder of a client's states of a run


def remember(folder: Path, about: Mapping[str, Any], shared: Any, when: tuple[int, int], order: Any) -> None:
    """Keep what the server sent to be predicted with, and which private state goes with it.

    Args:
        folder: of the client's states of this run.
        about: the run's configuration, the device's data, the columns: what does not change in a run.
        shared: what was sent.
        when: (round, exchange) of the evaluation; what an adaptation draws depends on it.
        order: has the client's number and the version of its state.

    Raises:
        CheckpointError: the file system refuses.
    """
    text = json.dumps(about)
    path = folder / ABOUT
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        part = path.with_suffix(".part")
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    since = list(order.recall.since) if order.recall.since else None
    body = {"shared": shared, "when": list(when), "since": since, "k": order.k}
    write_record(folder / MODEL, body, durable=False)
    (folder / MODEL).chmod(0o600)


@dataclass(frozen=True)
class OwnModel:
    """The files of a client's newest model, and its description without the numbers."""

    folder: Path  # of the client's states of the run
    about: dict[str, Any]

    def content(self, device: str = "cpu") -> dict[str, Any]:
        """What `remember` kept; the method's records must be imported."""
        return dict(read_record(self.folder / MODEL, device))


def find(state: Path, client: str | None, run: str | None) -> OwnModel:
    """The model of a client in a run; without these the only client's, and the newest.

    Raises:
        ConfigError: there is none, or several clients' and none is named.
        CheckpointError: its description is damaged.
    """
    pattern = f"{client or '*'}/{run or '*'}/{MODEL}"
    found = sorted(state.glob(pattern), key=lambda p: p.stat().st_mtime)
    if not found:
        raise ConfigError(
            f"{state}: no model of client {client or '(any)'}, run {run or '(any)'}; name a model that was "
            "exported from a run with --model FILE.safetensors; on a device, which keeps its model when "
            "it is evaluated (engine=deployment, eval_every), its folder with --state"
        )
    names = sorted({p.parent.parent.name for p in found})
    if len(names) > 1:
        raise ConfigError(f"{state}: models of {', '.join(names)}; choose one with --client")
    path = found[-1].with_name(ABOUT)
    try:
        return OwnModel(found[-1].parent, dict(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from error
