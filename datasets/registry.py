"""All data sets by name: what they are, and which function makes them. Imports none of them."""

import importlib
import importlib.metadata
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

GROUP = "fedpers.datasets"  # entry points by which other packages add their sets


@dataclass(frozen=True)
class DataSet:
    """A row of DATASETS; functions are named "module:function" and imported when they are used."""

    text: str
    load: Any = ""  # (config, rng) -> samples to partition; of other packages the function itself
    clients: str = ""  # (config, seed, dtype) -> clients, made by itself
    natural: str = ""  # "": none; "yes": knows clients; "only": nothing else

    @property
    def function(self) -> Any:
        """What `load` or `clients` names."""
        if callable(self.load or self.clients):
            return self.load or self.clients
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
    "shakespeare": DataSet(
        "Shakespeare's plays by speaking role (the clients), the next of 80 characters",
        "shakespeare:load",
        natural="yes",
    ),
    "heart_disease": DataSet(
        "740 patients of four hospitals (the clients), 13 measurements, two classes",
        "natural:heart",
        natural="yes",
    ),
    "uci_har": DataSet(
        "six activities of 30 persons (the clients), 561 features of a telephone's sensors",
        "natural:har",
        natural="yes",
    ),
    "movielens": DataSet(
        "100,000 ratings by 943 users (the clients) of films by genre", "natural:movielens", natural="yes"
    ),
    "ratings": DataSet(
        "a table of who chose what, data.path=FILE (people are the clients), to be ranked",
        "ratings:load",
        natural="yes",
    ),
    "office_caltech10": DataSet(
        "photographs of ten things from four sources (the clients)", "image_domains:load", natural="yes"
    ),
    "digits_five": DataSet("digits from five sources (the clients)", "image_domains:load", natural="yes"),
    "leaf_synthetic": DataSet("LEAF's Synthetic, by task (the clients)", "leaf:synthetic", natural="yes"),
    "celeba": DataSet("LEAF's faces by celebrity (the clients): smiling?", "leaf:celeba", natural="yes"),
    "sent140": DataSet("LEAF's tweets by author (the clients): sad?", "leaf:sent140", natural="yes"),
    "reddit": DataSet("LEAF's comments by author (the clients), the next word", "leaf:reddit", natural="yes"),
    "tff_emnist": DataSet(
        "TensorFlow Federated's 62 characters 28x28 by writer (the clients)", "tff:emnist", natural="yes"
    ),
    "tff_shakespeare": DataSet(
        "TensorFlow Federated's Shakespeare by role (the clients)", "tff:shakespeare", natural="yes"
    ),
    "breast_cancer": DataSet("569 tumours, 30 measurements, two classes, embedded", "tabular:load"),
    "diabetes": DataSet("442 patients, 10 measurements, a value, embedded", "tabular:load"),
    "huggingface": DataSet(
        "a set of the datasets library: data.name=NAME", "huggingface:load", natural="yes"
    ),
    "files": DataSet("your own files: data.path=DIR", "files:load", natural="yes"),
    "device": DataSet(
        "each client's own data on its own device (engine=deployment)",
        clients="device:absent",
        natural="only",
    ),
    "python": DataSet(
        "a Federation that fedpers.run is given; from Python only", clients="device:ungiven", natural="only"
    ),
}

LIBRARIES = ("huggingface",)  # what `data.library` may be: data.name is theirs


@cache
def data_sets() -> dict[str, DataSet]:
    """Our sets and those of other installed packages, by name.

    A set that cannot be loaded, or that takes a name of ours, is left out with a warning.
    """
    table = dict(DATASETS)
    for entry in importlib.metadata.entry_points(group=GROUP):
        problem = f"fedpers has a set called '{entry.name}'" if entry.name in DATASETS else ""
        try:
            row: Any = None if problem else entry.load()
            if not problem and not isinstance(row, DataSet):
                problem = f"it is a {type(row).__name__}, not a fedpers.datasets.registry.DataSet"
        except Exception as error:  # whatever a foreign module does while it is imported
            problem = f"{type(error).__name__}: {error}"
        if problem:
            text = f"the data set {entry.name} = {entry.value} is left out: {problem}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        else:
            table[entry.name] = row
    return table
