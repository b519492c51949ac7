"""Loop, stack, workers: the same numbers, whoever else is in the chunk."""

import gc
import socket
import weakref
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.checks.case import Case, make_case, run, same
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig, Weights
from fedpers.clients.fedfomo import FedFomoClient, FedFomoConfig
from fedpers.clients.fedper import FedPerClient, FedPerConfig
from fedpers.config import registry
from fedpers.core.data import ClientData, Data
from fedpers.core.plan import Plan
from fedpers.core.pytree import flatten, leaves, rebuild, record
from fedpers.core.rng import Stream
from fedpers.engines import processor
from fedpers.engines import runner as runner_module
from fedpers.engines.channel import Channel
from fedpers.engines.chunk_size import CANDIDATES, ChunkSize, most_clients
from fedpers.engines.cohort import Cohort
from fedpers.engines.dealing import LEAST, Speeds, balance
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.engines.shared_memory import PackedTrees, unpack_trees
from fedpers.engines.stack import run_chunk
from fedpers.engines.stacked_data import padded_size
from fedpers.families.peers.messages import Candidates
from fedpers.families.split_models.client import SharedPart
from fedpers.flower import transport
from fedpers.flower.messages import Header, Request
from fedpers.learning import convolution
from fedpers.learning.convolution import (
    ConvolutionForbidden,
    convolutions,
    convolve,
    forbid_torch_convolutions,
)
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.local_training import minimise, minimise_from
from fedpers.learning.minibatches import minibatches
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig, init_optimizer
from fedpers.learning.step import Adam, Now
from fedpers.strategies.fedavg import FedAvg
from fedpers.strategies.fedfomo import FedFomo
from fedpers.strategies.fedper import FedPer

SIZES = {"equal": (20,), "ragged": (12, 9, 3, 20)}
LINUX = pytest.mark.skipif(not hasattr(__import__("os"), "memfd_create"), reason="needs Linux")


def cohort(runner, sizes="ragged", model="mlp", local=None, **options):
    fed = toy_federation(7, SIZES[sizes], dim=30, classes=4, **options)
    extra = {"hidden": [16]} if model == "mlp" else {}
    net = build_model(model, input_shape=(30,), num_outputs=fed.num_classes, task=fed.task, **extra)
    config = FedAvgConfig(local=local or LocalConfig(lr=0.1, epochs=2, batch_size=5))
    return Cohort(FedAvgClient(config, net), fed, RamStore(), Plan(seed=1), runner)


def answers(c, ids=range(7), kind="train"):
    header = Header(kind, 3, 0)
    order = Weights(c.params)
    return [a.body for a in c.handle([Request(k, order, header) for k in ids])]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("model", ["mlp", "logistic"])
@pytest.mark.parametrize(
    "local",
    [
        LocalConfig(lr=0.1, epochs=2, batch_size=5),
        LocalConfig(lr=0.1, steps=7, batch_size=8, weight_decay=0.01),
        LocalConfig(lr=0.1, epochs=3, batch_size=0, momentum=0.9),
        LocalConfig(lr=0.01, epochs=2, batch_size=6, optimizer="adam"),
    ],
    ids=["epochs", "steps", "momentum", "adam"],
)
def test_a_stack_is_the_loop(sizes, model, local):
    with autograd_only():
        loop = answers(cohort(RunnerConfig("loop"), sizes, model, local))
    stack = answers(cohort(RunnerConfig("stack"), sizes, model, local))
    for a, b in zip(loop, stack, strict=True):
        for k in a.params:
            torch.testing.assert_close(a.params[k], b.params[k], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
def test_the_dense_kernel_is_autograd_for_every_task(task):
    """In double precision, to 1e-12; with weight decay and a short last batch."""
    fed = toy_federation(1, (13,), dim=6, task=task, dtype=torch.float64)
    name = "mlp" if task != "binary" else "logistic"
    extra = {"hidden": [5, 4]} if name == "mlp" else {}
    model = build_model(name, input_shape=(6,), num_outputs=fed.num_classes, task=task, **extra)
    params = {k: v.double() for k, v in model.init(0).items()}
    local = LocalConfig(lr=0.05, epochs=3, batch_size=5, weight_decay=0.1)
    data = fed.client(0).train

    def train():
        with torch.no_grad():
            return minimise(model.loss, params, data, Stream(0, 1, 0), local)

    fast = train()
    with autograd_only():
        slow = train()
    for k in params:
        torch.testing.assert_close(fast[k], slow[k], rtol=0, atol=1e-12)


def test_training_in_place_changes_no_bit():
    """Alone a client trains in place; inside a gradient the same training is functional."""
    fed = toy_federation(1, (13,), dim=6)
    model = build_model("mlp", input_shape=(6,), num_outputs=3, task="classification", hidden=[5])
    params, data = model.init(0), fed.client(0).train
    local = LocalConfig(lr=0.05, epochs=2, batch_size=5, momentum=0.5, weight_decay=0.1)
    with torch.no_grad(), autograd_only():
        here = minimise(model.loss, params, data, Stream(0, 1, 0), local)
    there = minimise(model.loss, params, data, Stream(0, 1, 0), local)
    assert all(torch.equal(here[k], there[k]) for k in params)


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_adam_in_place_is_torchs_and_the_functional_one(name):
    """In double precision: two trainings, the second with the first one's moments, nothing overwritten."""
    shape, extra = ((6,), {"hidden": [5]}) if name == "mlp" else ((1, 28, 28), {"padding": 0})
    model = build_model(name, input_shape=shape, num_outputs=3, task="classification", **extra)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, *shape, generator=draw, dtype=torch.float64), torch.arange(7) % 3
    data, start = Data(x, y, torch.ones(7, dtype=torch.float64)), model.init(0)
    start = {k: v.double() for k, v in start.items()}
    cfg = LocalConfig(lr=0.01, epochs=2, batch_size=3, optimizer="adam", weight_decay=0.1)

    def twice():
        found, opt = [start], init_optimizer(start, cfg)
        for t in (1, 2):
            before = {k: v.clone() for k, v in opt.m.items()}
            params, new = minimise_from(model.loss, found[-1], opt, data, Stream(0, t, 0), cfg)
            assert all(torch.equal(opt.m[k], v) for k, v in before.items())
            found, opt = [*found, params], new
        return *found, opt

    with torch.no_grad(), autograd_only():
        here = twice()
    there = twice()
    theirs = {k: v.clone().requires_grad_() for k, v in start.items()}
    adam = torch.optim.Adam(theirs.values(), lr=0.01, weight_decay=0.1, foreach=False)
    for t in (1, 2):
        for batch in minibatches(data, Stream(0, t, 0), cfg):
            adam.zero_grad()
            model.loss(theirs, batch).backward()
            adam.step()
    for k in start:
        torch.testing.assert_close(here[2][k], there[2][k], rtol=0, atol=1e-12)
        torch.testing.assert_close(here[2][k], theirs[k].detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(here[3].v[k], there[3].v[k], rtol=1e-9, atol=1e-15)
    assert here[3].step == there[3].step == 12


def test_adam_in_place_takes_gradients_of_any_layout():
    draw = torch.Generator().manual_seed(0)
    w, m, v, g = (torch.rand(2, 3, 4, 5, generator=draw) for _ in range(4))
    rule, now = Adam((0.9, 0.999), 1e-8), Now(None, 0.1, torch.tensor(5.0))
    vectors = {"w": {"a": w}, "m": {"a": m}, "v": {"a": v}, "g": {"a": g}}
    last = {
        k: {"a": t["a"].clone(memory_format=torch.channels_last)} if k != "g" else t
        for k, t in vectors.items()
    }
    rule.in_place(last, now)
    torch.testing.assert_close(last["w"]["a"], rule.run(vectors, now)["a"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["mlp", "logistic"])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_size_of_a_stack_changes_no_bit(model, sizes):
    whole = answers(cohort(RunnerConfig("stack", chunk=7), sizes, model))
    for chunk in (1, 2, 3):
        parts = answers(cohort(RunnerConfig("stack", chunk=chunk), sizes, model))
        assert same(whole, parts)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_where_a_matrix_lies_changes_no_bit(rows):
    """A client's place in a stack is also a place in memory; MKL_CBWR is set for this."""
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(rows, 30, generator=draw), torch.randn(16, 30, generator=draw)
    whole = [torch.empty(t.numel() + 32) for t in (x, w)]

    def product(*places):
        a, b = (
            space[i : i + t.numel()].view(t.shape).copy_(t)
            for space, i, t in zip(whole, places, (x, w), strict=True)
        )
        return torch.bmm(a[None], b.T[None])

    first = product(0, 0)
    assert all(torch.equal(product(i, j), first) for i in range(16) for j in range(0, 16, 3))


@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_company_changes_no_bit(model):
    """Not without the dense kernel either."""
    with autograd_only():
        whole = answers(cohort(RunnerConfig("stack"), model=model))
        for ids in ([6, 2], [0, 3, 4, 5]):
            part = answers(cohort(RunnerConfig("stack"), model=model), ids)
            assert same([whole[k] for k in ids], part)


def test_evaluation_in_a_stack_is_that_of_the_loop():
    loop = answers(cohort(RunnerConfig("loop")), kind="evaluate")
    stack = answers(cohort(RunnerConfig("stack")), kind="evaluate")
    for a, b in zip(loop, stack, strict=True):
        assert a.keys() == b.keys()
        np.testing.assert_allclose(list(a.values()), list(b.values()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "split"), [("train", "train"), ("evaluate", "test")])
@pytest.mark.parametrize("runner", ["loop", "stack"])
def test_an_answer_tells_how_many_samples_it_is_of(runner, kind, split):
    c = cohort(RunnerConfig(runner))
    requests = [Request(k, Weights(c.params), Header(kind, 3, 0)) for k in range(7)]
    assert [a.num_examples for a in c.handle(requests)] == [len(getattr(c.data(k), split)) for k in range(7)]


def convolving(model: str, runner: str) -> Cohort:
    """Three clients of a convolutional model on images of 12 x 12."""
    fed = toy_federation(3, (8,), dim=144, classes=3)
    shaped = lambda d: replace(d, x=d.x.reshape(-1, 1, 12, 12))  # noqa: E731
    parts = [ClientData(*map(shaped, vars(fed.client(k)).values())) for k in range(3)]
    fed = replace(fed, client=parts.__getitem__, input_shape=(1, 12, 12))
    net = build_model(model, input_shape=(1, 12, 12), num_outputs=3, task="classification")
    config = FedAvgConfig(local=LocalConfig(lr=0.05, batch_size=4))
    return Cohort(FedAvgClient(config, net), fed, RamStore(), Plan(), RunnerConfig(runner))


def count_stacks(monkeypatch) -> list[int]:
    """Sizes of the stacks that are run from here on."""
    sizes: list[int] = []

    def counted(population, chunk, *rest):
        sizes.append(len(chunk))
        return run_chunk(population, chunk, *rest)

    monkeypatch.setattr("fedpers.engines.runner.run_chunk", counted)
    return sizes


def test_large_convolutions_are_looped_on_a_cpu_and_stacked_if_asked():
    auto, loop, stack = (convolving("cnn_mcmahan", r) for r in ("auto", "loop", "stack"))
    looped = answers(loop, range(3))
    assert same(answers(auto, range(3)), looped)
    assert auto.runner.said and not auto.runner.looped  # by the rule: no stack was tried
    for a, b in zip(looped, answers(stack, range(3)), strict=True):
        for k in a.params:
            torch.testing.assert_close(a.params[k], b.params[k], rtol=1e-3, atol=1e-4)
    assert not stack.runner.looped


@pytest.mark.parametrize("company", [1, 3])
def test_small_convolutions_that_the_kernel_trains_are_stacked_with_the_same_bits(company, monkeypatch):
    stacks = count_stacks(monkeypatch)
    auto = convolving("lenet", "auto")
    found = answers(auto, range(company))
    assert stacks == [company] * (company > 1)  # a stack of one would be trained twice
    assert same(found, answers(convolving("lenet", "loop"), range(company)))
    assert not auto.runner.said and not auto.runner.looped


def test_where_torch_would_make_the_convolutions_clients_are_looped(monkeypatch, caplog):
    with autograd_only(), caplog.at_level("INFO", "fedpers"):
        auto = convolving("lenet", "auto")
        found, again = answers(auto, range(3)), answers(auto, range(3))
        stacks = count_stacks(monkeypatch)
        answers(auto, range(3))
        assert same(found, answers(convolving("lenet", "loop"), range(3))) and same(found, again)
    assert not stacks and caplog.text.count("slower on a CPU") == 1 and "WARNING" not in caplog.text
    stacked = convolving("lenet", "stack")
    with autograd_only():
        answers(stacked, range(3))
    assert not stacked.runner.looped and not stacked.runner.said  # whoever asks for stacks gets them


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_convolutions_as_products_are_convolutions(padding, biased):
    """Values and gradients, alone and under vmap, against torch's own in double precision."""
    draw = torch.Generator().manual_seed(0)
    x, w, b = (
        torch.randn(*s, generator=draw, dtype=torch.float64)
        for s in [(3, 5, 2, 7, 6), (3, 4, 2, 3, 3), (3, 4)]
    )

    def slopes(x, w, b):
        def energy(x, w, b):
            return convolve(x, w, b if biased else None, padding).sin().sum() + b.sum()

        return torch.func.grad(energy, argnums=(0, 1, 2))(x, w, b)

    theirs = torch.vmap(slopes)(x, w, b)
    with convolutions("products"):
        torch.testing.assert_close(torch.vmap(slopes)(x, w, b), theirs)
        torch.testing.assert_close(slopes(x[0], w[0], b[0]), tuple(t[0] for t in theirs))


@pytest.mark.parametrize(
    ("way", "channels", "side", "stride", "product"),
    [
        ("grouped", 2, 4, 1, False),
        ("products", 64, 8, 1, True),
        ("products", 64, 8, 2, False),  # of stride 1 alone
        ("by shape", 63, 8, 1, True),
        ("by shape", 64, 7, 1, True),
        ("by shape", 64, 8, 1, False),
    ],
)
def test_which_convolutions_are_products(way, channels, side, stride, product, monkeypatch):
    made = []
    monkeypatch.setattr(convolution._Products, "apply", lambda *args: made.append(1))
    x, w = torch.zeros(1, channels, side, side), torch.zeros(1, channels, 3, 3)
    with convolutions(way):
        convolve(x, w, None, 1, stride)
    assert bool(made) == product


@pytest.mark.parametrize(
    ("precision", "wanted", "cuda", "found"),
    [
        ("float32", "auto", True, "products"),
        ("tf32", "auto", True, "by shape"),
        ("bf16", "auto", True, "by shape"),
        ("bf16", "auto", False, "grouped"),
        ("float32", "auto", False, "grouped"),
        ("tf32", "grouped", True, "grouped"),
        ("float32", "products", False, "products"),
    ],
)
def test_how_convolutions_are_computed(precision, wanted, cuda, found):
    assert processor._way(precision, wanted, cuda) == found


def test_resnet_goes_the_ways_of_convolutions():
    model = build_model("resnet18_gn", input_shape=(3, 8, 8), num_outputs=3, task="classification")
    w, x = model.init(0), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    usual = model(w, x)
    with convolutions("products"):
        torch.testing.assert_close(model(w, x), usual)
    with forbid_torch_convolutions(), pytest.raises(ConvolutionForbidden):
        model(w, x)


def test_a_stack_on_a_gpu_takes_what_memory_has_room_for(monkeypatch):
    """No size is measured; equal parts, where not all fit."""
    size = ChunkSize(measures=False)
    assert [size.size(100, limit) for limit in (1000, 100, 99, 40, 1)] == [100, 100, 50, 34, 1]
    size.add(100, 1.0)
    size.limit = 20  # learned from running out of it
    assert size.size(100, 1000) == 20 and not size.chunks
    bytes_of = {"reserved_bytes": 40 << 23, "allocated_bytes": 10 << 23}
    known = {what: {"all": {"current": number}} for what, number in bytes_of.items()}
    cuda = {"mem_get_info": (70 << 23, 1 << 40), "memory_stats_as_nested_dict": known}
    for name, value in cuda.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda device, value=value: value)
    assert processor.free_mb("cuda:0") == 70 + 40 - 10  # an eighth, torch's own reserve among what is free


@pytest.mark.parametrize("options", [{"convolution": "products"}, {"precision": "bf16"}])
def test_other_arithmetic_is_close(options):
    exact = answers(cohort(RunnerConfig("stack")))
    rough = answers(cohort(RunnerConfig("stack", **options)))
    for a, b in zip(exact, rough, strict=True):
        for k in a.params:
            torch.testing.assert_close(a.params[k], b.params[k], rtol=0.05, atol=0.05)


class Counting(RamStore):
    """Gives a copy of a state each time, as a store on disk does, and knows which of them are alive."""

    def __init__(self):
        super().__init__()
        self.asked, self.given, self.most = [], [], 0

    @property
    def alive(self):
        return sum(given() is not None for given in self.given)

    def get(self, k, when):
        self.asked.append(k)
        if (kept := super().get(k, when)) is None:
            return None
        copy = replace(kept)
        self.given.append(weakref.ref(copy))
        self.most = max(self.most, self.alive)
        return copy


def images(client, runner):
    """Clients with a small convolutional network; their states are its body or its head."""
    fed = toy_federation(5, dim=64)
    shaped = lambda d: replace(d, x=d.x.reshape(-1, 1, 8, 8))  # noqa: E731
    data = [ClientData(*map(shaped, vars(fed.client(k)).values())) for k in range(5)]
    net = build_model("cnn_mcmahan", input_shape=(1, 8, 8), num_outputs=3, task="classification")
    config = registry.METHODS[client].config_class()(local=LocalConfig(lr=0.1, steps=1))
    row, fed = registry.METHODS[client], replace(fed, client=data.__getitem__, input_shape=(1, 8, 8))
    case = Case(row.strategy_class(), row.client_class(), config, fed, net, Plan(seed=1))
    return run(case, case.cohort(store=Counting(), runner=runner), eval_every=1)[1]


@pytest.mark.parametrize("client", ["lgfedavg", "fedper"])
def test_a_state_is_read_once_an_exchange(client):
    store = images(client, RunnerConfig()).store
    assert Counter(store.asked) == dict.fromkeys(range(5), 2 * 3)  # 3 rounds, each with an evaluation


@pytest.mark.parametrize("runner", ["auto", "stack", "loop"])
def test_states_are_let_go_after_the_exchange(runner, monkeypatch):
    kept = images("lgfedavg", RunnerConfig(runner))
    gc.collect()
    assert not kept.store.alive
    monkeypatch.setattr("fedpers.engines.runner.HELD", 0)  # less than one state: one at a time
    bounded = images("lgfedavg", RunnerConfig(runner))
    assert bounded.store.most <= 2 < 5
    assert all(same(kept.store.states[k], bounded.store.states[k]) for k in range(5))


def test_answers_of_one_stack_are_to_orders_that_are_alike():
    c = cohort(RunnerConfig("stack"), "equal", "logistic")
    client = FedFomoClient(FedFomoConfig(), c.client.model)
    peers = Cohort(client, c.federation, RamStore(), c.plan, c.runner.config)
    orders = [Candidates((c.params,) * m, 6) for m in (2, 2, 1, 1)]
    found = peers.handle([Request(k, order, Header("train", 1)) for k, order in enumerate(orders)])
    one, same_one, other, same_other = (a.stack for a in found)
    assert one == same_one > 0 and other == same_other > 0 and one != other


def test_requests_of_several_rounds_are_answered_as_round_by_round():
    c = cohort(RunnerConfig("stack"), "equal", "logistic")
    order = Weights(c.params)  # one object for both rounds
    requests = [Request(k, order, Header("train", t)) for t in (1, 2) for k in range(7)]
    together = [a.body for a in c.handle(requests)]
    apart = [a.body for part in (requests[:7], requests[7:]) for a in c.handle(part)]
    assert all(same(a, b) for a, b in zip(together, apart, strict=True))
    assert not same(together[0], together[7])  # each round has minibatches of its own


def test_one_bad_client_does_not_take_its_stack_along():
    c = cohort(RunnerConfig("stack"))

    def client(k):
        if k == 2:
            raise OSError("disk gone")
        return c.federation.client(k)

    fed = replace(c.federation, client=client)
    bad = Cohort(c.client, fed, RamStore(), c.plan, c.runner.config)
    header = Header("train", 3, 0)
    found = bad.handle([Request(k, Weights(c.params), header) for k in range(7)])
    assert isinstance(found[2], OSError)
    good = answers(c)
    assert all(same(found[k].body, good[k]) for k in range(7) if k != 2)


def test_data_that_is_gone_at_a_later_visit_is_one_clients_failure():
    c, gone = cohort(RunnerConfig("stack"), "equal"), set()

    def client(k):
        if k in gone:
            raise OSError("disk gone")
        return c.federation.client(k)

    half = FedPerClient(FedPerConfig(), c.client.model)
    split = Cohort(half, replace(c.federation, client=client), RamStore(), c.plan, c.runner.config)
    order = SharedPart({k: v for k, v in c.params.items() if not half.model.is_head(k)})
    first, second = [[Request(k, order, Header("train", t)) for k in range(7)] for t in (1, 2)]
    split.handle(first)
    gone.add(2)
    found = split.handle(second)
    assert [k for k, a in enumerate(found) if isinstance(a, Exception)] == [2]
    assert isinstance(found[2], OSError)


class Branching(FedAvgClient):
    def answer(self, order, memory, data, rng):
        if float(data.mask.sum()) > 10:  # vmap cannot branch on data
            return order, None
        return super().answer(order, memory, data, rng)


def test_what_vmap_cannot_run_is_looped_and_said(caplog):
    c = cohort(RunnerConfig("auto"))
    branching = Branching(c.client.config, c.client.model)
    stack = Cohort(branching, c.federation, RamStore(), c.plan, RunnerConfig("auto"))
    loop = Cohort(branching, c.federation, RamStore(), c.plan, RunnerConfig("loop"))
    assert same(answers(stack), answers(loop))
    assert "clients with a Weights order run one by one" in caplog.text
    assert len(stack.runner.looped) == 1


class Elementwise(FedAvgClient):
    elementwise = True


@pytest.mark.parametrize(
    ("runner", "room", "looped"), [("auto", -1, True), ("auto", 0, False), ("stack", -1, False)]
)
def test_large_models_of_steps_element_by_element_train_alone(runner, room, looped, caplog, monkeypatch):
    caplog.set_level("INFO")
    c = cohort(RunnerConfig(runner))
    one = Elementwise(c.client.config, c.client.model)
    served = Cohort(one, c.federation, RamStore(), c.plan, RunnerConfig(runner))
    monkeypatch.setattr("fedpers.engines.runner.CACHED", served.nbytes + room)
    answers(served)
    assert ("clients run one by one: steps element by element are slower" in caplog.text) == looped
    assert bool(served.runner._tuners) == (not looped)  # a tuner for each kind of stack


class Declared(Branching):
    vectorized = False


def test_a_method_that_says_so_is_looped_in_silence(caplog):
    c = cohort(RunnerConfig("auto"))
    declared = Declared(c.client.config, c.client.model)
    answers(Cohort(declared, c.federation, RamStore(), c.plan, RunnerConfig("auto")))
    assert "one by one" not in caplog.text


class Random(FedAvgClient):
    def answer(self, order, memory, data, rng):
        drawn = {"n": rng.normal(2, 3), "u": rng.uniform(4), "i": rng.integers(9, 5)}
        return Weights(drawn), None


def test_stacked_clients_draw_from_their_own_streams():
    c = cohort(RunnerConfig("stack"))
    client = Random(c.client.config, c.client.model)
    both = [Cohort(client, c.federation, RamStore(), c.plan, RunnerConfig(r)) for r in ("loop", "stack")]
    first, second = (answers(x) for x in both)
    assert same(first, second)
    assert not both[1].runner.looped
    stream = Stream(1, 3, 4, 0)
    assert torch.equal(second[4].params["n"], stream.normal(2, 3))


def test_what_all_clients_share_is_one_object():
    c = cohort(RunnerConfig("stack"), sizes="equal")

    class Echo(FedAvgClient):
        def answer(self, order, memory, data, rng):
            return order, None

    client = Echo(c.client.config, c.client.model)
    stack = Cohort(client, c.federation, RamStore(), c.plan, RunnerConfig("stack", chunk=7))
    found = answers(stack)
    assert all(a.params[k] is found[0].params[k] for a in found for k in a.params)


def test_memories_do_not_keep_their_stack_alive():
    case = make_case(FedPer, FedPerClient, FedPerConfig())
    _, c = run(case, case.cohort(runner=RunnerConfig("stack")))
    for memory in c.store.states.values():
        for leaf in leaves(memory):
            assert leaf.untyped_storage().nbytes() == leaf.nbytes


@pytest.mark.parametrize("n", range(1, 70))
def test_padding_is_moderate_and_depends_on_the_client_alone(n):
    assert padded_size(n, n) == n
    assert n <= padded_size(n, 100) <= max(1.5 * n + 1, 2)
    assert n <= padded_size(n) <= max(1.25 * n + 1, n + 3)
    assert padded_size(padded_size(n, 100), 100) == padded_size(n, 100)


def test_the_tuner_takes_the_fastest_size():
    tuner = ChunkSize()
    cost = {4: 4.0, 8: 2.0, 16: 1.0, 32: 1.5, 64: 9.0}
    seen = []
    while len(seen) < 15:
        seen.append(tuner.size(1024, 2000))
        tuner.add(seen[-1], cost[seen[-1]])
    walk = [16, 16, 32, 32, 8, 8]
    assert seen == [*walk, 16, *walk, 16, 16]  # twice: the first chunks are cold
    assert tuner.size(5, 1000) == 5
    assert tuner.size(1000, 3) == 3
    tuner.chunks = 0
    assert [tuner.size(n, 1000) for n in (20, 30, 40)] == [20, 15, 14]  # equal parts
    assert tuner.size(20, 16) == 10  # memory for 16
    assert set(cost) <= set(CANDIDATES)


def test_the_tuner_tries_larger_sizes_first_and_the_whole_cohort():
    tuner, cost, seen = ChunkSize(), {16: 9.0, 32: 5.0, 48: 3.0, 96: 2.0}, []
    while len(seen) < 7:
        seen.append(tuner.size(96, 1000))
        tuner.add(seen[-1], cost[seen[-1]])
    assert seen == [16, 16, 32, 32, 48, 48, 96]  # equal parts, near 64 and 128
    tuner.add(96, 2.0)
    tuner.chunks = 0
    assert [tuner.size(n, 1000) for n in (90, 60, 30)] == [90, 60, 30]  # 96 stands for 128
    small = ChunkSize()
    for _ in range(7):
        small.add(small.size(7, 1000), 1.0)
    assert set(small.seconds) == {8, 4}


def test_a_size_of_which_no_equal_parts_can_be_made_is_measured_itself():
    tuner = ChunkSize()
    assert [tuner.size(23, 100), tuner.size(7, 100)] == [16, 7]  # 23 would count for 32
    tuner.add(16, 1.0)
    assert tuner.size(20, 100) == 20


def test_what_the_first_chunks_took_is_forgotten():
    """They are slow at whatever comes first: here 16, which is the best once all is warm."""
    tuner, seen = ChunkSize(), []
    for t in range(30):
        seen.append(tuner.size(20, 100))
        tuner.add(seen[-1], (9.0 if t < 2 else 1.0) * {20: 1.0, 7: 1.5, 6: 1.5}.get(seen[-1], 2.0))
        if t == 6:
            assert tuner._best() == 8
    assert tuner._best() == 16 and seen[-5:] == [20] * 5


def test_a_size_that_was_chosen_need_not_be_measured_anew():
    """64 is the best until all is forgotten; then the walk ends at 32, which is far slower than 16."""
    tuner, seen = ChunkSize(), []
    for t in range(15):
        seen.append(tuner.size(64, 100))
        cost = {16: 3.0, 32: 2.0, 64: 1.0} if t < 7 else {16: 1.0}
        tuner.add(seen[-1], cost.get(seen[-1], 9.0))
    assert seen[6] == 64 and seen[-2:] == [16] * 2


def test_a_size_that_was_measured_in_a_bad_moment_gets_another_chance():
    tuner, cost = ChunkSize(), {4: 4.0, 8: 9.0, 16: 8.0, 32: 9.5}  # 8 is the best, seen too late
    for _ in range(100):
        size = tuner.size(1024, 2000)
        tuner.add(size, 1.0 if size == 8 and tuner.chunks > 9 else cost.get(size, 9.0))
    assert tuner._best() == 8


def test_sizes_that_are_alike_do_not_take_turns():
    """Times within 4 % of each other, and noise that says now this one, now that one is best."""
    noise, seen = np.random.default_rng(0), []
    tuner, cost = ChunkSize(), {4: 9.0, 8: 9.0, 16: 1.02, 32: 1.0, 64: 9.0, 128: 9.0}
    for _ in range(300):
        before = tuner.chunks
        seen.append(tuner.size(1024, 2000))
        tuner.add(seen[-1], cost.get(seen[-1], 1.01) * noise.uniform(0.99, 1.03))
        assert tuner.chunks == before + 1
    chosen = [size for i, size in enumerate(seen, 1) if i > 150 and i % 16]  # the others are trials
    assert len(set(chosen)) == 1


# ---- workers -----------------------------------------------------------------------------------


@LINUX
def test_shared_memory_is_used_again_once_nobody_looks_at_it():
    here, there = map(Channel, socket.socketpair())

    def trip(value, size=1000):
        here.send(here.write("head", [{"a": torch.full((size,), value)}]))
        head, (tree,) = there.receive()
        there.send(there.write(None, []))  # says what is free
        here.receive()
        assert head == "head" and bool((tree["a"] == value).all())
        return tree["a"]

    kept = trip(1.0)
    for value in range(2, 9):
        trip(float(value))
    assert bool((kept == 1.0).all())  # its block was left alone
    assert len(here._own) == 3  # two more, in turns: one is free a trip later
    del kept
    trip(9.0)
    trip(10.0, size=500)  # a smaller message fits, too
    assert len(here._own) == 3
    assert len(trip(11.0, size=5000)) == 5000
    assert len(here._own) == 4
    here.close()
    with pytest.raises(EOFError):
        there.receive()


def test_work_goes_to_the_least_loaded():
    shares = balance([5, 1, 4, 2, 3], [1.0, 1.0])
    assert shares == [[0, 1, 3], [2, 4]]
    assert sorted(i for share in balance([1.0] * 7, [1.0] * 3) for i in share) == list(range(7))
    assert balance([], [1.0, 1.0]) == [[], []]


def test_a_process_twice_as_fast_gets_twice_the_work():
    assert [len(share) for share in balance([1.0] * 90, [1.0, 0.5])] == [60, 30]
    speeds = Speeds(2)
    assert speeds.relative() == [1.0, 1.0]  # nobody was measured
    speeds.add(0, 50, 1.0)
    assert speeds.relative() == [1.0, 1.0]
    speeds.add(1, 50, 2.0)
    assert speeds.relative() == [1.0, 0.5]
    for _ in range(3):
        speeds.add(1, 50, 1e6)
    assert speeds.relative() == [1.0, LEAST]  # it is asked again, and found faster
    for _ in range(5):
        speeds.add(1, 100, 1.0)
    assert speeds.relative() == [0.5, 1.0]


@LINUX
def test_clients_are_dealt_by_measured_speed_and_keep_their_bits():
    """A worker that is slow gets fewer clients in the next exchange; the answers are those of before."""
    pool = cohort(RunnerConfig(workers=2), sizes="equal")
    try:
        first = answers(pool)
        speeds = pool._pool._speeds["train"]
        assert len(speeds._seen[0]) == len(speeds._seen[1]) == 1
        for _ in range(5):
            speeds.add(0, 1, 100.0)
            speeds.add(1, 1, 50.0)
        shares = []
        message = pool._pool._message
        pool._pool._message = lambda channel, requests: (
            shares.append(len(requests)) or message(channel, requests)
        )
        again = answers(pool)
    finally:
        pool.close()
    assert same(first, again)
    assert shares[0] < len(again) / 2


@LINUX
def test_workers_give_the_bits_of_one_process():
    alone = answers(cohort(RunnerConfig()))
    pool = cohort(RunnerConfig(workers=2))
    try:
        assert same(alone, answers(pool))
        assert same(answers(cohort(RunnerConfig()), [5, 1]), answers(pool, [5, 1]))
    finally:
        pool.close()


@LINUX
def test_answers_of_one_stack_say_so_in_their_own_process_alone():
    order = Weights(cohort(RunnerConfig()).params)
    requests = [Request(k, order, Header("train", 1, 0)) for k in range(4)]

    def stacks(runner):
        c = cohort(runner, sizes="equal")
        try:
            return [a.stack for a in c.handle(requests)]
        finally:
            c.close()

    first = stacks(RunnerConfig("stack", chunk=2))
    assert first[0] == first[1] > 0 and first[2] == first[3] > 0 and first[0] != first[2]
    assert not {*first} & {*stacks(RunnerConfig("stack", chunk=2))}  # another exchange's
    assert stacks(RunnerConfig("loop")) == [0] * 4
    assert sorted(map(bool, stacks(RunnerConfig("stack", workers=2)))) == [False, False, True, True]


@LINUX
def test_a_failure_in_a_worker_is_the_clients_failure():
    c = cohort(RunnerConfig(workers=2))
    header = Header("train", 1, 0)
    bad = Weights({k: v[:1] for k, v in c.params.items()})
    orders = [Weights(c.params)] * 4 + [bad] + [Weights(c.params)] * 2
    try:
        found = c.handle([Request(k, o, header) for k, o in enumerate(orders)])
    finally:
        c.close()
    assert [isinstance(a, Exception) for a in found] == [k == 4 for k in range(7)]


@LINUX
def test_a_worker_that_dies_is_reported():
    import os
    import signal

    from fedpers.core.errors import FedpersError

    c = cohort(RunnerConfig(workers=2))
    c.start()
    os.kill(c._pool._pids[0], signal.SIGKILL)
    try:
        with pytest.raises(FedpersError, match="a worker process died"):
            answers(c)
    finally:
        c.close()


@LINUX
@pytest.mark.parametrize(
    "strategy", [(FedAvg, FedAvgClient, FedAvgConfig), (FedPer, FedPerClient, FedPerConfig)]
)
def test_whole_runs_with_workers(strategy):
    server, client, config = strategy
    case = make_case(server, client, config())
    alone, first = run(case)
    pool = case.cohort(runner=RunnerConfig(workers=3))
    try:
        shared, second = run(case, pool)
    finally:
        pool.close()
    assert same(alone.state, shared.state)
    kept = [dict(sorted(c.store.states.items())) for c in (first, second)]
    assert same(*kept)


@record
class Thing:
    """A record for the tests below."""

    a: torch.Tensor
    b: dict
    c: tuple


def things():
    one = torch.arange(6.0).reshape(2, 3)
    rows = [Thing(one, {"x": torch.full((2,), k), "n": k}, (None, "s", 1.5 * k)) for k in range(3)]
    return [*rows, None, {"other": torch.zeros(0, 4), "t": torch.tensor(True)}, 7.5]


def test_trees_survive_a_bundle():
    trees = things()
    trees.append(trees[1])
    bundle = PackedTrees(trees)
    assert bundle.size == PackedTrees(trees[:-1]).size  # what is there twice is packed once
    block = torch.zeros(max(bundle.size, 1), dtype=torch.uint8)
    bundle.write(block)
    back = unpack_trees(bundle.content, block)
    assert [type(t) for t in back] == [type(t) for t in trees]
    assert all(same(a, b) for a, b in zip(trees, back, strict=True))
    assert back[0].a is back[2].a  # what was shared is shared
    assert back[-1] is back[1]


def test_flatten_and_rebuild_are_inverse():
    for tree in things():
        flat, structure = flatten(tree)
        assert same(rebuild(structure, flat), tree)
        assert hash(structure) == hash(flatten(tree)[1])


@pytest.mark.parametrize("runner", ["loop", "stack"])
def test_an_order_is_taken_apart_once(runner, monkeypatch):
    """For its bytes, and for the stack that it goes to, which must be those of this very order."""
    case, apart, orders = make_case(FedFomo, FedFomoClient, FedFomoConfig(num_neighbours=2)), [], []
    address = transport.Transport.address

    def counted(tree):
        apart.extend([tree] if type(tree) is Candidates else [])
        return flatten(tree)

    def addressed(self, header, given, counts):
        orders.extend(given.values())
        messages = address(self, header, given, counts)
        if header.kind == "train":
            assert all(same(r.tree[0], flatten(r.order)[0]) for r in messages.parts)
        return messages

    monkeypatch.setattr(transport, "flatten", counted)
    monkeypatch.setattr(runner_module, "flatten", counted)
    monkeypatch.setattr(transport.Transport, "address", addressed)
    run(case, case.cohort(runner=RunnerConfig(runner)))
    trained = [order for order in orders if type(order) is Candidates]
    assert trained and list(map(id, apart)) == list(map(id, trained))


@pytest.mark.parametrize(
    ("each_mb", "by_autograd", "clients"),
    [
        (1, False, 1024),
        (1, True, 64),
        (4, True, 32),
        (10, True, 25),
        (32, True, 16),
        (100, True, 10),
        (100, False, 10),
        (3000, True, 1),
    ],
)
def test_clients_of_one_stack(each_mb, by_autograd, clients):
    assert most_clients(2**30, each_mb * 2**20, by_autograd=by_autograd) == clients
