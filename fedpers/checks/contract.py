"""The contract tests that every method must pass; public, for methods of other packages too.

check_method(MyStrategy, MyClient, MyConfig())          # runs them all
@pytest.mark.parametrize("check", CHECKS)                # or one by one: check(make_case(...))
"""

import logging
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpers.checks.behaviour import BEHAVIOUR
from fedpers.checks.case import Case, close, make_case, require, run, same
from fedpers.core.errors import ReplyError
from fedpers.core.host import borrowed
from fedpers.core.pytree import leaves, tree_map
from fedpers.core.serialization import pack, unpack
from fedpers.core.sums import all_finite
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.messages import Answer, Request
from fedpers.flower.strategy import PersonalizedStrategy
from fedpers.learning.kernels.dispatch import autograd_only

# ---- the checks --------------------------------------------------------------------------------


def same_seed_same_state(case: Case) -> None:
    """Two runs with one seed end in the same states of server and clients, bit for bit."""
    (a, first), (b, second) = run(case), run(case)
    require(same(a.state, b.state), "two runs with the same seed end in different states")
    require(_same_states(first, second), "two runs with the same seed leave different states")


class _Backwards(Cohort):
    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        return super().handle(requests[::-1])[::-1]


def order_of_clients_has_no_effect(case: Case) -> None:
    """Running the clients in the opposite order changes nothing."""
    a, _ = run(case)
    b, _ = run(case, case.cohort(_Backwards))
    require(same(a.state, b.state), "the state depends on the order in which clients ran")


class _Watching(Cohort):
    """Compares what a client was given before and after; remembers all that was sent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent: list[Any] = []

    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        found: list[Answer | Exception] = []
        for request in requests:
            given = (request.order, self.state(request.k, request.when), self.data(request.k))
            before = unpack(*pack(given))
            found += super().handle([request])
            require(same(given, before), f"client {request.k} wrote into what it was given")
            self.sent += [request.order, getattr(found[-1], "body", None)]
        return found


def nothing_is_written_in_place(case: Case) -> None:
    """Orders, data and states stay as they were."""
    server, cohort = case.server(), case.cohort(_Watching)
    grid = InProcessGrid(cohort)
    for t in range(1, case.rounds + 1):
        old = server.state
        before = unpack(*pack(old)) if old is not None else None  # tensors of its own, not views
        server.start(grid, num_rounds=t)
        if before is not None:
            require(same(old, before), f"round {t} wrote into the state it was given")


def private_parameters_stay(case: Case) -> None:
    """No field of the state that is declared private appears in any message."""
    cohort = case.cohort(_Watching)
    secrets: dict[str, list[Tensor]] = {name: [] for name in case.client.private}
    server, grid = case.server(), InProcessGrid(cohort)
    for t in range(1, case.rounds + 1):
        server.start(grid, num_rounds=t)
        for state in cohort.store.states.values():
            for name in secrets:
                secrets[name] += [x for x in leaves(getattr(state, name)) if x.numel() > 1]
    sent = [x for x in leaves(cohort.sent) if isinstance(x, Tensor)]
    for name, tensors in secrets.items():
        leaked = any(s.shape == x.shape and torch.equal(s, x) for s in tensors for x in sent)
        require(not leaked, f"private {name} was sent")
    known = {f for m in cohort.store.states.values() for f in vars(m)}
    require(set(secrets) <= known, f"private names that no state has: {set(secrets) - known}")


def everything_travels(case: Case) -> None:
    """States and messages survive pickle (Ray) and the wire format (files, network)."""
    server, cohort = case.server(), case.cohort(_Watching)
    server.start(InProcessGrid(cohort), num_rounds=case.rounds)
    for thing in [server.state, *cohort.store.states.values(), *cohort.sent]:
        require(same(thing, unpack(*pack(thing))), f"{type(thing).__name__} changes on the wire")
        require(same(thing, pickle.loads(pickle.dumps(thing))), f"{type(thing).__name__}: pickle")


def resumed_is_uninterrupted(case: Case) -> None:
    """A run continued from stored states ends like one that was never stopped."""
    whole, cohort = run(case)
    first, half = case.server(), case.cohort()
    first.start(InProcessGrid(half), num_rounds=case.rounds - 1)
    second, store = case.server(), RamStore()
    second.state, second.rounds_done = unpack(*pack(first.state)), first.rounds_done
    store.states = {k: unpack(*pack(m)) for k, m in half.store.states.items()}
    rest = case.cohort(store=store)
    second.start(InProcessGrid(rest), num_rounds=case.rounds)
    require(same(whole.state, second.state), "a resumed run ends in another state")
    require(_same_states(cohort, rest), "a resumed run leaves other states")


def bad_replies_name_the_client(case: Case) -> None:
    """NaN, a missing and a misshapen reply raise with the client's number; the state is kept."""
    for spoil in (_nan, _missing, _misshapen):
        for victim in _participants(case)[:1]:
            _reject(case, victim, spoil)


def failures_can_be_skipped(case: Case) -> None:
    """With failures="skip" the round goes on without the client, and the failure is counted."""
    victim = _participants(case)[0]
    server, cohort = case.server(failures="skip"), case.cohort(_spoiling(victim, _missing))
    server.start(InProcessGrid(cohort), num_rounds=1)
    require(server.round_log.failures >= 1, "a skipped failure was not counted")
    finite = all(all_finite(x) for x in leaves(server.state) if isinstance(x, Tensor))
    require(finite, "a skipped failure poisoned the state")


def stacked_equals_looped(case: Case) -> None:
    """Clients in stacks of any size end as they do one by one; the size changes no bit."""
    if not case.client.vectorized:
        return
    plan = replace(case.plan, eval_protocol="participants_local")
    with autograd_only():
        looped, _ = run(case, case.cohort(runner=RunnerConfig("loop")))
    first, cohort = run(case, case.cohort(runner=RunnerConfig("stack", chunk=1)))
    for each in (case, replace(case, plan=plan)):
        _, whole = run(each, each.cohort(runner=RunnerConfig("stack", chunk=3)))
        looping = ", ".join(f"{kind[0]} {kind[1].__name__}" for kind in whole.runner.looped)
        require(not looping, f"vmap cannot run: {looping}; or declare vectorized = False")
    second, other = run(case, case.cohort(runner=RunnerConfig("stack", chunk=3)))
    require(same(first.state, second.state), "the size of a stack changes the state")
    require(_same_states(cohort, other), "the size of a stack changes what clients remember")
    require(close(looped.state, second.state), "stacked clients end in another state than looped")
    tables = [s.client_metrics for s in (looped, second)]
    one, two = ({k: torch.as_tensor(v) for k, v in table.items()} for table in tables)
    require(close(one, two), "stacked clients are evaluated to other numbers than looped")


def workers_change_nothing(case: Case) -> None:
    """Two worker processes give the same states of server and clients as none, bit for bit."""
    if not hasattr(os, "memfd_create"):  # there are no workers on this system
        return
    alone, first = run(case)
    both = case.cohort(runner=RunnerConfig(workers=2))
    try:
        shared, second = run(case, both)
    finally:
        both.close()
    require(same(alone.state, shared.state), "the number of worker processes changes the state")
    require(_same_states(first, second), "worker processes change what clients remember")


CHECKS: tuple[Callable[[Case], None], ...] = (
    same_seed_same_state,
    order_of_clients_has_no_effect,
    nothing_is_written_in_place,
    private_parameters_stay,
    everything_travels,
    resumed_is_uninterrupted,
    bad_replies_name_the_client,
    failures_can_be_skipped,
    stacked_equals_looped,
    workers_change_nothing,
    *BEHAVIOUR,
)


@borrowed()
def check_method(
    strategy: type[PersonalizedStrategy], client: type[PersonalizedClient], config: Any, **options: Any
) -> int:
    """Run every check on a method, with a line on the screen for each that holds; returns how many.

    Raises:
        AssertionError: the method breaks the contract; the message says how.
    """
    case = make_case(strategy, client, config, **options)
    log, loud = logging.getLogger("fedpers"), logging.getLogger("fedpers").disabled
    log.disabled = True  # clients are made to fail; that is no news
    try:
        for check in CHECKS:
            check(case)
            print(f"{check.__name__}: holds")
    finally:
        log.disabled = loud
    return len(CHECKS)


# ---- helpers -----------------------------------------------------------------------------------


def _same_states(a: Any, b: Any) -> bool:
    first, second = a.store.states, b.store.states
    return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)


def _participants(case: Case) -> list[int]:
    """Clients of round 1 whose reply holds a tensor (of the first exchange)."""
    cohort = case.cohort(_Listing)
    case.server().start(InProcessGrid(cohort), num_rounds=1)
    seen: list[int] = cohort.seen
    return seen


class _Listing(Cohort):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[int] = []

    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        self.seen += [r.k for r in requests if r.header.kind == "train"]
        return super().handle(requests)


def _spoiling(victim: int, spoil: Callable[[Any], Any]) -> type[Cohort]:
    class Spoiling(Cohort):
        def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
            answers = super().handle(requests)
            return [
                spoil(a) if r.k == victim and r.header.kind == "train" else a
                for r, a in zip(requests, answers, strict=True)
            ]

    return Spoiling


def _reject(case: Case, victim: int, spoil: Callable[[Any], Any]) -> None:
    server, cohort = case.server(), case.cohort(_spoiling(victim, spoil))
    grid = InProcessGrid(cohort)
    server.connect(grid)
    before = server.state
    try:
        server.start(grid, num_rounds=1)
    except ReplyError as error:
        named = f"client {victim}" in str(error)
        require(named, f"the error does not name client {victim}: {error}")
        require(server.state is before, "a bad reply changed the state")
        return
    replies = [x for x in leaves(case_reply(case, victim)) if isinstance(x, Tensor)]
    kind = spoil.__name__[1:]
    require(spoil is not _missing and not replies, f"a reply that is {kind} was accepted")


def case_reply(case: Case, victim: int) -> Any:
    """What the client replies in round 1, unspoilt."""
    kept: list[Any] = []

    def keep(answer: Any) -> Any:
        kept.append(answer.body)
        return answer

    cohort = case.cohort(_spoiling(victim, keep))
    case.server().start(InProcessGrid(cohort), num_rounds=1)
    return kept


def _map_floats(answer: Any, f: Callable[[Tensor], Tensor]) -> Any:
    def spoilt(x: Any) -> Any:
        return f(x) if isinstance(x, Tensor) and x.is_floating_point() else x

    return answer._replace(body=tree_map(spoilt, answer.body))


def _nan(answer: Any) -> Any:
    return _map_floats(answer, lambda x: torch.full_like(x, float("nan")))


def _missing(answer: Any) -> Any:
    return RuntimeError("the device went away")


def _misshapen(answer: Any) -> Any:
    return _map_floats(answer, lambda x: torch.cat([x.reshape(-1), x.reshape(-1)[:1]]))
