"""What training costs: passes of the body, head steps and operations, counted by hand."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedpers.checks.toy_data import toy_federation
from fedpers.config.registry import METHODS
from fedpers.core.work import Work, work_of
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.unified.adapted import MAMLSettings, MoreauSettings
from fedpers.families.unified.composed import FRSettings, WS2Settings
from fedpers.families.unified.mixture import APFL2Settings, MT2Settings, MX2Settings
from fedpers.families.unified.objective import make_objective
from fedpers.flower.observer import Observer
from fedpers.learning import flops
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig, Plan
from fedpers.simulate import simulate
from tests.methods.helpers import config, network, smoke

SIZES = (12, 7, 15, 9)  # 43 samples
FED = toy_federation(num_clients=4, sizes=SIZES)


def spent(name, **options):
    """(gradients, forwards, head steps) of one round with everybody."""
    row, cfg, model = METHODS[name], config(name, **options), network(FED, "mlp")
    strategy = row.strategy_class()(cfg, model, Plan(eval_every=0))
    simulate(strategy, row.client_class()(cfg, model), FED, 1)
    log = strategy.round_log
    return log.gradient_evals, log.body_forwards, log.head_steps


FULL = LocalConfig(steps=5, batch_size=0)
SHORT = LocalConfig(steps=2, batch_size=0)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("pflego", {"tau": 1, "adapt_steps": 0}, (43, 43, 0)),
        ("pflego", {"tau": 50, "adapt_steps": 0}, (43, 2 * 43, 49 * 43)),
        ("fedper", {"local": FULL}, (5 * 43, 5 * 43, 0)),
        ("fedrep", {"head": FULL, "body": SHORT}, (2 * 43, 3 * 43, 5 * 43)),
        ("fedrecon", {"head": FULL, "body": SHORT}, (2 * 43, 3 * 43, 5 * 43)),
        ("fedalt", {"v": FULL, "u": SHORT}, (2 * 43, 7 * 43, 5 * 43)),
        ("fedalt", {"v": FULL, "u": SHORT, "personal": "body"}, (7 * 43, 7 * 43, 0)),
        ("fedrod", {"local": FULL}, (5 * 43, 5 * 43, 5 * 43)),
        ("fedproto", {"local": FULL}, (5 * 43, 6 * 43, 0)),
        ("ifca", {"local": FULL, "S": 3}, (5 * 43, 8 * 43, 0)),
        ("fedem", {"local": FULL, "num_components": 3}, (15 * 43, 18 * 43, 0)),
        ("moon", {"local": FULL}, (5 * 43, 15 * 43, 0)),
    ],
)
def test_passes_of_the_body_and_head_steps(name, options, expected):
    assert spent(name, **options) == expected


class Counting:
    """A body that counts the samples that pass through it, forward and back; no kernel knows it."""

    def __init__(self, network):
        self.network, self.forward, self.back = network, 0, 0

    def __getattr__(self, name):
        return getattr(self.network, name)

    def __call__(self, params, x):
        self.forward += len(x)
        out = self.network(params, x)
        if out.requires_grad:
            out.register_hook(lambda g: setattr(self, "back", self.back + len(g)))
        return out


class Sums(Observer):
    """(gradients, forwards, head steps) of all rounds."""

    def __init__(self):
        self.total = (0, 0, 0)

    def on_round(self, t, log):
        found = (log.gradient_evals, log.body_forwards, log.head_steps)
        self.total = tuple(a + b for a, b in zip(self.total, found, strict=True))


def told_and_seen(name, rounds, **options):
    """(counts as told, (gradients, forwards) as a body saw them, the clients' side) of some rounds."""
    row, cfg, model = METHODS[name], config(name, **options), network(FED, "mlp")
    model = replace(model, network=Counting(model.network))
    strategy = row.strategy_class()(cfg, model, Plan(eval_every=0))
    strategy.evaluates = lambda t: False
    sums = Sums()
    cohort = Cohort(row.client_class()(cfg, model), FED, RamStore(), strategy.plan, RunnerConfig("loop"))
    strategy.start(InProcessGrid(cohort), num_rounds=rounds, observer=sums)
    return sums.total, (model.network.back, model.network.forward), cohort


KNOWN = {"mu": 0.1, "L": 1.0, "cL": 1.0}  # nobody is asked for them


@pytest.mark.parametrize(
    ("name", "rounds", "options", "expected"),
    [
        # 7 of 43 samples are kept back: old and own model, in round 2 also those of 2 others
        ("fedfomo", 2, {"local": FULL, "num_neighbours": 2}, (10 * 36, 10 * 36 + 6 * 7, 0)),
        # two models each, with uniform weights at first: all are tried, and no weight is below w_min
        (
            "federico",
            1,
            {"update": "grad", "num_neighbours": 1, "w_min": 0.0, "warmup": 0},
            (2 * 43, 4 * 43, 0),
        ),
        ("federico", 1, {"local": FULL, "num_neighbours": 1, "w_min": 1.0, "warmup": 0}, (0, 2 * 43, 0)),
        ("ppfl", 1, {"local": FULL, "arch": "parameter"}, (6 * 43, 6 * 43, 0)),
        ("ppfl", 1, {"local": FULL, "arch": "output", "canonical": "head"}, (5 * 43, 6 * 43, 0)),
        ("ppfl", 1, {"local": FULL, "arch": "output", "canonical": "model"}, (15 * 43, 18 * 43, 0)),
        ("lsgd", 1, {"eta": 0.1, "objective": MX2Settings(**KNOWN)}, (5 * 4, 5 * 4, 0)),
        ("lsgd", 1, {"eta": 0.1, "objective": MT2Settings(**KNOWN)}, (10 * 4, 10 * 4, 0)),
        ("lsgd", 1, {"eta": 0.1, "objective": APFL2Settings(**KNOWN), "batch_size": 0}, (430, 430, 0)),
        ("lsgd", 1, {"eta": 0.1, "objective": FRSettings(**KNOWN)}, (10 * 4, 10 * 4, 0)),
        ("lsgd", 1, {"eta": 0.1, "objective": WS2Settings("ws2", **KNOWN)}, (5 * 4, 5 * 4, 0)),
    ],
)
def test_passes_are_those_that_a_body_sees(name, rounds, options, expected):
    told, seen, _ = (
        told_and_seen(name, rounds, report=False, **options)
        if name == "lsgd"
        else told_and_seen(name, rounds, **options)
    )
    assert told == expected
    assert seen == expected[:2]


@pytest.mark.parametrize(("layers", "in_body"), [(1, False), (2, True)])
def test_fedala_counts_the_passes_that_learnt_its_weights(layers, in_body):
    """None in round 1, until it settles in round 2, one in round 3; of 80 % of the samples."""
    (gradients, forwards, heads), seen, cohort = told_and_seen("fedala", 2, layers=layers, local=FULL)
    passes = [int(cohort.store.states[i].passes) for i in range(4)]
    assert min(passes) > 1
    learnt = sum(p * n for p, n in zip(passes, (9, 5, 12, 7), strict=True))
    assert (heads, gradients) == ((0, 430 + learnt) if in_body else (learnt, 430))
    assert forwards == 430 + (2 * learnt if in_body else 33)  # features of a head are computed once
    assert seen == (gradients, forwards)
    one_more, _, _ = told_and_seen("fedala", 3, layers=layers, local=FULL)
    assert one_more[1] - forwards == 215 + 33  # nobody asks for the loss of a single pass


@pytest.mark.parametrize("name", ["ascd", "svrcd", "asvrcd", "acd"])
@pytest.mark.parametrize("settings", [MX2Settings, APFL2Settings, partial(WS2Settings, "ws2"), FRSettings])
def test_rounds_of_the_unified_framework_are_counted_as_a_body_sees_them(name, settings):
    told, seen, _ = told_and_seen(name, 4, objective=settings(**KNOWN), report=False)
    assert told[:2] == seen
    assert told[1] > 0


def test_gradients_of_adapted_objectives_are_counted_by_hand():
    of = {
        s.name: make_objective(s, None, 4).gradient_work
        for s in (MoreauSettings("moreau", prox_steps=7), MAMLSettings("maml"))
    }
    assert [of["moreau"](b) for b in ("w", "beta", "both")] == [Work(7, 1), Work(), Work(7, 1)]
    assert [of["maml"](b) for b in ("w", "beta")] == [Work(4), Work()]


def test_a_number_alone_is_gradients_of_the_whole_model():
    assert work_of(7) == Work(gradients=7, forwards=0, head_steps=0)
    assert work_of(Work(1, 2, 3)) == (1, 2, 3)


def test_the_floor_counts_every_pass_that_is_needed():
    """A layer of 784 x 200 and a head of 200 x 10; a product is two operations a weight."""
    sizes = 784 * 200, 200 * 10
    body, head = (2 * n for n in sizes)
    cost = flops.dense(list(sizes))
    assert cost.all_passes(1, 0, 0) == 2 * body + 3 * head  # no gradient in the inputs
    assert cost.all_passes(0, 1, 0) == body + head  # a model that is looked at
    assert cost.all_passes(0, 1, 3) == body + 3 * 2 * head  # features, and steps on them
    alone = flops.dense([sizes[1]])  # a linear model is all head
    assert (alone.all_passes(1, 0, 0), alone.all_passes(0, 1, 0)) == (2 * head, head)


def test_operations_of_a_sample_in_an_mlp():
    """784-200-10: each weight a multiplication and an addition; no gradient in the pixels."""
    model = build_model("mlp", input_shape=(1, 28, 28), num_outputs=10, task="classification", hidden=[200])
    body, head = 784 * 200, 200 * 10
    found = flops.flops_of(model, (1, 28, 28))
    assert found.forward == 2 * body
    assert found.backward == 2 * head + 2 * (body + 2 * head)  # the head's pass; weights, and the features'
    assert found.head_step == 4 * head
    assert found == flops.counted(model, model.init(0), (1, 28, 28))
    # PFLEGO at τ = 50 on 540 samples against 50 whole-model gradients: what the method is about
    pflego = found.of(540, 1080, 49 * 540)
    fedper = found.of(50 * 540, 50 * 540, 0)
    assert (pflego, fedper) == (540 * (325_600 + 627_200 + 392_000), 540 * 50 * 639_200)


def test_operations_with_two_hidden_layers_without_one_and_of_a_convolution():
    deep = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4, 6])
    assert flops.flops_of(deep, (5,)) == flops.counted(deep, deep.init(0), (5,))
    shallow = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
    assert flops.flops_of(shallow, (5,)) == flops.SampleFlops(0, 60, 60)
    assert flops.counted(shallow, shallow.init(0), (5,)) == flops.SampleFlops(0, 60, 60)
    net = build_model("cnn_omniglot", input_shape=(1, 28, 28), num_outputs=10, task="classification")
    sides, forward = (28, 14, 7, 3), 0
    for i, side in enumerate(sides):  # 3x3 kernels, 64 maps
        forward += 2 * side * side * 9 * 64 * (64 if i else 1)
    assert flops.flops_of(net, (1, 28, 28)).forward == forward


def test_a_run_has_the_columns_and_their_sums(tmp_path):
    found = smoke("pflego", tmp_path, "method.adapt_steps=0", "eval_every=0")
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"gradient_evals", "body_forwards", "head_steps", "gflops"} <= set(header)
    samples = found["gradient_evals"]
    assert (found["body_forwards"], found["head_steps"]) == (2 * samples, 9 * samples)
    body, head = 64 * 200, 200 * 10
    per_sample = 2 * 2 * body + 2 * (body + 3 * head) + 9 * 4 * head
    assert found["gflops"] == pytest.approx(samples * per_sample / 1e9)


def test_flops_of_a_module_with_batch_norm_are_those_of_its_products():
    """One channel to four in 3x3 windows at stride 2 of 16x16, and a head of 256 by 3."""
    options = {"path": "tests.own_nets:NormedDigits", "head": "fc"}
    model = build_model("module", input_shape=(1, 16, 16), num_outputs=3, task="classification", **options)
    convolution, head = 2 * 9 * 4 * 64, 2 * 256 * 3
    found = flops.flops_of(model, (1, 16, 16))
    assert found == flops.SampleFlops(convolution, convolution + 3 * head, 2 * head)


def test_operations_are_counted_as_torch_counts_them():
    """FlopCounterMode, which takes composite operations apart first: a recurrent layer and attention."""
    embed, cell = torch.nn.Embedding(9, 8), torch.nn.LSTM(8, 4, batch_first=True)
    block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def run() -> None:
        block(cell(embed(torch.arange(6).view(2, 3)))[0].repeat(1, 1, 2)).sum().backward()

    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        run()
    assert flops._counted(run) == counter.get_total_flops() // flops.PAIR > 1000
