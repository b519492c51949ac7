"""The clients of a federation in one process: the method's client half, data and states."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch

from fedpers.core.arrays import doubles
from fedpers.core.data import ClientData, Data, Federation
from fedpers.core.params import Params
from fedpers.core.plan import Plan
from fedpers.core.pytree import in_place_of, own_leaves
from fedpers.core.rng import Stream, noise_stream
from fedpers.core.samples import Exact
from fedpers.core.witness import LOOP, took
from fedpers.core.work import Work, work_of
from fedpers.engines.memory.client_store import ClientStore
from fedpers.engines.stacked_data import padded_size
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.messages import Answer, Assessed, Request
from fedpers.flower.privacy import Mechanism
from fedpers.learning.draws import drawing
from fedpers.learning.kernels.plan import small_convs
from fedpers.learning.model import initial_params
from fedpers.learning.training_round import answer, doing, own_state, trainings

FEW = 8  # clients of which at most one was met before
UNREAD = object()  # in place of a client's state: it was not read yet


class Population:
    """Data, states and the method's client half, as needed to run any client, one at a time."""

    def __init__(
        self, client: PersonalizedClient, federation: Federation, store: ClientStore, plan: Plan
    ) -> None:
        self.client, self.federation, self.store, self.plan = client, federation, store, plan
        self.device = plan.device
        noisy = plan.privacy.by_clients
        stream = partial(_noise, plan.seed)
        self.mechanism = Mechanism(plan.privacy, client.disclosure, stream) if noisy else None
        self._data: dict[int, ClientData] = {}
        self._exact = bool(client.model.network.tracked)
        self._order: Any = None  # the last, and what it costs a client with (samples, passes at most)
        self._costs: dict[tuple[int, int], Work] = {}

    def one(self, request: Request, state: Any = UNREAD) -> Answer | Exception:
        """The answer of one client, run alone, or its exception; its state is read unless it is given."""
        took(LOOP)
        try:
            return self._one(request, state)
        except Exception as error:  # one client's failure must not take the others along
            return error

    def properties(self, k: int, needs: Sequence[str]) -> dict[str, Any]:
        """The facts about client k that servers may ask for: num_examples, and the properties in `needs`."""
        known = {"label_counts": lambda: doubles(self.federation.label_counts[k])}
        found: dict[str, Any] = {"num_examples": int(self.federation.num_train[k])}
        return found | {need: known[need]() for need in needs}

    @cached_property
    def data(self) -> Callable[[int], ClientData]:
        """data(k): that of client k on this process's device."""
        return self.federation.client if self.device == "cpu" and not self._exact else self._moved

    def _moved(self, k: int) -> ClientData:
        if k not in self._data:
            parts = self.federation.client(k)
            moved = [_to(p, self.device, self._exact) for p in (parts.train, parts.valid, parts.test)]
            self._data[k] = ClientData(*moved)
        return self._data[k]

    def state(self, k: int, when: tuple[int, int]) -> Any:
        """The state of client k before exchange `when` = (round, exchange)."""
        return self.states([(k, when)])[0]

    def states(self, wanted: Sequence[tuple[int, tuple[int, int]]]) -> list[Any]:
        """`state` of several clients; those that were never visited draw theirs together.

        Where few were visited all draw, and the known states take their rows: a stack of them is no copy.
        """
        found = self.store.get_all(wanted)
        new = [i for i, state in enumerate(found) if state is None] if self._begins_with_state else []
        if not new:
            return found
        if FEW * (len(found) - len(new)) > len(found):
            for i, state in zip(new, self._first_states([wanted[i][0] for i in new]), strict=True):
                found[i] = state
            return found
        states = self._first_states([k for k, _ in wanted])
        for i in set(range(len(found))).difference(new):
            states[i] = in_place_of(found[i], states[i], i, len(found))
        return states

    @cached_property
    def _begins_with_state(self) -> bool:
        """Whether the method gives clients a state before their first training."""
        own, plain = type(self.client), PersonalizedClient
        return (own.initial_state, own.initial_states) != (plain.initial_state, plain.initial_states)

    def _first_states(self, clients: Sequence[int]) -> list[Any]:
        data = [self.data(k).train for k in clients]
        rngs = [Stream(self.plan.seed, 0, k) for k in clients]
        return list(self.client.initial_states(self.params, data, rngs))

    @cached_property
    def params(self) -> Params:
        """The model's initial parameters."""
        return initial_params(self.client.model, self.plan)

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """(bytes, dimensions) of the model's parameters, which are not kept for that: they may be large."""
        return [(v.nbytes, v.dim()) for v in initial_params(self.client.model, self.plan).values()]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the model's parameters."""
        return sum(size for size, _ in self._sizes)

    @cached_property
    def convolves(self) -> bool:
        """Whether the model has convolutions."""
        return any(dims > 3 for _, dims in self._sizes)

    @cached_property
    def small_convs(self) -> bool:
        """Whether a kernel trains the model's convolutions."""
        return small_convs(self.client.model) is not None

    def kept_bytes(self, trains: bool, sizes: Sequence[int]) -> int:
        """Bytes of activations that one client's step keeps; 0 where the model's are not known.

        An evaluation keeps nothing for a gradient, but has a few layers at a time of all samples.
        """
        each = self.client.model.network.activations
        if not each:
            return 0
        return each * (self._step_rows(sizes[0]) if trains else max(sizes) // 8)

    def _step_rows(self, n: int) -> int:
        """Samples of the largest minibatch of a client with n samples."""
        settings = trainings(self.client.config).values()
        return min(n, max([cfg.micro_batch or cfg.batch_size or n for cfg in settings], default=n))

    def padded_sizes(self, data: ClientData) -> tuple[int, int, int]:
        """The numbers of samples to which the three splits of a client are padded in a stack."""
        return _padded(*self._tops, *data.sizes)

    def lonely(self, sizes: Sequence[int]) -> bool:
        """Whether the federation has no second client of these padded sizes, for a stack with this one.

        A number of 0 stands for any: training has its own split alone.
        """
        return self._alike[sizes[0], sizes[2]] < 2

    @cached_property
    def _alike(self) -> Counter[tuple[int, int]]:
        """How many clients have so many training samples, alone and with their test samples, padded."""
        sizes = zip(self.federation.num_train.tolist(), self.federation.num_test.tolist(), strict=True)
        padded = [_padded(*self._tops, train, 0, test) for train, test in sizes]
        return Counter((p[0], n) for p in padded for n in {0, p[2]})

    @cached_property
    def _tops(self) -> tuple[int, int]:
        return int(np.max(self.federation.num_train)), int(np.max(self.federation.num_test))

    def _one(self, request: Request, state: Any) -> Answer:
        k, when = request.k, request.when
        data = self.data(k)
        rng = Stream(self.plan.seed, when[0], k, when[1])
        if state is UNREAD:
            state = self.state(k, when)
        own = drawing([rng]) if self.client.draws else nullcontext()
        with self.client.model.network.turn(data.train, rng), own:
            return self._served(request, state, data, rng)

    def _served(self, request: Request, state: Any, data: ClientData, rng: Stream) -> Answer:
        header, n = request.header, len(data.train)
        if header.kind == "evaluate":
            metrics = _numbers(self.client.assess(request.order, own_state(state), data, rng))
            return self.settle(request, None, None, metrics, len(data.test))
        reply, kept = answer(self.client, request.order, state, data.train, rng, header.t, header.passes)
        found: dict[str, Any] | None = None
        if header.assess and not isinstance(request.order, self.client.read_only_orders):
            model = self.client.local_model(request.order, reply)
            found = _numbers(self.client.assess(model, own_state(kept), data, rng))
        kept = None if kept is state else own_leaves(kept)  # what did not change is not kept anew
        made = self.settle(request, reply, kept, found, n)
        self.keep([request], [kept])
        return made

    def settle(
        self,
        request: Request,
        reply: Any,
        kept: Any,
        metrics: dict[str, float] | None,
        n: int,
        stack: int = 0,
    ) -> Answer:
        """A client's answer; `n` is the samples that it used, `stack` as in `Answer`."""
        if request.header.kind == "evaluate":
            return Answer(metrics, n, 0)
        cost = self._cost(request, reply, kept, n)
        if self.mechanism is not None:
            reply, stack = self.mechanism.release(request, reply), 0
        body = reply if metrics is None else Assessed(reply, metrics)
        return Answer(body, n, *cost, stack)

    def keep(self, requests: Sequence[Request], states: Sequence[Any]) -> None:
        """Store the new states of clients that ran in one stack; None: the states did not change."""
        if states[0] is not None:
            self.store.put_alike([r.k for r in requests], requests[0].when, states)

    def _cost(self, request: Request, reply: Any, kept: Any, n: int) -> Work:
        """The work of a training; equal for one order and equal n, unless the method counts it afterwards."""
        order, passes = request.order, request.header.passes
        # with privacy not: what the data made of the cost would be told beside the delta
        if self._counts_work and self.mechanism is None:
            return work_of(doing(self.client, passes).work_done(order, reply, own_state(kept), n))
        if order is not self._order:
            self._order, self._costs = order, {}
        cost = self._costs.get((n, passes))
        if cost is None:
            cost = self._costs[n, passes] = self.work(request, n)
        return cost

    def work(self, request: Request, n: int) -> Work:
        """The work of a training on n samples, as the method counts it."""
        return work_of(doing(self.client, request.header.passes).work(request.order, n))

    @cached_property
    def _counts_work(self) -> bool:
        """Whether the method counts what a training took when it is done."""
        return type(self.client).work_done is not PersonalizedClient.work_done


# Functions of their own: one that a population kept of itself would keep its last order, too, a whole model.
@lru_cache(2**12)
def _padded(top_train: int, top_test: int, train: int, valid: int, test: int) -> tuple[int, int, int]:
    """Of most clients the same, since few differ."""
    return padded_size(train, top_train), padded_size(valid), padded_size(test, top_test)


def _noise(seed: int, request: Request, change: Any) -> Stream:
    """A simulation's noise: it can be repeated, as all of a run."""
    return noise_stream(seed, request.header.t, request.k, request.header.e)


def _numbers(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    return {c: float(v) for c, v in metrics.items()}


def _to(data: Data, device: str, exact: bool) -> Data:
    return (Exact if exact else Data)(data.x.to(device), data.y.to(device), data.mask.to(device))
