"""How a cohort's requests are run: client after client, or stacked chunk after chunk under vmap.

What can change a result's last bits (loop or stack) is decided by a rule; what cannot (the size of
a chunk) is measured on the run's own first chunks. So two runs of one seed agree bit for bit.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from fedpers.chunk import run_chunk
from fedpers.record import flatten
from fedpers.tuner import Tuner

if TYPE_CHECKING:
    from fedpers.cohort import Cohort, Request

log = logging.getLogger("fedpers")


@dataclass(frozen=True)
class RunnerConfig:
    """How the in-process engine runs its clients."""

    runner: Literal["auto", "loop", "stack"] = "auto"
    chunk: int | None = None              # clients in a stack; None: measured
    workers: int = 1                      # processes that share the clients
    memory_mb: int = 0                    # of one stack; 0: 1024, or half of what a GPU has free
    convolution: Literal["auto", "grouped", "products"] = "auto"  # in a stack; auto: CUDA products
    precision: Literal["float32", "tf32", "bf16"] = "float32"     # of products, on CUDA


class Runner:
    """Runs requests of a cohort; one object a process."""

    def __init__(self, config: RunnerConfig) -> None:
        self.config = config
        self.scratch: tuple[dict[Any, Tensor], ...] = ({}, {}, {})    # of the three splits
        self._tuners: dict[Any, Tuner] = {}
        self.looped: set[Any] = set()         # kinds of request that vmap could not take
        self._likes: dict[Any, _Like] = {}
        self._seen: dict[int, tuple[Any, _Like, list[Any]]] = {}

    def run(self, cohort: "Cohort", requests: Sequence["Request"]) -> list[Any]:
        """The answers, in the order of the requests; a client's failure is its answer."""
        answers: list[Any] = [None] * len(requests)
        with torch.no_grad():
            for key, jobs in self._groups(cohort, requests).items():
                run = self._loop if key is None or key[0] in self.looped else self._stacks
                for place, answer in run(cohort, key, jobs):
                    answers[place] = answer
        return answers

    # ---- which clients can be in one stack ------------------------------------------------------

    def _groups(self, cohort: "Cohort", requests: Sequence["Request"]) -> dict[Any, list[Any]]:
        """{key: jobs}: what may share a stack; None is the loop."""
        groups: dict[Any, list[Any]] = defaultdict(list)
        self._seen = {}
        for place, request in enumerate(requests):
            try:
                key, leaves = self._key(cohort, request)
            except Exception:               # data or memory cannot be read: the loop finds out why
                key, leaves = None, []
            groups[key].append((place, request, leaves))
        return groups

    def _key(self, cohort: "Cohort", request: "Request") -> tuple[Any, list[Any]]:
        """(what must be equal to share a stack, leaves of the order and of the memory)."""
        if self.config.runner == "loop" or not cohort.client.vectorized:
            return None, []
        header, when = request.header, request.when
        memory = cohort.memory(request.k, when)
        (order_like, given), (memory_like, kept) = self._like(request.order), self._like(memory)
        if self.config.runner == "auto" and _heavy(cohort, header, order_like, memory_like):
            return None, []
        sizes = cohort.padded_sizes(request.k)
        kind = (header["kind"], type(request.order), bool(header.get("assess")))
        if 0 in sizes[:1]:
            return None, []
        return (kind, when, sizes, order_like, memory_like), given + kept

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

    def _loop(self, cohort: "Cohort", key: Any, jobs: list[Any]) -> Iterator[tuple[int, Any]]:
        for place, request, _ in jobs:
            yield place, cohort.one(request)

    def _stacks(self, cohort: "Cohort", key: Any, jobs: list[Any]) -> Iterator[tuple[int, Any]]:
        """Chunk after chunk; what fails as a stack is looped, to find the client at fault."""
        kind, _, sizes, *likes = key
        structure = (tuple, None, tuple(like.structure for like in likes))
        tuner = self._tuners.setdefault(kind, Tuner(f"{kind[0]} {kind[1].__name__}"))
        limit = self._limit(cohort, key)
        while jobs:
            size = self.config.chunk or tuner.size(len(jobs), limit)
            chunk, jobs = jobs[:size], jobs[size:]
            began = _clock(cohort.device)
            try:
                found = run_chunk(cohort, chunk, sizes, structure)
            except torch.OutOfMemoryError:
                found = [a for _, a in self._loop(cohort, key, chunk)]
                tuner.limit = max(size // 2, 1)
            except Exception as error:
                found = [a for _, a in self._loop(cohort, key, chunk)]
                self._learn(kind, error, found)
            else:
                _, request, _ = chunk[0]
                work = cohort.client.work(request.order, sizes[0]) if kind[0] == "train" else 0
                took = _clock(cohort.device) - began
                tuner.add(len(chunk), took / len(chunk) / max(work, *sizes))
            yield from zip((place for place, *_ in chunk), found, strict=True)

    def _learn(self, kind: Any, error: Exception, found: list[Any]) -> None:
        """A stack failed though no client did: this kind of request is looped from now on."""
        if not any(isinstance(a, Exception) for a in found) and kind not in self.looped:
            self.looped.add(kind)
            name = kind[1].__name__
            log.warning("clients with a %s order run one by one; vmap says: %r", name, error)
            log.debug("why a stack failed", exc_info=error)

    def _limit(self, cohort: "Cohort", key: Any) -> int:
        """Clients that a stack has memory for: weights, gradients, optimiser, data, activations."""
        _, _, sizes, order_like, memory_like = key
        tensors = [t for like in (order_like, memory_like) for t in like.shapes if t[0] == "t"]
        weights = sum(_numel(shape) * dtype.itemsize for _, shape, dtype in tensors)
        row = _numel(cohort.federation.input_shape) * 4
        budget = (self.config.memory_mb or _free_mb(cohort.device)) * 2**20
        return max(1, int(budget / (6 * weights + 3 * row * sum(sizes) + 1)))


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


def _heavy(cohort: "Cohort", header: dict[str, Any], order_like: _Like, memory_like: _Like) -> bool:
    """Whether a stack would be slower: convolutions of each client's own, on a CPU."""
    if cohort.device != "cpu":
        return False
    if header["kind"] == "train" or cohort.client.adapts:
        return cohort.convolves
    return memory_like.convolves
