"""Checks that a method does what its parts are for: it learns, listens, survives, and weighs as it says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpers.checks.case import Case, require, run, same
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import FedpersError
from fedpers.core.pytree import leaves, tree_map
from fedpers.core.rng import Stream
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.flower.messages import Answer, Request
from fedpers.flower.strategy import PersonalizedStrategy


class _Failing(Cohort):
    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """No client comes back with a reply."""
        return [RuntimeError("the device went away") for _ in requests]


def everybody_fails(case: Case) -> None:
    """A round in which every client fails stops the run with an error and changes nothing."""
    for failures in ("raise", "skip"):
        server, grid = case.server(failures=failures), InProcessGrid(case.cohort(_Failing))
        server.connect(grid)
        before = server.state
        try:
            server.start(grid, num_rounds=1)
        except FedpersError:
            require(server.state is before, "a round in which everybody failed changed the state")
        else:
            require(False, f"a round in which everybody failed went through (failures={failures})")


class _Distorting(Cohort):
    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """All numbers in replies half as large again, and a little more."""
        answers = super().handle(requests)
        return [a if isinstance(a, Exception) else a._replace(body=_distort(a.body)) for a in answers]


def _distort(body: Any) -> Any:
    def change(x: Any) -> Any:
        return 1.5 * x + 0.01 if isinstance(x, Tensor) and x.is_floating_point() else x

    return tree_map(change, body)


def replies_matter(case: Case) -> None:
    """Other replies lead to another state, unless a reply holds no numbers."""
    quiet = replace(case, plan=replace(case.plan, eval_every=0), rounds=1)
    listener = _Listening(*_parts(quiet))
    server = quiet.server()
    server.start(InProcessGrid(listener), num_rounds=1)
    if not listener.numbers:
        return
    try:
        distorted, _ = run(quiet, quiet.cohort(_Distorting))
    except FedpersError:
        return  # it looked at them and refused
    require(not same(server.state, distorted.state), "`round` ignores what the clients reply")


class _Listening(Cohort):
    numbers = False

    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """Notes whether any reply to training holds numbers."""
        answers = super().handle(requests)
        for request, answer in zip(requests, answers, strict=True):
            if request.header.kind == "train" and not isinstance(answer, Exception):
                found = leaves(answer.body)
                self.numbers |= any(isinstance(x, Tensor) and x.is_floating_point() for x in found)
        return answers


def clients_train(case: Case) -> None:
    """Other labels lead to other states of server or clients: somebody learns from the data."""
    (a, first), (b, second) = run(case), run(replace(case, federation=_relabelled(case)))
    alike = same(a.state, b.state) and _states(first) == _states(second)
    require(not alike, "no client trains: other labels leave all states as they are")


def _relabelled(case: Case) -> Any:
    fed = case.federation

    def other(data: Data) -> Data:
        y = -data.y if data.y.is_floating_point() else (data.y + 1) % max(fed.num_classes, 2)
        return Data(data.x, y, data.mask)

    def client(k: int) -> ClientData:
        parts = fed.client(k)
        return ClientData(other(parts.train), other(parts.valid), other(parts.test))

    return replace(fed, client=client)


def _states(cohort: Any) -> list[Any]:
    stored = cohort.store.states
    found = [x for k in sorted(stored) for x in leaves(stored[k])]
    return [x.tolist() if isinstance(x, Tensor) else x for x in found]


def predictions_follow_training(case: Case) -> None:
    """What a client predicts after the last round is not what it predicted after the first."""
    quiet = replace(case, plan=replace(case.plan, eval_every=0, clients_per_round=None))
    server, cohort = quiet.server(), quiet.cohort()
    grid = InProcessGrid(cohort)
    server.start(grid, num_rounds=1)
    early = _predictions(server, cohort)
    server.start(grid, num_rounds=max(case.rounds, 3))
    late = _predictions(server, cohort)
    moved = any(not torch.equal(a, b) for a, b in zip(early, late, strict=True))
    require(moved, "`personal` or `predict` ignores what it is given: no prediction changed in training")


def _predictions(server: PersonalizedStrategy, cohort: Any) -> list[Tensor]:
    found = []
    with torch.no_grad():
        for k in server.roster.ids:
            data, when = cohort.data(k), (10**6, 0)
            shared, state = cohort.client.ready(
                server.order_to_predict(k), cohort.state(k, when), data.train, Stream(0, 1, k)
            )
            params = cohort.client.personal(shared, state)
            x = data.test.x
            found.append(
                cohort.client.predict(shared, state, x) if params is None else cohort.client.model(params, x)
            )
    return found


def promised_weights_are_used(case: Case) -> None:
    """A method that says it weighs clients by samples ends elsewhere if these numbers are others."""
    if not case.strategy.weighs_by_samples:
        return
    plain, _ = run(case)

    class Miscounted(Cohort):
        pass

    cohort = case.cohort(Miscounted)
    counts = cohort.federation.num_train
    cohort.federation = replace(cohort.federation, num_train=counts[::-1].copy() ** 2)
    other, _ = run(case, cohort)
    require(not same(plain.state, other.state), "clients are not weighed by their samples, as is promised")


def _parts(case: Case) -> tuple[Any, ...]:
    cohort = case.cohort()
    return cohort.client, cohort.federation, cohort.store, cohort.plan


BEHAVIOUR = (
    everybody_fails,
    replies_matter,
    clients_train,
    predictions_follow_training,
    promised_weights_are_used,
)
