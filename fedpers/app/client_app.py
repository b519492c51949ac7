"""The one ClientApp, used by `flwr run` and by SuperNodes on real machines; and that of engine=ray."""

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpers.app.build import assemble, decode_config, memory_folder
from fedpers.core.errors import ConfigError
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import FileStore
from fedpers.engines.ray_grid import BUNDLE, open_requests, seal_answers
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.messages import open_arrays, open_content, seal, seal_arrays

app = ClientApp()


def fleet_app(config: str, memory: str) -> ClientApp:
    """A ClientApp for a simulation: each message is for a bundle of clients, see `fedpers.engines.ray_grid`.

    `config` is from `build.encode_config`, `memory` the folder of the clients' states. The handler
    is a function of this module, so what an actor has loaded is kept for the next message.
    """
    fleet = ClientApp()
    fleet.train(BUNDLE.partition(".")[2])(partial(_bundle, config, memory))
    return fleet


def _bundle(config: str, memory: str, message: Message, context: Context) -> Message:
    cohort = _cohort(config, memory, False)  # the simulation's server flushes
    answers = cohort.handle(open_requests(message.content, cohort.device))
    return Message(seal_answers(answers), reply_to=message)


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
    cohort, k = _seat(context)
    return cohort.client.at(cohort, k), *open_arrays(message.content)


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
    text = str(context.run_config.get("overrides", ""))
    return _cohort(text, str(context.node_config.get("memory", ""))), int(context.node_config["partition-id"])


@lru_cache(maxsize=1)
def _cohort(config: str, memory: str, durable: bool = True) -> Cohort:
    """What this process loads once: data, model, the method's client half."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    cfg = decode_config(config)
    parts = assemble(cfg)
    folder, keep = Path(memory) if memory else memory_folder(cfg), max(cfg.checkpoint_every, 1)
    store = FileStore(folder, keep, durable=durable)
    return Cohort(parts.client, parts.federation, store, parts.plan)
