"""All that a process needs to answer for clients: the method's client half, data and memories."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch

from fedpers.client import PersonalizedClient
from fedpers.data import ClientData, Data, Federation
from fedpers.params import Params
from fedpers.plan import Assessed, Plan
from fedpers.rng import Stream
from fedpers.runners import Runner, RunnerConfig
from fedpers.stacked import padded_size
from fedpers.store import own_leaves
from fedpers.workers import Pool


class Request(NamedTuple):
    """One message to one client."""

    k: int                        # partition id
    order: Any                    # of an exchange, or what the client predicts with (evaluation)
    header: dict[str, Any]        # kind, t (round), e (exchange), assess

    @property
    def when(self) -> tuple[int, int]:
        """(round, exchange)."""
        return int(self.header["t"]), int(self.header["e"])


class Answer(NamedTuple):
    """What a client sends back."""

    body: Any
    num_examples: int
    work: int


class Store(Protocol):
    """Where clients' memories are kept between rounds."""

    def get(self, k: int, when: tuple[int, int]) -> Any:
        """The memory of client k before exchange `when` = (round, exchange); None if never seen."""

    def put(self, k: int, when: tuple[int, int], memory: Any) -> None:
        """Keep the memory that client k has after exchange `when`; its tensors are its own."""


class Cohort:
    """Answers requests for any of a federation's clients.

    Every engine ends here, so that a method runs through the same lines everywhere.
    """

    def __init__(
        self, client: PersonalizedClient, federation: Federation, store: Store, plan: Plan,
        runner: RunnerConfig = RunnerConfig(),  # noqa: B008
    ) -> None:
        self.client, self.federation, self.store, self.plan = client, federation, store, plan
        self.device = plan.device
        self.runner = Runner(runner)
        self._pool: Pool | None = None
        self._data: dict[int, ClientData] = {}
        self._padded: dict[tuple[int, int, int], tuple[int, int, int]] = {}

    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """The answers, in the order of the requests; a client's failure is its answer."""
        if self.runner.config.workers > 1 and len(requests) > 1:
            self.start()
            assert self._pool is not None
            return self._pool.handle(self, requests)
        return self.runner.run(self, requests)

    def start(self) -> None:
        """Fork the worker processes, if there are to be any; else this happens when needed."""
        if self.runner.config.workers > 1 and self._pool is None:
            self._pool = Pool(self, self.runner.config.workers)

    def become_worker(self, store: Store) -> None:
        """In a forked process: answer alone from now on, keep memories in `store`."""
        self.store, self._pool = store, None
        self.runner.config = replace(self.runner.config, workers=1)

    def take_back(
        self, request: Request, head: Answer | Exception, body: Any, kept: Any
    ) -> Answer | Exception:
        """What a worker answered; the client's memory is kept here."""
        if kept is not None:
            self.store.put(request.k, request.when, own_leaves(kept))
        if isinstance(head, Exception) or body is None:
            return head
        return Answer(body, head.num_examples, head.work)

    def close(self) -> None:
        """End the worker processes, if there are any."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def one(self, request: Request) -> Answer | Exception:
        """The answer of one client, run alone."""
        try:
            return self._one(request)
        except Exception as error:          # one client's failure must not take the others along
            return error

    def properties(self, k: int, needs: Sequence[str]) -> dict[str, Any]:
        """What client k tells the server of itself at the start."""
        known = {"label_counts": lambda: torch.as_tensor(self.federation.label_counts[k]).double()}
        told: dict[str, Any] = {"num_examples": int(self.federation.num_train[k])}
        return told | {need: known[need]() for need in needs}

    def data(self, k: int) -> ClientData:
        """The data of client k on this process's device."""
        if self.device == "cpu":
            return self.federation.client(k)
        if k not in self._data:
            parts = self.federation.client(k)
            moved = [_to(p, self.device) for p in (parts.train, parts.valid, parts.test)]
            self._data[k] = ClientData(*moved)
        return self._data[k]

    def memory(self, k: int, when: tuple[int, int]) -> Any:
        """What client k remembers before exchange `when`."""
        kept = self.store.get(k, when)
        if kept is not None:
            return kept
        rng = Stream(self.plan.seed, 0, k)
        return self.client.initial_memory(self.params, self.data(k).train, rng)

    @cached_property
    def params(self) -> Params:
        """The model's initial parameters."""
        return self.plan.initial(self.client.model)

    @cached_property
    def convolves(self) -> bool:
        """Whether the model has convolutions."""
        return any(v.dim() > 3 for v in self.params.values())

    def padded_sizes(self, k: int) -> tuple[int, int, int]:
        """What the splits of client k are padded to in a stack."""
        parts = self.data(k)
        sizes = len(parts.train), len(parts.valid), len(parts.test)
        if sizes not in self._padded:
            top_train, top_test = self._tops
            padded = (padded_size(sizes[0], top_train), padded_size(sizes[1]),
                      padded_size(sizes[2], top_test))
            self._padded[sizes] = padded
        return self._padded[sizes]

    @cached_property
    def _tops(self) -> tuple[int, int]:
        return int(max(self.federation.num_train)), int(max(self.federation.num_test))

    def _one(self, request: Request) -> Answer:
        k, header, when = request.k, request.header, request.when
        data = self.data(k)
        n = len(data.train)
        rng = Stream(self.plan.seed, when[0], k, when[1])
        memory = self.memory(k, when)
        if header["kind"] == "evaluate":
            metrics = _numbers(self.client.assess(request.order, memory, data, rng))
            return self.settle(request, None, None, metrics, len(data.test))
        reply, kept = self.client.answer(request.order, memory, data.train, rng)
        found: dict[str, Any] | None = None
        if header.get("assess"):
            model = self.client.local_model(request.order, reply)
            found = _numbers(self.client.assess(model, kept, data, rng))
        kept = None if kept is memory else own_leaves(kept)            # what did not change is not kept anew
        return self.settle(request, reply, kept, found, n)

    def settle(
        self, request: Request, reply: Any, kept: Any, metrics: dict[str, float] | None, n: int
    ) -> Answer:
        """Keep a client's memory and make its answer; `n` is the samples that it used."""
        if request.header["kind"] == "evaluate":
            return Answer(metrics, n, 0)
        if kept is not None:
            self.store.put(request.k, request.when, kept)
        body = reply if metrics is None else Assessed(reply, metrics)
        return Answer(body, n, self.client.work(request.order, n))


def _numbers(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    return {c: float(v) for c, v in metrics.items()}


def _to(data: Data, device: str) -> Data:
    return Data(data.x.to(device), data.y.to(device), data.mask.to(device))
