"""A worker that serves a run's clients on a device of its own: a new process with its own data and model.

A process that has started CUDA cannot be forked, and several threads of one would wait for each other.
"""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedpers.app.build import assemble, decode_config, encode_config
from fedpers.config.run_config import RunConfig
from fedpers.engines.channel import Channel
from fedpers.engines.population import Population
from fedpers.engines.runner import Runner, RunnerConfig
from fedpers.engines.workers import Starter, TransientStore, leave_to_parent, serve

START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from fedpers.app.gpu_worker import work; work(int(sys.argv[1]))"
)


def starter(cfg: RunConfig, devices: Sequence[str], how: RunnerConfig) -> Starter:
    """A function that starts worker i on the devices in turn; worker 0 is the run's own process."""

    def start(i: int, mine: str) -> tuple[int, Channel]:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-c", START, str(theirs.fileno()), json.dumps(sys.path)]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        process.returncode = 0  # the pool waits for it
        theirs.close()
        channel = Channel(ours, mine)
        channel.send(channel.write((encode_config(cfg), devices[i % len(devices)], how), []))
        return process.pid, channel

    return start


def work(handle: int) -> None:
    """Serve requests through the socket `handle` until its other end is closed."""
    import torch

    torch.set_num_threads(1)
    leave_to_parent()
    channel = Channel(socket.socket(fileno=handle))
    (config, device, how), _ = channel.receive()
    channel.device = device
    cfg = replace(decode_config(config), device=device, devices=())
    with current(device):
        parts = assemble(cfg)
        serve(Population(parts.client, parts.federation, TransientStore(), parts.plan), Runner(how), channel)


@contextlib.contextmanager
def current(device: str) -> Iterator[None]:
    """Make `device` torch's current GPU, on which kernels without a device of their own start."""
    import torch

    if not device.startswith("cuda:"):
        yield
        return
    with torch.cuda.device(device):
        yield
