"""model=groups: unlike models in one federation against restatements; everybody else refuses them."""

import json
import re

import numpy as np
import pytest
import torch

from fedpers.app.backends import cohort_of
from fedpers.app.build import assemble
from fedpers.app.export import model_of
from fedpers.app.run import execute
from fedpers.config import compose
from fedpers.config.model_config import ModelConfig
from fedpers.config.registry import METHODS
from fedpers.core.errors import ConfigError
from fedpers.core.params import split
from fedpers.core.rng import server_rng
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.row_store import RowStore
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.model import build_model
from fedpers.method import Roster
from tests.methods.helpers import chosen, doubles
from tests.oracles.unlike import features, fedmd_round, fedproto_round, fedtgp_round, lgfedavg_round

GROUPS = "model.groups=[{name: mlp, hidden: [4]}, {name: mlp, hidden: [5, 3, 4]}]"
PLACES = [0, 1, 1, 0, 1, 1]
FED = doubles(classes=5)
COMMON = ["model=groups", GROUPS, f"model.clients={PLACES}", "dtype=float64", "data.num_clients=6"]


def pairs(params):
    """[(weight, bias)] of layers, in order."""
    values = list(params.values())
    return list(zip(values[::2], values[1::2], strict=True))


def started(seed):
    """[(hidden layers, head)] of the six clients, as built alone."""
    found = []
    for hidden in ([4], [5, 3, 4]):
        model = build_model("mlp", hidden=hidden, input_shape=FED.input_shape, num_outputs=5, task=FED.task)
        params = {k: v.double() for k, v in model.init(seed).items()}
        head, body = split(params, model.is_head)
        found.append((pairs(body), pairs(head)[0]))
    return [found[place] for place in PLACES]


def simulated(method, runner, *more):
    """(server, cohort, rounds' clients) after four rounds, three clients a round."""
    cfg = compose.load([*COMMON, f"method={method}", "rounds=4", "clients_per_round=3", "seed=1", *more])
    parts = assemble(cfg, FED, unlike=True)
    cohort = cohort_of(parts, RowStore(), runner)
    parts.strategy.start(InProcessGrid(cohort), num_rounds=4)
    cohort.close()
    return parts.strategy, cohort, [chosen(parts.strategy, t) for t in range(1, 5)]


def data():
    parts = [FED.client(k).train for k in range(6)]
    return [(p.x.flatten(1), p.y) for p in parts]


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


RUNNERS = [RunnerConfig("loop"), RunnerConfig("stack"), RunnerConfig(workers=2), RunnerConfig(workers=3)]
LOCAL = ["method.local.lr=0.3", "method.local.epochs=2", "method.local.batch_size=0"]


@pytest.mark.parametrize("runner", RUNNERS, ids=["loop", "stack", "2 workers", "3 workers"])
def test_fedproto_on_unlike_models_equals_a_restatement(runner):
    server, cohort, rounds = simulated("fedproto", runner, *LOCAL, "method.lam=0.7")
    models, prototypes = started(1), {}
    for now in rounds:
        models, prototypes = fedproto_round(models, prototypes, data(), now, 0.3, 2, 0.7)
    assert {PLACES[k] for now in rounds for k in now} == {0, 1}
    for label, vector in prototypes.items():
        torch.testing.assert_close(server.state.C[label], vector, rtol=0, atol=1e-11)
    for k in range(6):
        params = cohort.cohorts[PLACES[k]].client.personal(None, cohort.state(k, (4, 1)))
        layers, head = models[k]
        close(params.values(), [t for pair in [*layers, head] for t in pair])
        test = FED.client(k).test
        outputs = features(layers, test.x.flatten(1)) @ head[0].T + head[1]
        loss = torch.nn.functional.cross_entropy(outputs, test.y)
        assert server.client_metrics["test_loss"][k] == pytest.approx(float(loss), rel=1e-9)


@pytest.mark.parametrize("runner", RUNNERS[:2], ids=["loop", "stack"])
def test_fedtgp_on_unlike_models_equals_a_restatement(runner):
    trained = ["method.tau=0.5", "method.server_lr=0.05", "method.server_epochs=3", "method.server_batch=4"]
    server, cohort, rounds = simulated("fedtgp", runner, *LOCAL, *trained, "method.lam=0.7")
    first = server.init(Roster((), torch.zeros(0), {}), server.state.maker, np.random.default_rng([1, 0, 0]))
    names = ("vectors", "inner.weight", "inner.bias", "outer.weight", "outer.bias")
    models, prototypes, p = started(1), {}, [first.maker[name] for name in names]
    for t, now in enumerate(rounds, 1):
        rng = server_rng(1, t)
        assert server.sample(rng) == now
        settings = (0.3, 2, 0.7, (0.5, 0.05, 3, 4), rng)
        models, p, prototypes = fedtgp_round(models, p, prototypes, data(), now, *settings)
    close([server.state.maker[name] for name in names], p)
    for k in range(6):
        params = cohort.cohorts[PLACES[k]].client.personal(None, cohort.state(k, (4, 1)))
        close(params.values(), [t for pair in [*models[k][0], models[k][1]] for t in pair])


@pytest.mark.parametrize("runner", RUNNERS[:3], ids=["loop", "stack", "2 workers"])
def test_fedmd_on_unlike_models_equals_a_restatement(runner):
    small = ["method.subset=5", "method.start_epochs=1"]
    digest = [word.replace("local", "digest") for word in LOCAL]
    server, cohort, rounds = simulated("fedmd", runner, *LOCAL, *digest, *small)
    models, begun, public = started(1), set(), (FED.public.x, FED.public.y)
    for t, now in enumerate(rounds, 1):
        rng = server_rng(1, t)
        assert server.sample(rng) == now
        d = rng.choice(len(public[1]), 5, replace=False)
        models, f = fedmd_round(models, begun, public, d, data(), now, 0.3, 2, 1)
        begun |= set(now)
    torch.testing.assert_close(server.state.consensus, f, rtol=0, atol=1e-11)
    for k in range(6):
        params = cohort.cohorts[PLACES[k]].client.personal(None, cohort.state(k, (4, 2)))
        close(params.values(), [t for pair in [*models[k][0], models[k][1]] for t in pair])


def test_a_shared_head_on_unlike_bodies_equals_a_restatement():
    server, cohort, rounds = simulated("lgfedavg", RunnerConfig(), *LOCAL)
    bodies, heads = zip(*started(1), strict=True)
    bodies, head = list(bodies), heads[0]
    for now in rounds:
        bodies, head = lgfedavg_round(bodies, head, data(), now, 0.3, 2)
    close(server.state.part.values(), head)
    for k in range(6):
        close(cohort.state(k, (4, 1)).own.values(), [t for pair in bodies[k] for t in pair])


def test_who_has_which_model():
    two = {"groups": [{"name": "mlp"}, {"name": "lenet"}]}
    assert ModelConfig("groups", two).places(5) == [0, 1, 0, 1, 0]
    assert ModelConfig("groups", two | {"shares": [3, 1]}).places(8) == [0] * 6 + [1] * 2
    assert ModelConfig("groups", two | {"clients": [1, 1, 0]}).places(3) == [1, 1, 0]
    assert ModelConfig("mlp").places(3) == [0, 0, 0]
    with pytest.raises(ConfigError, match="of 3 clients, and there are 4; give one number a client"):
        ModelConfig("groups", two | {"clients": [1, 1, 0]}).places(4)
    with pytest.raises(ConfigError, match="no client of 5 would have the model at place 1"):
        ModelConfig("groups", two | {"shares": [100, 1]}).places(5)


@pytest.mark.parametrize("method", sorted(n for n, m in METHODS.items() if m.common == "all"))
def test_methods_that_need_one_architecture_say_so(method):
    needs = ["method.private=[dense1.*]"] if method == "fedbn" else []
    cfg = compose.load([*COMMON, f"method={method}", *needs])
    with pytest.raises(ConfigError, match=f"method={method}: the method needs one architecture.*fedproto"):
        assemble(cfg, FED, unlike=True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["model.groups=[{name: mlp}]"], "expected a list of two models or more"),
        (["model.groups=[{name: mlp}, {hidden: [3]}]"], "it has no name of a model"),
        (["model.groups=[{name: mlp}, 3]"], "expected a model, as {name: mlp, hidden: [64]}"),
        (["model.groups=[{name: mlp}, {name: groups}]"], "expected a model, as {name: mlp, hidden: [64]}"),
        (["model.groups=[{name: mlp}, {name: nlp}]"], "model 'nlp' is unknown; did you mean 'mlp'"),
        (["model.groups=[{name: mlp}, {name: mlp, hiden: [3]}]"], "model.groups[1].hiden"),
        (["model.shares=[1]"], "expected a number above 0 for each of 2 models"),
        (["model.shares=[1, 0]"], "expected a number above 0 for each of 2 models"),
        (["model.clients=[0, 2]"], "expected places in model.groups, 0 to 1"),
        (["model.clients=[0, 1]", "model.shares=[1, 1]"], "both say which client has which model"),
        (["engine=ray"], "engine=ray supposes that all clients have one model"),
        (["engine=deployment"], "engine=deployment supposes that all clients have one model"),
        (["systems=drawn"], "systems=drawn supposes that all clients have one model"),
        (["optimum=true"], "optimum=true supposes that all clients have one model"),
    ],
)
def test_what_groups_cannot_be(words, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        compose.load(["model=groups", "method=fedproto", *words])


def test_models_must_have_what_the_method_shares():
    wide = "model.groups=[{name: mlp, hidden: [4]}, {name: mlp, hidden: [5]}]"
    bias = "model.groups=[{name: mlp, hidden: [4]}, {name: mlp, hidden: [3, 4], bias: false}]"
    for words, text in (
        (["method=fedproto", wide], "one width of the features.* and these have mlp: 4, mlp: 5"),
        (["method=lgfedavg", wide], "one width of the features"),
        (["method=lgfedavg", bias], "needs models of one bias, and these have mlp: True, mlp: False"),
        (["method=lgfedavg", "method.personal=head"], "unlike models share a head at most"),
    ):
        with pytest.raises(ConfigError, match=text):
            assemble(compose.load([*COMMON, *words]), FED, unlike=True)
    assemble(compose.load([*COMMON, "method=local", wide]), FED, unlike=True)
    assemble(compose.load([*COMMON, "method=fedproto", bias]), FED, unlike=True)


def test_who_does_not_know_of_groups_refuses_them():
    with pytest.raises(ConfigError, match="only engine=inprocess gives clients unlike models"):
        assemble(compose.load([*COMMON, "method=fedproto"]), FED)


def test_a_run_is_resumed_reported_and_exported(tmp_path):
    words = ["method=fedproto", "model=groups", "data.num_clients=5", "new_clients=1", "checkpoint_every=1"]
    words.append("model.groups=[{name: logistic}, {name: mlp, hidden: [64]}]")
    whole = execute(compose.load([*words, "rounds=3"]), tmp_path / "whole")
    assert [(m["model"], m["clients"]) for m in whole["models"]] == [("logistic", 3), ("mlp", 2)]
    assert whole["models"][0]["entries"] == 650 and "gflops" not in whole
    execute(compose.load([*words, "rounds=2"]), tmp_path / "half")
    rest = execute(compose.load([*words, "rounds=3", f"resume={tmp_path / 'half'}"]), tmp_path / "half")
    assert rest["final"] == whole["final"]
    for client, name in ((0, "logistic"), (1, "mlp")):
        model = model_of(tmp_path / "whole", client=client)
        assert model.about["model"] == name and model.model.name == name
        assert len(model.tensors if hasattr(model, "tensors") else model.content) == (2 if client == 0 else 4)
    with pytest.raises(ConfigError, match="has no shared model to export, because each client has its own"):
        model_of(tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "summary.json").read_text())["model"] == "groups"
    assert np.isfinite(whole["final"]["loss"])
