"""All data sets by name: what they are, and which function makes them. Imports none of them."""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DataSet:
    """A row of DATASETS; functions are named "module:function" and imported when they are used."""

    text: str
    load: str = ""  # (config, rng) -> samples to partition
    clients: str = ""  # (config, seed, dtype) -> clients, made by itself
    natural: str = ""  # "": none; "yes": knows clients; "only": nothing else

    @property
    def function(self) -> Any:
        """What `load` or `clients` names."""
        module, _, name = (self.load or self.clients).partition(":")
        return getattr(importlib.import_module(f"fedpers.datasets.{module}"), name)


DATASETS: dict[str, DataSet] = {
    "digits": DataSet("handwritten digits 8x8, 1,797, embedded", "digits:load"),
    "mnist": DataSet("handwritten digits 28x28, 60,000 + 10,000", "idx:load"),
    "fashion_mnist": DataSet("clothes 28x28, 60,000 + 10,000", "idx:load"),
    "kmnist": DataSet("Japanese characters 28x28, 60,000 + 10,000", "idx:load"),
    "emnist_letters": DataSet("letters 28x28, 124,800 + 20,800", "idx:load"),
    "emnist_balanced": DataSet("47 characters 28x28, 112,800 + 18,800", "idx:load"),
    "emnist_byclass": DataSet("62 characters 28x28, 697,932 + 116,323", "idx:load"),
    "cifar10": DataSet("photographs 32x32, 10 classes, 50,000 + 10,000", "cifar:load"),
    "cifar100": DataSet("photographs 32x32, 100 classes, 50,000 + 10,000", "cifar:load"),
    "omniglot": DataSet(
        "1,623 characters of 50 alphabets (the clients) 28x28, 32,460", "omniglot:load", natural="yes"
    ),
    "femnist": DataSet("62 characters 28x28 by writer (the clients)", "femnist:load", natural="yes"),
    "libsvm": DataSet("LIBSVM text files: data.file=a9a, w8a, mushrooms, ...", "libsvm:load"),
    "synthetic_classes": DataSet("Gaussian classes", "synthetic:load_classes"),
    "synthetic_ppfl": DataSet("PPFL: clients mix logistic models", clients="synthetic:ppfl", natural="only"),
    "synthetic_fedsoft": DataSet(
        "FedSoft: clients mix linear regressions", clients="synthetic:fedsoft", natural="only"
    ),
    "synthetic_unified_a": DataSet(
        "unified framework A: shifted logistic models", clients="synthetic:unified_a", natural="only"
    ),
    "synthetic_unified_b": DataSet(
        "unified framework B: partly shared logistic models", clients="synthetic:unified_b", natural="only"
    ),
    "synthetic_sine": DataSet(
        "FedeRiCo's toy: intervals of a sine curve", clients="synthetic:sine", natural="only"
    ),
    "files": DataSet("your own files: data.path=DIR", "files:load", natural="yes"),
    "device": DataSet(
        "each client's own data on its own device (engine=deployment)",
        clients="device:absent",
        natural="only",
    ),
}
