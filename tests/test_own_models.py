"""Your own modules: the mode is right, randomness is the client's, BatchNorm's statistics too."""

import logging
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import fedpers
from fedpers.core.data import Data
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.rng import Stream
from fedpers.core.samples import Exact
from fedpers.datasets.federation import load_federation
from fedpers.learning.draws import drawing, own_draws, steps_of
from fedpers.learning.local_training import minimise
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig, Plan
from tests import own_nets

SHAPE = (1, 4, 4)


def module(name, **options):
    return build_model(
        "module",
        input_shape=SHAPE,
        num_outputs=3,
        task="classification",
        path=f"tests.own_nets:{name}",
        **options,
    )


def samples(n=9, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Exact(torch.randn(n, *SHAPE, generator=g), torch.arange(n) % 3, torch.ones(n))


def as_module(net, params, head="fc"):
    """The user's own module with these parameters."""
    names = {f"{head}.{k.partition('.')[2]}" if k.startswith("head.") else k.removeprefix("body."): v
             for k, v in params.items()}  # fmt: skip
    net.load_state_dict({k: v.clone() for k, v in names.items()}, strict=False)
    return net


def test_training_is_the_modules_own_in_training_mode():
    """Batches of 4, 4 and 1: of one sample BatchNorm takes the statistics of all."""
    model, data, cfg = module("CNN", head="fc"), samples(8), LocalConfig(lr=0.1, epochs=2, batch_size=4)
    start = model.init(3)
    rng = Stream(1, 2, 3)
    with model.network.turn(data, rng), torch.no_grad():
        found = minimise(model.loss, start, data, rng, cfg)

    net = as_module(own_nets.CNN(), start).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    again = Stream(1, 2, 3)
    index, _ = again.schedule(8, 4, 2, 0)
    with drawing([again]):
        own_draws(net)
        for rows in steps_of(iter(index)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
    wanted = as_module(own_nets.CNN(), found)
    for name, value in net.named_parameters():
        torch.testing.assert_close(dict(wanted.named_parameters())[name], value, atol=1e-5, rtol=1e-4)


def test_padding_is_no_sample_of_a_batch():
    rows = samples(5).take(torch.tensor([[0, 1, 2], [3, 4, 0]]), torch.tensor([[1.0, 1, 1], [1, 1, 0]]))
    assert [len(batch) for batch in rows] == [3, 2]


def test_predictions_are_in_evaluation_mode_with_the_clients_own_statistics():
    model, data = module("CNN", head="fc"), samples(9)
    params, x = model.init(0), samples(4, 1).x
    with torch.no_grad(), model.network.turn(data, Stream(0, 1, 0)):
        found = model(params, x)
        assert torch.equal(found, model(params, x))  # no Dropout
    net = as_module(own_nets.CNN(), params)
    net.bn.momentum = 1.0
    net.train()
    net.drop.eval()
    with torch.no_grad():
        net(data.x)  # one pass over the training samples: their mean and variance
        torch.testing.assert_close(found, net.eval()(x))
    alone = model(model.with_statistics(params, data.x), x)  # outside any client's turn, gradients allowed
    torch.testing.assert_close(alone.detach(), found)
    with pytest.raises(FedpersError, match="statistics are a client's own"):
        model(params, x)


def test_statistics_follow_parameters_that_are_changed_in_place():
    model, data = module("CNN", head="fc"), samples(9)
    params = model.init(0)
    with torch.no_grad(), model.network.turn(data, Stream(0, 1, 0)):
        before = model(params, data.x)
        params["body.conv.weight"].mul_(3)
        params["body.conv.bias"].mul_(3)
        # a convolution three times as large is normalised to the same, up to BatchNorm's epsilon
        torch.testing.assert_close(model(params, data.x), before, atol=1e-3, rtol=1e-3)


def train(model, rounds=2, seed=0, runner="auto", data=None, method="fedavg"):
    """The strategy and the clients' side after some rounds with three unequal clients."""
    from fedpers.config import registry
    from fedpers.engines.cohort import Cohort
    from fedpers.engines.inprocess_grid import InProcessGrid
    from fedpers.engines.memory.client_store import RamStore
    from fedpers.engines.runner import RunnerConfig

    g = torch.Generator().manual_seed(5)
    clients = [(torch.randn(n, *SHAPE, generator=g), torch.arange(n) % 3) for n in (7, 12, 20)]
    federation = data or fedpers.Federation.from_arrays(clients)
    row = registry.method(method)
    config = row.config_class()()
    strategy = row.strategy_class()(config, model, Plan(seed=seed, clients_per_round=2))
    client = row.client_class()(config, model)
    cohort = Cohort(client, federation, RamStore(), strategy.plan, RunnerConfig(runner=runner))
    strategy.start(InProcessGrid(cohort), num_rounds=rounds)
    return strategy, cohort


def reason(caplog):
    return [r.message for r in caplog.records if "one by one" in r.message]


def test_the_run_says_that_it_loops_and_why(caplog):
    caplog.set_level(logging.INFO, "fedpers")
    train(module("CNN"), rounds=1)
    assert reason(caplog) == [
        "clients run one by one: the model has BatchNorm, whose statistics are each client's own"
    ]
    caplog.clear()
    train(module("Plain"), rounds=1)
    assert all("number of samples no other has" in text for text in reason(caplog))  # the others are stacked
    train(module("Functional"), rounds=1)
    assert "random draws beside nn.Dropout" in reason(caplog)[-1]  # no layer tells of its Dropout


@pytest.mark.parametrize("name", ["CNN", "Functional"])
def test_a_seed_is_a_run(name):
    once, again, other = (train(module(name), seed=s)[0].state.params for s in (0, 0, 1))
    assert all(torch.equal(v, again[k]) for k, v in once.items())
    assert not all(torch.equal(v, other[k]) for k, v in once.items())
    torch.manual_seed(99)  # somebody's global generator is neither read nor moved
    before = torch.get_rng_state()
    third = train(module(name), seed=0)[0].state.params
    assert all(torch.equal(v, third[k]) for k, v in once.items())
    assert torch.equal(before, torch.get_rng_state())


def test_stack_and_loop_agree():
    stacked, looped = (train(module("Plain"), runner=r)[0].state.params for r in ("stack", "loop"))
    for name, value in stacked.items():
        torch.testing.assert_close(value, looped[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", ["pflego", "fedper", "fedem", "ifca", "ditto", "fedbabu"])
def test_methods_of_every_family_take_such_a_module(method):
    strategy, _ = train(module("CNN"), method=method, rounds=2)
    found = strategy.client_metrics
    assert np.isfinite(found["test_loss"]).all() and len(found["test_loss"]) == 3


def test_a_client_is_assessed_as_its_own_statistics_predict():
    strategy, cohort = train(module("CNN"))
    part = cohort.federation.client(2)
    with torch.no_grad():
        whole = cohort.client.model.with_statistics(strategy.state.params, part.train.x)
        outputs = cohort.client.model(whole, part.test.x)
    loss = nn.functional.cross_entropy(outputs, part.test.y)
    assert strategy.client_metrics["test_loss"][2] == pytest.approx(float(loss), rel=1e-5)


def test_the_head_starts_as_the_module_draws_it():
    model = module("CNN", head="fc")
    params = model.init(4)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        net = own_nets.CNN()
    assert torch.equal(params["head.weight"], net.fc.weight) and model.is_head("head.bias")
    assert torch.equal(params["body.conv.weight"], net.conv.weight)
    assert [k for k in params if model.is_norm(k)] == ["body.bn.weight", "body.bn.bias"]


def test_a_network_can_be_sent_to_another_process():
    model = module("CNN", kwargs={"width": 2})
    again = pickle.loads(pickle.dumps(model))
    data = samples(9)
    params = model.with_statistics(model.init(0), data.x)
    assert torch.equal(model(params, data.x), again(params, data.x))


@pytest.mark.parametrize(
    "name, options",
    [("lstm", {"hidden": 8, "layers": 1}), ("transformer", {"width": 8, "heads": 2, "layers": 1})],
)
def test_models_of_texts_learn(name, options):
    """Whether the last token is even."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, (90, 4))
    federation = fedpers.Federation.from_arrays(
        [(x[:40], x[:40, -1] % 2), (x[40:], x[40:, -1] % 2)], tokens=True
    )
    model = build_model(name, input_shape=(4,), num_outputs=2, task="classification", vocabulary=6, **options)
    start = model.init(0)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(x[:, -1] % 2)
    data = Data(x, y, torch.ones(90))
    cfg = LocalConfig(lr=0.02, epochs=15, batch_size=15, optimizer="adam")
    rng = Stream(0, 1, 0)
    with torch.no_grad(), model.network.turn(data, rng):
        before, found = model.loss(start, data), minimise(model.loss, start, data, rng, cfg)
        assert model.loss(found, data) < 0.3 * before
    strategy, _ = train(model, data=federation, rounds=1)
    assert np.isfinite(strategy.client_metrics["test_loss"]).all()


def test_torchvision_by_name():
    model = build_model(
        "resnet18", library="torchvision", input_shape=(3, 32, 32), num_outputs=5, task="classification"
    )
    assert model.num_features == 512 and "BatchNorm" in model.network.alone
    params = model.with_statistics(model.init(0), torch.rand(4, 3, 32, 32))
    assert model(params, torch.rand(2, 3, 32, 32)).shape == (2, 5)


def test_timm_by_name():
    pytest.importorskip("timm")
    model = build_model(
        "resnet10t", library="timm", input_shape=(1, 32, 32), num_outputs=5, task="classification"
    )
    params = model.init(0)
    assert params["head.weight"].shape[0] == 5 and model.is_head("head.weight")


def test_an_exported_model_predicts_as_its_client_does(tmp_path):
    from fedpers.app.export import personal_model
    from fedpers.app.run import execute
    from fedpers.config import compose

    g = np.random.default_rng(0)
    data = tmp_path / "data"
    data.mkdir()
    for name in "ab":
        np.savez(data / f"{name}.npz", x=g.normal(size=(20, *SHAPE)), y=np.arange(20) % 3)
    keys = ["data=files", f"data.path={data}", "model=module", "model.path=tests.own_nets:CNN"]
    keys += ["model.head=fc", "model.kwargs.width=2", "method=fedper", "rounds=2", "device=cpu"]
    cfg = compose.load(keys)
    assert cfg.model.options["kwargs"] == {"width": 2}
    execute(cfg, tmp_path / "run")
    path = personal_model(tmp_path / "run", 1).write(tmp_path)
    exported = fedpers.load_exported(path)
    part = load_federation(cfg.data, cfg.seed).client(1).test
    rows = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    row = dict(zip(rows[0].split(","), rows[-1].split(","), strict=True))
    assert row["partition_id"] == "1"
    loss = nn.functional.cross_entropy(exported(part.x), part.y)  # one call, nothing of the run
    assert float(row["loss"]) == pytest.approx(float(loss), rel=1e-4)


def test_a_library_that_imports_a_torchvision_of_another_build_works():
    made = build_model("module", input_shape=(16,), num_outputs=3, task="classification",
                       path="tests.own_nets:missing_operators")  # fmt: skip
    assert own_nets.missing_operators.asked == 2 and len(made.init(0)) == 4


def test_two_classes_need_one_output_and_the_message_says_so():
    shape = {"input_shape": (1, 4, 4), "num_outputs": 1, "task": "binary"}
    with pytest.raises(ConfigError, match=r"the data needs 1 \(a regression, or two classes that one output"):
        build_model("module", path="tests.own_nets:CNN", kwargs={"num_classes": 2}, **shape)
