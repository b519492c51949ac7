"""data.public_file: samples that all know, read by the server alone and seen as clients see their own."""

from pathlib import Path

import torch

from fedpers.config.run_config import RunConfig
from fedpers.core.data import Data, Federation
from fedpers.core.errors import ConfigError
from fedpers.core.tasks import TASKS, WHOLE_NUMBERS
from fedpers.deploy.local_data import Expected
from fedpers.deploy.rows import read_rows


def public_samples(cfg: RunConfig, federation: Federation) -> Data | None:
    """Those of the file, or those that were held back; None if there are neither.

    Args:
        cfg: the run.
        federation: its clients; their samples became tensors as the file's do.

    Raises:
        DataError: the file cannot be read, or its samples are unlike the clients'.
        ConfigError: the file holds tables without numbers, which no model takes.
    """
    if cfg.data.public_file is None:
        return federation.public
    pipeline, task = federation.pipeline, federation.task
    if pipeline.words:
        text = f"data={cfg.data.name} numbers names of its own, which no file can hold"
        raise ConfigError(f"data.public_file={cfg.data.public_file}: {text}; take other data")
    shape, K = tuple(federation.input_shape), federation.num_classes
    names = cfg.data.class_names or pipeline.classes
    expected = Expected(shape, task, K, names, pipeline.kind, tuple(cfg.data.image_size))
    path = Path(cfg.data.public_file).expanduser()
    x, y = read_rows(path, pipeline.columns, pipeline.target, expected, [cfg.data.client])
    dtype = getattr(torch, cfg.dtype)
    inputs = pipeline.inputs(x, dtype)
    labels = torch.empty(0) if y is None else torch.from_numpy(y)
    labels = labels.to(torch.int64 if TASKS[task].targets in WHOLE_NUMBERS else dtype)
    return Data(inputs, labels, torch.ones(len(inputs), dtype=dtype))
