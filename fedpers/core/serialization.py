"""Records as bytes: named arrays and a JSON skeleton. No pickle, on the network or on disk."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from fedpers import __version__
from fedpers.core.errors import CheckpointError, FedpersError
from fedpers.core.pytree import RECORDS, flatten, record_name

Arrays = list[np.ndarray]
SMALL = 2**16  # bytes above which an array is named by itself, for copying it costs more
Leaves = Sequence[np.ndarray | Tensor]


def pack(body: Any) -> tuple[str, Arrays]:
    """(JSON skeleton, arrays) of a tree of records, dicts, tuples, tensors and plain values."""
    arrays: Arrays = []
    return json.dumps(_encoded(body, arrays, {})), arrays


# A function inside `pack` that calls itself is a cycle: a model's arrays would stay until Python looks for
# garbage, which it does rarely while a run is made.
def _encoded(x: Any, arrays: Arrays, seen: dict[int, int]) -> Any:
    """A node of the skeleton; tensors are put into `arrays`, each once."""
    if isinstance(x, Tensor):
        if id(x) not in seen:
            seen[id(x)] = len(arrays)
            arrays.append(x.detach().cpu().contiguous().numpy())
        return {"t": seen[id(x)]}
    if (name := record_name(type(x))) is not None:
        return {"r": name, "f": {f.name: _encoded(getattr(x, f.name), arrays, seen) for f in fields(x)}}
    if isinstance(x, dict):
        return {"d": [[k, _encoded(v, arrays, seen)] for k, v in x.items()]}
    if isinstance(x, (tuple, list)):
        return {"l": [_encoded(v, arrays, seen) for v in x], "tuple": isinstance(x, tuple)}
    if x is None or isinstance(x, (bool, int, float, str)):
        return {"v": x}
    raise FedpersError(f"a {type(x).__name__} cannot be sent or stored; use records of tensors")


def stack_equals(arrays: Arrays) -> tuple[Arrays, list[int]]:
    """(blocks, block of each array): small arrays of one shape and type are the rows of one block."""
    alike: dict[Any, int] = {}
    groups: list[Arrays] = []
    which = []
    for a in arrays:
        group = alike.setdefault((a.shape, a.dtype), len(groups)) if a.nbytes <= SMALL else len(groups)
        if group == len(groups):
            groups.append([])
        groups[group].append(a)
        which.append(group)
    return [np.stack(g) if len(g) > 1 else g[0][None] for g in groups], which


def unstack(blocks: Arrays, which: Sequence[int], device: str | torch.device = "cpu") -> list[Tensor]:
    """The arrays that `stack_equals` was given, as rows of their blocks."""
    rows = [iter(torch.from_numpy(block).to(device).unbind(0)) for block in blocks]
    return [next(rows[i]) for i in which]


def unpack(skeleton: str, arrays: Leaves, device: str | torch.device = "cpu") -> Any:
    """What `pack` was given, with tensors of their own; arrays that are tensors are taken as they are.

    Raises:
        FedpersError: the skeleton is damaged or names a type that is not a record.
    """
    try:
        return _decoded(json.loads(skeleton), arrays, device)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise FedpersError(f"a message or file cannot be read back: {error!r}") from error


def _decoded(x: Any, arrays: Leaves, device: str | torch.device) -> Any:
    if "t" in x:
        leaf = arrays[x["t"]]
        return leaf if isinstance(leaf, Tensor) else torch.from_numpy(np.array(leaf)).to(device)
    if "r" in x:
        return RECORDS[x["r"]](**{k: _decoded(v, arrays, device) for k, v in x["f"].items()})
    if "d" in x:
        return {k: _decoded(v, arrays, device) for k, v in x["d"]}
    if "l" in x:
        items = [_decoded(v, arrays, device) for v in x["l"]]
        return tuple(items) if x["tuple"] else items
    return x["v"]


def num_bytes(body: Any) -> int:
    """Bytes of all distinct tensors in a tree: what a message of it costs on a network."""
    return leaf_bytes(flatten(body)[0])


def leaf_bytes(flat: list[Any]) -> int:
    """`num_bytes` of a tree with these leaves."""
    sizes = {id(t): t.nbytes for t in flat if isinstance(t, Tensor)}
    return sum(sizes.values())


SKELETON, FORMAT, DIGEST = "skeleton", "format", "sha256"


VERSION = "3"  # of the files; 1 named records by their module, 2 had no digest


def write_record(path: Path, body: Any, durable: bool = True) -> None:
    """Write one record as a safetensors file, atomically; `durable`: it survives a loss of power.

    Raises:
        CheckpointError: the file system refuses; whatever was there before is still there.
    """
    skeleton, arrays = pack(body)
    named = {str(i): a for i, a in enumerate(arrays)}
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {SKELETON: skeleton, FORMAT: VERSION, DIGEST: digest(skeleton, arrays)}
        save_file(named, part, metadata=about)
        if durable:
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error}; free space or choose another out=") from error


def read_record(path: Path, device: str = "cpu") -> Any:
    """Read what `write_record` wrote.

    Raises:
        CheckpointError: the file is missing, of another format, or holds other bits than were written.
    """
    from safetensors import safe_open

    try:
        arrays = load_file(path)
        with safe_open(path, framework="np") as file:
            about = file.metadata() or {}
            skeleton = about[SKELETON]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is missing, truncated or not a fedpers file: {error}") from error
    if (version := about.get(FORMAT, "1")) != VERSION:
        raise CheckpointError(
            f"{path} is of format {version}, this fedpers ({__version__}) reads format "
            f"{VERSION}: start the run anew, or go on with the version in summary.json"
        )
    found = [arrays[name] for name in sorted(arrays, key=int)] if all(map(str.isdecimal, arrays)) else []
    if about.get(DIGEST) != digest(skeleton, found):
        raise CheckpointError(f"{path} is damaged: its content is not what was written")
    try:
        return unpack(skeleton, found, device)
    except FedpersError as error:  # a whole file of records whose fields have changed since
        raise CheckpointError(
            f"{path} was written by another version of fedpers than this one ({__version__}), with other "
            f"fields: start the run anew, or go on with the commit in summary.json ({error})"
        ) from error


def digest(skeleton: str, arrays: Arrays) -> str:
    """SHA-256 of a record's structure and numbers; a file system may return what was never written."""
    whole = hashlib.sha256(skeleton.encode())
    for array in arrays:
        whole.update(f"{array.dtype} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()
