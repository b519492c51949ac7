"""LEAF's Synthetic, CelebA, Sent140 and Reddit, from the json that its preprocess.sh writes.

<data.root>/NAME/{train,test}/*.json: {"user_data": {user: {"x": [...], "y": [...]}}}; a user is a client.
FEMNIST and Shakespeare have modules of their own.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.natural import absent
from fedpers.datasets.pictures import Look, read
from fedpers.datasets.raw import Raw

WORDS = re.compile(r"[\w']+|[.,!?;]")  # LEAF's split_line
LONGEST = 25  # words of a tweet that are read, as in LEAF
VOCABULARY = 10_000  # words that have numbers; the last stands for all others, and for the end of a tweet
PAD, NO_WORD = "<PAD>", ("<PAD>", "<UNK>")
Samples = list[tuple[Any, Any]]  # (x, y) as the file has them


@dataclass(frozen=True)
class Half:
    """The training or the test part."""

    samples: Samples
    users: list[str]  # whose each is

    @classmethod
    def read(cls, folder: Path, each: Callable[[Any, Any], Iterator[tuple[Any, Any]]]) -> "Half":
        """All json files of a folder; `each` makes samples of an entry of x and of y.

        Raises:
            DataError: there is none, or one is no json of LEAF.
        """
        files = sorted(folder.glob("*.json"))
        if not files:
            name = folder.parent.name.removeprefix("leaf_")
            how = f"make it with LEAF (github.com/TalwalkarLab/leaf, data/{name}) and put its data/train and "
            raise absent(folder.parent.name, folder, f"{how}data/test folders there")
        half = cls([], [])
        for path in files:
            try:
                users = json.loads(path.read_text(encoding="utf-8"))["user_data"]
                for user, data in users.items():
                    found = [s for x, y in zip(data["x"], data["y"], strict=True) for s in each(x, y)]
                    half.samples.extend(found)
                    half.users.extend([user] * len(found))
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                text = f"{path} is damaged: expected LEAF's json, found {error!r}; make it again"
                raise DataError(text) from error
        if not half.samples:
            raise DataError(f"{folder}: no user has a sample; make it again with LEAF")
        return half


def _both(cfg: DataConfig, each: Callable[[Any, Any], Iterator[tuple[Any, Any]]]) -> tuple[Path, Half, Half]:
    folder = cfg.folder() / cfg.name
    return folder, Half.read(folder / "train", each), Half.read(folder / "test", each)


def _raw(
    cfg: DataConfig, halves: tuple[Half, Half], xs: list[np.ndarray], classes: int, tokens: int = 0
) -> Raw:
    """Labels and owners from the halves; users are numbered in the order of their names."""
    names, owner = np.unique(halves[0].users + halves[1].users, return_inverse=True)
    try:
        y = [np.array([y for _, y in half.samples], dtype=np.int64) for half in halves]
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"data set '{cfg.name}': a label is no class number ({error})") from error
    cut = len(halves[0].users)
    classes = classes or int(max(part.max() for part in y)) + 1
    owners, text = (owner[:cut], owner[cut:]), tuple(map(str, names))
    return Raw(cfg.name, xs[0], y[0], xs[1], y[1], classes, owner=owners[0], test_owner=owners[1],
               names=text, tokens=tokens)  # fmt: skip


def _plain(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    yield x, y


def synthetic(cfg: DataConfig, rng: Generator) -> Raw:
    """LEAF's Synthetic: features [n, d] and as many classes as there are."""
    folder, *halves = _both(cfg, _plain)
    try:
        xs = [np.array([x for x, _ in half.samples], dtype=np.float32) for half in halves]
        if xs[0].ndim != 2 or xs[0].shape[1] != xs[1].shape[1]:
            raise ValueError(f"samples of {xs[0].shape[1:]} and {xs[1].shape[1:]} numbers")
    except (ValueError, TypeError) as error:
        raise DataError(f"{folder} is damaged: expected x of numbers, as many a sample: {error}") from error
    return _raw(cfg, (halves[0], halves[1]), xs, 0)


def celeba(cfg: DataConfig, rng: Generator) -> Raw:
    """Faces [n, 3, H, W] by celebrity, smiling or not; images lie in celeba/raw/img_align_celeba."""
    folder, *halves = _both(cfg, _plain)
    images, look = folder / "raw" / "img_align_celeba", Look.of(cfg.image_size, "RGB")
    places = [[images / Path(str(x)).name for x, _ in half.samples] for half in halves]
    gone = next((p for p in places[0] + places[1] if not p.is_file()), None)
    if gone is not None:
        raise absent("celeba", gone, "put CelebA's aligned images (img_align_celeba.zip) there")
    return _raw(cfg, (halves[0], halves[1]), [read(part, look) for part in places], 2)


def sent140(cfg: DataConfig, rng: Generator) -> Raw:
    """Tweets by author, sad or happy: numbers [n, 25] of words, the most frequent ones of the training part.

    LEAF has the numbers of GloVe's words instead, which come with another download.
    """
    _, *halves = _both(cfg, lambda x, y: iter([(WORDS.findall(x[4])[:LONGEST], y)]))
    number = _numbers(word for words, _ in halves[0].samples for word in words)
    other = len(number)
    xs = [np.full((len(half.samples), LONGEST), other, dtype=np.int16) for half in halves]
    for x, half in zip(xs, halves, strict=True):
        for row, (words, _) in zip(x, half.samples, strict=True):
            row[: len(words)] = [number.get(word, other) for word in words]
    return _raw(cfg, (halves[0], halves[1]), xs, 2, other + 1)


def reddit(cfg: DataConfig, rng: Generator) -> Raw:
    """Comments by author, the next word: numbers [n, 10] of words; the last word's successor is the class.

    LEAF predicts the successor of each of the ten; runs that end in padding have none, and are left out.
    """
    _, *halves = _both(cfg, _runs)
    number = _numbers(word for words, _ in halves[0].samples for word in words)
    other = len(number)
    numbered = [Half([(words, number.get(y, other)) for words, y in h.samples], h.users) for h in halves]
    rows = [[[number.get(w, other) for w in words] for words, _ in h.samples] for h in halves]
    xs = [np.array(part, dtype=np.int16) for part in rows]
    return _raw(cfg, (numbered[0], numbered[1]), xs, other + 1, other + 1)


def _runs(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """The runs of ten words of a comment, and what follows each."""
    for words, targets in zip(x, y["target_tokens"], strict=True):
        if targets[-1] not in NO_WORD:
            yield words, targets[-1]


def _numbers(words: Iterator[str]) -> dict[str, int]:
    """The most frequent words by number; equally frequent ones in alphabetical order."""
    counts = Counter(words)
    return {w: i for i, w in enumerate(sorted(counts, key=lambda w: (-counts[w], w))[: VOCABULARY - 1])}
