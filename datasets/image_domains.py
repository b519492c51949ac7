"""Sets of one task seen in several domains, a client each: folders DOMAIN/CLASS/image below data.root."""

from dataclasses import replace

from numpy.random import Generator

from fedpers.datasets import files
from fedpers.datasets.config import DataConfig
from fedpers.datasets.natural import absent
from fedpers.datasets.raw import Raw

PAGES = {
    "office_caltech10": "the folders amazon, caltech, dslr, webcam",
    "digits_five": "the folders mnist, mnist_m, svhn, syn, usps, each with folders 0 to 9",
}


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """Images [n, 3, H, W] of each domain, brought to data.image_size; domains are clients."""
    folder = cfg.folder() / (cfg.file or cfg.name)
    if not folder.is_dir():
        raise absent(cfg.name, folder, f"put there {PAGES[cfg.name]}, as DOMAIN/CLASS/image")
    return replace(files.load(replace(cfg, name="files", path=str(folder)), rng), name=cfg.name)
