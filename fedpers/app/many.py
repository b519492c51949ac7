"""A command's runs, `jobs` at a time: first the searches of `tune=`, then the runs with the values found."""

import logging
from collections.abc import Sequence
from pathlib import Path

from fedpers.app import pool, tuning
from fedpers.app.places import Places, places_for
from fedpers.app.pool import Result, Task
from fedpers.config.run_config import RunConfig
from fedpers.config.search import SweepConfig
from fedpers.core.errors import FedpersError
from fedpers.results.progress import SweepBoard


class ManyRuns:
    """The runs of one command, collected as Hydra composes them and then made in parallel."""

    def __init__(self, sweep: SweepConfig) -> None:
        self.sweep = sweep
        self.tasks: list[Task] = []
        self.spaces: list[list[str]] = []
        self.root = Path()
        self.places = Places(1)
        logging.getLogger("hydra").setLevel(logging.WARNING)  # which would list the runs before they begin

    def add(self, run: RunConfig, space: list[str], folder: Path, words: Sequence[str], root: Path) -> None:
        """Take one run, to be made in `folder`; `words` are the user's, `root` is the folder of all runs."""
        label = folder.name if folder != root else ""
        self.tasks.append(Task(run, folder, tuple(words), label or run.method_name))
        self.spaces.append(space)
        self.root = root

    def make(self) -> list[tuple[Task, Result]]:
        """Search, if asked for, then make the runs; returns for each its summary or the error that ended it.

        Raises:
            ConfigError: nothing could be searched.
            KeyboardInterrupt: Ctrl-C; no process is left.
        """
        n = self.sweep.tune
        self.places = places_for([t.cfg for t in self.tasks], self.sweep)
        searches = tuning.searches(self.tasks, self.spaces, self.sweep, self.root) if n else []
        planned = sum(n * s.runs[0].cfg.rounds for s in searches) + sum(t.cfg.rounds for t in self.tasks)
        with SweepBoard(n * len(searches) + len(self.tasks), planned) as board:
            found = self._search(searches, board) if n else [(task, None) for task in self.tasks]
            good = [task for task, error in found if error is None]
            board.skip(len(found) - len(good), sum(t.cfg.rounds for t, e in found if e is not None))
            made = iter(pool.run_all(good, self.places, board))
            return [(task, error or next(made)) for task, error in found]

    def _search(
        self, searches: Sequence[tuning.Search], board: SweepBoard
    ) -> list[tuple[Task, Exception | None]]:
        """The runs with what was found, or why nothing was; a batch of each search at a time."""
        while any(s.left for s in searches):
            asked = [(s, s.ask()) for s in searches if s.left]
            for s, tasks in asked:
                again = min(tuning.BATCH, s.left) - len(tasks)
                board.skip(again, again * s.runs[0].cfg.rounds)
            results = iter(pool.run_all([t for _, ts in asked for t in ts], self.places, board))
            for s, tasks in asked:
                s.tell([next(results) for _ in tasks])
        found: list[tuple[Task, Exception | None]] = []
        for s in searches:
            unmade = self.sweep.tune - len(s.trials)
            board.skip(unmade, unmade * s.runs[0].cfg.rounds)
            try:
                found += [(task, None) for task in s.finish()]
            except FedpersError as error:
                found += [(task, error) for task in s.runs]
        return found
