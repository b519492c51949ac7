"""FedEM: responsibilities, the EM objective, the mixture, and its reduction to FedAvg."""

import itertools

import numpy as np
import pytest
import torch

from fedpers.clients.fedem import ClientState, Components, FedEMClient, FedEMConfig, Weighted
from fedpers.families.clustered.centers import center_losses
from fedpers.families.mixtures.em import responsibilities
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.method import LocalConfig, Stream
from tests.methods.helpers import config, doubles, network, same, simulated, smoke
from tests.oracles.fedem import client_round


@autograd_only()
def test_one_component_is_fedavg_bit_for_bit():
    fed, local = doubles(), LocalConfig(lr=0.3, epochs=2, batch_size=4)
    model, plan = network(fed, "mlp"), {"seed": 5, "clients_per_round": 4}
    ours, _ = simulated("fedem", FedEMConfig(1, local), fed, model, 3, **plan)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), fed, model, 3, **plan)
    assert same(ours.state.thetas[0], theirs.state.params)
    np.testing.assert_array_equal(
        ours.client_metrics["test_accuracy"], theirs.client_metrics["test_accuracy"]
    )
    np.testing.assert_allclose(
        ours.client_metrics["test_loss"], theirs.client_metrics["test_loss"], rtol=1e-13
    )


def components(model, count):
    return tuple({k: v.double() for k, v in model.init(100 + m).items()} for m in range(count))


@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
def test_responsibilities_are_the_posterior(task):
    fed = doubles(task=task)
    model = network(fed, "mlp")
    thetas, data = components(model, 3), fed.client(0).train
    pi = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    q = responsibilities(pi, center_losses(model, thetas, data))
    assert bool((q >= 0).all())
    torch.testing.assert_close(q.sum(0), torch.ones(len(data), dtype=torch.float64))
    for i in range(len(data)):
        losses = [model.sample_losses(model(th, data.x), data.y)[i] for th in thetas]
        joint = torch.stack([p * torch.exp(-loss) for p, loss in zip(pi, losses, strict=True)])
        torch.testing.assert_close(q[:, i], joint / joint.sum(), rtol=0, atol=1e-14)


def test_extreme_losses_and_a_weight_of_zero_leave_finite_responsibilities():
    fed = doubles()
    model = network(fed)
    thetas = tuple({k: 1e6 * v for k, v in th.items()} for th in components(model, 3))
    pi = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    client, data = FedEMClient(FedEMConfig(3), model), fed.client(0).train
    q = responsibilities(pi, center_losses(model, thetas, data))
    assert bool(torch.isfinite(q).all())
    assert bool((q[0] == 0).all())
    assert bool(torch.isfinite(client.predict(Weighted(thetas, pi), None, data.x)).all())


def test_each_sample_meets_its_own_responsibility_in_every_minibatch():
    fed = doubles()
    model, cfg = network(fed), FedEMConfig(2, LocalConfig(lr=0.4, epochs=2, batch_size=5))
    thetas, data = components(model, 2), fed.client(0).train
    pi = torch.tensor([0.3, 0.7], dtype=torch.float64)
    reply, memory = FedEMClient(cfg, model).answer(Components(thetas), ClientState(pi), data, Stream(1, 1, 0))
    stream, n = Stream(1, 1, 0), len(data)
    schedules = [
        [i[w > 0].numpy() for i, w in zip(*stream.schedule(n, 5, 2, 0), strict=True)] for _ in range(2)
    ]
    plain = [{"w": th["head.weight"].numpy(), "b": th["head.bias"].numpy()} for th in thetas]
    want, weights, _ = client_round(plain, pi.numpy(), data.x.numpy(), data.y.numpy(), schedules, 0.4)
    for got, expected in zip(reply.thetas, want, strict=True):
        np.testing.assert_allclose(got["head.weight"].numpy(), expected["w"], rtol=0, atol=1e-13)
        np.testing.assert_allclose(got["head.bias"].numpy(), expected["b"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(memory.pi.numpy(), weights, rtol=0, atol=1e-14)


@pytest.mark.parametrize("task", ["classification", "binary"])
def test_the_outputs_are_the_logarithm_of_the_mixture_of_probabilities(task):
    fed = doubles(task=task)
    model = network(fed)
    thetas, data = components(model, 2), fed.client(0).test
    pi = torch.tensor([0.25, 0.75], dtype=torch.float64)
    outputs = FedEMClient(FedEMConfig(2), model).predict(Weighted(thetas, pi), None, data.x)
    per_model = [torch.exp(-model.sample_losses(model(th, data.x), data.y)) for th in thetas]
    likelihood = 0.25 * per_model[0] + 0.75 * per_model[1]
    torch.testing.assert_close(model.sample_losses(outputs, data.y), -likelihood.log())


def test_the_mean_of_the_mixture_is_predicted_in_regression():
    fed = doubles(task="regression")
    model, x = network(fed, "linear"), fed.client(0).test.x
    thetas, pi = components(model, 2), torch.tensor([0.25, 0.75], dtype=torch.float64)
    got = FedEMClient(FedEMConfig(2), model).predict(Weighted(thetas, pi), None, x)
    torch.testing.assert_close(got, 0.25 * model(thetas[0], x) + 0.75 * model(thetas[1], x))


def negative_log_likelihood(strategy, cohort, fed, t):
    """-Σ_t Σ_i log Σ_m π_tm exp(-l_im), of the state after round t."""
    client, total = cohort.client, 0.0
    for k in range(fed.num_clients):
        data = fed.client(k).train
        memory = cohort.state(k, (t + 1, 0))
        outputs = client.predict(Weighted(strategy.state.thetas, memory.pi), memory, data.x)
        total += float(client.model.sample_losses(outputs, data.y).sum())
    return total


def test_the_em_objective_never_rises_under_small_full_batch_steps():
    fed = doubles()
    model, cfg = network(fed), FedEMConfig(3, LocalConfig(lr=0.05, batch_size=0))
    objective = []
    for rounds in range(1, 30, 3):
        strategy, cohort = simulated("fedem", cfg, fed, model, rounds, eval_every=0)
        objective.append(negative_log_likelihood(strategy, cohort, fed, rounds))
    assert all(b < a for a, b in itertools.pairwise(objective))


def test_two_groups_with_opposite_rules_choose_different_components():
    fed = doubles(num_clients=6, sizes=(60,), task="binary")
    cfg = FedEMConfig(2, LocalConfig(lr=0.5, epochs=2))
    _, cohort = simulated("fedem", cfg, fed, network(fed, "logistic"), 30, eval_every=0)
    favourite = [int(cohort.store.states[k].pi.argmax()) for k in range(6)]
    assert favourite in ([0, 1] * 3, [1, 0] * 3)


def test_it_costs_as_many_trainings_as_components():
    fed = doubles()
    strategy, _ = simulated("fedem", FedEMConfig(3), fed, network(fed))
    assert strategy.round_log.gradient_evals == 3 * int(fed.num_train.sum())


def test_runs_on_digits(tmp_path):
    assert smoke("fedem", tmp_path, "method.num_components=2")["rounds"] == 3
