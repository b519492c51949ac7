"""arrays.npz: what a method explains itself with, over the evaluations of a run.

For an array NAME: NAME [evaluations, ...] and NAME_round [evaluations]; the data's true values are
truth_NAME.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedpers.results import files

LARGE = 2**18  # bytes; of a larger array only the last evaluation's is kept


class ArrayHistory:
    """{round: {name: array}} of the evaluations so far."""

    def __init__(self) -> None:
        self._by_round: dict[int, dict[str, np.ndarray]] = {}

    def add(self, t: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep a copy of the arrays of round t."""
        large = {k for k, v in arrays.items() if v.nbytes > LARGE}
        for earlier in self._by_round.values():
            for name in large & earlier.keys():
                del earlier[name]
        self._by_round[t] = {k: np.array(v) for k, v in arrays.items()}

    def last(self) -> dict[str, np.ndarray]:
        """The arrays of the last evaluation; empty before the first."""
        return self._by_round[max(self._by_round)] if self._by_round else {}

    def read(self, path: Path, last_round: int) -> None:
        """Take over what `path` holds of the rounds up to `last_round`."""
        stored = files.read_arrays(path)
        for name in [k for k in stored if f"{k}_round" in stored]:
            for t, value in zip(stored[f"{name}_round"].tolist(), stored[name], strict=True):
                if t <= last_round:
                    self._by_round.setdefault(t, {})[name] = value
        self._by_round = dict(sorted(self._by_round.items()))

    def write(self, path: Path, truth: Mapping[str, np.ndarray]) -> None:
        """Write everything; no file where there is nothing."""
        stacked = {f"truth_{k}": np.asarray(v) for k, v in truth.items()}
        for name in dict.fromkeys(k for arrays in self._by_round.values() for k in arrays):
            have = {t: arrays[name] for t, arrays in self._by_round.items() if name in arrays}
            shape = have[max(have)].shape
            have = {t: v for t, v in have.items() if v.shape == shape}  # those that fit the last
            stacked |= {name: np.stack(list(have.values())), f"{name}_round": np.array(list(have))}
        if stacked:
            files.replace_arrays(path, stacked)
