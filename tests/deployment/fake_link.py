"""Devices in this process behind what looks like Flower's grid, with faults on order and no network."""

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedpers.app import deployed
from fedpers.config.compose import load
from fedpers.config.run_config import RunConfig, to_mapping
from fedpers.core.pytree import leaves
from fedpers.deploy import resident
from fedpers.deploy.bundles import bundled, parts
from fedpers.deploy.deal import deal
from fedpers.flower.internals import begin_run, set_message_id
from fedpers.flower.messages import error_reply
from fedpers.results import checkpoint

DATA = ["data.num_clients=3", "data.partition=dirichlet", "data.alpha=1.0", "seed=3"]
Fault = Callable[[str, dict[str, Any], Message], Message | None]


def configs(method: str, rounds: int, *more: str) -> tuple[RunConfig, RunConfig]:
    """(in process on digits, the same on devices)."""
    same = [f"method={method}", f"rounds={rounds}", "model=mlp", "seed=3", *more]
    alone = [word for word in same if not word.startswith("engine.")]
    inside = load([*alone, "data=digits", *DATA, "engine.runner=loop"])  # a device runs one client
    device = ["data=device", "data.input_shape=[64]", "data.num_classes=10", "data.num_clients=3"]
    return inside, load([*same, *device, "engine=deployment", "engine.deadline_s=6"])


class Link:
    """Three devices; `fault` may answer in their stead, or swallow a reply by returning None."""

    def __init__(
        self, folder: Path, cfg: RunConfig, fault: Fault | None = None, data: Path | None = None
    ) -> None:
        """`data` is a folder of the devices' files; left out: digits, dealt here."""
        begin_run()
        self.folder, self.config, self.fault = folder, json.dumps(to_mapping(cfg)), fault
        self.data = data or folder / "data"
        if data is None:
            deal(load(["data=digits", *DATA]).data, 3, self.data)
        self.nodes = {100 + k: f"site-{k}" for k in range(3)}
        self.offline: set[int] = set()
        self.options: dict[str, str] = {}  # more of each node-config
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.wire: list[bytes] = []
        self._replies: dict[str, Message] = {}
        self._count = 0

    def get_nodes(self) -> list[Any]:
        there = {n: name for n, name in self.nodes.items() if n not in self.offline}
        return [SimpleNamespace(node_id=n, name=name, public_key=b"key") for n, name in there.items()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(m) for m in messages]

    def _push(self, message: Message) -> str:
        self._count += 1
        set_message_id(message, self._count)
        name = self.nodes[message.metadata.dst_node_id]
        header = dict(message.content["config"])
        self.sent.append((name, header))
        reply = self.answer(name, header, message)
        if self.fault is not None:
            reply = self.fault(name, header, reply)
        if reply is not None:
            self._replies[str(self._count)] = reply
        return str(self._count)

    def answer(self, name: str, header: dict[str, Any], message: Message) -> Message:
        node = {
            "client": name,
            "data": str(next(p for p in self.data.iterdir() if name in (p.name, p.stem))),
            "state": str(self.folder / name),
            **self.options,
        }
        arrays = unbundled(message.content)
        try:
            found, packed = resident.answer({"header": header, "node": node, "config": self.config}, arrays)
        except Exception as error:
            return error_reply(message, resident.discreet(f"{type(error).__name__}: {error}"))
        record = ArrayRecord({str(i): Array(a) for i, a in enumerate(packed)})
        self.wire += [a.data for a in record.values()]
        content = bundled(RecordDict({"arrays": record, "config": ConfigRecord(found)}))
        return Message(content, reply_to=message)

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(i) for i in ids if i in self._replies]


def unbundled(content: RecordDict) -> list[np.ndarray]:
    """The arrays of a message."""
    stored = [part for array in content["arrays"].values() for part in parts(array)]  # type: ignore[union-attr]
    return [np.load(io.BytesIO(part)) for part in stored]


def with_nan(reply: Message) -> Message:
    """The same reply with NaN in its first array."""
    arrays = unbundled(reply.content)
    arrays[0] = np.full_like(arrays[0], np.nan)
    reply.content["arrays"] = ArrayRecord(arrays)
    return reply


def on_devices(link: Link, cfg: RunConfig, out: Path) -> Path:
    """A run on the devices behind a link."""
    out.mkdir(exist_ok=True)
    (out / ".hydra").mkdir(exist_ok=True)
    deployed.run(cfg, out, link)  # type: ignore[arg-type]
    return out


def looped(cfg: RunConfig) -> RunConfig:
    """The run in process, client by client as on devices."""
    return dataclasses.replace(cfg, engine=dataclasses.replace(cfg.engine, runner="loop"))


def assert_equal_states(a: Path, b: Path) -> None:
    """The servers of two runs ended with the same bits."""
    ours, theirs = (leaves(checkpoint.load(out, None)[1]) for out in (a, b))
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def clients_of(out: Path) -> str:
    """clients.csv without the names, which devices have and dealt digits have not."""
    lines = (out / "clients.csv").read_text(encoding="utf-8").splitlines()
    named = lines[0].endswith(",name")
    return "\n".join(line.rpartition(",")[0] if named else line for line in lines)


def column(out: Path, name: str) -> list[str]:
    """A column of metrics.csv, a value a round."""
    with (out / "metrics.csv").open(newline="") as file:
        return [r[name] for r in csv.DictReader(file) if r["split"] == "train"]
