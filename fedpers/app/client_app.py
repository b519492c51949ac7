"""The ClientApp of `flwr run` and of SuperNodes on other machines, and that of engine=ray."""

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpers.app.build import assemble, decode_config
from fedpers.core.errors import ConfigError
from fedpers.core.host import owned
from fedpers.deploy.device import default_state
from fedpers.deploy.private_state import RUN
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import FileStore, RamStore
from fedpers.engines.ray_grid import BUNDLE, serve
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.messages import open_arrays, open_content, seal, seal_arrays

app = ClientApp()


def fleet_app(config: str) -> ClientApp:
    """A ClientApp for simulations, whose messages hold requests to many clients (`fedpers.engines.ray_grid`).

    `config` is from `build.encode_config`. The handler is a function of this module, so an actor keeps
    data and model for the next message; clients' states come with the requests.
    """
    fleet = ClientApp()
    fleet.train(BUNDLE.partition(".")[2])(partial(_bundle, config))
    return fleet


def _bundle(config: str, message: Message, context: Context) -> Message:
    return Message(serve(_cohort(config), message.content), reply_to=message)


@app.query()
def _query(message: Message, context: Context) -> Message:
    cohort, k = _seat(context)
    _, body = open_content(message.content)
    answer = cohort.properties(k, body["needs"])
    return Message(seal({"k": k}, answer), reply_to=message)


@app.train()
def _train(message: Message, context: Context) -> Message:
    client, arrays, header = _open(message, context)
    found, n, about = client.fit(arrays, header)
    return Message(seal_arrays(found, about, n), reply_to=message)


@app.evaluate()
def _evaluate(message: Message, context: Context) -> Message:
    client, arrays, header = _open(message, context)
    _, n, metrics = client.evaluate(arrays, header)
    return Message(seal_arrays([], metrics, n), reply_to=message)


def _open(message: Message, context: Context) -> tuple[PersonalizedClient, list[Any], dict[str, Any]]:
    arrays, header = open_arrays(message.content)
    cohort, k = _seat(context)
    text, memory = _overrides(context), str(context.node_config.get("memory", ""))
    cohort.store = _files(text, memory, str(header.get("run", "")))
    return cohort.client.at(cohort, k), arrays, header


def _seat(context: Context) -> tuple[Cohort, int]:
    """The cohort of this process and the partition that this node holds.

    Raises:
        ConfigError: the node was started without a partition id.
    """
    if "partition-id" not in context.node_config:
        raise ConfigError(
            "this node has no partition-id; start it with "
            "flower-supernode --node-config 'partition-id=0 num-partitions=N'"
        )
    return _cohort(_overrides(context)), int(context.node_config["partition-id"])


def _overrides(context: Context) -> str:
    return str(context.run_config.get("overrides", ""))


@lru_cache(maxsize=1)
def _cohort(config: str) -> Cohort:
    """Data, model and the method's client half, loaded once a process."""
    owned()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    parts = assemble(decode_config(config))
    return Cohort(parts.client, parts.federation, RamStore(), parts.plan)


@lru_cache(maxsize=1)
def _files(config: str, memory: str, run: str) -> FileStore:
    """The store of this device's state for one run, in a folder named by the run's id.

    Raises:
        ConfigError: the order names no run, or something that is no id of one.
    """
    if not RUN.fullmatch(run):
        raise ConfigError(f"an order of run '{run}': expected an id of 32 hexadecimal digits")
    folder = (Path(memory) if memory else default_state()) / run
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileStore(folder, max(decode_config(config).checkpoint_every, 1))
