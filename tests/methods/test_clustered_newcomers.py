"""Clients that never trained, under methods with several models on the server: they find their own way."""

import numpy as np
import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedem import Components, FedEMClient, FedEMConfig, ForNewcomer
from fedpers.config import registry
from fedpers.families.mixtures.em import STEPS
from fedpers.learning.model import build_model
from fedpers.method import Plan, Stream
from fedpers.simulate import simulate
from tests.methods.helpers import config

FED = toy_federation(6, (9, 7, 12, 8, 10, 11), dtype=torch.float64)
MODEL = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
OPTIONS = {"ifca": {"S": 3}, "fedsoft": {"S": 3, "K": 2}, "fedem": {"num_components": 3}}


def trained(name, *, plan=None, **options):
    """(strategy, client) after two rounds of clients 0 to 3; 4 and 5 are new."""
    row, cfg = registry.method(name), config(name, **OPTIONS[name], **options)
    strategy = row.strategy_class()(cfg, MODEL, Plan(seed=2, dtype="float64", new_clients=2, **(plan or {})))
    client = row.client_class()(cfg, MODEL)
    simulate(strategy, client, FED, 2)
    return strategy, client


def losses(strategy, k):
    """The loss of each sample of client k under each model: (training [S, n], testing [S, m])."""
    data, models = FED.client(k), strategy.models(strategy.state).values()
    found = [
        [MODEL.sample_losses(MODEL(m, part.x), part.y) for m in models] for part in (data.train, data.test)
    ]
    return tuple(torch.stack(each).numpy() for each in found)


def blended(strategy, k):
    """The mean test loss of client k under the centers' mean by the shares that are nearest."""
    shares = np.bincount(losses(strategy, k)[0].argmin(0), minlength=3) / len(FED.client(k).train)
    models = list(strategy.models(strategy.state).values())
    w = {n: sum(u * m[n] for u, m in zip(shares, models, strict=True)) for n in models[0]}
    test = FED.client(k).test
    return float(MODEL.sample_losses(MODEL(w, test.x), test.y).mean())


@pytest.mark.parametrize(("name", "predict"), [("ifca", None), ("fedsoft", "own"), ("fedsoft", "solved")])
def test_a_new_client_predicts_with_its_best_center(name, predict):
    strategy, _ = trained(name, **({"predict": predict} if predict else {}))
    for k in (4, 5):
        train, test = losses(strategy, k)
        votes = np.bincount(train.argmin(0), minlength=3)
        best = train.mean(1).argmin() if name == "ifca" else votes.argmax()
        assert strategy.client_metrics["new_loss"][k] == pytest.approx(test[best].mean(), rel=1e-9)


@pytest.mark.parametrize("predict", ["own", "center", "mix"])
def test_what_everybody_predicts_with_under_fedsoft(predict):
    strategy, _ = trained("fedsoft", predict=predict)
    for k in range(6):
        train, test = losses(strategy, k)
        center = test[np.bincount(train.argmin(0), minlength=3).argmax()].mean()
        got = strategy.client_metrics["new_loss" if k > 3 else "test_loss"][k]
        new_and_own = predict == "own" and k > 3
        assert (got == pytest.approx(center, rel=1e-9)) == (predict == "center" or new_and_own)
        assert (got == pytest.approx(blended(strategy, k), rel=1e-9)) == (predict == "mix")


@pytest.mark.parametrize("predict", ["mixture", "component"])
def test_a_new_clients_mixture_weights_are_where_em_ends(predict):
    strategy, _ = trained("fedem", predict=predict)
    for k in (4, 5):
        train, test = losses(strategy, k)
        likelihood, pi = np.exp(-train), np.full(3, 1 / 3)
        for _ in range(STEPS):
            joint = pi[:, None] * likelihood
            pi = (joint / joint.sum(0)).mean(1)
        assert np.log(pi @ likelihood).sum() > np.log(likelihood.mean(0)).sum()
        weights = np.eye(3)[pi.argmax()] if predict == "component" else pi
        expected = -np.log(weights @ np.exp(-test)).mean()
        assert strategy.client_metrics["new_loss"][k] == pytest.approx(expected, rel=1e-9)


def test_an_old_client_of_fedem_keeps_the_weights_it_has_learnt():
    client, data = FedEMClient(FedEMConfig(3), MODEL), FED.client(0).train
    thetas = tuple({n: v.double() for n, v in MODEL.init(s).items()} for s in range(3))
    state = client.initial_state(thetas[0], data, Stream(0, 0, 0))
    assert torch.equal(client.choose(Components(thetas), state, data).told, state.pi)
    assert not torch.equal(client.choose(ForNewcomer(thetas), state, data).told, state.pi)


def test_nobody_is_assessed_after_telling_its_importance():
    """Six clients estimate in round 1; those that train are assessed, with the model they trained."""
    strategy, _ = trained("fedsoft", plan={"eval_protocol": "participants_local", "eval_every": 1})
    took_part = strategy.round_log.extra["participants"]
    assert 2 <= took_part < 6
    assert int((strategy.client_metrics["test_num"] > 0).sum()) == took_part
