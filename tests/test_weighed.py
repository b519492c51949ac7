"""Local training on samples that count differently: the kernel's numbers are autograd's."""

from dataclasses import replace

import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedem import Components, FedEMClient, FedEMConfig
from fedpers.core.plan import Plan
from fedpers.core.rng import Stream
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.messages import Header, Request
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.local_training import minimise_from
from fedpers.learning.optimizers import LocalConfig, init_optimizer
from fedpers.learning.weighed import WeightedLoss
from tests.methods.helpers import network, same
from tests.test_dense import LOCALS, SGD, TASKS, both, close, net

Q = torch.tensor([0.0, 1.0, 0.3, 0.7, 0.05, 2.0, 0.0, 0.5, 1.5, 0.2, 0.9, 0.4, 0.6])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_training_is_autograds(local, task):
    """With a short last batch; a weight of 0 keeps its place in the batch's size."""
    fed = toy_federation(1, (13,), dim=6, task=task)
    model = net(6, (9,), fed.num_classes, task)
    data, params = fed.client(0).train, model.init(0)
    loss = WeightedLoss(model, Q)

    def train():
        start = init_optimizer(params, local)
        return minimise_from(loss, params, start, data, Stream(0, 1, 0), local)[0]

    close(*both(train))


def test_one_step_is_the_weighted_mean_by_hand():
    """On a linear regression: w' = w - η/n Σ_i q_i 2 (⟨w, x_i⟩ - y_i) x_i."""
    fed = toy_federation(1, (13,), dim=6, task="regression")
    model, data = net(6, (), 1, "regression", bias=False), fed.client(0).train
    params, local = model.init(0), LocalConfig(lr=0.05, steps=1, batch_size=0)
    with torch.no_grad():
        found, _ = minimise_from(
            WeightedLoss(model, Q), params, init_optimizer(params, local), data, Stream(0, 1, 0), local
        )
    w = params["head.weight"]
    off = (data.x @ w.T).squeeze(1) - data.y.reshape(-1)
    torch.testing.assert_close(found["head.weight"], w - 0.05 / 13 * (2 * Q * off) @ data.x)


def test_equal_weights_of_one_are_the_models_own_loss_bit_for_bit():
    fed = toy_federation(1, (13,), dim=6)
    model, data = net(6, (9,), fed.num_classes), fed.client(0).train
    params, opt = model.init(0), init_optimizer(model.init(0), SGD)
    with torch.no_grad():
        plain, weighed = (
            minimise_from(loss, params, opt, data, Stream(0, 1, 0), SGD)[0]
            for loss in (model.loss, WeightedLoss(model, torch.ones(13)))
        )
    assert same(plain, weighed)


def test_fedem_in_stacks_of_unequal_clients_is_autograds(monkeypatch):
    """Clients of 9 to 15 samples are padded; whatever the stack, the kernel is called for each component."""
    fed = toy_federation(5, (9, 13, 6, 15, 11), dim=6)
    model = network(fed, "mlp")
    config = FedEMConfig(2, replace(SGD, momentum=0.5, epochs=2))
    calls, trained = [], native.train
    monkeypatch.setattr(native, "train", lambda *args, **more: calls.append(1) or trained(*args, **more))
    thetas = Components((model.init(1), model.init(2)))

    def answers(runner):
        cohort = Cohort(FedEMClient(config, model), fed, RamStore(), Plan(seed=1), runner)
        header = Header("train", 3, 0)
        found = cohort.handle([Request(k, thetas, header) for k in range(5)])
        return [theta for a in found for theta in a.body.thetas]

    loop = answers(RunnerConfig("loop"))
    assert len(calls) == 5 * 2
    for runner, stacks in ((RunnerConfig("stack", chunk=5), 1), (RunnerConfig("stack", chunk=2), 3)):
        calls.clear()
        found = answers(runner)
        assert 2 * stacks <= len(calls) < 5 * 2  # sizes that are padded alike share a stack
        for a, b in zip(loop, found, strict=True):
            close(a, b)
    calls.clear()
    with autograd_only():
        for a, b in zip(loop, answers(RunnerConfig("loop")), strict=True):
            close(a, b)
    assert not calls
