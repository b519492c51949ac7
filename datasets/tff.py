"""TensorFlow Federated's HDF5 files, without TensorFlow: examples/CLIENT/FIELD, a client each.

<data.root>/tff/fed_emnist_{train,test}.h5: pixels [n, 28, 28] (paper is 1), label [n].
<data.root>/tff/shakespeare_{train,test}.h5: snippets, lines of a role.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.natural import absent
from fedpers.datasets.raw import Raw
from fedpers.datasets.shakespeare import ALPHABET, tokens_of, too_short, windows

FILES = {"tff_emnist": "fed_emnist", "tff_shakespeare": "shakespeare"}
WHERE = "https://storage.googleapis.com/tff-datasets-public"
CLASSES = 62  # of EMNIST: digits, upper, lower case


def _clients(cfg: DataConfig, part: str, fields: tuple[str, ...]) -> dict[str, list[np.ndarray]]:
    """{client: the arrays of its fields} of one file.

    Raises:
        DataError: h5py or the file is missing, or a client lacks a field.
    """
    path = cfg.folder() / "tff" / f"{FILES[cfg.name]}_{part}.h5"
    try:
        import h5py
    except ImportError as error:
        raise DataError(f"data={cfg.name}: needs h5py: pip install 'fedpers[hdf5]'") from error
    if not path.is_file():
        raise absent(cfg.name, path, f"unpack {FILES[cfg.name]}.tar.bz2 of {WHERE} there")
    try:
        with h5py.File(path, "r") as file:
            return {k: [_plain(file, group[f]) for f in fields] for k, group in file["examples"].items()}
    except (OSError, KeyError, AttributeError, TypeError) as error:
        expected = f"examples/CLIENT/{' and '.join(fields)}"
        raise DataError(f"{path} is damaged: expected {expected}: {error}; get it again") from error


def _plain(file: Any, stored: Any) -> np.ndarray:
    """An array of a file; what lies in other files is not read."""
    if stored.file.filename != file.filename or stored.is_virtual or stored.external:
        raise OSError(f"{stored.name} lies in another file")
    return np.asarray(stored[()])


def emnist(cfg: DataConfig, rng: Generator) -> Raw:
    """Characters [n, 1, 28, 28] by writer; paper is 1 and ink 0, as in the files."""
    parts = [_clients(cfg, part, ("pixels", "label")) for part in ("train", "test")]
    kept = [{name: _characters(name, *found) for name, found in part.items()} for part in parts]
    return _raw(cfg.name, kept, CLASSES, 0)


def _characters(name: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [n, 1, 28, 28] and class numbers [n] of one client."""
    fit = y.ndim == 1 and x.shape == (len(y), 28, 28)
    if not fit or not ((y >= 0) & (y < CLASSES)).all() or not ((x >= 0) & (x <= 1)).all():
        raise DataError(
            f"data=tff_emnist: client {name} has pixels of {x.shape} and labels of {y.shape}; expected "
            f"[n, 28, 28] from 0 to 1 and [n] below {CLASSES}"
        )
    return np.rint(x * 255).astype(np.uint8)[:, None], y.astype(np.int64)


def shakespeare(cfg: DataConfig, rng: Generator) -> Raw:
    """Tokens [n, 80] of each role's lines one after another, a sample every data.stride characters."""
    parts = [_clients(cfg, part, ("snippets",)) for part in ("train", "test")]
    cut = [{k: windows(tokens_of(_text(lines)), cfg.stride) for k, (lines,) in p.items()} for p in parts]
    both = {k for k in cut[0] if all(k in p and len(p[k][1]) for p in cut)}  # others say too little
    if not both:
        raise DataError("data=tff_shakespeare: no role has 81 characters in each part")
    raw = _raw(cfg.name, [{k: p[k] for k in both} for p in cut], len(ALPHABET), len(ALPHABET))
    roles = len(cut[0].keys() | cut[1].keys())
    return replace(raw, notes=too_short(roles - len(both), roles))


def _text(lines: np.ndarray) -> str:
    return b"\n".join(line if isinstance(line, bytes) else str(line).encode() for line in lines).decode(
        "utf-8", "replace"
    )


def _raw(name: str, parts: list[dict[str, tuple[np.ndarray, np.ndarray]]], classes: int, tokens: int) -> Raw:
    names = sorted(set().union(*parts))
    number = {k: i for i, k in enumerate(names)}
    (x, y), (test_x, test_y) = ([np.concatenate([p[k][i] for k in sorted(p)]) for i in (0, 1)] for p in parts)
    owner = [np.concatenate([np.full(len(p[k][1]), number[k]) for k in sorted(p)]) for p in parts]
    return Raw(name, x, y, test_x, test_y, classes, owner=owner[0], test_owner=owner[1], names=tuple(names),
               tokens=tokens)  # fmt: skip
