"""The keys of `data.`, which conf/data/ sets, and checks of their values alone and together."""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from fedpers.core.arrays import MISSING
from fedpers.core.errors import unknown
from fedpers.core.tasks import FROM_ARRAYS, PLAIN, TASKS
from fedpers.datasets.keys import GENERATED, IGNORED_BY, OWN, TESTED, USED_BY, not_public
from fedpers.datasets.partition import PARTITIONS
from fedpers.datasets.registry import DATASETS, LIBRARIES, data_sets
from fedpers.datasets.sources import MIXTURES, source_problem


def _tuple(value: object) -> object:
    """Lists (as YAML gives them) as tuples, also inside."""
    return tuple(_tuple(v) for v in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class DataConfig:
    """The keys of `data.`; a comment that begins with partitions or sets names those that use the key."""

    name: str = "digits"
    root: str | None = None  # null: $FEDPERS_DATA, else ~/.cache/fedpers
    seed: int | None = None  # of the partition; null: the run's seed
    limit: int | None = None  # samples used overall; null: all
    # how samples become clients
    partition: str = "classes"
    num_clients: int | None = 20  # null: all natural clients
    min_size: int = 1  # training samples left to a client after the cuts: dirichlet, natural
    classes_per_client: int = 2  # classes, sampled
    shards_per_client: int = 2  # shards
    alpha: float = 0.5  # dirichlet, synthetic_ppfl: concentration; the smaller, the fewer classes a client
    balanced: bool = False  # dirichlet: who has 1/num_clients of the samples gets none of further classes
    num_clusters: int | None = None  # dirichlet over label clusters; null: over labels
    num_groups: int = 2  # groups, permutations
    groups: tuple[tuple[int, ...], ...] = ()  # groups: the labels of each; empty: drawn at random
    clients_per_group: tuple[int, ...] = ()  # groups; empty: as even as possible
    random_groups: bool = False  # groups: clients join them at random (none is empty)
    rotations: tuple[int, ...] = (0, 90, 180, 270)  # rotations: degrees counter-clockwise, one a group
    sources: tuple[str, ...] = ("all@0", "all@90")  # mixture: all|lower|upper @ degrees
    replacement: bool = True  # mixture: draws images with replacement
    mixture: str = "10:90"  # mixture, synthetic_fedsoft: 10:90 | 10:90 in turn | 30:70 | linear | random
    min_samples: int = 100  # mixture, synthetic_fedsoft: samples of a client, uniform in
    max_samples: int = 200  # min_samples..max_samples
    train_per_client: int | None = None  # at most so many samples; null: all
    test_per_client: int | None = None  # at most so many samples; null: all
    # the three splits
    valid_fraction: float = 0.1  # of the training part
    test_fraction: float = 0.2  # where a client's own samples are cut
    pool: bool = False  # train and test files together, cut in each client
    train_only: bool = False  # leave the test files out; each client cuts its own
    holdout: int = 0  # test samples drawn from each source, for everybody
    # training samples that all know and no client has; auto: 200, at most a fifth; null: auto, if one asks
    public: int | Literal["auto"] | None = None
    public_file: str | None = None  # samples that all know, of a file of the server's instead
    label_space: str = "global"  # global | local: each client's labels are 0..K_i-1
    # inputs
    normalise: bool = False  # (x - mean) / std per channel, after /255
    mean: tuple[float, ...] = ()  # empty: measured on the training images
    std: tuple[float, ...] = ()  # empty: measured on the training images
    standardise: bool | Literal["federated", "pooled"] = False  # each feature to mean 0, variance 1
    unit_norm: bool = False  # each sample to Euclidean norm 1
    # libsvm, femnist, sets by domain
    file: str | None = None  # libsvm: a9a, ...; femnist: a folder under femnist/; by domain: their folder
    # omniglot
    rotate: bool = True  # add the copies rotated by 90, 180, 270 degrees
    omniglot_split: str = "after_rotation"  # after_rotation | before_rotation (free of leaks)
    omniglot_clients: str = "alphabet"  # alphabet | drawer
    # python
    digest: str | None = None  # python: of the Federation, so that a folder is not gone on with on another
    # files: your own data
    library: str | None = None  # huggingface: `name` is that of a set of its hub, or a folder
    options: Mapping[str, Any] = field(default_factory=dict)  # huggingface, sets of other packages
    features: tuple[str, ...] = ()  # huggingface: the columns of x; empty: all but target and client
    partitioner: str | None = None  # huggingface: a class of flwr_datasets.partitioner
    partitioner_options: Mapping[str, Any] = field(default_factory=dict)  # its arguments
    stride: int = 10  # shakespeare: characters between the beginnings of two samples
    path: str | None = None  # a folder with a file or folder a client, or one file
    target: str = "label"  # the column of y
    client: str = "client"  # one file: the column that names each row's client
    missing: str = "refuse"  # rows without a value: refuse | drop
    tokens: bool = False  # x are numbers of tokens, for models of text
    image_size: tuple[int, ...] = ()  # of images: [height, width]; empty: as they are, all alike
    # device: what the clients' own data is
    input_shape: tuple[int, ...] = ()  # of one sample
    class_names: tuple[str, ...] = ()  # device: what its data calls classes 0, 1, ...; empty: these numbers
    task: str = "classification"  # a name of core.tasks.TASKS, of which each set knows some
    negatives: int = 4  # ratings: of each choice, things drawn that were not chosen, to train on
    candidates: int = 99  # ratings: so many that the last choice is ranked among
    time: str = ""  # ratings: the column by which a person's choices follow each other; "": the table's order
    # synthetic sets
    dim: int | None = None  # features; null: what the generator's paper says
    num_classes: int = 10  # synthetic_classes, device
    num_samples: int = 2000  # synthetic_classes: samples in all
    separation: float = 3.0  # synthetic_classes: distance of class centres, in standard deviations
    num_sources: int | None = None  # synthetic_ppfl, synthetic_fedsoft; null: the paper's
    noise: float | None = None  # ppfl, fedsoft, sine: standard deviation; null: the paper's
    theta_var: float = 10.0  # synthetic_fedsoft: variance of the coefficients
    sigma_h: float | None = None  # synthetic_unified_a, _b: heterogeneity; null: the paper's

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, _tuple(getattr(self, item.name)))

    @property
    def cuts_anew(self) -> bool:
        """Whether test samples are cut although the set may bring some."""
        return self.pool or self.train_only or self.partition == "mixture"

    @property
    def kind(self) -> str:
        """The row of the registry that loads it."""
        return self.library or self.name

    def folder(self) -> Path:
        """Where the data sets are: data.root, else $FEDPERS_DATA, else ~/.cache/fedpers."""
        named = self.root or os.environ.get("FEDPERS_DATA")
        return Path(named).expanduser() if named else Path.home() / ".cache" / "fedpers"

    def check(self) -> list[str]:
        """Everything that is wrong, one message each; an empty list if nothing is."""
        return [*_names(self), *_ranges(self), *_together(self)]


def unused(cfg: DataConfig, keys: Collection[str]) -> list[str]:
    """A problem for each of the `keys` that neither the set nor the partition of `cfg` uses."""
    found = [f"data.{key}={getattr(cfg, key)}: {why}" for key in keys if (why := _why_unused(cfg, key))]
    return found + [f"data.{key}={getattr(cfg, key)}: {why}" for key, why in _overruled(cfg) if key in keys]


def _why_unused(cfg: DataConfig, key: str) -> str:
    """Why the value of `key` changes nothing; "" if it may."""
    users = USED_BY.get(key, (cfg.kind,))
    if not {cfg.kind, cfg.partition} & set(users):
        others = f"{', '.join(users)} would use it"
        return f"without effect for data={cfg.name} and data.partition={cfg.partition}; {others}"
    if cfg.kind in IGNORED_BY.get(key, ()) and getattr(cfg, key) not in (None, False, ()):  # asks for nothing
        return f"without effect for data={cfg.name}; leave it out"
    if key == "test_fraction" and cfg.kind in TESTED and not cfg.cuts_anew:
        own = "has test samples of its own; data.pool=true or data.train_only=true would cut new ones"
        return f"without effect: data={cfg.name} {own}"
    return ""


def _overruled(cfg: DataConfig) -> Iterator[tuple[str, str]]:
    """Keys without effect beside the values of others, and why."""
    for key in ("mean", "std") if not cfg.normalise else ():
        yield key, "without effect: nothing is normalised; data.normalise=true would use it"
    if cfg.standardise and cfg.normalise:
        yield "normalise", f"without effect beside data.standardise={cfg.standardise}; set one of them"
    if not cfg.partitioner:
        yield "partitioner_options", "without effect: data.partitioner=... names whose arguments they are"
    if cfg.partitioner:
        yield "min_size", "without effect: data.partitioner deals; its data.partitioner_options may bound it"
    if cfg.kind == "huggingface" and Path(cfg.name).expanduser().is_dir():
        yield "options", "without effect: data.name is a folder, which is read as it is"
    if cfg.kind in GENERATED and cfg.test_per_client is not None:
        yield "test_fraction", "without effect beside data.test_per_client; data.test_per_client=null uses it"
    if cfg.groups:
        yield "num_groups", "without effect: data.groups names the groups"


NOT_ON_DEVICES = ("normalise", "unit_norm", "limit", "train_per_client", "test_per_client", "label_space",
                  "pool", "train_only", "holdout", "mean", "std")  # fmt: skip
ZERO_OR_MORE = ("seed", "holdout", "public", "noise", "separation")
TASKS_OF = {  # of sets that leave a choice
    "shakespeare": ("classification", "tokens"),
    "device": PLAIN,
    **dict.fromkeys(OWN, FROM_ARRAYS),
}
ONE_OR_MORE = ("limit", "num_clients", "classes_per_client", "shards_per_client", "num_clusters",
               "negatives", "candidates", "min_size", "num_groups", "min_samples", "max_samples",
               "train_per_client", "test_per_client", "stride", "dim", "num_sources",
               "num_samples")  # fmt: skip
AT_LEAST = {**dict.fromkeys(ZERO_OR_MORE, 0), **dict.fromkeys(ONE_OR_MORE, 1), "num_classes": 2}


def _names(cfg: DataConfig) -> Iterator[str]:
    choices: dict[str, Collection[str]] = {
        "library" if cfg.library else "name": LIBRARIES if cfg.library else data_sets(),
        "partition": PARTITIONS,
        "mixture": MIXTURES,
        "label_space": ("global", "local"),
        "missing": MISSING,
        "task": TASKS_OF.get(cfg.kind, TASKS),
        "omniglot_split": ("after_rotation", "before_rotation"),
        "omniglot_clients": ("alphabet", "drawer"),
    }
    for key, known in choices.items():
        if getattr(cfg, key) not in known:
            yield unknown(f"data.{key}", str(getattr(cfg, key)), known)
    yield from filter(None, (source_problem(text) for text in cfg.sources))


def _ranges(cfg: DataConfig) -> Iterator[str]:
    for key, low in AT_LEAST.items():
        value = getattr(cfg, key)
        if isinstance(value, int | float) and value < low:
            yield f"data.{key} is {value}; it must be at least {low}"
    for key in ("alpha", "theta_var", "sigma_h"):
        value = getattr(cfg, key)
        if value is not None and not value > 0:
            yield f"data.{key} is {value}; it must be positive"
    if not 0 <= cfg.valid_fraction < 1:
        yield f"data.valid_fraction is {cfg.valid_fraction}; it must be in [0, 1)"
    if not 0 < cfg.test_fraction < 1:
        yield f"data.test_fraction is {cfg.test_fraction}; it must be in (0, 1)"
    for degrees in cfg.rotations:
        if degrees not in (0, 90, 180, 270):
            yield f"data.rotations has {degrees}; allowed are 0, 90, 180, 270 degrees"
    if not all(s > 0 for s in cfg.std):
        yield f"data.std is {list(cfg.std)}; every entry must be positive"


def _together(cfg: DataConfig) -> Iterator[str]:
    if cfg.min_samples > cfg.max_samples:
        yield f"data.min_samples is {cfg.min_samples}, above data.max_samples {cfg.max_samples}"
    if len(cfg.mean) != len(cfg.std):
        yield f"data.mean has {len(cfg.mean)} entries and data.std {len(cfg.std)}; give both"
    if cfg.pool and cfg.train_only:
        yield "data.pool and data.train_only exclude each other; set one of them to false"
    if cfg.num_clients is None and cfg.partition != "natural":
        yield f"data.num_clients must be a number for data.partition={cfg.partition}"
    if cfg.name == "libsvm" and not cfg.file:
        yield "data.name=libsvm needs data.file, such as data.file=a9a"
    entry = data_sets().get(cfg.kind)
    if entry is not None and cfg.partition == "natural" and not entry.natural:
        yield f"data.partition=natural needs a set with natural clients, not data.name={cfg.name}"
    if entry is not None and cfg.partition != "natural" and entry.natural == "only":
        yield f"data.name={cfg.name} generates its clients; set data.partition=natural"
    if cfg.public:
        why = not_public(cfg.partition, cfg.label_space)
        why = f"data.public_file={cfg.public_file} names others; give one of them" if cfg.public_file else why
        yield from [f"data.public={cfg.public}: {why}"] if why else []
    yield from _device(cfg)
    yield from _mixture(cfg)
    yield from _own(cfg)
    total = sum(cfg.clients_per_group)
    if cfg.partition == "groups" and cfg.clients_per_group and total != cfg.num_clients:
        yield f"data.clients_per_group sums to {total}, data.num_clients is {cfg.num_clients}"


def _device(cfg: DataConfig) -> Iterator[str]:
    if cfg.name == "device" and (not cfg.input_shape or min(cfg.input_shape) < 1):
        yield "data.name=device needs data.input_shape, the shape of a sample, such as [64]"
    for key in NOT_ON_DEVICES if cfg.name == "device" else ():
        value = getattr(cfg, key)
        if value != getattr(DataConfig, key):
            text = "devices bring their samples as they are; leave it out, or change the devices' files"
            yield f"data.{key}={value}: without effect for data=device, {text}"
    if cfg.name == "device" and cfg.standardise in (True, "pooled"):
        text = (
            "each tells the server a count, sums and squares of its features: say data.standardise=federated"
        )
        yield f"data.standardise={str(cfg.standardise).lower()}: without effect for data=device; {text}"
    names, classes = cfg.class_names, 2 if cfg.task == "binary" else cfg.num_classes
    if names and (cfg.task == "regression" or len(set(names)) != classes or len(names) != classes):
        yield f"data.class_names has {len(names)} names; give the {classes} classes a name each, or none"


def _own(cfg: DataConfig) -> Iterator[str]:
    if cfg.options and not cfg.library and cfg.name in DATASETS:
        text = f"without effect for data={cfg.name}; huggingface would use it"
        yield f"data.options={dict(cfg.options)}: {text}"
    if cfg.partitioner and cfg.partition != "natural":
        text = "set data.partition=natural data.num_clients=null"
        yield f"data.partitioner={cfg.partitioner} deals the samples; {text}"
    if cfg.name == "files" and not cfg.path:
        yield "data=files needs data.path=..., a folder with a file a client, or one file"
    if cfg.name == "ratings" and (not cfg.path or cfg.partition != "natural"):
        yield "data=ratings needs data.path=FILE, a .csv of who chose what, and data.partition=natural"
    if cfg.tokens and (cfg.standardise or cfg.unit_norm):
        yield "data.tokens=true: tokens are no measurements; leave data.standardise and data.unit_norm false"
    if len(cfg.image_size) > 2 or any(side < 1 for side in cfg.image_size):
        yield f"data.image_size is {list(cfg.image_size)}; it must be [height, width] in pixels"
    if cfg.task == "regression" and cfg.label_space == "local":
        yield "data.label_space=local numbers each client's classes, and regression has none; leave it global"


def _mixture(cfg: DataConfig) -> Iterator[str]:
    shares = MIXTURES.get(cfg.mixture)
    two = shares is not None and shares.two
    if two and cfg.partition == "mixture" and len(cfg.sources) != 2:
        yield (
            f"data.mixture={cfg.mixture} blends two sources, data.sources has "
            f"{len(cfg.sources)}; use data.mixture=random"
        )
    if two and cfg.name == "synthetic_fedsoft" and cfg.num_sources not in (None, 2):
        yield (
            f"data.mixture={cfg.mixture} blends two sources, data.num_sources is "
            f"{cfg.num_sources}; use data.mixture=random"
        )
