"""Seeds that many streams draw in one call are those that each draws by itself."""

import numpy as np
import pytest

from fedpers.core import seeds
from fedpers.core.rng import Stream
from fedpers.core.seeds import integer_seeds


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
