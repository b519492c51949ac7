"""The clients that a process serves: run one by one, in stacks, or with worker processes."""

import gc
from collections.abc import Sequence

from fedpers.core.data import Federation
from fedpers.core.plan import Plan
from fedpers.engines.memory.client_store import ClientStore
from fedpers.engines.population import Population
from fedpers.engines.runner import Runner, RunnerConfig
from fedpers.engines.workers import Pool, Starter
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.messages import Answer, Request


class Cohort(Population):
    """Answers requests to any clients of a federation; all engines use it, so results are equal bits."""

    def __init__(
        self,
        client: PersonalizedClient,
        federation: Federation,
        store: ClientStore,
        plan: Plan,
        runner: RunnerConfig = RunnerConfig(),  # noqa: B008
        starter: Starter | None = None,
    ) -> None:
        if plan.device != "cpu":
            gc.collect()  # tensors of an earlier run: cycles keep them, and Python sees no GPU's memory
        super().__init__(client, federation, store, plan)
        self.runner = Runner(runner)
        self._pool: Pool | None = None
        self._starter = starter  # of worker processes that are no copies of this one

    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """The answers, in the order of the requests; of a client that failed its exception."""
        if self.runner.config.workers > 1 and len(requests) > 1:
            self.start()
            assert self._pool is not None
            return self._pool.handle(requests)
        return self.runner.run(self, requests)

    def start(self) -> None:
        """Start the worker processes, if there are any, before `handle` needs them."""
        if self.runner.config.workers > 1 and self._pool is None:
            self._pool = Pool(self, self.runner, self._starter)

    def close(self) -> None:
        """End the worker processes, if there are any, and free what the runner holds."""
        self.runner.close()
        if self._pool is not None:
            self._pool.close()
            self._pool = None
