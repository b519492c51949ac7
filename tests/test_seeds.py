"""What many streams draw in one call is what each draws by itself."""

import numpy as np
import pytest

from fedpers.core import seeds
from fedpers.core.rng import Stream
from fedpers.core.seeds import integer_seeds, shuffled_each


def alone(keys):
    return [Stream(*key).integer_seed() for key in keys]


def test_seeds_have_numpys_bits():
    rng = np.random.default_rng(0)
    tops = (2**32, 5000, 10**7, 3)
    keys = [tuple(int(rng.integers(top)) for top in tops) for _ in range(2000)]
    assert integer_seeds([Stream(*key) for key in keys]) == alone(keys)


def test_no_number_that_numpy_would_draw_again_is_taken(monkeypatch):
    """With 2^31 + 1 numbers nearly half of the words are drawn again, with 2^31 - 1 one of 2^31."""
    monkeypatch.setattr(seeds, "SEEDS", 2**31 + 1)
    keys = np.array([Stream(0, 0, k).key for k in range(200)], dtype=np.uint32)
    wanted = [int(np.random.default_rng(key).integers(0, 2**31 + 1)) for key in keys]
    if (kernels := seeds.library()) is None:
        pytest.skip("no C compiler")
    assert seeds._by_kernel(kernels, keys) == wanted


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
        assert not x.fresh
        assert x.integers(2**20, 3).tolist() == y.integers(2**20, 3).tolist()
        assert x.uniform(3).tolist() == y.uniform(3).tolist()


@pytest.mark.parametrize("why", ["drawn from", "no kernel", "other bits"])
def test_where_the_kernel_does_not_serve_numpy_shuffles(why, monkeypatch):
    keys, how, shape = [(5, 0, k) for k in range(3)], (4, 1, 0), (3, 4)
    streams = [Stream(*key) for key in keys]
    if why == "no kernel":
        monkeypatch.setattr(seeds, "library", lambda: None)
    if why == "other bits":
        monkeypatch.setattr(seeds, "_same_batches", lambda kernels: False)
    wanted = batches_alone(keys, (9, 11, 12), how, shape)
    if why == "drawn from":
        streams[1].integer_seed()
        other = Stream(*keys[1])
        other.integer_seed()
        wanted[1, :, :] = 0
        drawn = other.shuffled(11, *how)
        wanted[1, : len(drawn)] = drawn
    assert np.array_equal(shuffled_each(streams, (9, 11, 12), *how, shape), wanted)
