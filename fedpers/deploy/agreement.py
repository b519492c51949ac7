"""Settles before the first round what all devices must share: columns by name, and one scale of features."""

import json

import numpy as np

from fedpers.core.errors import DataError
from fedpers.core.moments import Moments, scale_of
from fedpers.core.pipeline import Pipeline
from fedpers.core.tables import left_out
from fedpers.datasets.config import DataConfig
from fedpers.deploy.ledger import Facts, Ledger


def agree(data: DataConfig, ledger: Ledger) -> None:
    """Fix the pipeline of all devices, from what each reported in the roll call.

    Raises:
        DataError: two devices have other columns, or one's sums are none of its features.
    """
    columns = _columns(ledger)
    mean, factor = _scale(data, ledger) if data.standardise else (None, None)
    task = data.task != "regression"
    classes = data.class_names or tuple(map(str, range(data.num_classes if task else 0)))
    kinds = {facts.kind for facts in ledger.facts}
    kind = kinds.pop() if len(kinds) == 1 else "numbers"  # each divides its own pixels
    ledger.pipeline = json.dumps(
        Pipeline(kind, columns, None, classes, mean, factor).plain(), allow_nan=False
    )


def _columns(ledger: Ledger) -> tuple[str, ...]:
    """The columns that all devices with tables have; they are in the order of their names on each."""
    named = [(n, f.columns) for n, f in zip(ledger.names, ledger.facts, strict=True) if f.columns]
    for name, columns in named:
        if columns != named[0][1]:
            odd = ", ".join(sorted(set(columns) ^ set(named[0][1]))[:10])
            raise DataError(
                f"client {name} has other columns than {named[0][0]} ({odd} in one of them only); "
                "give all devices the same"
            )
    return named[0][1] if named else ()


def _scale(data: DataConfig, ledger: Ledger) -> tuple[np.ndarray, np.ndarray]:
    features = int(np.prod(data.input_shape))
    for name, facts in zip(ledger.names, ledger.facts, strict=True):
        numbers = np.array([*facts.sums, *facts.squares])
        if not len(facts.sums) == len(facts.squares) == features or not np.isfinite(numbers).all():
            raise DataError(f"client {name} sent no sums of {features} features for data.standardise")
    mean, factor = scale_of([Moments(f.num_train, f.sums, f.squares) for f in ledger.facts])
    return mean.reshape(data.input_shape), factor.reshape(data.input_shape)


def notes_of(ledger: Ledger) -> tuple[str, ...]:
    """Notes on the devices' data for readers of the results."""
    gone = {n: (f.left_out, _rows(f)) for n, f in zip(ledger.names, ledger.facts, strict=True)}
    return (f"clients {', '.join(ledger.names)}", *left_out(gone))


def _rows(facts: Facts) -> int:
    return facts.num_train + facts.num_valid + facts.num_test + facts.left_out
