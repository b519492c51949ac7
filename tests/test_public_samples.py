"""data.public and data.public_file: samples that all know and no client has."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.app.build import assemble
from fedpers.app.public import public_samples
from fedpers.app.run import execute
from fedpers.config import compose
from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError, DataError
from fedpers.datasets.federation import load_federation

SIX = ["data=digits", "method=local", "data.num_clients=6"]


def loaded(*words, seed=3):
    return load_federation(compose.load([*SIX, *words]).data, seed)


def rows(data):
    """Samples as bytes, so that they can be counted."""
    return [bytes(x.numpy().tobytes()) for x in data.x]


PARTITIONS = [
    ["data.partition=classes"],
    ["data.partition=iid"],
    ["data.partition=dirichlet", "data.alpha=0.1", "data.min_size=3"],
    ["data.partition=rotations", "data.num_clients=8"],
    ["data.partition=permutations"],
    ["data.partition=mixture", "data.mixture=random", "data.sources=[all@0,all@180]"],
]


@pytest.mark.parametrize("words", PARTITIONS, ids=lambda w: w[0].rpartition("=")[2])
def test_held_back_samples_are_taken_from_training_samples_alone(words):
    """Clients keep the rest in their order; validation and test samples are what they are without the key."""
    plain, held = loaded(*words), loaded(*words, "data.public=90")
    public, least = held.public, 3 if "data.min_size=3" in words else 1
    assert plain.public is None and len(public) == 90 and len(set(rows(public))) == 90
    pairs = set(zip(rows(public), public.y.tolist(), strict=True))
    gone, trained = 0, set()
    for k in range(plain.num_clients):
        before, after = plain.client(k), held.client(k)
        for split in ("valid", "test"):
            assert torch.equal(getattr(before, split).x, getattr(after, split).x)
            assert torch.equal(getattr(before, split).y, getattr(after, split).y)
        had = list(zip(rows(before.train), before.train.y.tolist(), strict=True))
        has = list(zip(rows(after.train), after.train.y.tolist(), strict=True))
        assert len(has) == held.num_train[k] >= least
        assert torch.equal(
            torch.bincount(after.train.y, minlength=10), torch.from_numpy(held.label_counts[k])
        )
        left = iter(had)
        assert all(any(pair == other for other in left) for pair in has)  # in their order
        trained |= set(had)
        gone += len(had) - len(has)
        assert not pairs & set(has)
    assert pairs <= trained and gone >= 90
    assert gone == 90 or "data.partition=mixture" in words  # whose clients may have a sample twice
    assert "90 training samples are public: no client has them" in held.notes


def test_the_seed_draws_them():
    first, again, other = (loaded("data.public=50", seed=s).public for s in (3, 3, 4))
    assert torch.equal(first.x, again.x) and not torch.equal(first.x, other.x)
    few = loaded("data.public=20").public
    assert set(rows(few)) < set(rows(first))  # a smaller number is the beginning of the same draw
    classes = torch.bincount(loaded("data.public=600").public.y, minlength=10)
    assert classes.min() > 30  # 60 expected of each


def test_they_are_nowhere_if_the_samples_of_clients_are_copies():
    """Omniglot's rotations of one drawing count as copies of it: all go together."""
    from fedpers.datasets.cuts import Splits
    from fedpers.datasets.public import hold_back
    from fedpers.datasets.raw import Raw

    cfg = compose.load([*SIX, "data.public=2", "data.partition=iid"]).data
    y = np.zeros(12, dtype=np.int64)
    raw = Raw("s", y[:, None], y, y[:0, None], y[:0], 1, same=np.array([0, 1, 2, 3, 0, 1, 2, 4, 5, 5, 6, 7]))
    zero = lambda parts: [np.zeros_like(p) for p in parts]  # noqa: E731
    train = [np.array([8, 0, 1, 2]), np.array([10, 4, 5, 3, 9])]
    valid, test = [np.array([11]), np.array([], dtype=np.int64)], [np.array([6]), np.array([7])]
    splits = Splits(train, valid, test, zero(train), zero(valid), zero(test))
    # kept: 8 and 10 as the first of their clients, with 8 its copy 9; 2 since its copy 6 is tested with
    wanted, met = {0, 1, 3}, set()
    for seed in range(8):
        left, index, source = hold_back(cfg, raw, splits, seed)
        drawn = {int(raw.same[i]) for i in index}
        assert len(index) == 2 and drawn < wanted and not source.any()
        met |= {tuple(sorted(drawn))}
        assert [[i for i in part if raw.same[i] not in drawn] for part in train] == [
            p.tolist() for p in left.train
        ]
        assert [len(s) for s in left.train_source] == [len(p) for p in left.train]
        assert left.test is splits.test and left.valid is splits.valid
    assert len(met) == 3  # all pairs of the three, by one seed or another
    with pytest.raises(DataError, match=r"data.public=4: of the clients' training samples 3 can be held"):
        hold_back(replace(cfg, public=4), raw, splits, 0)


def test_who_asks_gets_some_and_who_does_not_gets_none():
    """The key stays as it is, so that a report has methods with and without public samples in one table."""

    def samples(*words):
        cfg = compose.load(["data=digits", *words])
        public = assemble(cfg).strategy.public
        return cfg.data.public, public and len(public)

    assert samples("method=fedmd") == (None, 200)
    few = int(assemble(compose.load(["data=digits", "data.limit=300"])).federation.num_train.sum())
    assert samples("method=fedmd", "data.limit=300") == (None, few // 5)
    assert samples("method=fedavg", "data.public=auto") == ("auto", 200)
    assert samples("method=fedmd", "data.public=30") == (30, 30)
    assert samples("method=fedavg") == (None, None)
    assert samples("method=fedavg", "data.public=30") == (30, 30)
    assert samples("method=fedmd", "data.public_file=x.npz") == (None, None)  # which the server reads
    assert compose.load(["method=fedmd", "data.public_file=x.npz"]).data.public_file.startswith("/")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["data=femnist"],
            "data.public=null: method=fedmd needs samples that all know: clients have samples of",
        ),
        (
            ["data=device"],
            "data.public=null: method=fedmd needs .* name a file of the server's: data.public_file",
        ),
        (
            ["data=synthetic_ppfl"],
            "method=fedmd needs samples that all know: clients have samples of their own",
        ),
        (["data=femnist", "data.public=9"], "data.public=9: clients have samples of their own"),
        (["data=digits", "data.label_space=local"], "data.label_space=local numbers each client's classes"),
        (
            ["data=digits", "data.public=0"],
            "data.public=0: method=fedmd needs samples .*: set data.public=auto",
        ),
        (["data=digits", "data.public=-1"], "data.public is -1; it must be at least 0"),
        (["data=digits", "data.public=9", "data.public_file=x.npz"], "data.public_file=.*x.npz names others"),
        (
            ["data=digits", "method=fedavg", "data.public_file=x.npz"],
            "without effect for method=fedavg; fedmd",
        ),
        (
            ["data=synthetic_ppfl", "method=fedavg", "data.public=9"],
            "data.public=9: clients have samples of their own",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(words, text):
    with pytest.raises(ConfigError, match=text):
        cfg = compose.load(["method=fedmd", *words])
        load_federation(cfg.data, 0)


def test_too_many_are_refused_with_the_number_there_are():
    there = int(loaded().num_train.sum()) - 6
    with pytest.raises(DataError, match=f"data.public=5000: of the clients' training samples {there} can be"):
        loaded("data.public=5000")


def saved(path, **arrays):
    np.savez(path, **arrays)
    return f"data.public_file={path}"


def test_a_file_is_seen_as_clients_see_their_own_samples(tmp_path):
    """Its samples go through the federation's pipeline: bytes are x/255 there too, then standardised."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 17, (40, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 40)
    for words in ([], ["data.standardise=true"], ["data.unit_norm=true"]):
        cfg = compose.load([*SIX, "method=fedmd", saved(tmp_path / "p.npz", x=x, y=y), *words])
        fed = load_federation(cfg.data, 3)
        found = public_samples(cfg, fed)
        torch.testing.assert_close(found.x, fed.pipeline.inputs(x, torch.float32))
        assert found.y.tolist() == y.tolist() and fed.public is None and len(found.mask) == 40
    bare = compose.load([*SIX, "method=fedmd", saved(tmp_path / "q.npz", x=x)])
    assert len(public_samples(bare, fed).y) == 0


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"x": np.zeros((4, 9), np.float32)}, r"a sample has shape \(9,\), the run expects"),
        ({"x": np.zeros((4, 1, 8, 8), np.float32), "y": np.array([0, 1, 2, 10])}, "label 10 is none of 0..9"),
        (
            {"x": np.zeros((4, 1, 8, 8), np.float32), "y": np.zeros(3, np.int64)},
            "give one y for each row of x",
        ),
        ({"x": np.full((4, 1, 8, 8), np.nan, np.float32)}, "rows lack a value or hold NaN"),
        ({"x": np.zeros((0, 1, 8, 8), np.float32)}, "has no rows"),
        ({"y": np.zeros(3)}, "expected x, and y if it is known"),
        ({"x": np.array([{}], dtype=object)}, "cannot be read: .*allow_pickle"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, arrays, text):
    cfg = compose.load([*SIX, "method=fedmd", saved(tmp_path / "p.npz", **arrays)])
    with pytest.raises(DataError, match=text):
        public_samples(cfg, load_federation(cfg.data, 3))


def test_a_run_on_a_file_is_resumed_bit_for_bit_and_only_on_that_file(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 17, (40, 1, 8, 8)).astype(np.float32)
    words = [
        *SIX,
        "method=fedmd",
        "clients_per_round=3",
        "checkpoint_every=1",
        saved(tmp_path / "p.npz", x=x),
    ]
    whole = execute(compose.load([*words, "rounds=3"]), tmp_path / "whole")
    execute(compose.load([*words, "rounds=2"]), tmp_path / "half")
    on = compose.load([*words, "rounds=3", f"resume={tmp_path / 'half'}"])
    rest = execute(on, tmp_path / "half")
    assert rest["final"] == whole["final"]
    execute(compose.load([*words, "rounds=2"]), tmp_path / "other")
    saved(tmp_path / "p.npz", x=x + 1)
    on = compose.load([*words, "rounds=3", f"resume={tmp_path / 'other'}"])
    with pytest.raises(DataError, match=r"data.public_file=.* has changed since the run began"):
        execute(on, tmp_path / "other")
    (tmp_path / "other" / ".hydra" / "files.json").unlink()  # the method's own state knows them too
    with pytest.raises(ConfigError, match="holds other samples than those that the run began with"):
        execute(on, tmp_path / "other")


def test_a_federation_of_ones_own_brings_them_or_names_a_file(tmp_path):
    import fedpers

    rng = np.random.default_rng(0)
    pair = lambda n: (rng.normal(size=(n, 4)), rng.integers(0, 3, n))  # noqa: E731
    fed = Federation.from_arrays([pair(30), pair(40), pair(20)])
    x, y = pair(25)
    with pytest.raises(ConfigError, match="method=fedmd needs samples that all know"):
        fedpers.run("fedmd", "rounds=1", data=fed, out=tmp_path / "a")
    file = saved(tmp_path / "p.npz", x=x, y=y)
    assert fedpers.run("fedmd", "rounds=1", file, data=fed, out=tmp_path / "b").summaries[0]["rounds"] == 1
