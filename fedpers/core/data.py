"""What a client's data is, and what a federation of clients is. Data sets are in datasets/."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedpers.core.given import Reading, fields_of
from fedpers.core.pipeline import Pipeline
from fedpers.core.samples import ClientData, Data

__all__ = ["INCOMPLETE", "ClientData", "Data", "Federation"]

DIGESTED = 10_000  # clients whose samples a digest reads at most
INCOMPLETE = "incomplete copy"  # beginning of the note on a data set of which this machine has only a part


@dataclass(frozen=True)
class Federation:
    """A population of clients; `client(k)` gives partition k as tensors, decoded once, cheap to ask."""

    name: str
    num_clients: int
    input_shape: tuple[int, ...]
    num_classes: int  # outputs that a model needs (1 for regression)
    task: str  # a name of core.tasks.TASKS
    client: Callable[[int], ClientData]
    num_train: np.ndarray  # [N] training samples a client
    num_test: np.ndarray  # [N]
    label_counts: np.ndarray  # [N, classes] training labels; [N, 0] without classes
    truth: dict[str, np.ndarray] = field(default_factory=dict)  # e.g. group [N], membership [N, K]
    notes: tuple[str, ...] = ()  # what a reader of the results must know
    holdout: dict[str, Data] = field(default_factory=dict)  # test samples of each source
    tokens: int = 0  # x are whole numbers below this, that stand for tokens of a text; 0: measurements
    pipeline: Pipeline = field(default_factory=Pipeline)  # how samples became tensors
    clients: tuple[str, ...] = ()  # [N] what the data calls each client; (): nothing
    public: Data | None = None  # samples that all know and no client has; y [0] where nobody knows labels

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[Any] | Mapping[str, Any],
        *,
        task: str = "classification",
        test_fraction: float = 0.2,
        valid_fraction: float = 0.1,
        target: str = "label",
        missing: str = "refuse",
        tokens: bool = False,
        seed: int = 0,
        name: str = "arrays",
        dtype: torch.dtype = torch.float32,
    ) -> "Federation":
        """A federation of your own arrays, NumPy's, torch's or lists.

        Args:
            clients: one entry a client, or {name: entry}: (x, y), which is cut, or a dict with train and
                test (and maybe valid), each (x, y); a pandas table or a Dataset of Hugging Face may stand
                for (x, y). x is [n, ...], of images [n, C, H, W]; bytes become x/255. y is [n]: numbers or
                words for classes, values or [n, out] for a regression, [n, labels] of 0 and 1, or of
                tokens [n, length], -100 for one that counts for nothing.
            task: classification | binary | regression | multilabel | tokens.
            test_fraction: of each client's samples, where no test samples are given.
            valid_fraction: of the rest, where no validation samples are given.
            target: the column of y in tables.
            missing: rows without a value: refuse | drop.
            tokens: x are numbers of tokens, for models of text.
            seed: of the cut.
            name: what results call this data.
            dtype: of x, and of y for a regression.

        Raises:
            DataError: names the client, what is wrong with its arrays and the remedy.
        """
        cuts = test_fraction, valid_fraction
        reading = Reading(task, *cuts, target, missing, tokens, seed, name, dtype)
        return cls(**fields_of(clients, reading))

    def digest(self) -> str:
        """A short text that differs, in all likelihood, where the data does.

        Of the sizes, the labels' counts, and all samples of each client; of more than DIGESTED clients, the
        samples of so many.
        """
        kind = (self.num_clients, self.input_shape, self.num_classes, self.task)
        found = hashlib.sha256(repr(kind).encode())
        for counts in (self.num_train, self.num_test, self.label_counts):
            found.update(np.ascontiguousarray(counts, dtype=np.int64).tobytes())
        step = -(-self.num_clients // DIGESTED)
        for k in range(0, self.num_clients, step):
            data = self.client(k)
            for part in (data.train, data.valid, data.test):
                found.update(part.x.cpu().contiguous().numpy().tobytes())
                found.update(part.y.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]
