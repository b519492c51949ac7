"""How a cohort's requests are run: client after client, or stacked chunk after chunk under vmap.

What can change a result's last bits (loop or stack) is decided by a rule; what cannot (the size of
a chunk) is measured on the run's own first chunks. So two runs of one seed agree bit for bit.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedpers.core.pytree import flatten
from fedpers.engines.chunk_size import ChunkSize
from fedpers.engines.population import Population
from fedpers.engines.stack import run_chunk
from fedpers.flower.messages import Request
from fedpers.learning.convolution import as_products
from fedpers.learning.kernels.dispatch import autograd_only

log = logging.getLogger("fedpers")


@dataclass(frozen=True)
class RunnerConfig:
    """How the in-process engine runs its clients."""

    runner: Literal["auto", "loop", "stack"] = "auto"
    chunk: int | None = None  # clients in a stack; None: measured
    workers: int = 1  # processes that share the clients
    memory_mb: int = 0  # of one stack; 0: 1024, or half of what a GPU has free
    convolution: Literal["auto", "grouped", "products"] = "auto"  # in a stack; auto: CUDA products
    precision: Literal["float32", "tf32", "bf16"] = "float32"  # of products, on CUDA


class Runner:
    """Runs requests for a population; one object a process."""

    def __init__(self, config: RunnerConfig) -> None:
        self.config = config
        self.scratch: tuple[dict[Any, Tensor], ...] = ({}, {}, {})  # of the three splits
        self._tuners: dict[Any, ChunkSize] = {}
        self.looped: set[Any] = set()  # kinds of request that vmap could not take
        self._likes: dict[Any, _Like] = {}
        self._seen: dict[int, tuple[Any, _Like, list[Any]]] = {}

    def run(self, population: Population, requests: Sequence[Request]) -> list[Any]:
        """The answers, in the order of the requests; a client's failure is its answer."""
        answers: list[Any] = [None] * len(requests)
        with torch.no_grad():
            for key, jobs in self._groups(population, requests).items():
                run = self._loop if key is None or key[0] in self.looped else self._stacks
                for place, answer in run(population, key, jobs):
                    answers[place] = answer
        return answers

    # ---- which clients can be in one stack ------------------------------------------------------

    def _groups(self, population: Population, requests: Sequence[Request]) -> dict[Any, list[Any]]:
        """{key: jobs}: what may share a stack; None is the loop."""
        groups: dict[Any, list[Any]] = defaultdict(list)
        self._seen = {}
        for place, request in enumerate(requests):
            try:
                key, leaves = self._key(population, request)
            except Exception:  # data or state cannot be read: the loop finds out why
                key, leaves = None, []
            groups[key].append((place, request, leaves))
        return groups

    def _key(self, population: Population, request: Request) -> tuple[Any, list[Any]]:
        """(what must be equal to share a stack, leaves of the order and of the state)."""
        if self.config.runner == "loop" or not population.client.vectorized:
            return None, []
        header, when = request.header, request.when
        state = population.state(request.k, when)
        (order_like, given), (state_like, kept) = self._like(request.order), self._like(state)
        if self.config.runner == "auto" and _heavy(population, header, order_like, state_like):
            return None, []
        sizes = population.padded_sizes(request.k)
        kind = (header["kind"], type(request.order), bool(header.get("assess")))
        if 0 in sizes[:1]:
            return None, []
        return (kind, when, sizes, order_like, state_like), given + kept

    def _like(self, tree: Any) -> tuple["_Like", list[Any]]:
        """(structure, shapes and plain values, leaves); the same object is looked at once."""
        known = self._seen.get(id(tree))
        if known is None or known[0] is not tree:
            flat, structure = flatten(tree)
            shapes = tuple([_leaf_like(x) for x in flat])
            like = self._likes.get((structure, shapes))
            if like is None:
                like = self._likes[structure, shapes] = _Like(structure, shapes)
            known = self._seen[id(tree)] = (tree, like, flat)
        return known[1:]

    # ---- the two runners ------------------------------------------------------------------------

    def _loop(self, population: Population, key: Any, jobs: list[Any]) -> Iterator[tuple[int, Any]]:
        for place, request, _ in jobs:
            yield place, population.one(request)

    def _stacks(self, population: Population, key: Any, jobs: list[Any]) -> Iterator[tuple[int, Any]]:
        """Chunk after chunk; what fails as a stack is looped, to find the client at fault."""
        kind, _, sizes, *likes = key
        structure = (tuple, None, tuple(like.structure for like in likes))
        tuner = self._tuners.setdefault(kind, ChunkSize(f"{kind[0]} {kind[1].__name__}"))
        limit = self._limit(population, key)
        while jobs:
            size = self.config.chunk or tuner.size(len(jobs), limit)
            chunk, jobs = jobs[:size], jobs[size:]
            began = _clock(population.device)
            try:
                with _arithmetic(self.config, population.device):
                    found = run_chunk(population, chunk, sizes, structure, self.scratch)
            except torch.OutOfMemoryError:
                found = [a for _, a in self._loop(population, key, chunk)]
                tuner.limit = max(size // 2, 1)
            except Exception as error:
                found = [a for _, a in self._loop(population, key, chunk)]
                self._learn(kind, error, found)
            else:
                _, request, _ = chunk[0]
                work = population.client.work(request.order, sizes[0]) if kind[0] == "train" else 0
                took = _clock(population.device) - began
                tuner.add(len(chunk), took / len(chunk) / max(work, *sizes))
            yield from zip((place for place, *_ in chunk), found, strict=True)

    def _learn(self, kind: Any, error: Exception, found: list[Any]) -> None:
        """A stack failed though no client did: this kind of request is looped from now on."""
        if not any(isinstance(a, Exception) for a in found) and kind not in self.looped:
            self.looped.add(kind)
            name = kind[1].__name__
            log.warning("clients with a %s order run one by one; vmap says: %r", name, error)
            log.debug("why a stack failed", exc_info=error)

    def _limit(self, population: Population, key: Any) -> int:
        """Clients that a stack has memory for: weights, gradients, optimiser, data, activations."""
        _, _, sizes, order_like, state_like = key
        tensors = [t for like in (order_like, state_like) for t in like.shapes if t[0] == "t"]
        weights = sum(_numel(shape) * dtype.itemsize for _, shape, dtype in tensors)
        row = _numel(population.federation.input_shape) * 4
        budget = (self.config.memory_mb or _free_mb(population.device)) * 2**20
        return max(1, int(budget / (6 * weights + 3 * row * sum(sizes) + 1)))


@contextmanager
def _arithmetic(config: RunnerConfig, device: str) -> Iterator[None]:
    """How the products of a stack are computed."""
    cuda = device.startswith("cuda")
    products = config.convolution == "products" or (config.convolution == "auto" and cuda)
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "float32"
        torch.backends.cudnn.allow_tf32 = config.precision != "float32"
    with as_products(products):
        if config.precision != "bf16":
            yield
            return
        kind = "cuda" if cuda else "cpu"
        with autograd_only(), torch.autocast(kind, torch.bfloat16):
            yield


def _clock(device: str) -> float:
    """Seconds: of this process's work on a CPU, which other processes do not disturb."""
    if not device.startswith("cuda"):
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _free_mb(device: str) -> int:
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0] / 2**21)
    return 1024


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


class _Like:
    """What trees that may share a stack have in common; one object for all of them."""

    def __init__(self, structure: Any, shapes: tuple[Any, ...]) -> None:
        self.structure, self.shapes = structure, shapes
        self.convolves = any(t[0] == "t" and len(t[1]) > 3 for t in shapes)


def _leaf_like(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return ("t", leaf.shape, leaf.dtype)
    if isinstance(leaf, float):
        return ("f",)
    return ("v", leaf)


def _heavy(population: Population, header: dict[str, Any], order_like: _Like, state_like: _Like) -> bool:
    """Whether a stack would be slower: convolutions of each client's own, on a CPU."""
    if population.device != "cpu":
        return False
    if header["kind"] == "train" or population.client.adapts:
        return population.convolves
    return state_like.convolves
