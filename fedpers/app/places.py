"""On which GPU each of many runs is made, and beside how many others; fewer where memory ran out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedpers.config.run_config import RunConfig
from fedpers.config.search import SweepConfig
from fedpers.core import machine


@dataclass(frozen=True)
class Place:
    """The GPU of a run, its own or shared; or no GPU."""

    gpu: str = ""  # as CUDA_VISIBLE_DEVICES names it; "": the run sees what its command sees
    name: str = ""  # shown beside the run

    def environment(self) -> dict[str, str]:
        """The environment variables of the run's process."""
        return {"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {}


ANYWHERE = Place()


@dataclass
class Places:
    """The places of one machine.

    Args:
        jobs: runs at once.
        gpus: the GPUs that runs are spread over.
        per_gpu: runs at once on one GPU; None: as many as `jobs` brings there.
    """

    jobs: int
    gpus: Sequence[Place] = ()
    per_gpu: int | None = None
    _running: list[Place] = field(default_factory=list)
    _most: dict[Place, int] = field(default_factory=dict)  # where memory ran out: runs at once

    def take(self, cfg: RunConfig) -> Place | None:
        """The place with the fewest runs; None if all are full."""
        if len(self._running) >= self.jobs:
            return None
        open_ones = [p for p in self._for(cfg) if self._running.count(p) < self._limit(p)]
        if not open_ones:
            return None
        place = min(open_ones, key=self._running.count)
        self._running.append(place)
        return place

    def leave(self, place: Place) -> None:
        """Note that a run at this place has ended."""
        self._running.remove(place)

    def fewer(self, place: Place, whole_machine: bool) -> int:
        """Memory of a GPU, or of the whole machine, ran out: allow one run less at a time from now on.

        Call it before `leave`. Returns the runs that were beside this one; 0: it was alone.
        """
        beside = (len(self._running) if whole_machine else self._running.count(place)) - 1
        if whole_machine:
            self.jobs = max(beside, 1)
        else:
            self._most[place] = max(beside, 1)
        return beside

    def _for(self, cfg: RunConfig) -> Sequence[Place]:
        """The places allowed for a run; one on the CPU, or with GPUs that its user named, keeps those."""
        chosen = cfg.devices or ":" in cfg.device or cfg.engine.name != "inprocess"
        return self.gpus if self.gpus and cfg.device != "cpu" and not chosen else [ANYWHERE]

    def _limit(self, place: Place) -> int:
        wanted = self.jobs if place is ANYWHERE or not self.per_gpu else self.per_gpu
        return min(wanted, self._most.get(place, wanted))


def places_for(runs: Sequence[RunConfig], sweep: SweepConfig) -> Places:
    """The places of what this process was granted, for these runs.

    `jobs=auto` is a core a run (more, where runs have workers), and `jobs_per_gpu` runs on each GPU, one if
    it is not given.
    """
    gpus, cores = granted(), machine.cores()
    if sweep.jobs != "auto":
        return Places(int(sweep.jobs), gpus, sweep.jobs_per_gpu)
    jobs = max(1, cores // max((_cores(cfg, cores) for cfg in runs), default=1))
    return Places(jobs, gpus, sweep.jobs_per_gpu or 1)


def granted() -> list[Place]:
    """The GPUs of this process, as a process that it starts must name them."""
    visible = [n.strip() for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    named = visible if visible != [""] else []
    return [Place(named[n] if n < len(named) else str(n), f"GPU {n}") for n in machine.gpus()]


def _cores(cfg: RunConfig, cores: int) -> int:
    return cores if cfg.engine.name == "ray" else cfg.engine.workers or 1
