"""Replies of large models, kept in files until the round is over: as many as clients do not fit in memory."""

import logging
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpers.core.pytree import leaves, tree_map
from fedpers.core.serialization import leaf_bytes
from fedpers.deploy.frames import LARGE

log = logging.getLogger("fedpers")
SMALL = 2**20  # bytes of a tensor up to which it stays in memory


def spilled(body: Any, folder: Path | None) -> Any:
    """The reply; the large tensors of a large one lie in files below `folder`, which nobody else sees.

    A file has no name any more when it is used, and is gone with its tensor. On a full disk, or without
    a folder, all stays in memory.
    """
    if folder is None or leaf_bytes(leaves(body)) < LARGE:
        return body
    try:
        return tree_map(partial(_in_file, folder), body)
    except OSError as error:
        log.warning("a large reply stays in memory: %s", error)
        return body


def _in_file(folder: Path, leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.is_cpu or leaf.nbytes < SMALL:
        return leaf
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".reply-") as file:
        leaf.contiguous().numpy().tofile(file)
        file.flush()
        return torch.from_file(file.name, shared=False, size=leaf.numel(), dtype=leaf.dtype).view(leaf.shape)
