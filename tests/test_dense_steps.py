"""Without a compiler a dense network's gradient is written out: the numbers of autograd."""

import numpy as np
import pytest
import torch

from fedpers.core.params import split
from fedpers.core.rng import Stream
from fedpers.core.samples import Data
from fedpers.engines.stacked_data import Block, StackedData, StackedStream
from fedpers.learning import local_training
from fedpers.learning.gradients import stacked
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.local_training import minimise
from fedpers.learning.losses import Frozen, proximal
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig

SIZES = (9, 14, 6)  # of the clients: some have fewer steps than others
LOCALS = {
    "sgd": {},
    "the whole data": {"batch_size": 0, "steps": 3},
    "decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "optimizer": "nesterov"},
    "clipped": {"clip_norm": 0.3, "momentum": 0.5},
    "adam": {"optimizer": "adam", "lr": 0.01, "eps": 1e-4},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "eps": 1e-4, "weight_decay": 0.1},
}


def model_of(task, hidden, bias=True):
    linear = "linear" if task == "regression" else "logistic"
    name, options = ("mlp", {"hidden": hidden}) if hidden else (linear, {})
    outputs = 3 if task == "classification" else 1
    return build_model(name, input_shape=(5,), num_outputs=outputs, task=task, bias=bias, **options)


def clients(task):
    rng = np.random.default_rng(3)

    def targets(n):
        if task == "regression":
            return rng.standard_normal(n, dtype=np.float32)
        return rng.integers(0, 3 if task == "classification" else 2, n)

    drawn = [(rng.standard_normal((n, 5), dtype=np.float32), targets(n)) for n in SIZES]
    return [Data(torch.from_numpy(x), torch.from_numpy(y), torch.ones(len(y))) for x, y in drawn]


def in_a_stack(train, parts):
    top, streams = max(SIZES), [Stream(0, 1, k) for k in range(len(parts))]
    block = Block(parts, top)

    def one(i):
        return train(StackedData.of(i, block), StackedStream(i, streams, block.sizes, top))

    with stacked(), torch.no_grad():
        found = torch.vmap(one)(torch.arange(len(parts)))
    return [{k: v[i] for k, v in found.items()} for i in range(len(parts))]


@pytest.fixture
def used(monkeypatch):
    """How often the way without a compiler was taken; there is none."""
    calls, written = [], local_training.minimise_written_out

    def counted(*args):
        found = written(*args)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(local_training, "minimise_written_out", counted)
    return calls


def same(found, want):
    assert found.keys() == want.keys()
    for k, value in want.items():
        torch.testing.assert_close(found[k], value, rtol=1e-5, atol=2e-6)


def agree(loss, own, parts, cfg, used):
    """Alone and in a stack."""

    def alone():
        return [minimise(loss, own, d, Stream(0, 1, k), cfg) for k, d in enumerate(parts)]

    def together():
        return in_a_stack(lambda d, rng: minimise(loss, own, d, rng, cfg), parts)

    for train in (alone, together):
        with torch.no_grad():
            found = train()
            assert used and all(used)
            with autograd_only():
                used.clear()
                wanted = train()
                assert not any(used)
        used.clear()
        for a, b in zip(found, wanted, strict=True):
            same(a, b)


@pytest.mark.parametrize("pull", [0.0, 0.3])
@pytest.mark.parametrize("options", LOCALS.values(), ids=LOCALS)
def test_every_optimiser_alone_and_in_a_ragged_stack(options, pull, used):
    cfg, model = (
        LocalConfig(**{"lr": 0.1, "epochs": 2, "batch_size": 4} | options),
        model_of("classification", [7]),
    )
    start = model.init(0)
    loss = proximal(model.loss, pull, {k: v + 1 for k, v in start.items()})
    agree(loss, start, clients("classification"), cfg, used)


@pytest.mark.parametrize("hidden", [(), (7, 6)], ids=str)
@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
def test_tasks_and_depths(task, hidden, used):
    model, cfg = (
        model_of(task, list(hidden), bias=task != "binary"),
        LocalConfig(0.05, epochs=2, batch_size=4),
    )
    agree(model.loss, model.init(1), clients(task), cfg, used)


@pytest.mark.parametrize("of_head", [True, False])
def test_a_part_of_the_network_alone(of_head, used):
    model = model_of("classification", [7, 6])
    head, body = split(model.init(2), model.is_head)
    own, fixed = (head, body) if of_head else (body, head)
    agree(Frozen(model.loss, fixed), own, clients("classification"), LocalConfig(0.1, batch_size=4), used)


def test_what_it_does_not_know_is_autograds(used):
    """A scale of each step's rate, and a loss that is not the model's own."""
    model, data = model_of("classification", [7]), clients("classification")[0]
    loss = lambda w, batch: 2 * model.loss(w, batch)  # noqa: E731
    with torch.no_grad():
        for f, cfg in ((model.loss, LocalConfig(0.1, warmup_steps=2)), (loss, LocalConfig(0.1))):
            found = minimise(f, model.init(0), data, Stream(0, 1, 0), cfg)
            with autograd_only():
                same(found, minimise(f, model.init(0), data, Stream(0, 1, 0), cfg))
    assert not any(used)
