"""Many devices on one machine: processes forked from one that has imported everything.

A real device runs a SuperNode, a SuperExec, and a new process for each message: two cores hold a dozen.
Here a process is one node: Flower's own connection to the SuperLink, and our answer to each message.
"""

import io
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, Message
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from fedpers.deploy import device, resident

LOOK_S = 3.0  # between two looks for a message, as a SuperNode does


def start(address: str, files: Sequence[Path], folder: Path) -> list[int]:
    """A node a file, of the SuperLink at HOST:PORT; their process ids."""
    found = []
    for k, file in enumerate(files):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = _child(
                    address, {"client": f"site-{k:03}", "data": str(file), "state": str(folder / f"s{k}")}
                )
            finally:
                os._exit(code)
        found.append(pid)
    return found


def stop(pids: Sequence[int]) -> None:
    """End the nodes."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _child(address: str, node: dict[str, str]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    device.ask = _answer_here  # type: ignore[assignment]
    with http_request_response(address, insecure=True, max_retries=None, max_wait_time=None) as connection:
        while True:
            if not _serve(connection, node):
                time.sleep(LOOK_S)


def _serve(connection: Any, node: dict[str, str]) -> bool:
    """Answer one message; whether there was one."""
    _, receive, send, get_run, get_fab, pull, push, confirm = connection
    if (received := receive()) is None:
        return False
    head, tree = received
    run_id, number = head.metadata.run_id, head.metadata.message_id
    message = pull_and_inflate_object_from_tree(
        tree, lambda i: pull(run_id, i), lambda _: None, return_type=Message
    )
    confirm(run_id, number)
    message.metadata.__dict__["_message_id"] = number
    run = get_run(run_id)
    config = get_fused_config_from_fab(get_fab(run.fab_hash, run_id).content, run)
    TaskIdentity.task_id = TaskIdentity.run_id = run_id
    TaskIdentity.node_id = head.metadata.dst_node_id
    context: Any = SimpleNamespace(node_config=node, run_config=config)
    reply = device._handle(message, context)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = get_all_nested_objects(reply)
    wanted, session = send(reply, get_object_tree(reply), 0.0)
    for i in objects:
        if i in wanted:
            push(run_id, session, i, objects[i].deflate())
    return True


def _answer_here(_: Path, request: dict[str, Any], arrays: list[bytes], __: float) -> Any:
    """What `device.ask` gets from the process that stays, which this one is itself."""
    try:
        found, made = resident.answer(request, [np.load(io.BytesIO(a)) for a in arrays])
        return found, [Array(a).data for a in made]
    except Exception as error:
        return {"error": resident.discreet(f"{type(error).__name__}: {error}")}, []


def warm() -> None:
    """Do once before the fork what each node would do: the kernels, and NumPy's reader."""
    resident.prepare()
    Array(np.zeros(1)).numpy()
