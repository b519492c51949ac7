"""Where the lowest layers stay a kernel goes through them once a client: the same steps as autograd's."""

import numpy as np
import pytest
import torch

from fedpers.core.params import split
from fedpers.core.rng import Stream
from fedpers.core.samples import Data, Part
from fedpers.engines.stacked_data import Block, StackedData, StackedStream
from fedpers.learning.features import Features
from fedpers.learning.gradients import stacked
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import autograd_only, whole_rows
from fedpers.learning.local_training import minimise
from fedpers.learning.losses import Frozen, proximal
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")
SIZES = (9, 14, 6, 23)  # of the clients; they are padded to the largest
LOCALS = {
    "full batch": LocalConfig(0.1, steps=7, batch_size=0),
    "minibatches": LocalConfig(0.1, epochs=3, batch_size=4),
    "fewer samples than there are": LocalConfig(0.1, steps=2, batch_size=2),
    "momentum": LocalConfig(0.1, steps=9, batch_size=5, momentum=0.9, weight_decay=0.01),
    "Adam": LocalConfig(0.002, epochs=2, batch_size=4, optimizer="adam"),
}
DEEP = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[19, 7])
LENET = build_model("lenet", input_shape=(1, 28, 28), num_outputs=4, task="classification")
LAYERS = {  # (model, how many of the uppermost parameters are trained)
    "the head of a deep network": (DEEP, 2),
    "its two upper layers": (DEEP, 4),
    "all of it": (DEEP, 6),
    "a head above convolutions": (LENET, 2),
    "all dense layers above convolutions": (LENET, 6),
    "a convolution, too": (LENET, 8),
}


def clients(model, outputs):
    rng = np.random.default_rng(3)
    shape = (5,) if model is DEEP else (1, 28, 28)
    return [
        Data(torch.from_numpy(rng.standard_normal((n, *shape), dtype=np.float32)),
             torch.from_numpy(rng.integers(0, outputs, n)), torch.ones(n)) for n in SIZES
    ]  # fmt: skip


def in_a_stack(train, parts):
    """What train(data, rng) gives for each client, all in one stack."""
    top = max(SIZES)
    block, streams = Block(parts, top), [Stream(0, 1, k) for k in range(len(parts))]

    def one(i):
        return train(StackedData.of(i, block), StackedStream(i, streams, block.sizes, top))

    with stacked(), torch.no_grad():
        found = torch.vmap(one)(torch.arange(len(parts)))
    return [{k: v[i] for k, v in found.items()} for i in range(len(parts))]


def same(found, want, tolerance=3e-6):
    assert found.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize(("model", "count"), LAYERS.values(), ids=LAYERS)
def test_steps_above_layers_that_stay_are_autograds(model, count, local):
    """Alone and in a stack of unequal clients, from weights of the whole network that are all different."""
    params, parts = model.init(1), clients(model, model.num_outputs)
    upper = list(params)[-count:]
    own, fixed = split(params, lambda name: name in upper)
    loss = Frozen(model.loss, fixed)
    together = in_a_stack(lambda data, rng: minimise(loss, own, data, rng, local), parts)
    for k, data in enumerate(parts):
        with torch.no_grad(), autograd_only():
            want = minimise(loss, own, data, Stream(0, 1, k), local)
        with torch.no_grad():
            alone = minimise(loss, own, data, Stream(0, 1, k), local)
        same(alone, want, 3e-6 if local.optimizer == "sgd" else 2e-4)  # Adam divides by small gradients
        same(together[k], alone, 0)


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_a_part_of_the_samples_has_their_features(local):
    params, data = DEEP.init(2), clients(DEEP, 3)[3]
    head, body = split(params, DEEP.is_head)
    part = data.part(lambda n: np.arange(n)[::-3].copy())
    plain = Data(part.x, part.y, part.mask)
    with torch.no_grad():
        found = Features(DEEP, body, part).fit(head, Stream(0, 1, 0), local)
        with autograd_only():
            same(found, minimise(Frozen(DEEP.loss, body), head, plain, Stream(0, 1, 0), local))


def test_rows_of_parts_are_rows_of_the_whole():
    """[C, S, B] of three clients: of parts of one size, which share their rows, and of others."""
    whole, index = clients(DEEP, 3)[:3], torch.tensor([[[0, 1]], [[2, 0]], [[1, 1]]])
    even, odd = torch.tensor([0, 2, 4]), torch.tensor([5, 3, 1])
    for rows in ([even] * 3, [even, odd, even]):
        parts, (found,) = whole_rows([Part(d, r) for d, r in zip(whole, rows, strict=True)], index)
        assert all(p is d for p, d in zip(parts, whole, strict=True))
        assert found.tolist() == [r[i].tolist() for r, i in zip(rows, index, strict=True)]
    assert whole_rows(whole, index) == (whole, [index])


def test_a_pull_on_the_trained_layers_stays():
    params, data = DEEP.init(2), clients(DEEP, 3)[1]
    head, body = split(params, DEEP.is_head)
    center = {k: v + 1 for k, v in head.items()}
    loss = proximal(Frozen(DEEP.loss, body), 0.3, center)
    with torch.no_grad():
        found = minimise(loss, head, data, Stream(0, 1, 0), LOCALS["minibatches"])
        with autograd_only():
            same(found, minimise(loss, head, data, Stream(0, 1, 0), LOCALS["minibatches"]))


def test_features_are_computed_once_also_by_torch(monkeypatch):
    """One pass through the body for steps and losses, whatever is asked of it and how often."""
    params, data = DEEP.init(2), clients(DEEP, 3)[1]
    head, body = split(params, DEEP.is_head)
    passes, through = [], type(DEEP).body
    monkeypatch.setattr(type(DEEP), "body", lambda *args: passes.append(1) or through(*args))
    with torch.no_grad(), autograd_only():
        F = Features(DEEP, body, data)
        fitted = F.fit(head, Stream(0, 1, 0), LOCALS["minibatches"])
        assert float(F.loss(fitted)) < float(F.loss(head))
    assert len(passes) == 1
    monkeypatch.undo()
    assert float(F.loss(fitted)) == pytest.approx(float(DEEP.loss(body | fitted, data)), rel=1e-6)


def test_minibatches_above_layers_that_stay_are_not_cut():
    """As wide samples are, where a gradient has to be whole before it is clipped."""
    model = build_model("mlp", input_shape=(784,), num_outputs=3, task="classification", hidden=[5])
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((260, 784), dtype=np.float32))
    data = Data(x, torch.from_numpy(rng.integers(0, 3, 260)), torch.ones(260))
    head, body = split(model.init(1), model.is_head)
    local = LocalConfig(0.5, epochs=3, batch_size=200, clip_norm=0.05)
    with torch.no_grad():
        found = minimise(Frozen(model.loss, body), head, data, Stream(0, 1, 0), local)
        with autograd_only():
            same(found, minimise(Frozen(model.loss, body), head, data, Stream(0, 1, 0), local), 1e-5)
