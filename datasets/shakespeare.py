"""Shakespeare's plays by speaking role (LEAF): the next character after 80; a role is a client.

As in LEAF, there are 80 characters, line breaks and runs of spaces are one space, and the first part of a
role's lines is for training and the rest for testing, so that what is tested on comes later in the play.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError
from fedpers.datasets.cache import Arrays, cached
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw

# LEAF's 80 characters in its order (models/utils/language_utils.py); any other is the last one
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # characters that are read


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """Tokens [n, 80] of each role's lines, a sample every data.stride characters.

    With data.task=tokens the targets are what follows each of the 80, else what follows the last.

    Reads LEAF's all_data, <data.root>/shakespeare/*.json: {"user_data": {role: ...}} of {"raw": text} or of
    its samples {"x": [80 characters, ...], "y": [the next, ...]}, which are every text's windows in order.
    """
    root = cfg.folder()
    files = sorted((root / "shakespeare").glob("*.json"))
    if not files:
        raise DataError(
            f"data set 'shakespeare' is not in {root / 'shakespeare'}: put LEAF's json of raw texts there "
            "(data/shakespeare/data/raw_data/all_data.json of its repository), or say where: data.root=FOLDER"
        )
    each = cfg.task == "tokens"
    name = f"shakespeare-counted-{cfg.stride}-{cfg.test_fraction}{'-each' * each}"
    arrays = cached(name, root, files, lambda: decode(files, cfg.stride, cfg.test_fraction, each))
    return Raw(
        "shakespeare",
        arrays["x"],
        arrays["y"],
        arrays["test_x"],
        arrays["test_y"],
        len(ALPHABET),
        "tokens" if each else "classification",
        owner=arrays["owner"],
        test_owner=arrays["test_owner"],
        notes=too_short(*arrays["short"].tolist()),
        tokens=len(ALPHABET),
    )


def too_short(left_out: int, roles: int) -> tuple[str, ...]:
    """A note of roles that are left out."""
    text = f"{left_out} of {roles} roles say too little for a sample in each part and are left out"
    return (text,) if left_out else ()


def decode(files: list[Path], stride: int, test_fraction: float, each: bool = False) -> Arrays:
    """Both parts; roles are numbered in the order of their names; `each`: a target for each character.

    Raises:
        DataError: a file is no json of LEAF, or no role says enough.
    """
    texts: dict[str, str] = {}
    for path in files:
        try:
            users = json.loads(path.read_text(encoding="utf-8"))["user_data"]
            texts |= {name: one_line(text_of(user)) for name, user in users.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is no json of LEAF with a text or samples of each role: {error!r}; make it with "
                "LEAF (data/shakespeare of its repository): it cannot be downloaded ready for use"
            ) from error
    out: dict[str, list[np.ndarray]] = {k: [] for k in ("x", "y", "owner", "test_x", "test_y", "test_owner")}
    for k, name in enumerate(sorted(texts)):
        tokens = tokens_of(texts[name])
        middle = int(len(tokens) * (1 - test_fraction))
        halves = windows(tokens[:middle], stride, each), windows(tokens[middle:], stride, each)
        if not all(len(y) for _, y in halves):
            continue  # says too little
        for prefix, (x, y) in zip(("", "test_"), halves, strict=True):
            found = zip(("x", "y", "owner"), (x, y, np.full(len(y), k)), strict=True)
            for key, values in found:
                out[prefix + key].append(values)
    if not out["x"]:
        raise DataError(
            f"{files[0]}: no role has {LENGTH + 1} characters in each part; lower data.test_fraction"
        )
    short = {"short": np.array([len(texts) - len(out["x"]), len(texts)])}
    return {key: np.concatenate(values) for key, values in out.items()} | short


def one_line(text: str) -> str:
    """As LEAF writes its samples: line breaks are spaces, runs of spaces one (its parse_data_in)."""
    return re.sub(r"   *", " ", text.replace("\n", " "))


def text_of(user: Mapping[str, Any]) -> str:
    """What a role says: its raw text, or that which its samples are windows of.

    Raises:
        ValueError: the samples are not the windows of one text, one character apart.
    """
    if "raw" in user:
        return str(user["raw"])
    x, y = list(user["x"]), list(user["y"])
    text = "".join([*x[:1], *y])
    if any(text[i : i + len(s)] != s or len(s) != LENGTH for i, s in enumerate(x)) or len(x) != len(y):
        raise ValueError("its samples are not the windows of one text; make it without --sf and -s, or raw")
    return text


def tokens_of(text: str) -> np.ndarray:
    """The number of each character in ALPHABET; that of the last for any other."""
    table = np.full(256, len(ALPHABET) - 1, dtype=np.uint8)
    table[np.frombuffer(ALPHABET.encode("latin-1"), dtype=np.uint8)] = np.arange(len(ALPHABET))
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    return np.asarray(table[np.minimum(codes, 255)])


def windows(tokens: np.ndarray, stride: int, each: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(x [n, LENGTH], y [n]): runs of tokens and what follows; `each`: y [n, LENGTH], what follows each."""
    if len(tokens) <= LENGTH:
        return np.empty((0, LENGTH), dtype=np.int16), np.empty((0, LENGTH)[: 1 + each], dtype=np.int16)
    every = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::stride]
    y = every[:, 1:].astype(np.int16) if each else every[:, -1].astype(np.int64)
    return every[:, :-1].astype(np.int16), y
