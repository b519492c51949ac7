"""Which overrides name the folder of a run of a sweep, as `method=fedavg,seed=0`."""

from collections.abc import Sequence
from typing import Any

KEY = "hydra.job.config.override_dirname.exclude_keys"
# what leaves the result of a run as it is, and the experiment, whose keys have names of their own
NEVER = ("experiment", "out", "device", "devices", "data.root", "checkpoint_every", "eval_every", "jobs",
         "jobs_per_gpu", "tune")  # fmt: skip
LONGEST = 200  # bytes of a name; file systems take 255


def settings(parsed: Sequence[Any], jobs: Sequence[Sequence[str]]) -> list[str]:
    """The override by which Hydra leaves keys out of the folders' names; [] where the user gives it.

    What all runs have in common goes where it is a path, which would make folders in folders, and where
    the name would be too long.

    Args:
        parsed: the overrides of the sweep, as Hydra parsed them.
        jobs: those of each of its runs; none where the sweeper chooses them one after the other.
    """
    if any(o.key_or_group == KEY for o in parsed):
        return []
    common = [o for o in parsed if not o.is_sweep_override()]
    left_out = {*NEVER, *(o.key_or_group for o in common if "/" in str(o.input_line))}
    runs = jobs or [[str(o.input_line) for o in parsed]]
    if max(_length(words, left_out) for words in runs) > LONGEST:
        left_out |= {o.key_or_group for o in common}
    return [f"{KEY}=[{','.join(sorted(left_out))}]"]


def _length(words: Sequence[str], left_out: set[str]) -> int:
    named = (
        w for w in words if not w.startswith("hydra") and w.partition("=")[0].lstrip("+") not in left_out
    )
    return sum(len(word.encode()) + 1 for word in named)
