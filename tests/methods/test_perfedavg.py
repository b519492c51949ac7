"""Per-FedAvg: the first-order step, and FedAvg where α = 0."""

import numpy as np
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.clients.perfedavg import PerFedAvgClient, PerFedAvgConfig, Weights
from fedpers.learning.model import build_model, initial_params
from fedpers.method import LocalConfig, Plan, Stream
from fedpers.simulate import simulate
from fedpers.strategies.fedavg import FedAvg
from fedpers.strategies.perfedavg import PerFedAvg
from tests.oracles.perfedavg import step

FED = toy_federation(num_clients=4, sizes=(12,), dtype=torch.float64)
MODEL = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
PLAN = Plan(seed=2, dtype="float64")


def test_a_local_step_equals_the_numpy_restatement():
    """On the full batch D is all samples too, in another order: the pairing has no effect."""
    cfg = PerFedAvgConfig(alpha=0.7, local=LocalConfig(lr=0.3, epochs=2, batch_size=0))
    data, w = FED.client(0).train, initial_params(MODEL, PLAN)
    reply, _ = PerFedAvgClient(cfg, MODEL).answer(Weights(w), None, data, Stream(0, 1, 0))
    x, y = data.x.numpy(), data.y.numpy()
    plain = {"w": w["head.weight"].numpy(), "b": w["head.bias"].numpy()}
    for _ in range(2):
        plain = step(plain, x, y, x, y, 0.7, 0.3)
    np.testing.assert_allclose(reply.params["head.weight"], plain["w"], atol=1e-12)
    np.testing.assert_allclose(reply.params["head.bias"], plain["b"], atol=1e-12)


def test_minibatches_step_on_other_samples_than_they_see():
    cfg = PerFedAvgConfig(alpha=0.7, local=LocalConfig(lr=0.3, steps=1, batch_size=4))
    data, w = FED.client(0).train, initial_params(MODEL, PLAN)
    reply, _ = PerFedAvgClient(cfg, MODEL).answer(Weights(w), None, data, Stream(0, 1, 0))
    rng = Stream(0, 1, 0)
    other = rng.schedule(12, 12, 1, 0)[0][0].numpy()
    batch = rng.schedule(12, 4, 1, 1)[0][0].numpy()
    x, y, plain = (
        data.x.numpy(),
        data.y.numpy(),
        {"w": w["head.weight"].numpy(), "b": w["head.bias"].numpy()},
    )
    want = step(plain, x[batch], y[batch], x[other[batch]], y[other[batch]], 0.7, 0.3)
    np.testing.assert_allclose(reply.params["head.weight"], want["w"], atol=1e-12)


def test_alpha_0_is_fedavg_with_equal_weights():
    local = LocalConfig(lr=0.3, epochs=2, batch_size=0)
    cfg, plain = PerFedAvgConfig(alpha=0.0, local=local), FedAvgConfig(local)
    a, b = PerFedAvg(cfg, MODEL, PLAN), FedAvg(plain, MODEL, PLAN)
    simulate(a, PerFedAvgClient(cfg, MODEL), FED, 5)
    simulate(b, FedAvgClient(plain, MODEL), FED, 5)
    for name, v in b.state.params.items():
        torch.testing.assert_close(a.state.params[name], v, rtol=0, atol=1e-14)
    assert np.array_equal(a.client_metrics["test_loss"], a.client_metrics["test_loss_before"])


def test_adaptation_is_one_gradient_step_at_rate_alpha():
    cfg = PerFedAvgConfig(alpha=0.4)
    data = FED.client(1).train
    w = {k: v.requires_grad_() for k, v in initial_params(MODEL, PLAN).items()}
    g = torch.autograd.grad(MODEL.loss(w, data), list(w.values()))
    got, _ = PerFedAvgClient(cfg, MODEL).adapt(Weights(w), None, data, Stream(0, 1, 0))
    for (k, v), d in zip(w.items(), g, strict=True):
        torch.testing.assert_close(got.params[k], (v - 0.4 * d).detach())
