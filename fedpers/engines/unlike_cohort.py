"""The clients of a federation in which they have unlike models: a cohort for each model."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from fedpers.core.data import Federation
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import ClientStore
from fedpers.engines.population import Population
from fedpers.engines.runner import Runner, RunnerConfig
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.messages import Request


class UnlikeRunner(Runner):
    """Runs the requests of an `UnlikeCohort`, model after model: a stack is of one model."""

    def run(self, population: Population, requests: Sequence[Request]) -> list[Any]:
        """The answers, in the order of the requests; of a client that failed its exception."""
        assert isinstance(population, UnlikeCohort)
        answers: list[Any] = [None] * len(requests)
        for place, cohort in enumerate(population.cohorts):
            own = [i for i, request in enumerate(requests) if population.places[request.k] == place]
            cohort.store = population.store  # in a worker another one than it was made with
            found = cohort.runner.run(cohort, [requests[i] for i in own]) if own else []
            for i, answer in zip(own, found, strict=True):
                answers[i] = answer
        return answers


class UnlikeCohort(Cohort):
    """Hands each request to the cohort of its client's model; all share one store and one pool of workers.

    Args:
        clients: the method's client half with each of the models.
        places: [N] which of these each client is served by.
        store: of all clients' states, of whatever kind they are.
    """

    def __init__(
        self,
        clients: Sequence[PersonalizedClient],
        places: Sequence[int],
        federation: Federation,
        store: ClientStore,
        plan: Plan,
        runner: RunnerConfig = RunnerConfig(),  # noqa: B008
    ) -> None:
        super().__init__(clients[0], federation, store, plan, runner)
        self.runner, self.places = UnlikeRunner(runner), places
        self.cohorts = [Cohort(client, federation, store, plan, runner) for client in clients]

    @cached_property
    def convolves(self) -> bool:
        """Whether a model has convolutions."""
        return any(cohort.convolves for cohort in self.cohorts)

    def states(self, wanted: Sequence[tuple[int, tuple[int, int]]]) -> list[Any]:
        """Those of several clients, each with its own model's initial one where it was never visited."""
        return [self.cohorts[self.places[k]].states([(k, when)])[0] for k, when in wanted]

    def close(self) -> None:
        """End the worker processes, if there are any, and free what the runners hold."""
        super().close()
        for cohort in self.cohorts:
            cohort.close()
