"""The one ClientApp, used by `flwr run` and by SuperNodes on real machines; and that of engine=ray."""

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpers.app.build import assemble, decode_config, memory_folder
from fedpers.core.errors import ConfigError
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import FileStore
from fedpers.engines.ray_grid import BUNDLE, open_requests, seal_answers
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.messages import ARRAYS, CONFIG, open_content, seal

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
    return _reply(message, *client.fit(arrays, header))


@app.evaluate()
def _evaluate(message: Message, context: Context) -> Message:
    client, arrays, header = _open(message, context)
    _, n, metrics = client.evaluate(arrays, header)
    return _reply(message, [], n, metrics)


def _open(message: Message, context: Context) -> tuple[PersonalizedClient, list[Any], dict[str, Any]]:
    cohort, k = _seat(context)
    arrays, header = message.content[ARRAYS], message.content[CONFIG]
    if not isinstance(arrays, ArrayRecord):
        raise ConfigError("this client answers fedpers strategies; the message holds no order")
    return cohort.client.at(cohort, k), arrays.to_numpy_ndarrays(), dict(header)


def _reply(message: Message, arrays: list[Any], n: int, header: dict[str, Any]) -> Message:
    content = RecordDict(
        {
            ARRAYS: ArrayRecord(arrays),
            CONFIG: ConfigRecord(header),
            "metrics": MetricRecord({"num-examples": n}),
        }
    )
    return Message(content, reply_to=message)


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
