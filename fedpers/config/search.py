"""What `fedpers run` does with many runs: how many at once, and where a search's space stands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedpers.config import schema
from fedpers.core.bounds import bounds

SPACE = "search"  # the key of a method's file that states its space


@dataclass(frozen=True)
class SweepConfig:
    """Keys of the command, not of a run."""

    jobs: int | Literal["auto"] = 1  # runs at once, each in a process of its own
    jobs_per_gpu: int | None = None  # at most so many of them on one GPU
    tune: int = 0  # trials of each method's search; 0: none
    tune_seed: int = 1000  # of the search; the runs that follow have other ones

    def check(self) -> list[str]:
        """Problems of values."""
        found = bounds(self, jobs_per_gpu=(1, None), tune=(0, None), tune_seed=(0, None))
        if self.jobs != "auto":
            found += bounds(self, jobs=(1, None))
        if self.jobs_per_gpu and self.jobs == 1:
            found.append(f"jobs_per_gpu={self.jobs_per_gpu}: without effect with jobs=1; set jobs=auto")
        return found


KEYS = tuple(f.name for f in fields(SweepConfig))


def sweep_config(values: Mapping[str, Any], problems: list[str]) -> SweepConfig | None:
    """The keys of the command among those of a composed config; None with a problem noted."""
    return schema.build(SweepConfig, {k: values[k] for k in KEYS if k in values}, "", problems)


def space_of(values: Mapping[str, Any], explicit: Sequence[str]) -> list[str]:
    """The lines of a composed config's space, but for the keys that the user set himself."""
    method = values.get("method") or {}
    own = (values.get("hyper") or {}).get(method.get("name")) or {}
    lines = [str(line) for line in own.get(SPACE, method.get(SPACE)) or ()]
    return [line for line in lines if f"method.{line.partition('=')[0].strip()}" not in explicit]
