"""Which partitions and sets use which key of `data.`; imports nothing, so that `--help` reads it at once."""

OWN, DOMAINS = ("files", "huggingface"), ("office_caltech10", "digits_five")
TESTED = ("mnist", "fashion_mnist", "kmnist", "emnist_letters", "emnist_balanced", "emnist_byclass",
          "cifar10", "cifar100", "femnist", "heart_disease", "leaf_synthetic", "celeba", "sent140", "reddit",
          "tff_emnist", "tff_shakespeare")  # fmt: skip  # always with a test part of their own
UNTESTED = ("digits", "omniglot", "synthetic_classes", "breast_cancer", "diabetes", "uci_har",
            "movielens")  # fmt: skip  # never
PERHAPS = ("libsvm", *DOMAINS, *OWN)  # where their files have one
TEXTS = ("shakespeare", "tff_shakespeare", "sent140", "reddit")
FEDSOFT, PPFL, SINE = "synthetic_fedsoft", "synthetic_ppfl", "synthetic_sine"
UNIFIED = ("synthetic_unified_a", "synthetic_unified_b")
GENERATED = (PPFL, FEDSOFT, *UNIFIED, SINE)  # draw each client's samples from its distribution
GIVEN = "python"  # a Federation is as it is
DEALT = (*TESTED, *UNTESTED, *PERHAPS, "shakespeare", "ratings")  # samples that a partition deals

USED_BY = {  # key: the partitions and sets that use it; any other key is used by all but those of IGNORED_BY
    "min_size": ("dirichlet", "natural"),
    "classes_per_client": ("classes", "sampled"),
    "shards_per_client": ("shards",),
    "alpha": ("dirichlet", PPFL),
    "balanced": ("dirichlet",),
    "num_clusters": ("dirichlet",),
    "num_groups": ("groups", "permutations"),
    **dict.fromkeys(("groups", "clients_per_group", "random_groups"), ("groups",)),
    "rotations": ("rotations",),
    **dict.fromkeys(("sources", "replacement"), ("mixture",)),
    **dict.fromkeys(("mixture", "min_samples", "max_samples"), ("mixture", FEDSOFT)),
    "file": ("libsvm", "femnist", *DOMAINS),
    **dict.fromkeys(("rotate", "omniglot_split", "omniglot_clients"), ("omniglot",)),
    "digest": (GIVEN,),
    "num_classes": ("synthetic_classes", "device"),
    **dict.fromkeys(("input_shape", "class_names"), ("device",)),
    "task": ("device", "shakespeare", *OWN),
    **dict.fromkeys(("target", "client"), (*OWN, "ratings")),
    "tokens": OWN,
    **dict.fromkeys(("negatives", "candidates", "time"), ("ratings",)),
    "missing": ("device", *OWN),
    "image_size": ("device", "files", "celeba", *DOMAINS),
    "path": ("files", "ratings"),
    **dict.fromkeys(("features", "partitioner", "partitioner_options"), ("huggingface",)),
    "stride": ("shakespeare", "tff_shakespeare"),
    **dict.fromkeys(("num_samples", "separation"), ("synthetic_classes",)),
    "num_sources": (PPFL, FEDSOFT),
    "noise": (PPFL, FEDSOFT, SINE),
    "theta_var": (FEDSOFT,),
    "sigma_h": UNIFIED,
}
_SCALES = ("normalise", "mean", "std", "standardise", "unit_norm")
IGNORED_BY = {  # key: our sets that have no use for it; a set of another package may have one
    "seed": (GIVEN,),
    "dim": (*(set(DEALT) - {"synthetic_classes"}), SINE, "device", GIVEN),
    "limit": (*GENERATED, GIVEN, "ratings"),
    "label_space": (*GENERATED, "diabetes", "movielens", "ratings", GIVEN),
    **dict.fromkeys(_SCALES, (*GENERATED, GIVEN, *TEXTS, "ratings")),  # tokens have no scale
    "min_size": (*GENERATED, "device", GIVEN),
    **dict.fromkeys(("pool", "train_only"), (*GENERATED, *UNTESTED, GIVEN, "ratings")),
    "public": (*GENERATED, "device", GIVEN, "ratings"),
    "holdout": (PPFL, SINE, *UNIFIED, *UNTESTED, GIVEN, "ratings"),
    "train_per_client": (PPFL, FEDSOFT, GIVEN),
    **dict.fromkeys(("test_per_client", "valid_fraction", "test_fraction"), (GIVEN, "ratings")),
    "num_clients": (GIVEN,),
}


def not_public(partition: str, label_space: str) -> str:
    """Why no samples can be held back for everybody, and the remedy; "" if some can."""
    if partition == "natural":
        return (
            "clients have samples of their own (data.partition=natural), which are nobody's to give away; "
            "name a file of the server's: data.public_file=FILE"
        )
    if label_space == "local":
        return "data.label_space=local numbers each client's classes, so that all share none; leave it global"
    return ""
