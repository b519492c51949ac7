"""A set before it is split among clients: arrays as the files have them."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpers.core.errors import DataError


@dataclass(frozen=True)
class Raw:
    """Training part, then test part (may be empty), of one set.

    x is uint8 images [n, C, H, W] (turned into x/255 for clients) or floating point features.
    """

    name: str
    x: np.ndarray  # training samples
    y: np.ndarray  # [n] class numbers, or targets for regression
    test_x: np.ndarray
    test_y: np.ndarray
    num_classes: int
    task: str = "classification"
    owner: np.ndarray | None = None  # [n] natural client of each sample
    test_owner: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    same: np.ndarray | None = None  # [all] equal for copies: not cut apart
    valid: np.ndarray | None = None  # [all] whether a sample is its client's for validation; None: to be cut
    names: tuple[str, ...] = ()  # of the natural clients
    own: bool = False  # clients brought their samples themselves, as devices do
    tokens: int = 0  # x are numbers of so many tokens; 0: they are measurements
    columns: tuple[str, ...] = ()  # names of x's columns, of a table
    target: str | None = None  # the column of y, of a table
    classes: tuple[str, ...] = ()  # what classes are called, where somebody named them
    words: tuple[str, ...] = ()  # what tokens are called, in one column of a table

    @property
    def labels(self) -> np.ndarray:
        """All targets, test part last."""
        return np.concatenate([self.y, self.test_y])

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Samples by number, those of the test part counted on after the training part."""
        if len(index) == 0 or index.max() < len(self.x):
            return self.x[index]
        out = np.empty((len(index), *self.x.shape[1:]), dtype=self.x.dtype)
        mine = index < len(self.x)
        out[mine] = self.x[index[mine]]
        out[~mine] = self.test_x[index[~mine] - len(self.x)]
        return out


def missing(name: str, root: Path, path: Path) -> DataError:
    """The error for a set that is not there."""
    return DataError(
        f"data set '{name}' is not complete in {root}: {path} is missing; get it with\n"
        f"    fedpers data fetch {name} --root {shlex.quote(str(root))}\n"
        "or say where it is: data.root=FOLDER or the environment variable FEDPERS_DATA"
    )


def damaged(path: Path, expected: str, found: str, name: str, root: Path) -> DataError:
    """The error for a file with the wrong content; `root` is the folder of the data sets."""
    return DataError(
        f"{path} is damaged: expected {expected}, found {found}; delete it and get it "
        f"again with\n    fedpers data fetch {name} --root {shlex.quote(str(root))}"
    )
