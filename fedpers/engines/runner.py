"""How a cohort's requests are run: client after client, or stacked chunk after chunk under vmap.

What can change a result's last bits (loop or stack) is decided by a rule; what cannot (the size of
a chunk) is measured on the run's own first chunks. So two runs of one seed agree bit for bit.
"""

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedpers.core.data import ClientData
from fedpers.core.memory import give_back
from fedpers.core.pytree import TreeSpec, flatten, spec_of
from fedpers.core.witness import STACK, Witness, took
from fedpers.engines.chunk_size import ChunkSize, most_clients, without_rest
from fedpers.engines.jobs import Job, Key, OrderGroup
from fedpers.engines.population import UNREAD, Population
from fedpers.engines.processor import arithmetic, free_mb
from fedpers.engines.stack import run_chunk
from fedpers.flower.messages import Header, Request
from fedpers.flower.unseen_clients import UnseenClientOrder
from fedpers.learning.convolution import ConvolutionForbidden, forbid_torch_convolutions
from fedpers.learning.kernels.graphs import Recorder

log = logging.getLogger("fedpers")
HELD = 2**26  # bytes of clients' states that are read before their clients run
CHURN = 2**26  # bytes of stacks by autograd after which what they freed is given back to the system
TOGETHER = 1024  # states that are read in one call
BUSY = 4 * 2**20  # bytes that a client's step keeps up to which a stack of them is faster on a CPU
CACHED = 2**18  # bytes of a model up to which steps element by element are faster in stacks
WIDE = "one client's step keeps the processor busy, and stacks are slower on a CPU"
LONELY = "a client whose number of samples no other has is a stack of one, and that is computed twice"
NOTHING = [None], spec_of([None], None)  # leaves and spec of the state of most clients: they have none
SLOWER = "a stack of convolutions, each client's own, is slower on a CPU"
HUGE = "a stack of two such models is more than its memory (engine.memory_mb)"
LARGE = "steps element by element are slower in stacks of such models on a CPU"


@dataclass(frozen=True)
class RunnerConfig:
    """How the in-process engine runs its clients."""

    runner: Literal["auto", "loop", "stack"] = "auto"
    chunk: int | None = None  # clients in a stack; None: measured, on a GPU what there is room for
    workers: int = 1  # processes that share the clients
    memory_mb: int = 0  # of one stack; 0: 1024, or an eighth of what a GPU has free
    # in a stack; auto: on CUDA products in float32, else by shape; on a CPU grouped
    convolution: Literal["auto", "grouped", "products"] = "auto"
    precision: Literal["float32", "tf32", "bf16"] = "float32"  # of products, on CUDA


class Runner:
    """Runs requests for a population; one object a process."""

    def __init__(self, config: RunnerConfig) -> None:
        self.config = config
        self.scratch: tuple[dict[Any, Tensor], ...] = ({}, {}, {})  # of the three splits
        self.recorder = Recorder()
        self._tuners: dict[Any, ChunkSize] = {}
        self.said: set[str] = set()  # reasons for the loop that were logged
        self.looped: set[Any] = set()  # kinds of request that vmap could not take
        self.witness = Witness()  # of local training
        self.churned = 0  # bytes of such stacks since then

    def run(self, population: Population, requests: Sequence[Request]) -> list[Any]:
        """The answers, in the order of the requests; of a client that failed its exception."""
        answers: list[Any] = [None] * len(requests)
        shared = population.store.keeps_stacks or len(requests) >= population.federation.num_clients
        trains = any(r.header.kind == "train" for r in requests[:1])
        with torch.no_grad(), self.witness.listening(trains):
            for groups in self._windows(population, requests):
                for key, jobs in groups.items():
                    looped = key is None or key.kind in self.looped or (key.bars and len(jobs) == 1)
                    run = self._loop if looped else self._stacks
                    for place, answer in run(population, key, jobs, shared):
                        answers[place] = answer
        return answers

    def close(self) -> None:
        """Free what was recorded on a GPU."""
        self.recorder = Recorder()

    # ---- which clients can be in one stack ------------------------------------------------------

    def _windows(self, population: Population, requests: Sequence[Request]) -> Iterator[dict[Any, list[Job]]]:
        """{key: jobs} that may share a stack (key None: the loop), for at most `HELD` requests at a time."""
        groups: dict[Any, list[Job]] = defaultdict(list)
        before, held = UNREAD, 0
        for place, (request, asked, state) in enumerate(self._read(population, requests)):
            key, data, leaves = self._key(population, request.k, asked, state)
            if key is not before:  # mostly it is, and is not hashed again
                before, jobs = key, groups[key]
            jobs.append(Job(place, request, data, state, leaves))
            held += key.state.nbytes if key else sum([x.nbytes for x in leaves if isinstance(x, Tensor)])
            if held > HELD:
                yield groups
                groups, before, held = defaultdict(list), UNREAD, 0
        yield groups

    def _read(
        self, population: Population, requests: Sequence[Request]
    ) -> Iterator[tuple[Request, OrderGroup | None, Any]]:
        """Each request, what those with its order share, and the client's state, read some at a time.

        A state is not read where the request is looped anyway.
        """
        orders: dict[tuple[int, Header], OrderGroup | None] = {}
        size = max(1, min(TOGETHER, HELD // 2 // (population.nbytes + 1)))
        for first in range(0, len(requests), size):
            part = requests[first : first + size]
            told = [(id(r.order), r.header) for r in part]
            for what, request in zip(told, part, strict=True):
                if what not in orders:
                    orders[what] = self._asked_safely(population, request)
            pairs = [(request, orders[what]) for what, request in zip(told, part, strict=True)]
            states = deque(_states(population, [(r.k, r.when) for r, a in pairs if a is not None]))
            for request, a in pairs:
                yield request, a, UNREAD if a is None else states.popleft()

    def _asked_safely(self, population: Population, request: Request) -> OrderGroup | None:
        try:
            return self._asked(population, request)
        except Exception:  # no stack of such orders: the loop finds out why
            return None

    def _asked(self, population: Population, request: Request) -> OrderGroup | None:
        """What all requests with this order and header share; None if their clients are looped."""
        client, header = population.client, request.header
        if self.config.runner == "loop" or not client.vectorized or self._alone(population):
            return None
        if client.metrics and (header.assess or header.kind == "evaluate"):
            return None  # scikit-learn knows one client's arrays
        auto = self.config.runner == "auto" and population.device == "cpu"
        trains = client.adapts or type(request.order) is UnseenClientOrder
        evaluates = header.kind == "evaluate" and not trains
        own = auto and population.convolves and not evaluates  # kernels of convolutions, a client's own
        if own and not population.small_convs:
            self._say(SLOWER)
            return None
        if auto and client.elementwise and population.nbytes > CACHED and header.kind == "train":
            self._say(LARGE)
            return None
        leaves, structure = request.tree or flatten(request.order)
        spec = spec_of(leaves, structure)
        kind = (header.kind, type(request.order), header.assess)
        return OrderGroup(kind, header, spec, leaves, auto and evaluates, own, auto, {})

    def _key(
        self, population: Population, k: int, asked: OrderGroup | None, state: Any
    ) -> tuple[Key | None, ClientData | None, list[Any]]:
        """(what must be equal to share a stack, the client's data, leaves of the order and of the state)."""
        if asked is None or state is UNREAD:
            return None, None, []
        try:
            data = population.data(k)
            sizes = population.padded_sizes(data)
            if asked.kind[0] != "evaluate" and not asked.header.assess:
                sizes = sizes[0], 0, 0  # training sees its own split alone
            flat, spec = NOTHING if state is None else _flat(state)
        except Exception:  # no data, or a state that cannot be stacked: the loop finds out why
            return None, None, []
        if not sizes[0] or (asked.loops_kernels and spec.max_dim > 3):
            return None, None, flat
        if asked.by_work and (reason := _slower_in_stacks(population, asked, sizes)):
            self._say(reason)
            return None, None, flat
        what = sizes, id(spec)  # which the key keeps
        key = asked.keys.get(what)
        if key is None:
            key = asked.keys[what] = Key(asked.kind, asked.header, sizes, asked.spec, spec, asked.bars)
        return key, data, asked.leaves + flat

    def _alone(self, population: Population) -> bool:
        """Whether the model, or what the loss draws, keeps clients out of stacks."""
        network, on_cpu = population.client.model.network, population.device == "cpu"
        reason = network.alone or ("Dropout" if network.draws and not on_cpu else "")
        if reason:
            self._say(f"the model has {reason}")
            return True
        if drawn := population.client.draws and not on_cpu:
            self._say("the method's loss draws random numbers, which a GPU does not draw for each of a stack")
        return drawn

    def _say(self, reason: str) -> None:
        """Log once why clients run one by one."""
        if reason not in self.said:
            self.said.add(reason)
            log.info("clients run one by one: %s", reason)

    # ---- the two runners ------------------------------------------------------------------------

    def _loop(
        self, population: Population, key: Any, jobs: list[Job], shared: bool
    ) -> Iterator[tuple[int, Any]]:
        yield from zip((job.place for job in jobs), self._one_by_one(population, jobs), strict=True)

    def _stacks(
        self, population: Population, key: Key, jobs: list[Job], shared: bool
    ) -> Iterator[tuple[int, Any]]:
        """Chunk after chunk; what fails as a stack is looped, to find the client at fault."""
        kind, sizes = key.kind, key.sizes
        structure = (tuple, None, (key.order.structure, key.state.structure))
        tuner = self._tuners.get(kind)
        if tuner is None:
            name = f"{kind[0]} {kind[1].__name__}"
            tuner = self._tuners[kind] = ChunkSize(name, measures=population.device == "cpu")
        by_autograd, each = self._bytes_each(population, key)
        budget = (self.config.memory_mb or free_mb(population.device)) * 2**20
        limit = most_clients(budget, each, by_autograd=by_autograd)
        if limit == 1:
            self._say(HUGE)
            yield from self._loop(population, key, jobs, shared)
            return
        while jobs:
            size = without_rest(len(jobs), self.config.chunk or tuner.size(len(jobs), limit), limit)
            chunk, jobs[:size] = jobs[:size], []  # in place: states that were replaced go chunk by chunk
            began = time.process_time()  # of this process, which others do not disturb; not read on a GPU
            try:
                with self._arithmetic(population.device), forbid_torch_convolutions(key.bars):
                    found, states = run_chunk(population, chunk, sizes, structure, self.scratch, shared)
            except ConvolutionForbidden:
                self._say(SLOWER)
                self.looped.add(kind)
                found = self._one_by_one(population, chunk)
            except torch.OutOfMemoryError:
                found = self._one_by_one(population, chunk)
                tuner.limit = max(size // 2, 1)
            except Exception as error:
                found = self._one_by_one(population, chunk)
                self._learn(kind, error, found)
            else:
                took(STACK)
                first = chunk[0].request
                work = population.work(first, sizes[0]).gradients if kind[0] == "train" else 0
                seconds = time.process_time() - began
                tuner.add(len(chunk), seconds / len(chunk) / max(work, *sizes))
                population.keep([job.request for job in chunk], states)  # no matter of a chunk's size
            if by_autograd:
                self._give_back(each * len(chunk))
            yield from zip((job.place for job in chunk), found, strict=True)

    def _give_back(self, freed: int) -> None:
        """Now and then: the clients' new states lie between what was freed, and no other stack fits there."""
        self.churned += freed
        if self.churned > CHURN:
            self.churned = 0
            give_back()

    def _one_by_one(self, population: Population, jobs: Sequence[Job]) -> list[Any]:
        """The answers of clients that run alone."""
        with self._arithmetic(population.device):
            return [population.one(job.request, job.state) for job in jobs]

    def _arithmetic(self, device: str) -> AbstractContextManager[None]:
        return arithmetic(self.config.precision, self.config.convolution, device, self.recorder)

    def _learn(self, kind: Any, error: Exception, found: list[Any]) -> None:
        """If a stack failed and none of its clients fails alone, loop this kind of request from now on."""
        if not any(isinstance(a, Exception) for a in found) and kind not in self.looped:
            self.looped.add(kind)
            name = kind[1].__name__
            log.warning("clients with a %s order run one by one; vmap says: %r", name, error)
            log.debug("why a stack failed", exc_info=error)

    def _bytes_each(self, population: Population, key: Key) -> tuple[bool, int]:
        """(whether autograd computes on a CPU, bytes of a client: weights, gradients, data, activations)."""
        weights = key.order.nbytes + key.state.nbytes
        row = math.prod(population.federation.input_shape) * 4
        kept = population.kept_bytes(key.kind[0] == "train", key.sizes)
        return kept > 0 and population.device == "cpu", 6 * weights + 3 * row * sum(key.sizes) + kept + 1


def _slower_in_stacks(population: Population, asked: OrderGroup, sizes: Sequence[int]) -> str:
    """Why a client of a module would be slower in a stack on a CPU; "" if it would not."""
    kept = population.kept_bytes(asked.header.kind == "train", sizes)
    if kept > BUSY:
        return WIDE
    return LONELY if kept and population.lonely(sizes) else ""


def _flat(tree: Any) -> tuple[list[Any], TreeSpec]:
    leaves, structure = flatten(tree)
    return leaves, spec_of(leaves, structure)


def _states(population: Population, wanted: Sequence[tuple[int, tuple[int, int]]]) -> Sequence[Any]:
    """The clients' states before their exchange (round, exchange); UNREAD where one cannot be read."""
    try:
        return population.states(wanted)
    except Exception:
        return [UNREAD] if len(wanted) == 1 else [_states(population, [one])[0] for one in wanted]
