"""What many streams draw in one call is what each draws by itself."""

import numpy as np
import pytest

from fedpers.core import seeds
from fedpers.core.rng import COINS, Stream, first_success
from fedpers.core.seeds import integer_seeds, shuffled_each, uniform_each


def alone(keys):
    return [Stream(*key).integer_seed() for key in keys]


def test_seeds_have_numpys_bits():
    rng = np.random.default_rng(0)
    tops = (2**32, 5000, 10**7, 3)
    keys = [tuple(int(rng.integers(top)) for top in tops) for _ in range(2000)]
    assert integer_seeds([Stream(*key) for key in keys]) == alone(keys)


def test_the_kernels_draw_what_this_numpy_does():
    """Where they do not, as with another NumPy, it draws: right but slow, and no other test would tell."""
    if seeds.library() is None:
        pytest.skip("no C compiler")
    assert seeds._same_bits(seeds.library())


def test_no_number_that_numpy_would_draw_again_is_taken(monkeypatch):
    """With 2^31 + 1 numbers nearly half of the words are drawn again, with 2^31 - 1 one of 2^31."""
    monkeypatch.setattr(seeds, "SEEDS", 2**31 + 1)
    streams = [Stream(0, 0, k) for k in range(200)]
    wanted = [int(np.random.default_rng(s.key).integers(0, 2**31 + 1)) for s in streams]
    if (kernels := seeds.library()) is None:
        pytest.skip("no C compiler")
    assert seeds._integers(kernels, seeds._taken_up(streams, seeds._words(streams))) == wanted


def test_what_follows_a_seed_is_what_follows_it_in_numpy():
    a, b = Stream(1, 2, 3), Stream(1, 2, 3)
    assert integer_seeds([a]) == [b.integer_seed()]
    assert a.integers(9, 5).tolist() == b.integers(9, 5).tolist()
    assert a.normal(3).tolist() == b.normal(3).tolist()


def test_a_stream_that_was_drawn_from_goes_on():
    a, b = Stream(1, 2, 3), Stream(1, 2, 3)
    drawn = [*integer_seeds([a]), *integer_seeds([a]), a.integer_seed()]
    assert drawn == [b.integer_seed() for _ in range(3)]
    a, b = Stream(1, 2, 3), Stream(1, 2, 3)
    assert (a.normal(3) == b.normal(3)).all()
    assert integer_seeds([a, Stream(0, 0, 0)]) == [b.integer_seed(), Stream(0, 0, 0).integer_seed()]


@pytest.mark.parametrize("why", ["a key of 64 bits", "no kernel", "other bits", "another kind of stream"])
def test_where_the_kernel_does_not_serve_numpy_draws(why, monkeypatch):
    keys = [(2**40 if why == "a key of 64 bits" else 5, 0, k) for k in range(3)]
    streams = [Stream(*key) for key in keys]
    if why == "no kernel":
        monkeypatch.setattr(seeds, "library", lambda: None)
    if why == "other bits":
        monkeypatch.setattr(seeds, "_same_bits", lambda kernels: False)
    if why == "another kind of stream":
        streams = [type("Own", (Stream,), {})(*key) for key in keys]
    assert integer_seeds(streams) == alone(keys)


BATCHES = [(20, 1, 0), (7, 3, 0), (20, 1, 4), (20, 1, 25), (1000, 2, 0), (1, 1, 0)]


def batches_alone(keys, sizes, how, shape):
    """[C, S, B] what NumPy shuffles for each stream by itself, 0 beyond its steps."""
    found = np.zeros((len(keys), *shape), dtype=np.int64)
    for row, key, n in zip(found, keys, sizes, strict=True):
        drawn = Stream(*key).shuffled(n, *how)
        row[: drawn.shape[0], : drawn.shape[1]] = drawn
    return found


@pytest.mark.parametrize("how", BATCHES)
def test_minibatches_have_numpys_bits(how):
    """Of unequal streams: sizes about powers of two, at which a draw takes another bit, and of one sample."""
    sizes = [1, 2, 3, 4, 5, 16, 17, 31, 32, 33, 64, 65, 200, 257, 1000]
    keys = [(3, 1, k, 2**31 + k) for k in range(len(sizes))]
    batch, passes, steps = how
    shape = (steps or passes * -(-1000 // min(batch, 1000)), min(batch, 1000))
    found = shuffled_each([Stream(*key) for key in keys], sizes, *how, shape)
    assert np.array_equal(found, batches_alone(keys, sizes, how, shape))


def test_what_follows_minibatches_is_what_follows_them_in_numpy():
    """An order of 200 samples takes an odd number of half words in some streams, and in some an even one."""
    how, shape = (20, 1, 0), (10, 20)
    a, b = ([Stream(1, 2, k) for k in range(8)] for _ in range(2))
    shuffled_each(a, [200] * 8, *how, shape)
    for x, y in zip(a, b, strict=True):
        y.shuffled(200, *how)
        assert x.integers(2**20, 3).tolist() == y.integers(2**20, 3).tolist()
        assert x.uniform(3).tolist() == y.uniform(3).tolist()


@pytest.mark.parametrize("why", ["drawn from", "no kernel", "other bits"])
def test_where_the_kernel_does_not_serve_numpy_shuffles(why, monkeypatch):
    keys, how, shape = [(5, 0, k) for k in range(3)], (4, 1, 0), (3, 4)
    streams = [Stream(*key) for key in keys]
    if why == "no kernel":
        monkeypatch.setattr(seeds, "library", lambda: None)
    if why == "other bits":
        monkeypatch.setattr(seeds, "_same_bits", lambda kernels: False)
    wanted = batches_alone(keys, (9, 11, 12), how, shape)
    if why == "drawn from":
        streams[1].integer_seed()
        other = Stream(*keys[1])
        other.integer_seed()
        wanted[1, :, :] = 0
        drawn = other.shuffled(11, *how)
        wanted[1, : len(drawn)] = drawn
    assert np.array_equal(shuffled_each(streams, (9, 11, 12), *how, shape), wanted)


def draws(streams, how, shape):
    """Of each kind once, and fractions again: what is drawn depends on all that was drawn before."""
    drawn = [uniform_each(streams, 3), shuffled_each(streams, [11] * len(streams), *how, shape)]
    drawn += [uniform_each(streams, 4), np.array([integer_seeds(streams)]).T, uniform_each(streams, 2)]
    return drawn


@pytest.mark.parametrize("numpy_first", [False, True])
def test_kernels_go_on_where_kernels_stopped_and_numpy_after_them(numpy_first):
    how, shape = (4, 1, 0), (3, 4)
    a, b, plain = ([Stream(1, 2, k) for k in range(8)] for _ in range(3))
    for s in (*a, *b, *plain) if numpy_first else ():
        s.uniform(1)
    found, rows = draws(a, how, shape), [draws([s], how, shape) for s in b]
    alone = [
        [s.uniform(3), s.shuffled(11, *how), s.uniform(4), s.integer_seed(), s.uniform(2)] for s in plain
    ]
    for kind, one, each in zip(found, zip(*rows, strict=True), zip(*alone, strict=True), strict=True):
        assert np.array_equal(kind, np.concatenate(one))
        for row, wanted in zip(kind, each, strict=True):
            assert np.array_equal(row.ravel(), np.asarray(wanted).ravel())
    for x, y in zip(a, plain, strict=True):
        assert x.normal(5).tolist() == y.normal(5).tolist()


def test_streams_that_were_and_were_not_drawn_from_go_on_together():
    a, b = ([Stream(1, 2, k) for k in range(4)] for _ in range(2))
    assert np.array_equal(uniform_each(a[:2], 3), np.stack([s.uniform(3) for s in b[:2]]))
    assert np.array_equal(uniform_each(a, 3), np.stack([s.uniform(3) for s in b]))


@pytest.mark.parametrize(
    "odds", [(0.3,), (0.02, 0.01), (0.003,), (0.0, 0.004), (0.0,), (1.0, 0.0), (1.0, 1.0)]
)
@pytest.mark.parametrize("most", [1, 7, COINS, COINS + 1, 3 * COINS])
def test_coins_are_flipped_one_by_one(odds, most):
    """The first heads, and where the generator is behind them."""
    for seed in range(100):
        rng, other = np.random.default_rng(seed), np.random.default_rng(seed)
        rng.integers(2**31), other.integers(2**31)  # half a word is left
        wanted = (most, [False] * len(odds))
        for flip in range(most):
            coins = [bool(rng.random() < p) for p in odds]
            if any(coins):
                wanted = (flip, coins)
                break
        assert first_success(other, odds, most) == wanted
        assert rng.random() == other.random()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2), (0, 1), (1, 2)])
def test_streams_that_drew_together_go_on_in_any_order(order):
    ours, alone = ([Stream(5, 1, k) for k in range(3)] for _ in range(2))
    for turn in (range(3), order, range(3)):
        found = uniform_each([ours[k] for k in turn], 5)
        assert found.tolist() == [alone[k].uniform(5).tolist() for k in turn]
