"""The clients of a run. They are known by partition id; Flower's node ids are random in each run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from fedpers.core.errors import ConfigError, FedpersError, ReplyError
from fedpers.core.pytree import record
from fedpers.flower.messages import Header, open_content, seal


@record("flower.Roster")
class Roster:
    """The clients of a federation, N of them, and what the server knows of each."""

    ids: Sequence[int]  # partition ids, sorted; a range where they are all there
    num_examples: Tensor  # [N] float64, training samples
    properties: dict[str, Tensor]  # [N, ...] what the strategy `needs` beyond that

    @cached_property
    def counts(self) -> np.ndarray:
        """`num_examples`, of which one is read in a tenth of a tensor's time."""
        return self.num_examples.numpy()

    @property
    def num_total(self) -> float:
        """Training samples of all clients."""
        return float(self.num_examples.sum())

    def part(self, last: int) -> tuple["Roster", Sequence[int]]:
        """(the roster without its last clients, the ids of these).

        Raises:
            ConfigError: nobody would be left.
        """
        stay = len(self.ids) - last
        if stay < 1:
            raise ConfigError(
                f"new_clients={last}: there are {len(self.ids)} clients, and at least one must train"
            )
        properties = {name: values[:stay] for name, values in self.properties.items()}
        return Roster(self.ids[:stay], self.num_examples[:stay], properties), self.ids[stay:]


@dataclass(frozen=True)
class Shifted(Mapping[int, int]):
    """{i: i + by} for `count` numbers from `first` on, in constant memory."""

    first: int
    count: int
    by: int

    def __getitem__(self, i: int) -> int:
        if not self.first <= i < self.first + self.count:
            raise KeyError(i)
        return i + self.by

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.first + self.count))

    def __len__(self) -> int:
        return self.count


def rows_of(ids: Sequence[int]) -> Mapping[int, int]:
    """{id: its place} of sorted ids."""
    if ids and ids[-1] - ids[0] + 1 == len(ids):
        return Shifted(ids[0], len(ids), -ids[0])
    return {k: i for i, k in enumerate(ids)}


def ask_roster(grid: Grid, needs: Sequence[str], num_clients: int | None) -> tuple[dict[int, int], Roster]:
    """({partition id: node id}, roster), asked of every node with one query message.

    Raises:
        ReplyError: a node fails to answer, or two nodes hold the same partition.
        FedpersError: fewer than `num_clients` nodes come.
    """
    nodes = wait_for_nodes(grid, num_clients or 1)
    content = seal(Header("query")._asdict(), {"needs": tuple(needs)})
    answers: dict[int, dict[str, Any]] = {}
    node_of: dict[int, int] = {}
    for message in grid.send_and_receive([Message(content, n, "query") for n in nodes]):
        node = message.metadata.src_node_id
        if message.has_error():
            raise ReplyError(f"node {node} did not say who it is: {message.error.reason}")
        header, answer = open_content(message.content)
        k = int(header["k"])
        if k in node_of:
            raise ReplyError(f"two nodes say they hold partition {k}; give each its own partition-id")
        node_of[k], answers[k] = node, answer
    if len(node_of) < len(nodes):
        silent = len(nodes) - len(node_of)
        raise ReplyError(f"{silent} of {len(nodes)} nodes did not answer when the roster was made")
    ids = tuple(sorted(answers))
    counts = torch.tensor([float(answers[k]["num_examples"]) for k in ids], dtype=torch.float64)
    return node_of, Roster(ids, counts, {n: torch.stack([answers[k][n] for k in ids]) for n in needs})


def wait_for_nodes(grid: Grid, wanted: int, patience: float = 300.0) -> list[int]:
    """Node ids, once `wanted` nodes are there: in a simulation they appear after the server.

    Raises:
        FedpersError: fewer came within `patience` seconds.
    """
    began = time.monotonic()
    while len(nodes := list(grid.get_node_ids())) < wanted:
        if time.monotonic() - began > patience:
            raise FedpersError(f"only {len(nodes)} of {wanted} clients came within {patience:.0f} s")
        time.sleep(0.2)
    return nodes
