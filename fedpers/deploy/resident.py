"""The process on a device that answers for its client, and stays there between rounds.

Flower starts a new process for each message. That one is thin: it hands the message to this process
through a socket in the device's private folder, so torch, the data and the model are loaded once. A
message that hangs costs this process its life and nothing else, see `fedpers.deploy.device`.
"""

import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpers import __version__
from fedpers.config.registry import method
from fedpers.config.run_config import RunConfig, from_mapping
from fedpers.core.compiled import patience
from fedpers.core.data import ClientData, Federation
from fedpers.core.errors import CheckpointError, ConfigError
from fedpers.core.host import owned
from fedpers.core.logs import to_stderr
from fedpers.core.memory import give_back
from fedpers.core.pipeline import Pipeline
from fedpers.core.plan import Plan
from fedpers.core.scores import of_one
from fedpers.core.serialization import pack, unpack
from fedpers.deploy import frames
from fedpers.deploy.device_metrics import DeviceMetrics
from fedpers.deploy.local_data import facts, local, state_of
from fedpers.deploy.orders import NONE, Order
from fedpers.deploy.own_model import remember
from fedpers.deploy.policy import Policy, refuse_on_devices
from fedpers.deploy.private_state import PrivateState
from fedpers.deploy.secret_noise import SecretNoise
from fedpers.deploy.versions import mismatch
from fedpers.engines.population import Population
from fedpers.flower.messages import Answer, Header, Request
from fedpers.learning.kernels.library import prepare
from fedpers.learning.model import Model, build_model

log = logging.getLogger("fedpers")
COMPILING_S = 20.0  # that an order waits for kernels at most; torch answers it then
IDLE_S = 900.0  # without a message for so long the process ends
Frames = tuple[dict[str, Any], list[np.ndarray]]


@dataclass(frozen=True)
class Device:
    """The device's settings, which its owner gives in the SuperNode's node-config."""

    client: str = "client"  # names the folder of its states; the server goes by the key
    data: str = ""
    target: str | None = None
    state: str = ""
    lost_state: str = "refuse"
    policy: str = ""  # a file that says what runs may do here, see fedpers.deploy.policy

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Device":
        """From the node-config.

        Raises:
            ConfigError: a key or value is unknown, or the data is not named.
        """
        unknown = sorted(config.keys() - set(cls.__dataclass_fields__))
        if unknown:
            raise ConfigError(
                f"node-config: {', '.join(unknown)} unknown; known: {', '.join(cls.__dataclass_fields__)}"
            )
        device = cls(**{k: str(v) for k, v in config.items()})
        if not device.data:
            raise ConfigError(
                'node-config: name the client\'s data, such as data="/data/train.csv" target="y"'
            )
        if device.lost_state not in ("refuse", "reinitialise"):
            raise ConfigError(f"node-config: lost_state={device.lost_state}: refuse or reinitialise")
        return device


def answer(request: Mapping[str, Any], arrays: list[np.ndarray]) -> Frames:
    """The answer to one message: (header, arrays). The order's own arrays become its tensors."""
    header = dict(request["header"])
    skeleton, order = str(header.pop("skeleton")), Order.of(header)
    device = Device.of(request["node"])
    policy = _allowed(device, str(request["config"]), header)
    files = state_of(device.data, order.run)
    seat = _seat(str(request["config"]), device.data, device.target, files, order.pipeline)
    if header["kind"] == "query":
        prepare()  # before the first order, whose time is limited
        return _introduced(seat.facts, device, policy), []
    store = _store(device.state, device.client, order.run, seat.plan.device, device.lost_state)
    store.recall = order.recall
    population = Population(seat.client, seat.federation, store, seat.plan)
    if population.mechanism is not None:
        population.mechanism.stream = SecretNoise(store.folder)
    body = unpack(skeleton, [torch.from_numpy(a).to(seat.plan.device) for a in arrays])
    with torch.no_grad():
        given = population.one(Request(order.k, body, Header.of(header)))
    if isinstance(given, Exception):
        raise given
    if header["kind"] == "evaluate":
        about: dict[str, Any] = {
            "config": str(request["config"]),
            "data": device.data,
            "target": device.target,
        }
        when = (int(header["t"]), int(header["e"]))
        try:
            remember(
                store.folder,
                {**about, "columns": seat.columns, "kind": seat.kind, "pipeline": order.pipeline},
                body,
                when,
                order,
            )
        except (CheckpointError, OSError) as error:  # a full disk costs `fedpers predict`, not the round
            log.warning("the model for `fedpers predict` could not be kept: %s", error)
    found, packed = _packed(given, order, header, store)
    return found | {"policy": policy.digest}, packed


def _allowed(device: Device, config: str, header: Mapping[str, Any]) -> Policy:
    """The owner's policy, if it lets this order in; nothing of the configuration was used before.

    Raises:
        ConfigError: it does not, or the server has another version.
    """
    if (problem := mismatch(header.get("fedpers"), "the server")) is not None:
        raise ConfigError(problem)
    policy = Policy.read(device.policy)
    policy.check(json.loads(config), header)
    return policy


def _introduced(facts: Mapping[str, Any], device: Device, policy: Policy) -> dict[str, Any]:
    """What a device reports about itself in the roll call."""
    hidden: dict[str, Any] = {} if "label_counts" in policy.may_tell else {"label_counts": []}
    return {**facts, **hidden, "client": device.client, "policy": policy.digest, "fedpers": __version__}


def _packed(given: Answer, order: Order, header: Mapping[str, Any], store: PrivateState) -> Frames:
    skeleton, arrays = pack(given.body)
    when = (int(header["t"]), int(header["e"]))
    changed = header["kind"] == "train" and when in store.versions()
    found = {
        **given.cost(),
        "num": given.num_examples,
        "version": list(when if changed else order.recall.since or NONE),
        "reinitialised": int(store.reinitialised),
        "skeleton": skeleton,
    }
    return found, arrays


@dataclass(frozen=True)
class Seat:
    """What is loaded once per run: the method's client half and this device's data."""

    client: Any
    federation: Federation
    plan: Plan
    facts: dict[str, Any]
    columns: tuple[str, ...]  # of its data, if that is a table
    kind: str  # of its inputs, see Local


@lru_cache(maxsize=1)
def _seat(
    config: str, source: str, target: str | None, files: tuple[object, ...], pipeline: str = ""
) -> Seat:
    """`files` is what `state_of` says: another one and the samples are read anew."""
    cfg = from_mapping(json.loads(config))
    refuse_on_devices(cfg.method_name)
    agreed = Pipeline.of(json.loads(pipeline or "{}"))
    found = local(source, target, cfg.data, cfg.seed, getattr(torch, cfg.dtype), agreed)
    client = method(cfg.method_name).client_class()(cfg.method, model_of(cfg))
    if cfg.eval_train:
        client.splits = ("train", *client.splits)
    client.metrics = of_one(cfg.metrics)
    cuda = cfg.device != "cpu" and torch.cuda.is_available()
    plan = Plan(seed=cfg.seed, device="cuda" if cuda else "cpu", dtype=cfg.dtype, privacy=cfg.privacy)
    return Seat(client, one_device(found.data, cfg), plan, facts(found, cfg.data), found.columns, found.kind)


def model_of(cfg: RunConfig) -> Model:
    """The model of a run whose data is on devices."""
    shape, task = tuple(cfg.data.input_shape), cfg.data.task
    outputs = cfg.data.num_classes if task == "classification" else 1
    return build_model(cfg.model.name, input_shape=shape, num_outputs=outputs, task=task, **cfg.model.options)


def one_device(data: ClientData, cfg: RunConfig) -> Federation:
    """A federation as one device sees it: whatever its number there, the data is its own."""
    nobody = np.zeros(0, dtype=np.int64)
    shape = tuple(cfg.data.input_shape)
    return Federation(
        "device", 1, shape, cfg.data.num_classes, cfg.data.task, lambda _: data, nobody, nobody, nobody
    )


@lru_cache(maxsize=4)
def _store(folder: str, client: str, run: str, device: str, lost: Any) -> PrivateState:
    return PrivateState(Path(folder), client, run, device, lost)


# ---- the socket ---------------------------------------------------------------------------------


def _serve(peer: socket.socket, metrics: DeviceMetrics | None = None) -> None:
    """Answer one message; a failure is told, without the device's paths."""
    request, arrays = frames.receive(peer, frames.read_array)
    began = time.monotonic()
    try:
        header, found = answer(request, arrays)
    except Exception as error:
        log.exception("a message could not be answered")
        header, found = {"error": discreet(f"{type(error).__name__}: {error}")}, []
    size = sum(array.nbytes for array in found)
    frames.send(peer, header, found)
    del arrays, found
    if size > frames.LARGE:  # what was kept for small models would be held beside the next order
        give_back()
    _note(request["header"], time.monotonic() - began, "error" in header, metrics)


def _note(header: Mapping[str, Any], seconds: float, failed: bool, metrics: DeviceMetrics | None) -> None:
    """A line in the device's own log, and its metrics if they are wanted."""
    about = {"round": header["t"], "kind": header["kind"], "exchange": header["e"], "failed": failed}
    text = "round %d, %s %d: %s in %.3f s"
    done = "failed" if failed else "answered"
    log.info(text, *list(about.values())[:3], done, seconds, extra=about | {"seconds": round(seconds, 4)})
    try:
        if metrics is not None:
            metrics.note(header, seconds, failed)
    except OSError as error:  # a full disk costs the metrics, not the round
        log.warning("the metrics could not be written: %s", error)


def discreet(text: str) -> str:
    """A message for the server: one line in which paths of this device are left out."""
    return re.sub(r"(?<![\w.])(?:/[\w.@+-]+)+/?", "<path>", " ".join(text.split()))[:500]


def main() -> None:
    """Serve messages at the socket that is named, until none comes for a while."""
    to_stderr()
    metrics = DeviceMetrics.chosen()
    patience.seconds = COMPILING_S
    owned()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    path = Path(sys.argv[1])
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(IDLE_S)
        while True:
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                break
            peer.setblocking(True)
            try:
                with peer:
                    _serve(peer, metrics)
            except (EOFError, OSError):
                log.warning("the message's process went away before it was answered")
            if patience.rewarded:  # the next message starts a process that has the kernels
                log.info("the C kernels are there now; the next order starts a process that uses them")
                break
    path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
