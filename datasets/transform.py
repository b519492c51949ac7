"""From stored samples to what a model sees: a float scale, standardisation, unit norm."""

import numpy as np

from fedpers.core.errors import DataError
from fedpers.core.moments import Moments, scale_of
from fedpers.core.pipeline import Pipeline
from fedpers.core.pixels import white
from fedpers.core.tasks import CLASSED
from fedpers.datasets.config import DataConfig
from fedpers.datasets.cuts import Splits
from fedpers.datasets.raw import Raw

CHUNK = 4096  # samples at a time when statistics are measured


def make_pipeline(cfg: DataConfig, raw: Raw, splits: Splits) -> Pipeline:
    """What the samples are, and what data.normalise, data.standardise and data.unit_norm ask for."""
    mean, factor = _affine(cfg, raw, splits) or (None, None)
    kind = "tokens" if raw.tokens else "bytes" if white(raw.x) != 1 else "numbers"
    named = raw.task in CLASSED
    classes = raw.classes or tuple(str(i) for i in range(raw.num_classes if named else 0))
    return Pipeline(kind, raw.columns, raw.target, classes, mean, factor, cfg.unit_norm, raw.words)


def _affine(cfg: DataConfig, raw: Raw, splits: Splits) -> tuple[np.ndarray, np.ndarray] | None:
    """(mean, 1/std), broadcast against a sample; None for no standardisation. No test sample counts."""
    if cfg.standardise == "pooled":
        mean, std = moments(raw.x[_untested(raw, splits)])
    elif cfg.standardise:
        mean, factor = scale_of([Moments.of(raw.rows(index)) for index in splits.train])
        return mean.reshape(raw.x.shape[1:]), factor.reshape(raw.x.shape[1:])
    elif not cfg.normalise:
        return None
    elif cfg.mean:
        mean, std = np.array(cfg.mean), np.array(cfg.std)
        if len(mean) not in (1, raw.x.shape[1]):
            raise DataError(
                f"data.mean has {len(mean)} entries; data.name={cfg.name} has {raw.x.shape[1]} channels"
            )
        shape = (-1,) + (1,) * (raw.x.ndim - 2)
        return mean.reshape(shape), 1 / std.reshape(shape)
    else:
        mean, std = moments(raw.x[_untested(raw, splits)])
        axes = tuple(range(1, mean.ndim))
        square = (std**2 + mean**2).mean(axis=axes, keepdims=True)
        mean = mean.mean(axis=axes, keepdims=True)
        std = np.sqrt(np.maximum(square - mean**2, 0))
    return mean, 1 / np.where(std > 1e-8, std, 1)


def _untested(raw: Raw, splits: Splits) -> np.ndarray | slice:
    """The rows of the set's training part that are no client's test samples, whoever has them."""
    tests = np.concatenate(splits.test)
    if not (tests < len(raw.x)).any():
        return slice(None)
    free = np.ones(len(raw.x), dtype=bool)
    free[tests[tests < len(raw.x)]] = False
    return free


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature over the samples (pixels in [0, 1]), in float64."""
    total, square = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    scale = float(white(x))
    for begin in range(0, len(x), CHUNK):
        chunk = x[begin : begin + CHUNK] / scale
        total += chunk.sum(axis=0)
        square += (chunk**2).sum(axis=0)
    mean = total / len(x)
    return mean, np.sqrt(np.maximum(square / len(x) - mean**2, 0))
