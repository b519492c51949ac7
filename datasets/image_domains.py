"""Sets of one task seen in several domains, a client each: folders DOMAIN/CLASS/image below data.root."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError
from fedpers.datasets import files
from fedpers.datasets.config import DataConfig
from fedpers.datasets.natural import absent
from fedpers.datasets.raw import Raw

PAGES = {
    "office_caltech10": "the folders amazon, caltech, dslr, webcam",
    "digits_five": "the folders mnist, mnist_m, svhn, syn, usps, each with folders 0 to 9",
}


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """Images [n, 3, H, W] of each domain, brought to data.image_size; domains are clients.

    Raises:
        DataError: the folder is missing, or a class is not in every domain.
    """
    folder = cfg.folder() / (cfg.file or cfg.name)
    if not folder.is_dir():
        raise absent(cfg.name, folder, f"put there {PAGES[cfg.name]}, as DOMAIN/CLASS/image")
    raw = files.load(replace(cfg, name="files", path=str(folder)), rng)
    if raw.owner is not None:
        _check_classes(raw, raw.owner, folder)
    return replace(raw, name=cfg.name)


def _check_classes(raw: Raw, domains: np.ndarray, folder: Path) -> None:
    """Refuse domains that differ in their classes: most often one class has two names."""
    seen = np.zeros((len(raw.names), len(raw.classes)), dtype=bool)
    seen[domains, raw.y] = True
    if not seen.all():
        domain, label = np.argwhere(~seen)[0]
        theirs = [raw.classes[i] for i in np.flatnonzero(seen[domain] & ~seen.all(0))]
        more = f"; it has {', '.join(theirs[:3])}, which others lack" if theirs else ""
        raise DataError(
            f"{folder}: the domain '{raw.names[domain]}' has no class '{raw.classes[label]}'{more}; give a "
            "class one name in all domains, or take the folders as they are: data=files data.path=..."
        )
