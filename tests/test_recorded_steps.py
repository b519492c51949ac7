"""Steps that are recorded: here what a graph would play is run again, which a CPU can do, too."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fedpers.checks.case import run
from fedpers.core.data import Data
from fedpers.core.items import ModelBatch, _group_sums, _pair_distances, weighted_sum_each
from fedpers.core.params import products, weighted_sum
from fedpers.core.pytree import leaves
from fedpers.engines.cohort import Cohort
from fedpers.engines.runner import RunnerConfig
from fedpers.engines.stacked_data import StackedData
from fedpers.learning.kernels import graphs
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.scoring import _scored_together
from fedpers.learning.losses import Frozen, proximal
from fedpers.learning.model import Model, build_model
from fedpers.learning.weighed import OfNumbered
from tests.test_contract import case

TRAINED = ["fedavg", "fedprox", "fedper", "fedrep", "ditto", "fedsoft", "ifca", "fedbabu", "pfedme"]
BY_GRADIENTS = ["acd", "asvrcd", "ascd", "scd", "svrcd", "scaffold", "fedem"]


@pytest.fixture
def played(monkeypatch):
    """How often each recording was played."""
    found = {}

    def capture(step, pool):
        def replay():
            found[step] = found.get(step, 0) + 1
            step()

        return replay

    monkeypatch.setattr(graphs, "capture", capture)
    return found


def rounds(small, recorder, **options):
    """The tensors of the server's state after some rounds of stacks without kernels."""
    with autograd_only(), graphs.recorded_by(recorder):
        server, cohort = run(small, small.cohort(runner=RunnerConfig("stack", **options)))
    assert not cohort.runner.looped
    return [x for x in leaves(server.state) if isinstance(x, torch.Tensor)]


def recorded_alike(small, count):
    """The recorder of a case whose rounds are the same bit for bit with and without."""
    recorder = graphs.Recorder()
    recorded, made = rounds(small, recorder), rounds(small, None)
    assert len(recorded) == len(made) and all(map(torch.equal, recorded, made))
    assert len(recorder.kept) == len(count) and not recorder.not_capturable
    return recorder


@pytest.mark.parametrize("name", TRAINED + BY_GRADIENTS)
def test_the_same_rounds_bit_for_bit(name, played):
    recorded_alike(case(name), played)
    assert played and max(played.values()) > 1


@pytest.mark.parametrize("name", ["fedavg", "ditto", "ascd"])
def test_several_stacks_a_round_share_a_recording(name, played):
    """So what came out of it is copied before the next one plays it."""
    small, recorder = replace(case(name), rounds=4), graphs.Recorder()
    assert all(map(torch.equal, rounds(small, recorder, chunk=2), rounds(small, None, chunk=2)))
    assert recorder.kept and not recorder.not_capturable


def test_other_arithmetic_is_recorded_anew(played):
    small, recorder = case("fedavg"), graphs.Recorder()
    rounds(small, recorder)
    one = len(recorder.kept)
    rounds(small, recorder, convolution="products")
    assert len(recorder.kept) == 2 * one > 0
    rounds(small, recorder)
    assert len(recorder.kept) == 2 * one


def test_samples_that_were_replaced_are_not_recorded(played):
    """Their stack is not known, and its rows are no block's."""
    model = build_model("mlp", input_shape=(4,), num_outputs=3, task="classification", hidden=[5])
    given = StackedData(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64), torch.ones(2))
    with graphs.recorded_by(graphs.Recorder()):
        assert graphs.minimise_recorded(model.loss, model.init(0), {}, given, (), None, None) is None


@pytest.mark.parametrize(
    "local",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "keep_momentum": True},
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
        {"optimizer": "adam", "lr": 0.01, "keep_momentum": True},
        {"batch_size": 0, "epochs": 3},
        {"steps": 7, "batch_size": 3},
        {"schedule": "halve", "horizon": 6},
    ],
    ids=lambda local: "-".join(local),
)
def test_every_kind_of_training(local, played):
    small = case("fedprox")
    small = replace(small, rounds=6, config=replace(small.config, local=replace(small.config.local, **local)))
    recorded_alike(small, played)
    assert played


def test_rates_are_recorded_apart(played):
    """A rate is part of what is recorded: each that comes twice has its own."""
    small = case("fedavg")
    slow = replace(small.config.local, schedule="halve", horizon=8)
    plan = replace(small.plan, clients_per_round=len(small.federation.num_train))
    small = replace(small, rounds=8, plan=plan)
    constant = len(recorded_alike(small, played).kept)
    played.clear()
    small = replace(small, config=replace(small.config, local=slow))
    assert len(recorded_alike(small, played).kept) > constant


def test_what_cannot_be_recorded_runs_all_the_same(monkeypatch, caplog):
    tried = []

    def refuse(step, pool):
        tried.append(step)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "capture", refuse)
    small, recorder = replace(case("fedavg"), rounds=6), graphs.Recorder()
    refused, made = rounds(small, recorder), rounds(small, None)
    assert all(map(torch.equal, refused, made)) and not recorder.kept
    assert (
        len(tried) == len(recorder.not_capturable) == caplog.text.count("not recorded on the GPU") > 0
    )  # once each


def test_what_is_left_of_a_tree_is_its_key():
    """Also of one with a leaf that is None, or that has no hash."""
    a, b = torch.zeros(2), torch.ones(3)
    tensors, form = graphs.taken(({"a": a, "b": None, "c": 2.5}, (b, "d")))
    assert tensors[0] is a and tensors[1] is b
    assert form.filled([b, a]) == ({"a": b, "b": None, "c": 2.5}, (a, "d"))
    assert form == graphs.taken(({"a": b, "b": None, "c": 2.5}, (a, "d")))[1]
    assert form != graphs.taken(({"a": a, "b": None, "c": 2.0}, (b, "d")))[1]
    recorder = graphs.Recorder()
    assert [recorder.due("key"), recorder.due("key"), recorder.due([]), recorder.due([])] == [0, 1, 0, 0]


class OwnLosses(Model):
    """What is in it nobody knows."""

    def sample_losses(self, outputs, y):
        return super().sample_losses(outputs, y) * 2


def test_which_losses_are_recorded():
    """Those whose tensors are all seen: not closures, nor modules, which may draw numbers."""
    shape = {"input_shape": (4,), "num_outputs": 3, "task": "classification"}
    model, y = build_model("mlp", hidden=[5], **shape), torch.zeros(2)
    module = build_model("module", path="tests.own_nets:Plain", **shape | {"input_shape": (1, 4, 4)})
    assert graphs._parts(model.loss)[0] == model.loss and graphs._parts(Frozen(model.features_loss, {}))
    assert graphs._parts(OfNumbered(model, y, y)) and graphs._parts(proximal(model.loss, 0.5, {}))[2] == 0.5
    closure = lambda w, data: y.sum()  # noqa: E731
    own = OwnLosses(**vars(model)).loss
    for loss in (
        closure,
        model.head_loss,
        proximal(closure, 1.0, {}),
        own,
        module.loss,
        OfNumbered(module, y, y),
    ):
        assert graphs._parts(loss) is None


def test_memory_for_recordings_has_an_end(monkeypatch):
    """An eighth of the device's, whatever is still to come."""
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=800))
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: "pool")
    recorder, cuda = graphs.Recorder(), torch.device("cuda")
    held = graphs.Recording(lambda own: own, [torch.zeros(25)])
    recorder.kept["one"] = held
    assert held.nbytes == 100 and recorder._allowed(cuda) == "pool"
    recorder.kept["two"] = graphs.Recording(lambda own: own, [torch.zeros(1)])
    with pytest.raises(RuntimeError, match="2 recordings take 0 of 0 MiB"):
        recorder._allowed(cuda)
    assert graphs.Recorder()._allowed(torch.device("cpu")) is None


def test_a_cohort_that_ends_frees_its_recordings():
    small = case("fedavg")
    cohort: Cohort = small.cohort()
    cohort.runner.recorder.kept["one"] = graphs.Recording(lambda own: own, [torch.zeros(1)])
    cohort.close()
    assert not cohort.runner.recorder.kept


def test_sums_distances_and_losses_in_a_few_calls():
    """What a GPU does for many at once is what is defined for each."""
    draw = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 5000), "b": (2,)}
    models = [{k: torch.randn(*s, generator=draw) for k, s in shapes.items()} for _ in range(7)]
    models[3]["b"][0] = torch.inf  # stays in its own group
    counts, factors = [2, 1, 3, 1], [0.5, -1.0, 2.0, 1.0, 0.25, 0.125, 3.0]
    sums = weighted_sum_each(ModelBatch(models), range(7), factors, counts)
    for k, v in sums.items():
        torch.testing.assert_close(_group_sums([m[k] for m in models], counts, factors), v)
        wide = torch.tensor([factors], dtype=torch.float64)
        torch.testing.assert_close(
            products(wide, [m[k] for m in models])[0], weighted_sum(models, factors)[k]
        )
    pairs = [(models[i], models[j]) for i, j in ((0, 1), (1, 2), (4, 4), (0, 6))]
    layers = [[[m[k] for m in side] for k in ("a", "b")] for side in zip(*pairs, strict=True)]
    exact = [sum((a[k].double() - b[k].double()).square().sum() for k in a) for a, b in pairs]
    torch.testing.assert_close(_pair_distances(*layers), torch.stack(exact))
    model = build_model("mlp", input_shape=(4,), num_outputs=3, task="classification", hidden=[5])
    made = [model.init(seed) for seed in range(70)]
    datas = [Data(torch.randn(6, 4, generator=draw), torch.arange(6) % 3, torch.ones(6)) for _ in made]
    found = _scored_together(model.loss, made, datas)
    each = torch.stack([model.loss(w, data) for w, data in zip(made, datas, strict=True)])
    torch.testing.assert_close(found, each)
