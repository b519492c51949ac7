"""FedFomo: weights, combination, choice of models, the reduction to local training."""

import numpy as np
import pytest
import torch

import fedpers
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedfomo import ClientState, FedFomoClient, FedFomoConfig, keep_back, rows_kept
from fedpers.clients.local import LocalClient, LocalTrainingConfig
from fedpers.core.data import ClientData, Data
from fedpers.families.peers.messages import Candidates
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig, Plan, Stream
from fedpers.simulate import simulate
from fedpers.strategies.fedfomo import FedFomo
from fedpers.strategies.local import Local
from tests.oracles.fedfomo import fedfomo_client

FED = toy_federation(num_clients=6, sizes=(20, 15), dtype=torch.float64)
MODEL = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
PLAN = Plan(seed=2, dtype="float64")


def numbers(n):
    return Data(torch.arange(n).double()[:, None], torch.arange(n), torch.ones(n))


@pytest.mark.parametrize(("n", "fraction", "kept"), [(20, 0.2, 4), (21, 0.2, 4), (3, 0.2, 1), (10, 0.5, 5)])
def test_the_kept_samples_are_those_that_are_not_trained_on(n, fraction, kept):
    fit, back = keep_back(numbers(n), fraction)
    assert len(back) == kept and sorted([*fit.y.tolist(), *back.y.tolist()]) == list(range(n))


def as_numpy(phi):
    return {"w": phi["head.weight"].numpy(), "b": phi["head.bias"].numpy()}


def model(seed, scale=1.0):
    return {k: scale * v.double() for k, v in MODEL.init(seed).items()}


@pytest.mark.parametrize("others", [(3, 4, 5), ()])
def test_a_client_equals_the_numpy_restatement(others):
    local = LocalConfig(lr=0.3, batch_size=0)
    client = FedFomoClient(FedFomoConfig(local=local), MODEL)
    data = FED.client(0).train
    order = Candidates(tuple(model(s, 3.0) for s in others), 6)
    reply, memory = client.answer(order, ClientState(model(1), model(2)), data, Stream(0, 1, 0))
    fit, back = keep_back(data, 0.2)
    mixed, trained, w = fedfomo_client(
        as_numpy(model(1)),
        as_numpy(model(2)),
        [as_numpy(m) for m in order.models],
        (back.x.numpy(), back.y.numpy()),
        (fit.x.numpy(), fit.y.numpy()),
        0.3,
    )
    assert len(set(w)) > 1 or not others  # the case tells the models apart
    np.testing.assert_allclose(reply.w, np.pad(w, (0, 5 - len(others))), atol=1e-12)
    for part in mixed:
        np.testing.assert_allclose(as_numpy(memory.before)[part], mixed[part], atol=1e-12)
        np.testing.assert_allclose(as_numpy(reply.phi)[part], trained[part], atol=1e-12)


def test_a_client_goes_on_from_its_own_model_if_none_is_better():
    good = model(1)
    data = FED.client(0).train
    for _ in range(300):
        leaf = {k: v.requires_grad_() for k, v in good.items()}
        g = torch.autograd.grad(MODEL.loss(leaf, data), list(leaf.values()))
        good = {k: (v - 0.5 * d).detach() for (k, v), d in zip(leaf.items(), g, strict=True)}
    worse = {k: -v for k, v in good.items()}
    client = FedFomoClient(FedFomoConfig(local=LocalConfig(lr=0.0)), MODEL)
    order = Candidates((worse,), 6)
    reply, _ = client.answer(order, ClientState(good, worse), data, Stream(0, 1, 0))
    assert reply.w.tolist() == [1, 0, 0, 0, 0, 0]
    assert all(torch.equal(v, worse[k]) for k, v in reply.phi.items())


def test_without_neighbours_it_is_local_training_on_the_rest_of_the_samples():
    local = LocalConfig(lr=0.1, epochs=2, batch_size=4)
    cfg, own = FedFomoConfig(num_neighbours=0, local=local), LocalTrainingConfig(local)
    cohort = simulate(FedFomo(cfg, MODEL, PLAN), FedFomoClient(cfg, MODEL), FED, 5)
    parts = [FED.client(k) for k in range(6)]
    rest = [ClientData(keep_back(p.train, 0.2)[0], p.valid, p.test) for p in parts]
    fewer = toy_federation(num_clients=6, sizes=(16, 12), dtype=torch.float64)
    object.__setattr__(fewer, "client", rest.__getitem__)
    other = simulate(Local(own, MODEL, PLAN), LocalClient(own, MODEL), fewer, 5)
    for k, memory in other.store.states.items():
        for name, v in memory.params.items():
            torch.testing.assert_close(cohort.store.states[k].phi[name], v, rtol=0, atol=1e-13)


def test_clients_receive_the_models_that_helped_them_most():
    cfg = FedFomoConfig(num_neighbours=2, epsilon=0.0)
    strategy = FedFomo(cfg, MODEL, PLAN)
    simulate(strategy, FedFomoClient(cfg, MODEL), FED, 8)
    s, rng = strategy.state, np.random.default_rng(0)
    assert torch.allclose(s.w.sum(1), torch.ones(6).double())
    assert torch.allclose(s.affinity.sum(1), torch.full((6,), 8.0).double())
    own = np.mean([s.w[i, i].item() for i in range(6)])
    assert strategy.round_log.extra["own_weight"] == pytest.approx(own, rel=1e-12) and 0 < own < 1
    for i, (who, *chosen) in enumerate(strategy._choose(s, list(range(6)), rng)):
        others = s.affinity[i].clone()
        others[i] = -1
        assert set(others[chosen].tolist()) == set(others.topk(2).values.tolist()) and i == who not in chosen


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2, 30)])
def test_a_single_sample_is_trained_and_validated_on(sizes, tmp_path):
    assert [rows.tolist() for rows in rows_kept(1, 0.2)] == [[0], [0]]
    assert all(len(fit) and len(kept) for fit, kept in (rows_kept(n, 0.9) for n in range(1, 40)))
    rng = np.random.default_rng(0)

    def split(n):
        return rng.normal(size=(n, 4)), rng.integers(0, 3, n)

    data = {f"c{i}": {"train": split(n), "test": split(3)} for i, n in enumerate(sizes)}
    federation, model = fedpers.Federation.from_arrays(data), {"name": "mlp", "hidden": [8]}
    run = fedpers.run("fedfomo", data=federation, rounds=2, out=str(tmp_path / "run"), model=model)
    assert np.isfinite(run.summaries[0]["final"]["loss"])
