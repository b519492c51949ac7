"""Iterations of the unified framework's methods in one call: the numbers of autograd, one by one."""

from dataclasses import replace

import pytest
import torch

from fedpers.checks.case import close
from fedpers.checks.toy_data import toy_federation
from fedpers.config.registry import method
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import ReplyError
from fedpers.core.params import add, scale
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.unified.composed import WS2Settings
from fedpers.families.unified.linear import combination, repeated
from fedpers.families.unified.messages import Block
from fedpers.families.unified.mixture import APFL2Settings, MT2Settings, MX2Settings
from fedpers.families.unified.objective import Settings
from fedpers.learning.gradients import model_gradient
from fedpers.learning.kernels import native, recurrent
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.programs import plain_parts
from fedpers.learning.kernels.recurrent import Recurrence
from fedpers.learning.model import build_model
from fedpers.method import Plan
from tests.test_coupled import images
from tests.test_small_convolutions import SMALL

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")

FED = toy_federation(num_clients=6, sizes=(12, 9, 15))
SHAPES = {"logistic": {}, "mlp": {"hidden": [7, 6]}}
METHODS = ("acd", "scd", "ascd", "svrcd", "asvrcd")
COPIES = (MX2Settings(lam=2.0), APFL2Settings(Lambda=0.0, l2=0.1), Settings(name="full", mu=0.1))
FEW = {"p_w": 0.3, "max_local": 8}  # ACD's momentum takes rounding further, by autograd as well
ROUNDS = 3
KNOWN = {"mu": 0.1, "L": 5.0, "cL": 5.0}  # else they are estimated, which takes as long as the rounds
SOON = {"p_w": 0.04, "max_local": 40}  # rounds of about 20 iterations, more than are made at once


def model(name="mlp", inputs=5, outputs=3, task="classification", **options):
    options = options or SHAPES[name]
    return build_model(name, input_shape=(inputs,), num_outputs=outputs, task=task, **options)


def wide(inputs):
    """The same clients with other inputs."""

    def client(k):
        parts = FED.client(k)
        rng = torch.Generator().manual_seed(k)
        made = [replace(p, x=torch.randn(len(p), inputs, generator=rng)) for p in
                (parts.train, parts.valid, parts.test)]  # fmt: skip
        return ClientData(*made)

    return replace(FED, client=client, input_shape=(inputs,))


@pytest.fixture
def calls(monkeypatch):
    """The clients of each call of the C function."""
    found, call = [], recurrent._call
    monkeypatch.setattr(recurrent, "_call", lambda *args: found.append(len(args[4])) or call(*args))
    return found


def run(name, network, fed=FED, runner="stack", dtype="float32", **options):
    """The server's variables and the clients' states after some rounds."""
    halves, plan = method(name), Plan(seed=3, eval_every=0, dtype=dtype)
    own = {"lsgd": {}, "scd": SOON, "acd": FEW}.get(name, {**SOON, "rho": 0.02})
    objective = replace(options.pop("objective", MX2Settings()), **KNOWN)
    cfg = halves.config_class()(objective=objective, **{**own, **options})
    strategy, client = halves.strategy_class()(cfg, network, plan), halves.client_class()(cfg, network)
    cohort = Cohort(client, fed, RamStore(), plan, RunnerConfig(runner))
    strategy.start(InProcessGrid(cohort), num_rounds=ROUNDS)
    return strategy.state.w, [cohort.store.states[k] for k in sorted(cohort.store.states)]


def both(*args, **options):
    """What `run` gives with the kernels and without them."""
    fast = run(*args, **options)
    with autograd_only():
        return fast, run(*args, **options)


@pytest.mark.parametrize("runner", ["stack", "loop"])
@pytest.mark.parametrize("network", SHAPES)
@pytest.mark.parametrize("name", METHODS)
def test_rounds_are_autograds(name, network, runner, calls):
    fast, slow = both(name, model(network), runner=runner)
    assert set(calls) == ({1} if runner == "loop" else {2, 4})  # clients of like sizes make a stack
    assert close(fast, slow, 1e-5)


@pytest.mark.parametrize(
    "objective",
    [
        MX2Settings(lam=2.0, reparametrise=False),
        MX2Settings(l2=0.1),
        MT2Settings(Lambda=0.5),
        APFL2Settings(alpha=0.4, l2=0.1),
        APFL2Settings(alpha=tuple(m / 10 for m in range(6))),
        Settings(name="full", mu=0.1),
    ],
)
@pytest.mark.parametrize("name", ["acd", "ascd", "asvrcd"])
def test_any_mixture(name, objective, calls):
    fast, slow = both(name, model(), objective=objective)
    assert calls
    assert close(fast, slow, 1e-5)


@pytest.mark.parametrize("name", METHODS[1:])
def test_many_steps_of_a_layer_of_many_outputs(name, calls):
    """70 outputs and 16 inputs: no padding, and other numbers of steps that are made at once."""
    options = {"p_w": 0.01, "max_local": 80}
    fast, slow = both(name, model(inputs=16, hidden=[70]), wide(16), **options)
    assert calls
    assert close(fast, slow, 2e-5)


@pytest.mark.parametrize("options", [{"shared_index": True}, {"unsampled": "drift"}])
def test_other_ways_to_draw_and_to_rest(options, calls):
    fast, slow = both("ascd", model(), **options)
    assert calls
    assert close(fast, slow, 1e-5)


def test_the_part_without_anchors(calls):
    fast, slow = both("asvrcd", model(), ascd=3)
    assert calls
    assert close(fast, slow, 1e-5)


@pytest.mark.parametrize("runner", ["stack", "loop"])
@pytest.mark.parametrize("objective", COPIES)
def test_local_sgd_of_one_sample_a_step(objective, runner, calls):
    fast, slow = both("lsgd", model(), runner=runner, objective=objective, tau=7)
    assert calls
    assert close(fast, slow, 1e-5)


@pytest.mark.parametrize("options", [{"objective": MT2Settings()}, {"batch_size": 3}])
def test_local_sgd_that_no_kernel_has(options, calls):
    fast, slow = both("lsgd", model(), **options)
    assert not calls
    assert close(fast, slow, 1e-5)


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_other_tasks(task, calls):
    fed = toy_federation(num_clients=6, sizes=(12, 9, 15), task=task)
    fast, slow = both("svrcd", model(outputs=1, task=task), fed)
    assert calls
    assert close(fast, slow, 1e-5)


@pytest.mark.parametrize(
    "options", [{"dtype": "float64"}, {"objective": WS2Settings(name="ws2")}, {"max_local": 1, "p_w": 0.999}]
)
def test_what_no_kernel_has(options, calls):
    fed = toy_federation(
        num_clients=6, sizes=(12, 9, 15), dtype=getattr(torch, options.get("dtype", "float32"))
    )
    fast, slow = both("scd", model(), fed, **options)
    assert len(calls) == 0 or options.get("max_local") == 1
    assert close(fast, slow, 1e-5)


def recurrence(Q, fast=False):
    """Two models that gradients at Q points move, and two that do without; `fast`: one forgets soon."""
    first = [0.2, 0.7, 0.1, -0.3] if fast else [0.7, 0.2, 0.1, -0.3]
    moves = [first, [0.1, 0.6, 0.0, 0.2], [0.0, 0.0, 0.9, 0.3], [0.0, 0.0, -0.2, 0.8]]
    points = [[0.5, 0.3, 0.4, 0.0], [0.0, 1.2, 0.0, -0.6]]
    numbers = moves, points[:Q], [1.0, -0.7][:Q], [-0.2, 0.1, 0.0, 0.0]
    return Recurrence(*(torch.tensor(n, dtype=torch.float64) for n in numbers))


ENDS = torch.tensor([[1, 0, 0, 0], [0.3, -0.5, 0.2, 0.7], [0, 0, 0, 2]], dtype=torch.float64)


def by_hand(network, how, models, data, index, weight):
    """The mixtures ENDS of one client's models after the steps, in float64."""

    def mix(row, models):
        return {k: sum(r * w[k] for r, w in zip(row, models, strict=True)) for k in models[0]}

    now = [{k: v.double() for k, v in w.items()} for w in models]
    for rows, share in zip(index, weight, strict=True):
        batch = Data(data.x[rows].double(), data.y[rows], share.double())
        slopes = [model_gradient(network, mix(p, now), batch) for p in how.points]
        g = mix(how.signs, slopes)
        now = [mix([*row, gain], [*now, g]) for row, gain in zip(how.moves, how.gains, strict=True)]
    return [mix(row, now) for row in ENDS]


BY_HAND = {
    "logistic": model("logistic"),
    "mlp": model(),
    "without bias": model(bias=False, hidden=[7, 6]),
    "wide": model(inputs=16, hidden=[70]),
}
FEW_STEPS = [(0, 2), (5, 1), (70, 2)]  # how steps are divided depends on the first layer's width alone
MANY_STEPS = [*FEW_STEPS, (1, 2), (5, 2), (16, 2), (20, 1), (64, 2), (131, 1)]


@pytest.mark.parametrize("size, fast", [(1, False), (1, True), (7, False)])
@pytest.mark.parametrize(
    "name, steps, points",
    [(n, *s) for n in BY_HAND for s in (FEW_STEPS if n == "without bias" else MANY_STEPS)],
)
@torch.no_grad()
def test_steps_are_those_by_hand(name, size, fast, steps, points):
    network = BY_HAND[name]
    rng = torch.Generator().manual_seed(steps)
    inputs = next(iter(network.init(0).values())).shape[1]
    parts = [
        Data(torch.randn(n, inputs, generator=rng), torch.randint(3, (n,), generator=rng), torch.ones(n))
        for n in (5, 9, 12)
    ]
    own = [[network.init(4 * c + k) for c in range(3)] for k in range(3)]
    models = [{k: torch.stack([w[k] for w in column]) for k in column[0]} for column in own]
    models.append({k: v.expand(3, *v.shape) for k, v in network.init(20).items()})  # the same for all
    index = torch.stack([torch.randint(len(p), (steps, size), generator=rng) for p in parts])
    weight = torch.ones(3, steps, size)
    weight[1, :, 5:] = 0  # padding
    weight[2, :, 2:3] = 3.0
    how, plan = recurrence(points, fast), plain_parts(network.loss, own[0][0], parts)[0]
    found = recurrent._call(plan, how, models, ENDS, parts, index, weight)
    for c, data in enumerate(parts):
        each = by_hand(
            network, how, [{k: v[c] for k, v in w.items()} for w in models], data, index[c], weight[c]
        )
        assert close([{k: v[c].double() for k, v in w.items()} for w in found], each, 2e-6)


def test_small_convolutions_are_left_to_torch(calls):
    fast, slow = both("scd", replace(SMALL, num_outputs=3), images(), max_local=3)
    assert not calls
    assert close(fast, slow, 1e-5)


def test_a_label_that_is_no_class_is_named():
    with pytest.raises(ReplyError, match="a label is no class"):
        run("scd", model(outputs=2), objective=MX2Settings(mu=0.1, L=1.0, cL=1.0))


def test_repeating_a_linear_step_is_a_power_of_its_matrix():
    a = Block({"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([0.0, 1.0])}, {}, {})
    step = lambda b: Block(add(b.y, b.z), scale(b.z, 2))  # noqa: E731
    found = repeated(step, a, 3)  # y + (1 + 2 + 4) z, 8 z
    assert found.y["x"].tolist() == [1.0, 9.0] and found.z["x"].tolist() == [0.0, 8.0]
    assert repeated(step, a, 0) is a


def test_a_combination_of_one_is_the_object_itself():
    a, b = {"x": torch.ones(2)}, {"x": torch.ones(2)}
    assert combination(torch.tensor([0.0, 1.0]), [a, b]) is b
    assert combination(torch.tensor([0.0, 0.0]), [a, b])["x"].tolist() == [0.0, 0.0]
