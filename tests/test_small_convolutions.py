"""Training of small convolutions in C: autograd's numbers, for any shapes, optimisers and frozen parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpers.core.data import Data
from fedpers.core.params import split
from fedpers.core.rng import Stream
from fedpers.learning.between import minimise_between
from fedpers.learning.gradients import grad
from fedpers.learning.kernels import native
from fedpers.learning.kernels.plan import small_convs
from fedpers.learning.layers import Conv, Dense, Flatten, MaxPool, Relu, stack
from fedpers.learning.local_training import minimise_from
from fedpers.learning.losses import Frozen, soft_proximal
from fedpers.learning.model import Model, build_model
from fedpers.learning.optimizers import init_optimizer
from tests.test_dense import LOCALS, SGD, both, close, no_kernel  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")


def samples(n, shape, classes, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((n, *shape), dtype=np.float32))
    return Data(x, torch.from_numpy(rng.integers(0, classes, n)), torch.ones(n))


def model_of(shape, *layers, classes=4):
    """A model of these layers, made like a model of the library."""
    made = build_model("logistic", input_shape=(3,), num_outputs=classes, task="classification")
    network = stack(shape, *layers)
    return replace(made, network=network, num_features=network.num_features, name="small")


LENET = build_model("lenet", input_shape=(1, 28, 28), num_outputs=10, task="classification")
PAIR = (Conv(3, 3, 1), Relu(), MaxPool(2, 2), Conv(5, 2, 0), Relu(), Flatten(), Dense(7), Relu())
SMALL = model_of((2, 6, 5), *PAIR)


@torch.no_grad()
def trained(model, data, local, loss=None, params=None):
    params = params or model.init(0)
    start = init_optimizer(params, local)
    return minimise_from(loss or model.loss, params, start, data, Stream(0, 1, 0), local)


@pytest.fixture
def used(monkeypatch):
    """How often the C function was called."""
    calls, train = [], native.train
    monkeypatch.setattr(native, "train", lambda *args, **more: calls.append(1) or train(*args, **more))
    return calls


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_every_optimiser_is_autograds(local, used):
    """With a short last batch."""
    (fast, state), (slow, other) = both(lambda: trained(SMALL, samples(13, (2, 6, 5), 4), local))
    close(fast, slow)
    close(state.m, other.m)
    close(state.v, other.v)
    assert len(used) == 1  # the whole training of a client


@pytest.mark.parametrize("part", ["head", "body", "all", "conv1", "conv2"])
@pytest.mark.parametrize("local", [SGD, LOCALS["adam"]], ids=["plain", "adam"])
@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_pulls_and_fixed_parts_are_autograds(lam, local, part, used):
    data, params = samples(13, (2, 6, 5), 4), SMALL.init(0)
    head, body = split(params, SMALL.is_head)
    named = {k: v for k, v in params.items() if k.startswith(part)}
    moving = {"head": head, "body": body, "all": params}.get(part, named)
    fixed = {k: v for k, v in params.items() if k not in moving}
    loss = Frozen(SMALL.loss, fixed) if fixed else SMALL.loss
    loss = soft_proximal(loss, lam, torch.tensor(1.3), {k: v + 0.1 for k, v in moving.items()})
    close(*both(lambda: trained(SMALL, data, local, loss, moving)[0]))
    close(*both(lambda: grad(loss)(moving, data)))
    assert len(used) == 2


@pytest.mark.parametrize("part", ["all", "conv1", "conv2", ("conv2", "head")], ids=str)
def test_weights_between_two_models_are_autograds(part, used):
    """With a short last batch, and with clipping at both ends."""
    own, other, data = SMALL.init(0), SMALL.init(1), samples(13, (2, 6, 5), 4)
    learnt = [k for k in own if part == "all" or k.startswith(part)]
    generator = torch.Generator().manual_seed(0)
    W = {k: torch.rand(own[k].shape, generator=generator) for k in learnt}
    loss = Frozen(SMALL.loss, {k: v for k, v in other.items() if k not in W})
    fast, slow = both(lambda: minimise_between(loss, own, other, W, data, Stream(0, 1, 0), SGD, 40.0))
    close(fast, slow)
    assert len(used) == 1
    every = torch.cat([v.flatten() for v in slow.values()])
    assert (every == 0).any() and (every == 1).any() and ((every > 0) & (every < 1)).any()


@settings(max_examples=60, deadline=None, derandomize=True)  # a ReLU at 0 may fall either way
@given(
    channels=st.integers(1, 3),
    sides=st.tuples(st.integers(12, 21), st.integers(12, 21)),
    outs=st.tuples(st.integers(1, 11), st.integers(1, 9)),
    kernels=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    pads=st.tuples(st.integers(0, 3), st.integers(0, 2)),
    pool=st.sampled_from([0, 1, 2, 3]),
    batch=st.integers(1, 7),
)
def test_any_shape(channels, sides, outs, kernels, pads, pool, batch):
    shape, pooling = (channels, *sides), [MaxPool(pool, pool)] if pool else []
    first = (Conv(outs[0], kernels[0], pads[0]), Relu(), *pooling)
    second = (Conv(outs[1], kernels[1], pads[1]), Relu())
    model = model_of(shape, *first, *second, Flatten())
    assert small_convs(model) is not None
    data, params = samples(batch, shape, 4), model.init(0)
    close(*both(lambda: grad(model.loss)(params, data)))


def test_lenet_is_autograds(used):
    data = samples(47, (1, 28, 28), 10)
    close(*both(lambda: trained(LENET, data, replace(SGD, batch_size=20, epochs=2))[0]))
    assert len(used) == 1


@pytest.mark.parametrize("pool", [2, 3])
def test_equal_values_in_a_window_move_the_first(pool, used):
    """All outputs of the convolution are its bias; what its weights learn depends on the place."""
    model = model_of((2, 7, 8), Conv(3, 2, 0), Relu(), MaxPool(pool, pool), Flatten())
    start = model.init(0)
    start |= {"conv1.weight": torch.zeros(3, 2, 2, 2), "conv1.bias": torch.tensor([1.0, 0.5, -1.0])}
    data, local = samples(8, (2, 7, 8), 4), replace(SGD, batch_size=0, epochs=1)
    close(*both(lambda: trained(model, data, local, params=start)[0]))
    assert used


def test_a_number_that_is_none_comes_out_as_none(used):
    data = samples(8, (2, 6, 5), 4)
    data.x[3, 1, 2, 2] = float("nan")
    found = trained(SMALL, data, replace(SGD, epochs=1))[0]
    assert used and found["head.weight"].isnan().all()


@pytest.mark.parametrize(
    "layers",
    [
        (Conv(3, 3, 1), Relu(), MaxPool(3, 2), Flatten()),  # windows that overlap
        (Conv(3, 3, 1), MaxPool(2, 2), Relu(), Flatten()),
        (Conv(200, 5, 2), Relu(), Flatten()),  # large: 2 * 200 * 25 weights
        (Conv(3, 3, 1), Flatten()),
    ],
    ids=str,
)
def test_other_networks_are_left_to_torch(layers, used):
    model = model_of((2, 9, 9), *layers)
    trained(model, samples(5, (2, 9, 9), 4), SGD)
    assert isinstance(model, Model) and not used
