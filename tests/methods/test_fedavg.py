"""FedAvg, FedPer and Local against restatements, closed forms and each other."""

import numpy as np
import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig, FedAvgFTConfig
from fedpers.clients.fedper import FedPerClient, FedPerConfig
from fedpers.clients.local import LocalClient, LocalTrainingConfig
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig, Plan, Stream
from fedpers.simulate import simulate
from fedpers.strategies.fedavg import FedAvg
from fedpers.strategies.fedper import FedPer
from fedpers.strategies.local import Local
from tests.methods.helpers import arrays, assert_close
from tests.oracles.blocks import descend
from tests.oracles.fedavg import fedavg_round

DOUBLE = {"dtype": "float64"}


def federation(**options):
    return toy_federation(dtype=torch.float64, **options)


def logistic(fed):
    return build_model("logistic", input_shape=fed.input_shape, num_outputs=3, task="classification")


def test_fedavg_equals_a_numpy_restatement():
    fed, cfg = federation(), FedAvgConfig(LocalConfig(lr=0.3, epochs=2, batch_size=4))
    model = logistic(fed)
    plan = Plan(seed=5, **DOUBLE)
    server = FedAvg(cfg, model, plan)
    simulate(server, FedAvgClient(cfg, model), fed, 2)

    start = {k: v.double().numpy() for k, v in model.init(5).items()}
    w, b = start["head.weight"], start["head.bias"]
    data = [(fed.client(k).train.x.numpy(), fed.client(k).train.y.numpy()) for k in range(6)]
    for t in (1, 2):
        batches = []
        for k, (_, y) in enumerate(data):
            index, weight = Stream(5, t, k).schedule(len(y), 4, 2, 0)
            batches.append([i[m > 0].numpy() for i, m in zip(index, weight, strict=True)])
        w, b = fedavg_round(w, b, data, batches, 0.3)
    np.testing.assert_allclose(server.state.params["head.weight"].numpy(), w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(server.state.params["head.bias"].numpy(), b, rtol=0, atol=1e-12)


def test_one_full_batch_step_is_gradient_descent_on_the_pooled_loss():
    fed, cfg = federation(), FedAvgConfig(LocalConfig(lr=0.5, batch_size=0))
    model = logistic(fed)
    server = FedAvg(cfg, model, Plan(**DOUBLE))
    simulate(server, FedAvgClient(cfg, model), fed, 1)

    params = {k: v.double().requires_grad_() for k, v in model.init(0).items()}
    parts = [fed.client(k).train for k in range(6)]
    x, y = torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts])
    loss = model.sample_losses(model(params, x), y).mean()
    for (name, p), g in zip(params.items(), torch.autograd.grad(loss, params.values()), strict=True):
        torch.testing.assert_close(server.state.params[name], (p - 0.5 * g).detach(), rtol=0, atol=1e-12)


def test_local_is_fedavg_with_one_client():
    fed, local = federation(num_clients=1), LocalConfig(lr=0.1, epochs=2, batch_size=4)
    model = logistic(fed)
    alone = simulate(
        Local(LocalTrainingConfig(local), model, Plan(**DOUBLE)),
        LocalClient(LocalTrainingConfig(local), model),
        fed,
        3,
    )
    server = FedAvg(FedAvgConfig(local), model, Plan(**DOUBLE))
    simulate(server, FedAvgClient(FedAvgConfig(local), model), fed, 3)
    for name, value in server.state.params.items():
        torch.testing.assert_close(alone.store.states[0].params[name], value, rtol=0, atol=1e-14)


def test_local_sends_nothing():
    fed = federation()
    model, cfg = logistic(fed), LocalTrainingConfig()
    server = Local(cfg, model, Plan(**DOUBLE))
    simulate(server, LocalClient(cfg, model), fed, 1)
    assert (server.round_log.bytes_up, server.round_log.bytes_down) == (0, 0)
    assert server.round_log.gradient_evals == int(fed.num_train.sum())


def test_fedper_without_a_body_is_local_training():
    """Logistic regression is all head: nothing is shared."""
    fed, local = federation(), LocalConfig(lr=0.1, batch_size=4)
    model = logistic(fed)
    cfg = FedPerConfig(local, head_init="common")
    fedper = simulate(FedPer(cfg, model, Plan(**DOUBLE)), FedPerClient(cfg, model), fed, 2)
    alone = simulate(
        Local(LocalTrainingConfig(local), model, Plan(**DOUBLE)),
        LocalClient(LocalTrainingConfig(local), model),
        fed,
        2,
    )
    for k in range(6):
        for name, value in alone.store.states[k].params.items():
            assert torch.equal(fedper.store.states[k].own[name], value)


def test_fedper_averages_bodies_by_samples_and_trains_heads_with_them():
    fed = federation()
    cfg = FedPerConfig(LocalConfig(lr=0.2, batch_size=0), head_init="common")
    model = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4])
    server = FedPer(cfg, model, Plan(**DOUBLE))
    cohort = simulate(server, FedPerClient(cfg, model), fed, 1)
    n = fed.num_train
    expected = {k: torch.zeros_like(v) for k, v in server.state.part.items()}
    for k in range(6):
        params = {name: v.double().requires_grad_() for name, v in model.init(0).items()}
        grads = torch.autograd.grad(model.loss(params, fed.client(k).train), params.values())
        stepped = {m: (p - 0.2 * g).detach() for (m, p), g in zip(params.items(), grads, strict=True)}
        for name in expected:
            expected[name] += n[k] / n.sum() * stepped[name]
        for name, value in cohort.store.states[k].own.items():
            torch.testing.assert_close(value, stepped[name], rtol=0, atol=1e-13)
    for name, value in expected.items():
        torch.testing.assert_close(server.state.part[name], value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("epochs", [0, 3])
def test_fine_tuning_reports_the_model_before_and_after(epochs):
    fed = federation()
    model, cfg = logistic(fed), FedAvgConfig(LocalConfig(lr=0.5), finetune_epochs=epochs)
    server = FedAvg(cfg, model, Plan(**DOUBLE))
    simulate(server, FedAvgClient(cfg, model), fed, 2)
    columns = server.client_metrics
    if not epochs:
        assert "test_loss_before" not in columns
        return
    before = [float(model.loss(server.state.params, fed.client(k).test)) for k in range(6)]
    np.testing.assert_allclose(columns["test_loss_before"], before, rtol=1e-12)
    assert not np.allclose(columns["test_loss"], before)


@pytest.mark.parametrize("own_rate", [0.0, 0.1])
@pytest.mark.parametrize("form", ["full", "head", "head_full"])
def test_each_form_of_fine_tuning_trains_what_it_says(form, own_rate):
    """Full-batch steps, so that each phase is plain gradient descent on its part."""
    fed, local = federation(), LocalConfig(lr=0.4, batch_size=0)
    model = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4])
    cfg = FedAvgFTConfig(local, finetune_epochs=2, finetune=form, finetune_lr=own_rate)
    server, client = FedAvg(cfg, model, Plan(**DOUBLE)), FedAvgClient(cfg, model)
    simulate(server, client, fed, 1)
    for k in (0, 1):
        body, head = descended(server.state.params, model, fed.client(k).train, form, own_rate or 0.4)
        tuned = client.adapt(server.state, None, fed.client(k).train, Stream(0, 1, k))[0].params
        assert_close({n: v for n, v in tuned.items() if not model.is_head(n)}, body)
        assert_close({n: v for n, v in tuned.items() if model.is_head(n)}, head)
        loss = float(model.loss(tuned, fed.client(k).test))
        assert server.client_metrics["test_loss"][k] == pytest.approx(loss, rel=1e-12)


def descended(params, model, data, form, lr):
    """(body, head) after fine-tuning at rate lr, restated."""
    whole = (arrays({n: v for n, v in params.items() if model.is_head(n) == mine}) for mine in (False, True))
    body, head = whole
    for rate in {"full": (lr,), "head": (0.0,), "head_full": (0.0, lr)}[form]:
        body, head = descend(body, head, data.x.numpy(), data.y.numpy(), rate, lr, 2)
    return body, head
