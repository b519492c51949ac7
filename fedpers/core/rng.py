"""Random streams. Randomness is an argument, keyed by (seed, round, client, exchange); never global.

So what a client draws does not depend on the order in which clients run, nor on the engine.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.vmap import shared

SERVER = 0  # first key of the server's streams
CLIENT = 1  # first key of the clients' streams
NOISE = 2  # first key of the streams of privacy's noise
COINS = 256  # flips that are drawn at a time
SEEDS = 2**31 - 1  # integer seeds are below
PLACE = 6  # words that say where a stream is: see seeds.c


def server_rng(seed: int, t: int) -> np.random.Generator:
    """The server's generator for round t (t = 0: initialisation)."""
    return np.random.default_rng(_entropy([seed, SERVER, t]))


def first_success(rng: np.random.Generator, odds: Sequence[float], most: int) -> tuple[int, list[bool]]:
    """(flips before, which coins show heads) of the first flip of all coins in which one does.

    Coin by coin as `rng.random() < odds[i]` would flip them, and the generator stands after the last of
    these; after `most` flips without heads (most, no coin).
    """
    for first in range(0, most, COINS):
        heads = rng.random((min(COINS, most - first), len(odds))) < odds
        flip = int(heads.any(1).argmax())
        if heads[flip].any():
            rng.bit_generator.advance((flip + 1 - len(heads)) * len(odds))  # type: ignore[attr-defined]
            return first + flip, heads[flip].tolist()
    return most, [False] * len(odds)


class Stream:
    """What one client draws in one exchange. The generator is made at the first draw."""

    ragged = False  # whether some steps of a schedule may hold no sample
    place: tuple[Any, int] | None = None  # where kernels that drew stopped, in words, and its own row of it
    _generator: np.random.Generator | None = None

    def __init__(self, seed: int, t: int, client: int, exchange: int = 0) -> None:
        self.key = [seed, CLIENT, t, client, exchange]

    @property
    def generator(self) -> np.random.Generator:
        """This stream's NumPy generator."""
        if self._generator is None:
            if self.place is None:
                self._generator = np.random.default_rng(_entropy(self.key))
            else:
                places, row = self.place
                self._generator = _generator_at(places[PLACE * row : PLACE * (row + 1)])
        return self._generator

    @property
    def numpys(self) -> bool:
        """Whether NumPy's generator has drawn from the stream; no kernel may then."""
        return self._generator is not None

    @property
    def apart(self) -> Any:
        """The stream for `one_by_one`."""
        return self

    def on(self, data: Any) -> "Stream":
        """This stream for minibatches of `data`, whose size may differ among stacked clients."""
        return self

    def schedule(self, n: int, batch_size: int, passes: int, steps: int) -> tuple[Tensor, Tensor]:
        """Minibatches without replacement: `passes` shuffled passes over n samples, or `steps` steps.

        Returns:
            index [S, B] and weight [S, B]; the weight is 0 where the last batch of a pass is short.
        """
        index = self.shuffled(n, batch_size, passes, steps)
        return torch.from_numpy(index), torch.from_numpy(batch_weight(n, batch_size, len(index)).copy())

    def shuffled(self, n: int, batch_size: int, passes: int, steps: int) -> np.ndarray:
        """The index of `schedule`, [S, B]."""
        size = min(batch_size, n)
        per_pass = -(-n // size)
        wanted = steps or passes * per_pass
        permutation = self.generator.permutation
        if wanted <= per_pass and per_pass * size == n:
            return permutation(n).reshape(-1, size)[:wanted]
        index = np.zeros((-(-wanted // per_pass), per_pass * size), dtype=np.int64)
        for row in index:
            row[:n] = permutation(n)
        return index.reshape(-1, size)[:wanted]

    def some(self, data: Any, share: float) -> Any:
        """A share of a client's samples, at least one, drawn without replacement."""
        return data.part(lambda n: self.generator.permutation(n)[: max(1, int(share * n))])

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, float32."""
        return torch.from_numpy(self.generator.standard_normal(shape, dtype=np.float32))

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), float32."""
        return torch.from_numpy(self.generator.random(shape, dtype=np.float32))

    def integers(self, high: int, *shape: int) -> Tensor:
        """Whole numbers in [0, high), int64."""
        return torch.from_numpy(np.asarray(self.generator.integers(0, high, shape)))

    def integer_seed(self) -> int:
        """A seed for code that takes one, such as a model's initialisation."""
        return int(self.generator.integers(0, SEEDS))


def _generator_at(place: list[int]) -> np.random.Generator:
    """NumPy's generator, set to where a kernel stopped; `place` is its state in words, see seeds.c."""
    low, high, add_low, add_high, word, half = place
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": add_high << 64 | add_low},
        "has_uint32": half,
        "uinteger": word >> 32,
    }
    return np.random.Generator(bits)


def _entropy(key: list[int]) -> Any:
    """The key; as an array where NumPy derives the same stream from it, which takes a third less time."""
    return np.array(key, dtype=np.uint32) if max(key) < 2**32 else key


def noise_stream(seed: int, t: int, client: int, exchange: int) -> Stream:
    """What is drawn for the noise on one reply; independent of what the client's training draws."""
    stream = Stream(seed, t, client, exchange)
    stream.key = [seed, NOISE, t, client, exchange]
    return stream


class SameBatches(Stream):
    """A client's stream whose first schedule of minibatches is given again and again."""

    def __init__(self, rng: Stream) -> None:
        self._rng, self.ragged = rng, rng.ragged
        self._kept: tuple[Tensor, Tensor] | None = None

    def on(self, data: Any) -> "SameBatches":
        """The same, drawn for `data` if nothing was drawn so far."""
        self._rng = self._rng.on(data)
        return self

    def schedule(self, n: int, batch_size: int, passes: int, steps: int) -> tuple[Tensor, Tensor]:
        """The schedule that the stream gave when it was first asked."""
        if self._kept is None:
            self._kept = self._rng.schedule(n, batch_size, passes, steps)
        return self._kept


class MaskedStream(Stream):
    """A stream whose minibatches are empty unless `wanted`, a scalar that may differ among stacked clients.

    The kernels skip steps without a sample. Elsewhere such steps are computed as any other, and their result
    may be nan: the caller must not use it where `wanted` is 0.
    """

    def __init__(self, rng: Stream, wanted: Tensor) -> None:
        self._rng, self._wanted, self.ragged = rng, wanted, rng.ragged

    def on(self, data: Any) -> "MaskedStream":
        """The same for minibatches of `data`."""
        return MaskedStream(self._rng.on(data), self._wanted)

    def schedule(self, n: int, batch_size: int, passes: int, steps: int) -> tuple[Tensor, Tensor]:
        """That of the stream, with weights 0 where nothing is wanted."""
        index, weight = self._rng.schedule(n, batch_size, passes, steps)
        return index, weight * self._wanted.to(weight)


class FixedBatch(Stream):
    """A stream whose every minibatch is one and the same: `rows` [B] of the data, of `weight` [B]."""

    def __init__(self, rng: Stream, rows: Tensor, weight: Tensor) -> None:
        self.rows, self.weight, self.ragged, self.size = rows, weight, rng.ragged, len(rows)

    def schedule(self, n: int, batch_size: int, passes: int, steps: int) -> tuple[Tensor, Tensor]:
        """`steps` times the batch."""
        return self.rows.expand(steps, -1), self.weight.expand(steps, -1)


@lru_cache(256)  # clients of one size ask for the same, in every round
def batch_weight(n: int, batch_size: int, steps: int) -> np.ndarray:
    """[steps, B] float32, read-only: 0 where the last batch of a pass over n samples is short, else 1."""
    size = min(batch_size, n)
    one_pass = (np.arange(-(-n // size) * size) < n).astype(np.float32).reshape(-1, size)
    weight = np.resize(one_pass, (steps, size))
    weight.flags.writeable = False
    return weight


@shared
def equal_weights(count: int, n: int, batch_size: int, steps: int) -> Tensor:
    """[C, steps, B] `batch_weight` of so many clients of n samples, in one memory."""
    weight = torch.from_numpy(batch_weight(n, batch_size, steps).copy())
    return weight.expand(count, *weight.shape)


def beside(like: Tensor, index: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and weights on the device of `like`, weights of its type."""
    if (index.device, weight.device, weight.dtype) == (like.device, like.device, like.dtype):
        return index, weight  # under vmap `to` takes long, also where there is nothing to do
    return index.to(like.device), weight.to(like)
