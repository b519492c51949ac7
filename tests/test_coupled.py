"""Steps in C with gradients taken elsewhere, for Per-FedAvg and APFL: the numbers of autograd."""

from dataclasses import replace

import pytest
import torch

from fedpers.checks.case import close
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.lsgd import APFLConfig, LSGDClient
from fedpers.clients.perfedavg import PerFedAvgClient, PerFedAvgConfig
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import ReplyError
from fedpers.core.params import add
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.unified.composed import FRSettings, beside_step
from fedpers.families.unified.mixture import APFL2Settings, Mixture, MT2Settings, Term
from fedpers.families.unified.objective import Settings
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.plan import GRADIENT
from fedpers.learning.kernels.programs import plain_parts
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig, Plan
from fedpers.strategies.lsgd import LSGD
from fedpers.strategies.perfedavg import PerFedAvg
from tests.test_small_convolutions import SMALL

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")

FED = toy_federation(num_clients=6, sizes=(12, 9, 15))
PLAN = Plan(seed=3, clients_per_round=4, eval_every=0)
SGD = LocalConfig(lr=0.1, epochs=2, batch_size=4)
SHAPES = {"logistic": {}, "mlp": {"hidden": [7, 6]}}


def model(name, task="classification"):
    outputs = 3 if task == "classification" else 1
    return build_model(name, input_shape=(5,), num_outputs=outputs, task=task, **SHAPES[name])


def images():
    """The same clients with pixels instead of features."""

    def client(k):
        parts = FED.client(k)
        rng = torch.Generator().manual_seed(k)
        made = [replace(p, x=torch.randn(len(p), 2, 6, 5, generator=rng)) for p in
                (parts.train, parts.valid, parts.test)]  # fmt: skip
        return ClientData(*made)

    return replace(FED, client=client, input_shape=(2, 6, 5))


class Sum(Mixture):
    """f'(w + β_m/2), the residual model of two blocks of one kind."""

    settings = Settings
    terms = (Term(1, 1, 0.5),)

    def start(self, params):
        return params, params

    def personal(self, w, beta):
        return beta


@pytest.fixture
def calls(monkeypatch):
    """The clients of each call of the C runner, plain gradients aside."""
    found, train = [], native.train

    def counted(plan, *args, **options):
        if plan.program != GRADIENT:
            found.append(len(args[1]))
        return train(plan, *args, **options)

    monkeypatch.setattr(native, "train", counted)
    return found


def both(run):
    """What `run` gives with the kernels and without them."""
    fast = run()
    with autograd_only():
        return fast, run()


def rounds(strategy, client, fed, runner):
    """Three rounds of four clients; returns the clients' side."""
    cohort = Cohort(client, fed, RamStore(), PLAN, RunnerConfig(runner))
    strategy.start(InProcessGrid(cohort), num_rounds=3)
    return cohort


def perfedavg(network, fed=FED, runner="stack", **options):
    cfg = PerFedAvgConfig(alpha=0.4, local=replace(SGD, **options))
    strategy = PerFedAvg(cfg, network, PLAN)
    rounds(strategy, PerFedAvgClient(cfg, network), fed, runner)
    return strategy.state.params


def apfl(network, fed=FED, runner="stack", **options):
    cfg = APFLConfig(**{"tau": 4, "batch_size": 3, "eta": 0.1, **options})
    strategy = LSGD(cfg, network, PLAN)
    cohort = rounds(strategy, LSGDClient(cfg, network), fed, runner)
    return strategy.state.w, [s.y for s in cohort.store.states.values()]


@pytest.mark.parametrize("runner", ["stack", "loop"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("method", [perfedavg, apfl])
def test_rounds_are_autograds(method, name, runner, calls):
    fast, slow = both(lambda: method(model(name), runner=runner))
    assert len(calls) == (3 * 4 if runner == "loop" else 3 * 2)  # a call a client, or a stack of like sizes
    assert close(fast, slow, 2e-5)


def test_small_convolutions_look_ahead_too(calls):
    fast, slow = both(lambda: perfedavg(replace(SMALL, num_outputs=3), images(), lr=0.02))
    assert calls
    assert close(fast, slow, 2e-5)


@pytest.mark.parametrize(
    "options", [{"momentum": 0.5}, {"weight_decay": 0.1}, {"optimizer": "adam", "lr": 0.01}]
)
def test_other_optimisers_look_ahead_by_autograd(options, calls):
    fast, slow = both(lambda: perfedavg(model("mlp"), **options))
    assert not calls
    assert close(fast, slow, 2e-5)


@pytest.mark.parametrize(
    "objective",
    [
        APFL2Settings(reparametrise=False, alpha=0.0, Lambda=2.0),  # w and β_m apart
        APFL2Settings(reparametrise=False, alpha=0.7, Lambda=0.0),
        Settings(name=f"{__name__}:Sum", mu=0.1),
    ],
)
def test_any_mixture_of_two_models(objective, calls):
    fast, slow = both(lambda: apfl(model("mlp"), objective=objective, w_scale="mean"))
    assert calls
    assert close(fast, slow, 2e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"objective": MT2Settings(reparametrise=False)},  # a pull between the two
        {"objective": APFL2Settings(reparametrise=True)},
        {"objective": APFL2Settings(reparametrise=False, l2=0.1)},
        {"decreasing": True, "objective": APFL2Settings(reparametrise=False, mu=0.1)},
        {"batch_size": 0},
    ],
)
def test_what_no_kernel_has_is_autograds(options, calls):
    fast, slow = both(lambda: apfl(model("mlp"), **options))
    assert not calls
    assert close(fast, slow, 2e-5)


@pytest.mark.parametrize("runner", ["stack", "loop"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("scaled", [True, False])
def test_sums_of_two_models_outputs(scaled, name, runner, calls):
    objective = FRSettings(reparametrise=scaled)
    fast, slow = both(lambda: apfl(model(name), runner=runner, objective=objective, w_scale="mean"))
    assert calls
    assert close(fast, slow, 2e-5)


def summed_by_hand(network, w, v, data, index, weight, sizes):
    """Both models after steps on the loss of the sum of their outputs, in float64."""
    both = [{k: t.double() for k, t in model.items()} for model in (w, v)]
    for rows, share in zip(index, weight, strict=True):
        x, y, share = data.x[rows].double(), data.y[rows], share.double()

        def loss(w, v, x=x, y=y, share=share):
            return (network.sample_losses(network(w, x) + network(v, x), y) * share).sum() / share.sum()

        slopes = torch.func.grad(loss, (0, 1))(*both)
        both = [add(model, g, -size) for model, g, size in zip(both, slopes, sizes, strict=True)]
    return both


@pytest.mark.parametrize("name", SHAPES)
def test_sums_are_those_by_hand(name):
    """Padded batches, samples that count differently, unequal clients."""
    network, rng, sizes = model(name), torch.Generator().manual_seed(1), (0.3, 0.1)
    parts = [
        Data(torch.randn(n, 5, generator=rng), torch.randint(3, (n,), generator=rng), torch.ones(n))
        for n in (6, 9)
    ]
    w, v = (
        {k: torch.stack([network.init(s + c)[k] for c in (0, 1)]) for k in network.init(0)} for s in (1, 4)
    )
    index = torch.stack([torch.randint(len(p), (4, 5), generator=rng) for p in parts])
    weight = torch.tensor([[1.0, 0.0, 2.0, 1.0, 0.0], [1.0, 1.0, 3.0, 0.0, 0.0]])[:, None].repeat(1, 4, 1)
    weight[:, 2] = 1.0
    with torch.no_grad():
        plan, start = plain_parts(network.loss, {k: t[0] for k, t in w.items()}, parts)
        plan = replace(plan, program=beside_step(*sizes), wanted=("w", "β"))
        done = native.train(plan, replace(start, vectors={"w": w, "β": v}), parts, index, weight)
        found = done.vectors["w"], done.vectors["β"]
    for c, data in enumerate(parts):
        first, second = ({k: t[c] for k, t in m.items()} for m in (w, v))
        expected = summed_by_hand(network, first, second, data, index[c], weight[c], sizes)
        assert close([{k: t[c].double() for k, t in m.items()} for m in found], expected, 2e-6)


@pytest.mark.parametrize("options", [{"l2": 0.1}, {"shared_features": 3}, {"private_features": 2}])
def test_sums_that_no_kernel_has(options, calls):
    fast, slow = both(lambda: apfl(model("mlp"), objective=FRSettings(**options)))
    assert not calls
    assert close(fast, slow, 2e-5)


def test_a_label_that_is_no_class_is_named():
    with pytest.raises(ReplyError, match="a label is no class"):
        apfl(build_model("mlp", input_shape=(5,), num_outputs=2, task="classification", hidden=[4]))
