"""Clients that never trained, under methods with several models on the server: they find their own way."""

import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.config import registry
from fedpers.learning.model import build_model
from fedpers.method import Plan
from fedpers.simulate import simulate
from tests.methods.helpers import config

FED = toy_federation(6, (9, 7, 12, 8, 10, 11), dtype=torch.float64)
MODEL = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
OPTIONS = {"ifca": {"S": 3}}


def trained(name, **options):
    """(strategy, client) after two rounds of clients 0 to 3; 4 and 5 are new."""
    row, cfg = registry.method(name), config(name, **OPTIONS[name], **options)
    strategy = row.strategy_class()(cfg, MODEL, Plan(seed=2, dtype="float64", new_clients=2))
    client = row.client_class()(cfg, MODEL)
    simulate(strategy, client, FED, 2)
    return strategy, client


def by_hand(strategy, k):
    """The loss of each sample of client k under each model: (training [S, n], testing [S, m])."""
    data, models = FED.client(k), strategy.models(strategy.state).values()
    losses = [
        [MODEL.sample_losses(MODEL(m, part.x), part.y) for m in models] for part in (data.train, data.test)
    ]
    return tuple(torch.stack(each).numpy() for each in losses)


def test_a_new_client_of_ifca_predicts_with_its_best_center():
    strategy, _ = trained("ifca")
    for k in (4, 5):
        train, test = by_hand(strategy, k)
        best = train.mean(1).argmin()
        assert strategy.client_metrics["new_loss"][k] == pytest.approx(test[best].mean(), rel=1e-9)
