"""L2SGD+'s local steps in one call: the numbers of its steps one by one."""

from dataclasses import replace

import pytest
import torch

from fedpers.checks.case import close
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.l2sgd import L2SGDClient, L2SGDConfig
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import ReplyError
from fedpers.core.pytree import tree_map
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.unified.saga import saga_steps
from fedpers.learning.gradients import model_gradient
from fedpers.learning.kernels import native, recurrent
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.model import build_model
from fedpers.learning.sample_gradients import sample_gradients
from fedpers.method import Plan
from fedpers.strategies.l2sgd import L2SGD

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")

SIZES = (12, 9, 15)  # so that 20 steps draw samples again
NETWORKS = {
    "logistic": ("logistic", {}),
    "mlp": ("mlp", {"hidden": [7, 6]}),
    "without bias": ("mlp", {"hidden": [7, 6], "bias": False}),
    "wide": ("mlp", {"hidden": [70]}),  # other numbers of steps that are made at once
}
OUTPUTS = {"classification": 3, "binary": 1, "regression": 2}


def model(name="mlp", task="classification", inputs=5):
    kind, options = NETWORKS[name]
    return build_model(kind, input_shape=(inputs,), num_outputs=OUTPUTS[task], task=task, **options)


def federation(task="classification", dtype=torch.float32):
    fed = toy_federation(num_clients=4, sizes=SIZES, task=task, dtype=dtype)
    return fed if task != "regression" else replace(fed, client=lambda k: two_targets(fed.client(k)))


def two_targets(client):
    parts = (client.train, client.valid, client.test)
    return ClientData(*(replace(p, y=torch.stack([p.y, 1 - p.y], 1).to(p.x)) for p in parts))


@pytest.fixture
def calls(monkeypatch):
    """The numbers of steps that each call of the C function makes."""
    found, call = [], recurrent._call
    monkeypatch.setattr(recurrent, "_call", lambda *args: found.append(args[5].shape[1]) or call(*args))
    return found


def run(network, runner="stack", task="classification", dtype="float32", **options):
    """The clients' states after some rounds."""
    cfg = L2SGDConfig(**{"p": 0.05, "eta": 0.4, **options})
    plan = Plan(seed=3, eval_every=0, dtype=dtype)
    fed = federation(task, getattr(torch, dtype))
    cohort = Cohort(L2SGDClient(cfg, network), fed, RamStore(), plan, RunnerConfig(runner))
    L2SGD(cfg, network, plan).start(InProcessGrid(cohort), num_rounds=3)
    return [cohort.store.states[k] for k in sorted(cohort.store.states)]


@pytest.mark.parametrize("runner", ["stack", "loop"])
@pytest.mark.parametrize("name", NETWORKS)
def test_rounds_are_those_of_steps_one_by_one(name, runner, calls):
    fast, exact = run(model(name), runner), run(model(name), runner, dtype="float64")
    assert max(calls) > 16 and min(calls) > 0  # the averaging step makes none
    assert all(v.any() for state in fast for v in state.psi.values())  # there was one
    assert close(fast, tree_map(lambda t: t.float(), exact), 2e-5)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_other_tasks(task, calls):
    network = model(task=task)
    fast = run(network, task=task, eta=0.1)
    assert calls
    with autograd_only():
        assert close(fast, run(network, task=task, eta=0.1), 1e-5)


def by_hand(network, rate, p, models, data, rows):
    """x, the mean of J, and J, after steps [C2] and [C3] with whole gradients, in float64."""
    x, mean, psi = models
    J = [{k: torch.zeros_like(v) for k, v in x.items()}] * len(data)
    for j in rows:
        g = model_gradient(network, x, Data(data.x[j : j + 1], data.y[j : j + 1], torch.ones(1).double()))
        x = {k: x[k] - rate * ((g[k] - J[j][k]) / (1 - p) + mean[k] + psi[k]) for k in x}
        mean = {k: mean[k] + (g[k] - J[j][k]) / len(data) for k in x}
        J[j] = g
    return x, mean, J


@pytest.mark.parametrize("steps", [1, 5, 16, 40, 131])
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_steps_are_those_by_hand(name, steps):
    """One sample is drawn again and again; the table of the first half is what the second goes on from."""
    rng, network = torch.Generator().manual_seed(steps), model(name, inputs=16)
    data = Data(torch.randn(6, 16, generator=rng), torch.randint(3, (6,), generator=rng), torch.ones(6))
    rows = torch.randint(4, (2 * steps,), generator=rng)  # two samples are never drawn
    x, mean, psi = (network.init(k) for k in range(3))
    J = {k: torch.zeros_like(v) for k, v in sample_gradients(network).zeros(x, 6).items()}
    found = x, mean, J
    for half in rows.split(steps):
        draw = lambda half=half: (half[:, None], torch.ones(steps, 1))  # noqa: E731
        found = saga_steps(sample_gradients(network), (0.01, 0.3), (*found[:2], psi), found[2], data, draw)
    exact = [tree_map(lambda t: t.double(), w) for w in (x, mean, psi)]
    wide = Data(data.x.double(), data.y, data.mask.double())
    want_x, want_mean, want_J = by_hand(network, 0.01, 0.3, exact, wide, rows.tolist())
    assert close([{k: v.double() for k, v in w.items()} for w in found[:2]], [want_x, want_mean], 2e-6)
    layers = sample_gradients(network).layers
    for j, whole in enumerate(want_J):
        h = data.x[j] if len(layers) == 1 else found[2][f"{layers[-1]}.h"][j]
        assert close(found[2][f"{layers[-1]}.d"][j].outer(h).double(), whole[f"{layers[-1]}.weight"], 5e-6)
    assert all(not v.any() for v in J.values())  # the table that was given stays


def test_nothing_is_drawn_without_a_kernel():
    network = model()
    w = network.init(1)
    J = sample_gradients(network).zeros(w, 6)
    data = Data(torch.randn(6, 5), torch.zeros(6, dtype=torch.int64), torch.ones(6))
    with autograd_only():
        assert saga_steps(sample_gradients(network), (0.05, 0.3), (w, w, w), J, data, pytest.fail) is None


def test_a_label_that_is_no_class_is_named():
    with pytest.raises(ReplyError, match="a label is no class"):
        run(replace(model(), num_outputs=2))
