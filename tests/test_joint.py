"""Head steps, the gradient after them and what is told: one pass through the body, autograd's numbers."""

import numpy as np
import pytest
import torch

from fedpers.core.data import Data
from fedpers.core.params import split
from fedpers.core.rng import Stream
from fedpers.families.split_models.heads import steps_and_gradient
from fedpers.learning.features import Features
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.model import build_model
from tests.test_features import DEEP, LENET, SIZES, clients, in_a_stack, same

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")
RATE = 0.2
MODELS = {"a deep network": DEEP, "convolutions": LENET} | {
    name: build_model(network, input_shape=(5,), num_outputs=outputs, task=task, **more)
    for name, (network, outputs, task, more) in {
        "one layer": ("logistic", 3, "classification", {}),
        "without biases": ("mlp", 3, "classification", {"hidden": [19], "bias": False}),
        "one output": ("mlp", 1, "binary", {"hidden": [19]}),
        "a regression": ("mlp", 2, "regression", {"hidden": [19]}),
    }.items()
}


def samples(model):
    """Four clients of unequal sizes with labels for the model's task."""
    found = clients(LENET if model is LENET else DEEP, 2 if model.task == "binary" else model.num_outputs)
    if model.task != "regression":
        return found
    return [Data(d.x, torch.stack([d.x[:, 0], 1 - d.y], 1), d.mask) for d in found]


def flat(head, gradient, told):
    return {f"{part}.{k}": v for part, tree in (("head", head), ("gradient", gradient), ("told", told))
            for k, v in tree.items()}  # fmt: skip


def trained(model, params, steps, report):
    head, body = split(params, model.is_head)
    return lambda data, rng: flat(
        *steps_and_gradient(Features(model, body, data), head, rng, RATE, steps, report)
    )


@pytest.mark.parametrize("report", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 6])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_steps_gradient_and_losses_are_autograds(model, steps, report):
    """Alone and in a stack of unequal clients; nothing that was given is written."""
    params, parts = model.init(1), samples(model)
    kept = {k: v.clone() for k, v in params.items()}
    one = trained(model, params, steps, report)
    together = in_a_stack(one, parts)
    for k, data in enumerate(parts):
        with torch.no_grad(), autograd_only():
            want = one(data, Stream(0, 1, k))
        with torch.no_grad():
            alone = one(data, Stream(0, 1, k))
        assert ("told.L" in alone) == report
        same(alone, want, 5e-6)
        same(together[k], alone, 1e-6)  # losses that are told are torch's
        assert all(torch.equal(together[k][name], alone[name]) for name in alone if "told" not in name)
    assert all(torch.equal(kept[k], v) for k, v in params.items())


def test_a_part_of_the_samples_is_a_client():
    params, data = DEEP.init(2), clients(DEEP, 3)[3]
    part, one = data.part(lambda n: np.arange(n)[::-3].copy()), trained(DEEP, params, 4, True)
    with torch.no_grad(), autograd_only():
        want = one(Data(part.x, part.y, part.mask), Stream(0, 1, 0))
    with torch.no_grad():
        same(one(part, Stream(0, 1, 0)), want)


def test_a_sample_of_mask_0_counts_for_nothing():
    """In the middle of the samples, too."""
    params, data = DEEP.init(2), clients(DEEP, 3)[1]
    some = torch.tensor([1.0, 0.0, 1.0, 0.0] * 3 + [1.0, 0.0])
    one = trained(DEEP, params, 3, True)
    chosen = some > 0
    with torch.no_grad():
        found = one(Data(data.x, data.y, some), Stream(0, 1, 0))
        same(found, one(Data(data.x[chosen], data.y[chosen], some[chosen]), Stream(0, 1, 0)))


def test_a_wrong_label_is_an_error():
    params, data = DEEP.init(2), clients(DEEP, 3)[1]
    wrong = Data(data.x, data.y + 1, data.mask)
    with torch.no_grad(), pytest.raises(IndexError, match="a label is no class"):
        trained(DEEP, params, 3, True)(wrong, Stream(0, 1, 0))


def test_the_body_is_gone_through_once(monkeypatch):
    """One call a stack, and no pass by torch."""
    calls, call = [], native.call
    monkeypatch.setattr(native, "call", lambda *a: calls.append(a[2][3].shape) or call(*a))
    monkeypatch.setattr(type(DEEP), "body", lambda *a: pytest.fail("a pass through the body by torch"))
    in_a_stack(trained(DEEP, DEEP.init(1), 6, False), clients(DEEP, 3))
    assert calls == [(len(SIZES), 7, max(SIZES))]
