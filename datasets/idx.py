"""The MNIST family: four idx files a set, read through torchvision without downloading."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator

from fedpers.core.torchvision import import_torchvision
from fedpers.datasets.cache import Arrays, cached
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw, damaged, missing


@dataclass(frozen=True)
class Idx:
    """One set of the family."""

    kind: str  # torchvision's class, and the folder under root
    split: str = ""  # of EMNIST
    classes: int = 10

    def files(self, root: Path) -> list[Path]:
        """Training images and labels, test images and labels."""
        stem, test = (f"emnist-{self.split}-", "test") if self.split else ("", "t10k")
        return [
            root / self.kind / "raw" / f"{stem}{part}-{what}"
            for part in ("train", test)
            for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
        ]


SETS = {
    "mnist": Idx("MNIST"),
    "fashion_mnist": Idx("FashionMNIST"),
    "kmnist": Idx("KMNIST"),
    "emnist_letters": Idx("EMNIST", "letters", 26),
    "emnist_balanced": Idx("EMNIST", "balanced", 47),
    "emnist_byclass": Idx("EMNIST", "byclass", 62),
}


def check_idx(path: Path, name: str, root: Path) -> tuple[int, ...]:
    """The dimensions of an idx file of bytes; DataError if its size does not fit them."""
    with path.open("rb") as file:
        head = file.read(16)
    if len(head) < 4 or head[:3] != b"\0\0\x08" or head[3] not in (1, 3):
        raise damaged(path, "an idx file of bytes", f"it to begin with {head[:4]!r}", name, root)
    size = path.stat().st_size
    begin = 4 + 4 * head[3]
    if size < begin:
        raise damaged(path, f"at least {begin} bytes", f"{size} bytes", name, root)
    dims = tuple(np.frombuffer(head[4:begin], dtype=">i4").tolist())
    expected = begin + int(np.prod(dims))
    if size != expected:
        raise damaged(path, f"{expected} bytes", f"{size} bytes", name, root)
    return dims


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """Images [n, 1, 28, 28], upright; labels from 0."""
    spec, root = SETS[cfg.name], cfg.folder()
    files = spec.files(root)
    for path in files:
        if not path.is_file():
            raise missing(cfg.name, root, path)
    dims = [check_idx(path, cfg.name, root) for path in files]
    for images, labels, path in ((dims[0], dims[1], files[1]), (dims[2], dims[3], files[3])):
        if images[0] != labels[0]:
            raise damaged(path, f"{images[0]} labels", f"{labels[0]}", cfg.name, root)
    arrays = cached(cfg.name, root, files, _decoder(spec, root))
    return Raw(cfg.name, arrays["x"], arrays["y"], arrays["test_x"], arrays["test_y"], spec.classes)


def _decoder(spec: Idx, root: Path) -> Callable[[], Arrays]:
    def decode() -> Arrays:
        kind = getattr(import_torchvision().datasets, spec.kind)
        options = {"split": spec.split} if spec.split else {}
        out: Arrays = {}
        for prefix, train in (("", True), ("test_", False)):
            part = kind(str(root), train=train, download=False, **options)
            images = part.data.numpy()
            if spec.split:  # EMNIST stores every image transposed
                images = images.transpose(0, 2, 1)
            out[f"{prefix}x"] = np.ascontiguousarray(images[:, None])
            # EMNIST letters count from 1
            out[f"{prefix}y"] = part.targets.numpy() - (spec.split == "letters")
        return out

    return decode
