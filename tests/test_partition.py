"""Partition rules: every sample at most once, the right sizes, the same clients for one seed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpers.core.errors import DataError
from fedpers.datasets import cuts
from fedpers.datasets.config import DataConfig
from fedpers.datasets.cuts import CUT, Samples, _client_stream, _cut, cut_clients, stream
from fedpers.datasets.dirichlet import Hands, capped, portions
from fedpers.datasets.federation import build
from fedpers.datasets.partition import (
    PARTITIONS,
    assign,
    dirichlet,
    draw_classes,
    groups,
    iid,
    natural,
    partition,
    round_robin,
    shards,
)
from fedpers.datasets.raw import Raw
from fedpers.datasets.sources import rotations
from fedpers.datasets.split import Partition

FAST = settings(max_examples=30, deadline=None)


def rng(seed=0):
    return np.random.default_rng(seed)


def labels(n, classes, seed):
    """`n` class numbers, each class at least once."""
    return rng(seed).permutation(np.arange(n) % classes)


def exactly_once(hands, n):
    """Every one of `n` samples is dealt to exactly one client."""
    assert sorted(np.concatenate(hands).tolist()) == list(range(n))


cases = st.tuples(st.integers(40, 200), st.integers(2, 10), st.integers(1, 12), st.integers(0, 2**32 - 1))
RULES = {
    "iid": {},
    "classes": {"classes_per_client": 2},
    "shards": {"shards_per_client": 2},
    "dirichlet": {"alpha": 5.0, "min_size": 1},
    "rotations": {"rotations": (0, 90)},
    "groups": {"num_groups": 2},
    "permutations": {"num_groups": 2},
}


@pytest.mark.parametrize("rule", RULES)
@FAST
@given(case=cases)
def test_deals_every_sample_at_most_once(rule, case):
    n, classes, clients, seed = case
    y, z = labels(n, classes, seed), labels(n // 2, classes, seed + 1)
    clients = min(max(clients, 2), 3 if rule == "dirichlet" else 12)
    result = PARTITIONS[rule].deal(y, z, clients, rng(seed), **RULES[rule])
    for hands, size in ((result.train, n), (result.test, n // 2)):
        assert len(hands) == clients
        dealt = np.concatenate(hands)
        assert len(np.unique(dealt)) == len(dealt)
        assert dealt.min() >= 0 and dealt.max() < size
        if rule != "classes" or clients * 2 >= classes:
            assert len(dealt) == size  # and none is left out


@pytest.mark.parametrize("rule", RULES)
def test_same_seed_same_clients(rule):
    y, z = labels(300, 10, 1), labels(100, 10, 2)
    one, two, other = (PARTITIONS[rule].deal(y, z, 5, rng(s), **RULES[rule]) for s in (3, 3, 4))
    for a, b in zip(one.train + one.test, two.train + two.test, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(one.train, other.train, strict=True))


def test_iid_sizes_differ_by_at_most_one():
    assert [len(h) for h in iid(np.zeros(11), np.zeros(0), 4, rng()).train] == [3, 3, 3, 2]


@FAST
@given(case=cases, k=st.integers(1, 4))
def test_classes_have_the_same_lists_in_both_parts(case, k):
    n, classes, clients, seed = case
    k = min(k, classes)
    y, z = labels(n, classes, seed), labels(n, classes, seed + 1)
    result = PARTITIONS["classes"].deal(y, z, clients, rng(seed), classes_per_client=k)
    owned = result.truth["classes"]
    assert (owned.sum(axis=1) == k).all()
    for row, train, test in zip(owned, result.train, result.test, strict=True):
        assert set(y[train]) <= set(np.flatnonzero(row))
        assert set(z[test]) <= set(np.flatnonzero(row))


@FAST
@given(case=cases, k=st.integers(1, 4))
def test_every_class_has_an_owner_when_there_are_enough_clients(case, k):
    _, classes, clients, seed = case
    lists = draw_classes(np.arange(classes), clients, min(k, classes), rng(seed))
    assert len(np.unique(lists)) == min(classes, len(np.unique(lists)))
    if clients * min(k, classes) >= classes:
        assert len(np.unique(lists)) == classes
    assert all(len(set(row)) == len(row) for row in lists.tolist())


@FAST
@given(case=cases)
def test_owners_of_a_class_get_equal_counts(case):
    n, classes, clients, seed = case
    y = labels(n, classes, seed)
    lists = draw_classes(y, clients, 2, rng(seed))
    hands = round_robin(y, lists, rng(seed))
    for c in range(classes):
        counts = [(y[h] == c).sum() for h, row in zip(hands, lists, strict=True) if c in row]
        assert not counts or max(counts) - min(counts) <= 1


def test_seven_samples_for_three_owners():  # the paper's example: 3, 2, 2
    hands = round_robin(np.zeros(7, dtype=int), np.zeros((3, 1), dtype=int), rng())
    assert [len(h) for h in hands] == [3, 2, 2]


def test_all_classes_for_everybody_without_personalisation():
    assert (draw_classes(np.arange(10), 4, 10, rng()) == np.arange(10)).all()


def test_more_classes_than_there_are():
    with pytest.raises(DataError, match="classes_per_client is 11, but there are 10"):
        draw_classes(np.arange(10), 4, 11, rng())


def test_unowned_classes_are_named():
    y = np.arange(10).repeat(3)
    result = PARTITIONS["classes"].deal(y, y, 1, rng(), classes_per_client=9)
    assert len(result.notes) == 1 and result.notes[0].startswith("classes without an owner")


def test_shards_hold_few_labels():
    y = labels(1000, 10, 0)
    hands = shards(y, y, 10, rng(), 2).train
    assert all(len(np.unique(y[h])) <= 4 for h in hands)  # two runs, each within two labels
    assert {len(h) for h in hands} == {100}


@FAST
@given(seed=st.integers(0, 2**32 - 1), alpha=st.sampled_from([0.3, 1.0, 10.0]))
def test_dirichlet_meets_the_minimum(seed, alpha):
    y, z = labels(600, 5, seed), labels(300, 5, seed)
    result = dirichlet(y, z, 4, rng(seed), alpha, min_size=10)
    assert min(map(len, result.train)) >= 10 and min(map(len, result.test)) >= 1
    exactly_once(result.train, 600)
    np.testing.assert_allclose(result.truth["shares"].sum(axis=0), 1)


def test_dirichlet_deals_both_parts_in_the_same_shares():
    y, z = np.repeat(np.arange(2), 5000), np.repeat(np.arange(2), 1000)
    result = dirichlet(y, z, 3, rng(), 1.0, 1)
    for k in range(3):
        share = np.bincount(y[result.train[k]], minlength=2) / 5000
        np.testing.assert_allclose(share, result.truth["shares"][k], atol=1e-3)
        np.testing.assert_allclose(np.bincount(z[result.test[k]], minlength=2) / 1000, share, atol=3e-3)


def test_a_balanced_dirichlet_deals_as_niid_bench_does():
    """Restated: who has an even part of all samples gets none of the next class (Li et al., ICDE 2022)."""
    y, stream = labels(900, 6, 1), rng(3)
    shares, hands = stream.dirichlet(np.full(5, 0.3), 6), [[] for _ in range(5)]
    for c, share in enumerate(shares):
        open_ = np.array([p if len(h) < 900 / 5 else 0 for p, h in zip(share, hands, strict=True)])
        samples = stream.permutation(np.flatnonzero(y == c))
        cuts = (np.cumsum(open_ / open_.sum()) * len(samples)).astype(int)[:-1]
        for hand, piece in zip(hands, np.split(samples, cuts), strict=True):
            hand.extend(piece.tolist())
    found = dirichlet(y, y[:0], 5, rng(3), 0.3, 1, balanced=True)
    assert [h.tolist() for h in found.train] == hands and not found.notes


@pytest.mark.parametrize("alpha", [0.05, 0.1, 1.0])
def test_a_balanced_dirichlet_gives_nobody_more_who_has_an_even_part(alpha):
    sizes = np.full(10, 500)
    for seed in range(50):
        shares = rng(seed).dirichlet(np.full(20, alpha), 10)
        mine, held = capped(shares, sizes), np.zeros(20)
        np.testing.assert_allclose(mine.sum(1), 1)
        for row, drawn, size in zip(mine, shares, sizes, strict=True):
            full = held >= sizes.sum() / 20
            assert not row[full].any()
            np.testing.assert_allclose(row, np.where(full, 0, drawn) / drawn[~full].sum(), atol=1e-12)
            held += portions(row, size)
        assert held.sum() == sizes.sum()


def test_a_balanced_dirichlet_has_sizes_that_vary_less():
    """Without: the squared variation of sizes is (N - 1) / (C (N alpha + 1)) of C even classes, .80 here."""
    sizes, N, alpha = np.full(10, 1000), 20, 0.1
    drawn = [rng(s).dirichlet(np.full(N, alpha), 10) for s in range(400)]

    def squared(made):
        held = np.array([sum(portions(r, n) for r, n in zip(shares, sizes, strict=True)) for shares in made])
        return float(np.mean((held.std(1) / held.mean(1)) ** 2))

    assert squared(drawn) == pytest.approx((N - 1) / (10 * (N * alpha + 1)), rel=0.06)
    assert np.sqrt(squared([capped(s, sizes) for s in drawn])) == pytest.approx(0.57, abs=0.03)


def test_a_balanced_dirichlet_of_few_samples_has_no_gap():
    assert capped(np.full((3, 2), 0.5), np.array([2, 0, 0])).tolist() == [[0.5, 0.5]] * 3
    far = capped(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([4, 4]))
    assert far.tolist() == [[1, 0], [0, 1]]  # the share of the only free client was 0


def test_dirichlet_gives_up_with_numbers():
    y = labels(50, 5, 0)
    with pytest.raises(DataError, match=r"each of 10 clients 6 \(data.min_size and the cuts\) of 50"):
        dirichlet(y, y, 10, rng(), 0.1, min_size=6)


def test_dirichlet_draws_again_by_the_same_stream():
    """The partition is that of the first shares, and of the permutations after them, that give all enough."""
    y, z, low, stream, draws = labels(200, 4, 1), labels(90, 4, 2), 9, rng(8), 0
    while True:
        draws += 1
        shares = stream.dirichlet(np.full(12, 0.5), 4)
        parts = []
        for part in (y, z):
            hands = [[] for _ in range(12)]
            for c, share in enumerate(shares):
                samples = stream.permutation(np.flatnonzero(part == c))
                pieces = np.split(samples, (np.cumsum(share)[:-1] * len(samples)).astype(int))
                for hand, piece in zip(hands, pieces, strict=True):
                    hand.extend(piece.tolist())
            parts.append(hands)
        if min(map(len, parts[0])) >= low and min(map(len, parts[1])) >= 1:
            break
    found = dirichlet(y, z, 12, rng(8), 0.5, low)
    assert draws > 1 and not found.notes
    assert [[h.tolist() for h in part] for part in (found.train, found.test)] == parts


@pytest.mark.parametrize("tests", [0, 9000])
def test_dirichlet_with_many_clients_gives_those_who_fall_short_what_they_lack(tests):
    y, z = labels(30_000, 10, 0), labels(tests, 10, 1)
    found = dirichlet(y, z, 3000, rng(), 0.5, 1)
    exactly_once(found.train, 30_000)
    exactly_once(found.test, tests)
    low = 1 if tests else 2  # of its two samples a client without a test part cuts one
    sizes = np.array(list(map(len, found.train)))
    shares = found.truth["shares"]
    whole = np.stack([np.bincount(y[h], minlength=10) for h in found.train])
    cuts = np.floor(np.cumsum(shares, 0)[:-1] * np.bincount(y)).astype(int)
    due = np.diff(cuts, axis=0, prepend=0, append=np.bincount(y)[None])  # by the shares alone
    short = due.sum(1) < low
    assert short.any() and sizes.min() == low
    assert (sizes[short] == low).all()
    assert (np.abs(whole - due).sum(1)[~short] == (due - whole).sum(1)[~short]).all()  # others only give
    first = np.argmax(shares[short], axis=1)
    assert (whole[short, first] > due[short, first]).all()  # of the class of its largest share
    givers = (whole < due) & ~short[:, None]
    assert due[givers].min() >= np.quantile(due, 0.9)
    assert "clients that fell short" in found.notes[0]
    if tests:
        assert min(map(len, found.test)) == 1


def test_nobody_gives_a_sample_that_it_needs_itself():
    hands = Hands([np.arange(4), np.arange(4, 12)], np.array([[2, 1, 1], [0, 8, 0]]))
    hands.mend(2, np.array([[0.5, 0.1, 0.4], [0.0, 0.9, 0.1]]))
    assert hands.counts.tolist() == [[2, 0, 2], [0, 8, 0]]  # client 1 had nine, client 0 just two
    given = hands.indices()
    assert list(map(len, given)) == [2, 8, 2]
    exactly_once(given, 12)


def test_dirichlet_mends_nothing_that_needs_many_samples():
    y = labels(30_000, 10, 0)
    with pytest.raises(DataError, match=r"in 3 draws .* at most one in 10"):
        dirichlet(y, y[:0], 3000, rng(), 0.1, 8)


def test_dirichlet_over_clusters_keeps_a_cluster_together():
    y = np.repeat(np.arange(8), 500)
    result = dirichlet(y, y, 3, rng(), 0.4, 1, num_clusters=4)
    assert result.truth["shares"].shape == (3, 4)
    counts = np.stack([np.bincount(y[h], minlength=8) for h in result.train]) / 500
    # two classes of one cluster are spread alike, up to chance
    close = [(np.abs(counts[:, a] - counts[:, b]).max() < 0.15) for a in range(8) for b in range(a)]
    assert sum(close) >= 4


def test_ten_digits_in_four_groups():  # sizes 3, 3, 2, 2 and 25 clients each
    y = labels(7000, 10, 0)
    result = groups(y, y[:0], 100, rng(), 4)
    group = result.truth["group"]
    assert np.bincount(group).tolist() == [25, 25, 25, 25]
    sets = [
        np.unique(y[np.concatenate([result.train[k] for k in np.flatnonzero(group == g)])]) for g in range(4)
    ]
    assert [len(s) for s in sets] == [3, 3, 2, 2]
    assert len(np.concatenate(sets)) == len(np.unique(np.concatenate(sets))) == 10
    exactly_once(result.train, 7000)


def test_given_groups_and_their_client_counts():  # CIFAR-10: animals, cars, crafts
    y = labels(6000, 10, 0)
    lists = ((2, 3, 4, 5, 6, 7), (1, 9), (0, 8))
    result = groups(y, y, 80, rng(), 3, lists, (26, 27, 27))
    assert np.bincount(result.truth["group"]).tolist() == [26, 27, 27]
    assert set(y[result.train[0]]) <= set(lists[0])
    sizes = [len(h) for h in result.train[26:53]]
    assert sum(sizes) == 1200 and max(sizes) - min(sizes) <= 1


def test_groups_must_be_disjoint():
    with pytest.raises(DataError, match="disjoint"):
        groups(np.arange(4), np.arange(4), 2, rng(), 2, ((0, 1), (1, 2)))


@FAST
@given(clients=st.integers(4, 30), seed=st.integers(0, 2**32 - 1))
def test_random_groups_are_never_empty(clients, seed):
    assert set(assign(clients, 4, rng(seed), random=True)) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "call",
    [
        lambda: assign(2, 3, rng()),
        lambda: assign(5, 2, rng(), (2, 2)),
        lambda: rotations(np.zeros(9), np.zeros(9), 2, rng(), (0, 90, 180)),
    ],
)
def test_groups_that_do_not_fit(call):
    with pytest.raises(DataError, match=r"num_clients is|does not fit"):
        call()


def test_natural_chooses_large_enough_owners():
    train, test = np.array([0, 0, 1, 2, 2, 2]), np.array([2, 0, 1])
    result = natural(train, test, None, rng(), min_size=2)
    assert result.truth["owner"].tolist() == [0, 2]
    assert [h.tolist() for h in result.train] == [[0, 1], [3, 4, 5]]
    assert [h.tolist() for h in result.test] == [[1], [0]]
    assert result.notes == (
        "1 natural clients are left out: 1 have fewer than 2 samples (data.min_size and the cuts), "
        "0 enough of them and no test sample",
    )
    with pytest.raises(DataError, match="num_clients is 3, but the set has 2 natural"):
        natural(train, test, 3, rng(), min_size=2)


def test_the_reasons_for_leaving_clients_out_add_up():
    """1 has one training sample, 2 none, 4 no test sample: three are left out, each with its reason."""
    result = natural(np.array([0, 0, 1, 4, 4]), np.array([0, 1, 2]), None, rng(), min_size=2)
    assert result.truth["owner"].tolist() == [0]
    assert result.notes == (
        "3 natural clients are left out: 2 have fewer than 2 samples (data.min_size and the cuts), "
        "1 enough of them and no test sample",
    )


def test_natural_counts_training_samples_only_where_some_are_for_validation():
    owner, trained = np.array([0, 0, 0, 1, 1, 1]), np.array([1, 1, 0, 1, 0, 0], dtype=bool)
    result = natural(owner, owner, None, rng(), min_size=2, trained=trained)
    assert result.truth["owner"].tolist() == [0]
    assert result.train[0].tolist() == [0, 1, 2]


BOUNDED = [  # n: the fewest samples that leave 10 for training
    ({"test_fraction": 0.2, "valid_fraction": 0.1}, 13),  # 13 - 2 - 1; of 12: 12 - 2 - 1
    ({"test_fraction": 0.2, "valid_fraction": 0.0}, 12),  # 12 - 2; of 11: 11 - 2
    ({"test_fraction": 0.5, "valid_fraction": 0.5}, 37),  # 37 - 18 - 9; of 36: 36 - 18 - 9
    ({"test_fraction": 0.01, "valid_fraction": 0.0}, 11),  # one test sample at least
    ({"test_fraction": 0.2, "valid_fraction": 0.1, "train_per_client": 11}, 13),  # 11 - 1
]


@pytest.mark.parametrize(("options", "n"), BOUNDED)
def test_the_minimum_bounds_what_is_left_for_training(options, n):
    owner = np.repeat([0, 1], [n, n - 1])
    y, none = np.arange(len(owner)) % 2, owner[:0]
    raw = Raw("own", np.zeros((len(y), 2), np.float32), y, np.zeros((0, 2), np.float32), none, 2,
              owner=owner, test_owner=none)  # fmt: skip
    cfg = DataConfig(partition="natural", num_clients=None, min_size=10, **options)
    fed = build(cfg, raw, 0, torch.float32)
    assert fed.truth["owner"].tolist() == [0] and fed.num_train.tolist() == [10]
    assert any("1 natural clients are left out" in note for note in fed.notes)


@pytest.mark.parametrize("seed", range(5))
def test_the_minimum_of_dirichlet_bounds_what_is_left_for_training(seed):
    y = np.arange(300) % 3
    raw = Raw("own", np.zeros((300, 2), np.float32), y, np.zeros((0, 2), np.float32), y[:0], 3)
    cfg = DataConfig(partition="dirichlet", num_clients=8, alpha=0.5, min_size=10, test_fraction=0.4)
    assert build(cfg, raw, seed, torch.float32).num_train.min() >= 10


def test_a_minimum_that_a_cap_forbids_is_refused():
    y = np.arange(200) % 2
    raw = Raw("own", np.zeros((200, 2), np.float32), y, np.zeros((0, 2), np.float32), y[:0], 2)
    cfg = DataConfig(partition="dirichlet", num_clients=2, min_size=10, train_per_client=9)
    with pytest.raises(DataError, match=r"data.min_size=10: .*data.train_per_client"):
        build(cfg, raw, 0, torch.float32)


def test_the_hint_names_the_minimum_only_where_it_counts():
    y = np.arange(8) % 2
    raw = Raw("own", np.zeros((8, 2), np.float32), y, np.zeros((0, 2), np.float32), y[:0], 2)
    with pytest.raises(DataError, match="needs 1 and 1; use fewer than 6 clients, or another") as caught:
        build(DataConfig(partition="iid", num_clients=6), raw, 0, torch.float32)
    assert "min_size" not in str(caught.value)


def test_a_small_natural_client_is_not_told_to_use_fewer_clients():
    y, owner = np.arange(9) % 2, np.array([0] * 8 + [1])
    raw = Raw("own", np.zeros((9, 2), np.float32), y, np.zeros((0, 2), np.float32), y[:0], 2, owner=owner,
              test_owner=owner[:0], names=("a", "b"), own=True)  # fmt: skip
    with pytest.raises(
        DataError, match=r"client 1 \('b'\).* give it more samples, a larger data.min_size"
    ) as caught:
        build(DataConfig(partition="natural", num_clients=None), raw, 0, torch.float32)
    assert "fewer" not in str(caught.value)


def test_too_few_samples_and_unknown_rule():
    with pytest.raises(DataError, match="2 of 5 clients have fewer than 1 training"):
        partition("iid", np.zeros(3), np.zeros(0), 5, rng())
    with pytest.raises(DataError, match="2 of 5 clients have fewer than 1 test"):
        partition("iid", np.zeros(9), np.zeros(3), 5, rng())
    with pytest.raises(DataError, match="did you mean 'classes'"):
        partition("class", np.zeros(9), np.zeros(3), 5, rng())


def test_the_random_stream_is_numpys_documented_one():
    """A pin: if a numpy changes these, the same seed no longer gives the same clients."""
    assert rng(0).permutation(8).tolist() == [2, 4, 3, 6, 5, 0, 1, 7]
    assert rng(0).integers(0, 100, 5).tolist() == [85, 63, 51, 26, 30]
    np.testing.assert_allclose(rng(0).dirichlet([0.5] * 3), [0.30630066, 0.00118032, 0.69251901], rtol=1e-5)


@pytest.mark.parametrize("copies", [False, True])
def test_a_cut_takes_a_part_of_the_different_samples_and_leaves_no_copy_behind(copies):
    same = np.arange(60) // 3 if copies else np.arange(60)
    index = rng(1).permutation(60)[:41]
    source = np.arange(41)
    whole = Samples.of([index[:11], index[11:]], [source[:11], source[11:]])
    taken, rest = _cut(whole, same, 0.3, [_client_stream(2, k) for k in range(2)], 1)
    for k, mine in enumerate((slice(11), slice(11, 41))):
        ids = np.unique(same[index[mine]])
        mask = np.isin(same[index[mine]], stream(2, CUT, k).permutation(ids)[: int(0.3 * len(ids))])
        for part, chosen in ((taken, mask), (rest, ~mask)):
            assert part.apart(part.index)[k].tolist() == index[mine][chosen].tolist()
            assert part.apart(part.source)[k].tolist() == source[mine][chosen].tolist()
        assert not set(same[taken.apart(taken.index)[k]]) & set(same[rest.apart(rest.index)[k]])


def one_client(cfg, raw, index, test, rng):
    """`cut_clients` of one client, step by step: (train, valid, test)."""
    same = np.arange(len(raw.labels)) if raw.same is None else raw.same

    def cut(index, fraction, least):
        ids = np.unique(same[index])
        taken = rng.permutation(ids)[: max(least, int(fraction * len(ids) + 1e-9))]
        mask = np.isin(same[index], taken)
        return index[mask], index[~mask]

    index = index[rng.permutation(len(index))]
    if len(raw.test_y) and not cfg.train_only:
        test = test[rng.permutation(len(test))]
    else:
        test, index = cut(index, cfg.test_fraction, 1)
    index = index[: cfg.train_per_client]
    if raw.valid is None:
        valid, index = cut(index, cfg.valid_fraction, 0)
    else:
        valid, index = index[raw.valid[index]], index[~raw.valid[index]]
    return index, valid, test[: cfg.test_per_client]


@pytest.mark.parametrize("seed", [0, 3, 2**33 + 5])  # the last is two words
@pytest.mark.parametrize("room", [1, 30, 2**22])
@pytest.mark.parametrize("changed", [
    {}, {"train_only": True}, {"train_per_client": 4, "test_per_client": 2}, {"valid_fraction": 0.0},
    {"copies": True}, {"copies": True, "train_only": True}, {"valid": True},
], ids=str)  # fmt: skip
def test_all_clients_are_cut_as_each_by_itself(seed, room, changed, monkeypatch):
    """Clients of 1 to 23 samples, whose source is their sample's number."""
    monkeypatch.setattr(cuts, "ROOM", room)
    draw, changed = np.random.default_rng(seed), dict(changed)
    copies, valid = changed.pop("copies", False), changed.pop("valid", False)
    sizes, tests = [23, 5, 12, 9], [3, 1, 6, 2]
    train = np.split(draw.permutation(49), np.cumsum(sizes)[:-1])
    test = np.split(49 + draw.permutation(12), np.cumsum(tests)[:-1])
    raw = SimpleNamespace(
        labels=np.zeros(61), test_y=np.zeros(12), names=None, own=False,
        same=100 + np.arange(61) // 2 if copies else None,
        valid=np.arange(61) % 4 == 0 if valid else None,
    )  # fmt: skip
    cfg = replace(DataConfig(test_fraction=0.29, valid_fraction=0.3), **changed)
    found = cut_clients(cfg, raw, Partition(train, test, train_source=train, test_source=test), seed)
    for k in range(4):
        wanted = one_client(cfg, raw, train[k], test[k], stream(seed, CUT, k))
        got = (found.train[k], found.valid[k], found.test[k])
        assert [x.tolist() for x in got] == [x.tolist() for x in wanted]
        sources = (found.train_source[k], found.valid_source[k], found.test_source[k])
        assert [x.tolist() for x in sources] == [x.tolist() for x in wanted]


def test_a_fraction_of_a_hundred_is_a_whole_number():
    """0.29 * 100 is 28.999..."""
    raw = SimpleNamespace(
        labels=np.zeros(101), test_y=np.zeros(1), names=None, same=None, valid=None, own=False
    )
    part = Partition([np.arange(100)], [np.array([100])])
    assert len(cut_clients(DataConfig(valid_fraction=0.29), raw, part, 0).valid[0]) == 29


def test_samples_are_dealt_one_at_a_time_in_the_order_that_is_drawn():
    y, lists = labels(2000, 3, 0), np.array([[0, 1], [1, 2], [0, 2], [1, 2]])
    draw, wanted = rng(1), [[], [], [], []]
    for c, owners in enumerate([(0, 2), (0, 1, 3), (1, 2, 3)]):
        for place, sample in enumerate(draw.permutation(np.flatnonzero(y == c)).tolist()):
            wanted[owners[place % len(owners)]].append(sample)
    assert [hand.tolist() for hand in round_robin(y, lists, rng(1))] == wanted


def test_the_first_client_without_samples_is_named():
    raw = SimpleNamespace(
        labels=np.zeros(8), test_y=np.zeros(0), names=None, same=None, valid=None, own=False
    )
    part = Partition([np.arange(4), np.array([4]), np.array([5])], [np.zeros(0, int)] * 3)
    with pytest.raises(DataError, match="client 1 is left with 0 training and 1 test samples"):
        cut_clients(DataConfig(), raw, part, 0)
