"""Heads of K_i rows for clients of K_i classes, and how heads start in every method that keeps one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.config.registry import METHODS
from fedpers.core.data import ClientData
from fedpers.core.errors import ConfigError
from fedpers.families.split_models.heads import ABSENT
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig, Plan, Stream
from fedpers.simulate import simulate
from tests.methods.helpers import config
from tests.oracles.pflego import pflego_round

CLASSES = (2, 4, 3, 2)  # K_i of the four clients
SIZES = (12, 7, 15, 9)
MODEL = build_model("mlp", input_shape=(5,), num_outputs=4, task="classification", hidden=[4])
FULL = LocalConfig(lr=0.2, steps=4, batch_size=0, momentum=0.9)
OPTIONS = {
    "pflego": {"tau": 5},
    "fedper": {"local": FULL},
    "fedrep": {"head": FULL, "body": FULL},
    "fedrecon": {"head": FULL, "body": FULL, "start": "kept"},
    "fedalt": {"v": FULL, "u": FULL},
    "fedsim": {"local": FULL, "ratio": 4.0},
}


def federation(dtype=torch.float32):
    """Clients that number their own classes from 0."""
    fed = toy_federation(num_clients=4, sizes=SIZES, dtype=dtype)

    def client(k):
        parts = fed.client(k)
        return ClientData(*(replace(p, y=torch.arange(len(p)) % CLASSES[k]) for p in
                            (parts.train, parts.valid, parts.test)))  # fmt: skip

    return replace(fed, client=client, num_classes=4)


FED = federation()


def run(name, fed=FED, model=MODEL, **options):
    """(strategy, {client: its head}) after two rounds with everybody."""
    row, cfg = METHODS[name], config(name, **{**OPTIONS[name], **options})
    strategy = row.strategy_class()(cfg, model, Plan(seed=2, eval_every=0))
    cohort = simulate(strategy, row.client_class()(cfg, model), fed, 2)
    return strategy, {k: heads_of(s) for k, s in cohort.store.states.items()}


def heads_of(state):
    return getattr(state, "head", None) or state.own


@pytest.mark.parametrize("name", OPTIONS)
def test_rows_of_other_classes_stay_and_nobody_predicts_such_a_class(name):
    strategy, heads = run(name, own_classes=True)
    for k, num in enumerate(CLASSES):
        weight, bias = heads[k]["head.weight"], heads[k]["head.bias"]
        assert not weight[num:].any()
        assert (bias[num:] == ABSENT).all()
        assert weight[:num].all()
        body = strategy.state.part
        logits = MODEL(body | heads[k], FED.client(k).test.x)
        assert not logits.softmax(1)[:, num:].any()
    _, wide = run(name, own_classes=False)
    assert all(h["head.weight"].all() for h in wide.values())


def test_a_masked_head_is_a_head_of_fewer_rows():
    """Three rounds of PFLEGO equal a restatement whose heads have K_i rows, in float64."""
    fed, own = federation(torch.float64), {"own_classes": True, "head_init": "uniform01"}
    cfg = config("pflego", tau=3, rho=0.2, server_optimizer="sgd", adapt_steps=0, **own)
    client = METHODS["pflego"].client_class()(cfg, MODEL)
    params = {k: v.double() for k, v in MODEL.init(2).items()}
    heads, data = [], []
    for k, num in enumerate(CLASSES):
        train = fed.client(k).train
        head = client.initial_state(params, train, Stream(2, 0, k)).head
        heads.append({"w": head["head.weight"][:num].numpy(), "b": head["head.bias"][:num].numpy()})
        data.append((train.x.numpy(), train.y.numpy()))
    body = {"w": params["dense1.weight"].numpy(), "b": params["dense1.bias"].numpy()}
    for _ in range(3):
        body, heads = pflego_round(body, heads, data, range(4), 3, 0.1, 0.2, True)
    strategy = METHODS["pflego"].strategy_class()(cfg, MODEL, Plan(seed=2, dtype="float64"))
    cohort = simulate(strategy, client, fed, 3)
    assert_near(strategy.state.part["dense1.weight"], body["w"])
    for k, num in enumerate(CLASSES):
        got = cohort.store.states[k].head
        assert_near(got["head.weight"][:num], heads[k]["w"])
        assert_near(got["head.bias"][:num], heads[k]["b"])
        assert (got["head.bias"][num:] == ABSENT).all()


def assert_near(got, want):
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", OPTIONS)
def test_head_init_means_the_same_in_every_method(name):
    """default and uniform01: one a client; common: one for all. Kept classes start as without the option."""
    client = lambda **o: METHODS[name].client_class()(config(name, **OPTIONS[name], **o), MODEL)  # noqa: E731
    params = MODEL.init(2)
    start = lambda k, **o: heads_of(client(**o).initial_state(params, FED.client(k).train, Stream(2, 0, k)))  # noqa: E731
    for how, alike in (("default", False), ("uniform01", False), ("common", True)):
        first, second = (start(k, head_init=how)["head.weight"] for k in (0, 1))
        assert torch.equal(first, second) == alike
        assert (float(first.min()) >= 0 and float(first.max()) < 1) == (how == "uniform01")
        cut = start(0, head_init=how, own_classes=True)["head.weight"]
        assert torch.equal(cut[:2], first[:2])


@pytest.mark.parametrize("name", ["pflego", "fedrecon", "fedper"])
def test_heads_of_own_classes_need_classes_and_a_bias(name):
    regression = toy_federation(task="regression")
    values = build_model("mlp", input_shape=(5,), num_outputs=1, task="regression", hidden=[4])
    without = build_model(
        "mlp", input_shape=(5,), num_outputs=4, task="classification", hidden=[4], bias=False
    )
    with pytest.raises(ConfigError, match="needs classes, and the task is regression"):
        run(name, fed=regression, model=values, own_classes=True)
    with pytest.raises(ConfigError, match=r"set model\.bias=true"):
        run(name, model=without, own_classes=True)


def test_a_personal_body_has_no_classes_to_cut():
    """The head is shared then: a setting without effect is refused."""
    with pytest.raises(ConfigError, match="needs a head that is each client's own; set it to false"):
        run("fedalt", own_classes=True, personal="body")
