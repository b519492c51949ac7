"""Training and gradients of dense networks without autograd: autograd's numbers, for any stack."""

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedpers.checks.case import close as near
from fedpers.checks.case import same
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig, Weights
from fedpers.clients.fedper import FedPerClient, FedPerConfig
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import FedpersError
from fedpers.core.items import ModelBatch
from fedpers.core.params import split
from fedpers.core.plan import Plan
from fedpers.core.rng import Stream
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.engines.stacked_data import Block, StackedData
from fedpers.families.split_models.client import OwnPart, SharedPart
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.messages import Header, Request
from fedpers.learning.gradients import grad, stacked
from fedpers.learning.kernels import assess as assess_module
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.scoring import losses_of, losses_of_each, sample_losses_of, scores_of
from fedpers.learning.layers import SquashedStack
from fedpers.learning.local_training import minimise, minimise_from
from fedpers.learning.losses import Frozen, soft_proximal
from fedpers.learning.model import Model, build_model
from fedpers.learning.optimizers import LocalConfig, init_optimizer

TASKS = ["classification", "binary", "regression"]
SGD = LocalConfig(lr=0.05, epochs=3, batch_size=5)
LOCALS = {
    "plain": SGD,
    "decay": replace(SGD, weight_decay=0.1),
    "momentum": replace(SGD, momentum=0.5, weight_decay=0.1),
    "adam": replace(SGD, lr=0.01, optimizer="adam"),
    "adam, decay": replace(SGD, lr=0.01, optimizer="adam", weight_decay=0.1),
    "whole": replace(SGD, batch_size=0, epochs=4),
    "whole, steps": replace(SGD, batch_size=0, steps=3, momentum=0.9),
}


@pytest.fixture
def no_kernel(monkeypatch):
    """The C kernels are left out."""
    monkeypatch.setenv("FEDPERS_NATIVE", "0")
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def net(dim, hidden, classes=4, task="classification", bias=True):
    linear = {"binary": "logistic", "classification": "logistic", "regression": "linear"}[task]
    name, options = ("mlp", {"hidden": list(hidden)}) if hidden else (linear, {})
    return build_model(name, input_shape=(dim,), num_outputs=classes, task=task, bias=bias, **options)


def close(found, wanted):
    assert found.keys() == wanted.keys()
    for k in wanted:
        torch.testing.assert_close(found[k], wanted[k], rtol=1e-4, atol=3e-6)


def both(f):
    """f() with the kernels and by autograd."""
    with torch.no_grad():
        fast = f()
        with autograd_only():
            return fast, f()


@pytest.mark.parametrize("hidden", [(), (9,), (20, 7)], ids=str)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_every_optimiser_is_autograds(local, task, hidden):
    """With a short last batch, and with the optimiser's state from before."""
    fed = toy_federation(1, (13,), dim=6, task=task)
    model = net(6, hidden, fed.num_classes, task)
    data, params = fed.client(0).train, model.init(0)

    def train():
        opt = init_optimizer(params, local)
        w, opt = minimise_from(model.loss, params, opt, data, Stream(0, 1, 0), local)
        return minimise_from(model.loss, w, opt, data, Stream(0, 2, 0), local)

    (fast, fast_state), (slow, slow_state) = both(train)
    close(fast, slow)
    assert fast_state.step == slow_state.step
    close(fast_state.m, slow_state.m)
    close(fast_state.v, slow_state.v)


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_without_the_kernel_torch_takes_the_same_steps(local, no_kernel):
    """With the gradient written out (tests/test_dense_steps.py), or by autograd."""
    fed = toy_federation(1, (13,), dim=6)
    model, data = net(6, (9,), fed.num_classes), fed.client(0).train
    params = model.init(0)

    def train():
        return minimise_from(model.loss, params, init_optimizer(params, local), data, Stream(0, 1, 0), local)[
            0
        ]

    close(*both(train))


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("part", ["head", "body", "all"])
@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_pulls_and_fixed_parts_are_autograds(lam, part, local):
    fed = toy_federation(1, (13,), dim=6)
    model = net(6, (9, 5), fed.num_classes)
    data, params = fed.client(0).train, model.init(0)
    head, body = split(params, model.is_head)
    moving = {"head": head, "body": body, "all": params}[part]
    fixed = {k: v for k, v in params.items() if k not in moving}
    loss = Frozen(model.loss, fixed) if fixed else model.loss
    others = {k: v for k, v in model.init(1).items() if k in moving}
    loss = soft_proximal(loss, lam, torch.tensor(1.3), others)

    def train():
        start = init_optimizer(moving, local)
        return minimise_from(loss, moving, start, data, Stream(0, 1, 0), local)[0]

    close(*both(train))
    close(*both(lambda: grad(loss)(moving, data)))


@pytest.mark.parametrize("kernels", [nullcontext, autograd_only])
def test_a_pull_has_the_names_of_what_it_pulls(kernels):
    fed = toy_federation(1, (13,), dim=6)
    model, data = net(6, (5,), fed.num_classes), fed.client(0).train
    head, body = split(model.init(0), model.is_head)
    loss = soft_proximal(Frozen(model.loss, body), 0.7, 1.0, model.init(1))
    with torch.no_grad(), kernels(), pytest.raises(FedpersError, match="do not match"):
        minimise_from(loss, head, init_optimizer(head, SGD), data, Stream(0, 1, 0), SGD)


@pytest.mark.parametrize(
    ("dim", "classes", "bias"),
    [(16, 5, True), (784, 10, True), (37, 3, False), (5, 12, True), (100, 62, True), (33, 11, False)],
)
def test_every_remainder_of_the_kernels_blocks(dim, classes, bias):
    fed = toy_federation(1, (23,), dim=dim, classes=classes)
    data = fed.client(0).train
    for hidden, momentum in product(((), (2 * classes + 1,)), (0.0, 0.5)):
        model = net(dim, hidden, classes, bias=bias)
        local = replace(SGD, batch_size=7, weight_decay=0.1, momentum=momentum)

        def train(model=model, local=local):
            start = init_optimizer(model.init(0), local)
            return minimise_from(model.loss, model.init(0), start, data, Stream(0, 1, 0), local)[0]

        close(*both(train))


@settings(max_examples=40, deadline=None)
@given(
    dim=st.integers(1, 40),
    hidden=st.lists(st.integers(1, 40), max_size=2),
    rows=st.integers(1, 30),
    classes=st.integers(2, 25),
    batch=st.integers(1, 12),
    bias=st.booleans(),
    name=st.sampled_from([n for n in LOCALS if "adam" not in n]),  # Adam magnifies a last bit
)
def test_any_shape(dim, hidden, rows, classes, batch, bias, name):
    """Against float64: at ReLU's kink a last bit decides, and autograd's may be the wrong one."""
    fed = toy_federation(1, (rows,), dim=dim, classes=classes)
    local = LOCALS[name] if "whole" in name else replace(LOCALS[name], batch_size=batch)
    model, data = net(dim, hidden, classes, bias=bias), fed.client(0).train
    params = model.init(0)

    @torch.no_grad()
    def found(w, data):
        start = init_optimizer(w, local)
        return minimise_from(model.loss, w, start, data, Stream(0, 1, 0), local)[0], grad(model.loss)(w, data)

    def exact(shift):
        rng = torch.Generator().manual_seed(0)
        w = {k: v * (1 + shift * torch.randn(v.shape, generator=rng).double()) for k, v in params.items()}
        return found(w, Data(data.x.double(), data.y, data.mask.double()))

    wanted = exact(0.0)
    assume(all(near(exact(shift), wanted, 3e-6) for shift in (1e-6, -1e-6)))
    for fast, right in zip(found(params, data), wanted, strict=True):
        close(fast, {k: v.float() for k, v in right.items()})


@pytest.mark.parametrize("lam", [0.0, 0.7])
@pytest.mark.parametrize("name", ["whole", "whole, steps"])
def test_more_rows_than_the_cache_holds(name, lam):
    """Products take half a megabyte of them at a time: here 20 rows or fewer, and a rest."""
    model = net(8192, (12,), 6)
    loss = soft_proximal(model.loss, lam, torch.tensor(1.3), model.init(1))
    x, y = torch.randn(45, 8192, generator=torch.Generator().manual_seed(0)), torch.arange(45) % 6
    data, params = Data(x, y, torch.ones(45)), model.init(0)
    close(*both(lambda: grad(loss)(params, data)))
    close(*both(lambda: minimise(loss, params, data, Stream(0, 1, 0), LOCALS[name])))


@pytest.mark.parametrize(
    "hidden", [(12,), (32,)], ids=str
)  # rows that are padded, or worked on where they are
def test_more_rows_than_the_cache_holds_of_unequal_clients(hidden):
    """A gradient is the sum of pieces, each client's of its own: 45 rows, 21, and 3 that leave a gap."""
    model, masks = net(8192, hidden, 6), torch.zeros(3, 45)
    masks[0], masks[1, :21], masks[2, [0, 7, 44]] = 1, 1, 1
    x = torch.randn(3, 45, 8192, generator=torch.Generator().manual_seed(0))
    y, params = torch.arange(135).reshape(3, 45) % 6, [model.init(k) for k in range(3)]
    w = {k: torch.stack([p[k] for p in params]) for k in params[0]}
    before = {k: v.clone() for k, v in w.items()}

    def slopes(w, x, y, mask):
        with stacked():
            return grad(model.loss)(w, Data(x, y, mask))

    close(*both(lambda: torch.vmap(slopes)(w, x, y, masks)))
    assert all(torch.equal(w[k], before[k]) for k in w)


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_a_client_has_the_same_bits_in_every_stack(local):
    """Also where clients are padded: theirs are 12, 9, 3 and 20 samples."""
    fed = toy_federation(7, (12, 9, 3, 20), dim=30, classes=4)
    model = net(30, (16,))
    config = FedAvgConfig(local=local)

    def answers(chunk):
        cohort = Cohort(FedAvgClient(config, model), fed, RamStore(), Plan(seed=1), chunk)
        header = Header("train", 3, 0)
        order = Weights(cohort.params)
        return [a.body for a in cohort.handle([Request(k, order, header) for k in range(7)])]

    whole = answers(RunnerConfig("stack", chunk=7))
    for other in (RunnerConfig("stack", chunk=2), RunnerConfig("stack", chunk=1), RunnerConfig("loop")):
        assert all(same(a, b) for a, b in zip(whole, answers(other), strict=True))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("hidden", [(), (9,)], ids=str)
def test_gradients_in_a_stack_are_autograds(task, hidden):
    """Each client with weights of its own, and a batch of its own with a padded row."""
    fed = toy_federation(3, (8,), dim=6, task=task)
    model = net(6, hidden, fed.num_classes, task)
    params = [model.init(k) for k in range(3)]
    w = {k: torch.stack([p[k] for p in params]) for k in params[0]}
    rows = [fed.client(k).train for k in range(3)]
    x, y, mask = (torch.stack([getattr(d, n) for d in rows]) for n in ("x", "y", "mask"))
    mask[1, 2:] = 0

    def slopes(w, x, y, mask):
        with stacked():
            return grad(model.loss)(w, type(rows[0])(x, y, mask))

    close(*both(lambda: torch.vmap(slopes)(w, x, y, mask)))


@pytest.mark.parametrize("task", TASKS)
def test_the_gradient_of_a_head_is_autograds(task):
    """Features are given; the body may be anything."""
    fed = toy_federation(1, (8,), dim=6, task=task)
    model, data = net(6, (9,), fed.num_classes, task), fed.client(0).train
    params = model.init(0)
    head, body = split(params, model.is_head)
    features = model.body(body, data.x)
    close(*both(lambda: grad(model.head_loss)(head, features, data)))


def test_the_gradient_of_no_sample_is_no_number():
    """As autograd has it; methods count such clients."""
    fed = toy_federation(1, (8,), dim=6)
    model, data = net(6, (5,), fed.num_classes), fed.client(0).train
    nothing = replace(data, mask=torch.zeros(8))
    for found in both(lambda: grad(model.loss)(model.init(0), nothing)):
        assert torch.isnan(found["head.bias"]).all()


def test_a_label_that_is_no_class_is_an_error():
    fed = toy_federation(1, (10,), dim=4)
    data = replace(fed.client(0).train, y=torch.full((10,), 3))
    model = net(4, (), 3)
    with torch.no_grad(), pytest.raises((IndexError, RuntimeError)):
        minimise_from(
            model.loss, model.init(0), init_optimizer(model.init(0), SGD), data, Stream(0, 1, 0), SGD
        )


def test_inputs_of_another_width_are_torchs_error_and_no_stray_read():
    fed = toy_federation(1, (10,), dim=4)
    model = net(5, (3,), 3)
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        minimise_from(
            model.loss,
            model.init(0),
            init_optimizer(model.init(0), SGD),
            fed.client(0).train,
            Stream(0, 1, 0),
            SGD,
        )


def test_an_optimiser_without_its_memory_is_an_error_and_no_stray_write():
    fed = toy_federation(1, (10,), dim=4)
    model, local = net(4, (3,), fed.num_classes), LOCALS["adam"]
    params = model.init(0)
    with torch.no_grad(), pytest.raises(KeyError):
        minimise_from(
            model.loss, params, init_optimizer(params, SGD), fed.client(0).train, Stream(0, 1, 0), local
        )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["plain", "adam"])
def test_each_client_of_a_stack_has_its_own_strength_of_the_pull(name, shared):
    """Or all the same, which is one number and no stack."""
    fed, strengths = toy_federation(3, (10, 7, 12), dim=6), torch.tensor([0.25, 4.0, 1.5])
    local = replace(LOCALS[name], batch_size=0, epochs=3)
    model, parts = net(6, (5,), fed.num_classes), [fed.client(k).train for k in range(3)]
    w, cbar, block = model.init(0), model.init(1), Block(parts, 12)

    def train(data, u):
        return minimise(soft_proximal(model.loss, 0.5, u, cbar), w, data, Stream(0, 1, 0), local)

    one, clients = torch.tensor(2.0), torch.arange(3)
    with torch.no_grad(), stacked():
        all_of = torch.vmap(lambda i, u: train(StackedData.of(i, block), one if shared else u))
        found = all_of(clients, strengths)
    with torch.no_grad(), autograd_only():
        for i, (data, u) in enumerate(zip(parts, strengths, strict=True)):
            close({k: v[i] for k, v in found.items()}, train(data, one if shared else u))


@pytest.mark.parametrize("name", ["whole", "whole, steps", "whole, adam"])
def test_moments_that_nobody_keeps_start_anew_for_each_client(name):
    """All clients of a stack share the zeros that their moments start from."""
    fed = toy_federation(3, (10, 7, 12), dim=6)
    local = replace(LOCALS["adam"], batch_size=0, steps=3) if "adam" in name else LOCALS[name]
    model, parts = net(6, (5,), fed.num_classes), [fed.client(k).train for k in range(3)]
    starts, block = [model.init(k) for k in range(3)], Block(parts, 12)
    stacks = {k: torch.stack([p[k] for p in starts]) for k in starts[0]}

    def train(data, w):
        return minimise(model.loss, w, data, Stream(0, 1, 0), local)

    with torch.no_grad(), stacked():
        found = torch.vmap(lambda i, w: train(StackedData.of(i, block), w))(torch.arange(3), stacks)
    with torch.no_grad(), autograd_only():
        for i, (data, w) in enumerate(zip(parts, starts, strict=True)):
            close({k: v[i] for k, v in found.items()}, train(data, w))


def test_a_vmap_of_the_methods_own_is_left_to_torch():
    """Two models of one client, trained under one vmap: what they are alone."""
    fed = toy_federation(1, (13,), dim=6)
    model, data = net(6, (5,), fed.num_classes), fed.client(0).train
    starts = [model.init(k) for k in range(2)]
    both_starts = {k: torch.stack([p[k] for p in starts]) for k in starts[0]}

    def train(p):
        return minimise_from(model.loss, p, init_optimizer(p, SGD), data, Stream(0, 1, 0), SGD)[0]

    def inner(_):
        return torch.vmap(train)(both_starts), torch.vmap(lambda p: grad(model.loss)(p, data))(both_starts)

    with torch.no_grad(), stacked():
        trained, slopes = torch.vmap(inner)(torch.zeros(1))
    with torch.no_grad():
        for i, p in enumerate(starts):
            close({k: v[0, i] for k, v in trained.items()}, train(p))
            close({k: v[0, i] for k, v in slopes.items()}, grad(model.loss)(p, data))


def test_inside_a_gradient_training_is_left_to_autograd():
    """Who differentiates through a training gets its derivative: beside central differences."""
    fed = toy_federation(1, (6,), dim=4, dtype=torch.float64)
    model, data = net(4, (3,), fed.num_classes), fed.client(0).train
    params = {k: v.double() for k, v in model.init(0).items()}
    local = replace(SGD, epochs=2, batch_size=6)

    def after(bias):
        p = params | {"head.bias": bias}
        w, _ = minimise_from(model.loss, p, init_optimizer(p, local), data, Stream(0, 1, 0), local)
        return model.loss(w, data)

    with torch.no_grad(), stacked():
        g = grad(after)(params["head.bias"])
    for i, step in enumerate(1e-5 * torch.eye(len(g), dtype=torch.float64)):
        up, down = (float(after(params["head.bias"] + sign * step)) for sign in (1, -1))
        assert float(g[i]) == pytest.approx((up - down) / 2e-5, abs=1e-8)


# ---- losses and right answers ------------------------------------------------------------------


def scores(model, params, rows, shared=()):
    """(losses [C], accuracies [C]): in one vmap over the clients, some parameters the same tensor for all."""
    size = max(len(d) for d in rows)
    block = Block(rows, size)
    own = {k: torch.stack([p[k] for p in params]) for k in params[0] if k not in shared}
    same_for_all = {k: params[0][k].expand(len(rows), *params[0][k].shape) for k in shared}

    def one(i, w):
        return scores_of(model, w, StackedData.of(i, block))

    return torch.vmap(one)(torch.arange(len(rows)), own | same_for_all)


def wanted_scores(model, p, d):
    """By the model's own definitions, in float64."""
    p, d = {k: v.double() for k, v in p.items()}, replace(d, x=d.x.double())
    outputs = model(p, d.x)
    return model.sample_losses(outputs, d.y).mean(), model.correct(outputs, d.y).mean()


@settings(max_examples=80, deadline=None)
@given(
    dim=st.integers(1, 70),
    hidden=st.lists(st.integers(1, 150), max_size=3),
    bias=st.booleans(),
    rows=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    classes=st.integers(2, 40),
    shared=st.sampled_from(["all", "body", "head", "none"]),
    task=st.sampled_from(TASKS),
)
def test_scores_are_the_models(dim, hidden, rows, classes, bias, shared, task):
    """Of every task, depth and width, of ragged clients, whatever clients share."""
    fed = toy_federation(len(rows), tuple(rows), dim=dim, classes=classes, task=task)
    model = net(dim, hidden, fed.num_classes, task=task, bias=bias)
    data = [fed.client(k).train for k in range(len(rows))]
    params = [model.init(k) for k in range(len(rows))]
    kinds = {"all": lambda k: True, "body": lambda k: not model.is_head(k), "head": model.is_head}
    same_for_all = [k for k in params[0] if shared in kinds and kinds[shared](k)]
    params = [p | {k: params[0][k] for k in same_for_all} for p in params]
    with torch.no_grad():
        found = scores(model, params, data, same_for_all)
        for loss, right, p, d in zip(*found, params, data, strict=True):
            wanted = wanted_scores(model, p, d)
            assert float(loss) == pytest.approx(float(wanted[0]), rel=1e-4, abs=1e-5)
            assert float(right) == pytest.approx(float(wanted[1]), abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dim, hidden", [(16, (3,)), (512, (17,)), (528, (16, 23)), (2800, (19,))], ids=str)
def test_scores_where_weights_lie_are_the_models(dim, hidden, bias):
    """Of few outputs or many inputs, which the kernel does not pack; own models of ragged clients, or one."""
    fed = toy_federation(3, (70, 3, 41), dim=dim, classes=11)
    model = net(dim, hidden, fed.num_classes, bias=bias)
    data, params = [fed.client(k).train for k in range(3)], [model.init(k) for k in range(3)]
    for own in (params, [params[0]] * 3):
        with torch.no_grad():
            found = scores(model, own, data, params[0] if own[1] is own[0] else ())
            for loss, right, p, d in zip(*found, own, data, strict=True):
                wanted = wanted_scores(model, p, d)
                assert float(loss) == pytest.approx(float(wanted[0]), rel=1e-4, abs=1e-5)
                assert float(right) == pytest.approx(float(wanted[1]), abs=1e-6)


@pytest.mark.parametrize("hidden", [(), (20, 7)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_losses_of_several_models_are_each_ones_own(hidden, bias):
    """In the order of the models, also of one that lies transposed in memory."""
    fed = toy_federation(1, (30,), dim=19)
    model, whole = net(19, hidden, fed.num_classes, bias=bias), fed.client(0).train
    models = [model.init(k) for k in range(4)]
    models[2] = {k: v.t().contiguous().t() for k, v in models[2].items()}
    data = whole.part(lambda n: np.arange(0, n, 3))
    wanted = [wanted_scores(model, p, replace(whole, x=whole.x[::3], y=whole.y[::3]))[0] for p in models]
    for found in both(lambda: losses_of_each(model.loss, ModelBatch(models), [data])[0]):
        torch.testing.assert_close(found.double(), torch.stack(wanted), rtol=1e-5, atol=1e-6)
    stacks = {k: torch.stack([w[k] for w in models]) for k in models[0]}
    for found in both(lambda: losses_of(model.loss, stacks, data)):
        torch.testing.assert_close(found.double(), torch.stack(wanted), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("head_alone", [False, True])
def test_losses_of_models_in_stacks_are_each_clients_own(head_alone, task, monkeypatch):
    """Of ragged clients, on parts of their samples; layers below are each model's own, or all share them."""
    fed = toy_federation(3, (70, 3, 41), dim=19, task=task)
    model, calls, assess = net(19, (7,), fed.num_classes, task=task), [], assess_module._assess
    block = Block([fed.client(k).train.part(lambda n: np.arange(0, n, 2)) for k in range(3)], 40)
    copies = [Data(p.x, p.y, p.mask) for p in block.parts]
    below = {k: v for k, v in model.init(9).items() if not model.is_head(k)} if head_alone else {}
    loss = Frozen(model.loss, below) if head_alone else model.loss
    own = [[model.init(3 * c + j) for j in range(3)] for c in range(3)]
    names = [k for k in own[0][0] if k not in below]
    stacks = {k: torch.stack([torch.stack([w[k] for w in group]) for group in own]) for k in names}
    monkeypatch.setattr(assess_module, "_assess", lambda *args: calls.append(1) or assess(*args))

    def one(i, w):
        return losses_of(loss, w, StackedData.of(i, block))

    with torch.no_grad():
        fast, slow = both(lambda: torch.vmap(one)(torch.arange(3), stacks))
        assert len(calls) == (native.library() is not None)
        for c, group in enumerate(own):
            wanted = torch.stack([wanted_scores(model, w | below, copies[c])[0] for w in group])
            for found in (fast, slow):
                torch.testing.assert_close(found[c].double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("hidden", [(), (20, 7)], ids=str)
def test_losses_of_each_sample_are_those_of_each_model(hidden, task, monkeypatch):
    """Of ragged clients in a stack, some larger than what is scored at a time; one model is all clients'."""
    sizes, calls = (70, 3, 41), []
    fed = toy_federation(3, sizes, dim=19, task=task)
    model, parts = net(19, hidden, fed.num_classes, task=task), [fed.client(k).train for k in range(3)]
    block, shared, kernel = Block(parts, 80), model.init(9), assess_module.sample_losses
    own = [model.init(k) for k in range(3)]
    stacks = {k: torch.stack([w[k] for w in own]) for k in shared}
    monkeypatch.setattr(assess_module, "sample_losses", lambda *args: calls.append(1) or kernel(*args))

    def one(i, w):
        return sample_losses_of(model, (shared, w), StackedData.of(i, block))

    with torch.no_grad():
        found = torch.vmap(one)(torch.arange(3), stacks)
        with autograd_only():
            by_torch = torch.vmap(one)(torch.arange(3), stacks)
    assert len(calls) == (native.library() is not None) and found.shape == by_torch.shape == (3, 2, 80)
    for c, (w, d) in enumerate(zip(own, parts, strict=True)):
        for j, p in enumerate((shared, w)):
            outputs = model({k: v.double() for k, v in p.items()}, d.x.double())
            wanted = model.sample_losses(outputs, d.y)
            for each in (found, by_torch):
                torch.testing.assert_close(each[c, j, : len(d)].double(), wanted, rtol=1e-5, atol=1e-5)


def test_scores_of_squashed_outputs_are_left_to_torch():
    plain, data = net(6, (5,), 4), toy_federation(1, (9,), dim=6).client(0).train
    squashed = replace(plain, network=SquashedStack(plain.network.steps, 5))
    with torch.no_grad():
        wanted = squashed.loss(squashed.init(0), data)
        rows = {k: v[None] for k, v in squashed.init(0).items()}
        assert float(losses_of(squashed.loss, rows, data)) == pytest.approx(float(wanted))
        assert float(
            losses_of_each(squashed.loss, ModelBatch([squashed.init(0)]), [data])[0]
        ) == pytest.approx(float(wanted))


def test_losses_of_models_that_are_not_alike_are_torchs_and_no_stray_read():
    fed = toy_federation(1, (30,), dim=5)
    model = net(5, (9,), fed.num_classes)
    wrong = model.init(0) | {"head.weight": torch.zeros(fed.num_classes, 8)}
    with torch.no_grad(), pytest.raises(RuntimeError):
        losses_of_each(model.loss, ModelBatch([model.init(1), wrong]), [fed.client(0).train])


def known_outputs(logits, y, task):
    """(model, parameters, data) whose outputs are these logits: samples are unit vectors."""
    n, outs = logits.shape
    model = net(n, (), outs, task=task, bias=False)
    return model, {"head.weight": logits.T.contiguous()}, Data(torch.eye(n), y, torch.ones(n))


def test_extreme_outputs_score_as_mathematics_says():
    """No overflow; the first of equal outputs is the guess; no margin is no answer "yes"."""
    logits = torch.tensor([[200.0, -200.0], [200.0, -200.0], [1.0, 1.0], [1.0, 1.0]])
    model, p, d = known_outputs(logits, torch.tensor([0, 1, 0, 0]), "classification")
    with torch.no_grad():
        loss, right = scores(model, [p], [d])
    assert float(loss) == pytest.approx((0 + 400 + 2 * math.log(2)) / 4)
    assert float(right) == 0.75
    logits = torch.tensor([[300.0], [300.0], [-300.0], [0.0]])
    model, p, d = known_outputs(logits, torch.tensor([1.0, 0.0, 0.0, 0.0]), "binary")
    with torch.no_grad():
        loss, right = scores(model, [p], [d])
    assert float(loss) == pytest.approx((0 + 300 + 0 + math.log(2)) / 4)
    assert float(right) == 0.75
    logits, y = torch.tensor([[1.0, 2.0], [0.0, -3.0]]), torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    model, p, d = known_outputs(logits, y, "regression")
    with torch.no_grad():
        loss, right = scores(model, [p], [d])
    assert float(loss) == pytest.approx(((1 + 4) / 2 + 9 / 2) / 2)
    assert math.isnan(float(right))


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(st.sampled_from([-1.0, 0.5, 2.0, math.inf, -math.inf, math.nan]), min_size=2, max_size=40)
)
def test_the_guess_is_torchs_whatever_the_outputs(logits):
    """The first of the largest; where outputs give no probabilities there is no guess, and no loss either."""
    n = len(logits)
    model, data = net(1, (), n, bias=False), Data(torch.ones(n, 1), torch.arange(n), torch.ones(n))
    w = {"head.weight": torch.tensor(logits)[:, None]}
    each = [Data(data.x[k : k + 1], data.y[k : k + 1], data.mask[:1]) for k in range(n)]
    with torch.no_grad():
        loss, right = scores(model, [w] * n, each)
        wanted = [model.sample_losses(model(w, d.x), d.y).item() for d in each]
    z = torch.tensor(logits)
    given = torch.softmax(z, 0).isfinite().all()
    assert right.nonzero().flatten().tolist() == ([int(z.argmax())] if given else [])
    assert right.tolist() == [model.correct(z[None], d.y).item() for d in each]
    torch.testing.assert_close(loss, torch.tensor(wanted), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_what_is_no_number_stays_with_its_client():
    fed = toy_federation(2, (7,), dim=5)
    model = net(5, (9,), fed.num_classes)
    rows = [fed.client(k).train for k in range(2)]
    rows[0] = replace(rows[0], x=rows[0].x.clone())
    rows[0].x[3, 2] = float("nan")
    with torch.no_grad():
        losses, right = scores(model, [model.init(0)] * 2, rows)
        wanted = [model.correct(model(model.init(0), d.x), d.y).mean() for d in rows]
    assert torch.isnan(losses).tolist() == [True, False]
    assert right.tolist() == pytest.approx([float(v) for v in wanted])


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_has_no_score(label):
    fed = toy_federation(2, (7,), dim=5)
    model, rows = net(5, (9,), 4), [fed.client(k).train for k in range(2)]
    rows[1] = replace(rows[1], y=rows[1].y.clone())
    rows[1].y[6] = label
    with torch.no_grad(), pytest.raises(IndexError, match="label"):
        scores(model, [model.init(0)] * 2, rows)


def test_a_models_own_idea_of_right_is_respected():
    """A subclass that scores otherwise is not left to the kernel."""

    class Lenient(Model):
        def correct(self, outputs, y):
            return torch.ones_like(outputs[:, 0])

    fed = toy_federation(2, (7,), dim=5)
    model, rows = net(5, (9,), fed.num_classes), [fed.client(k).train for k in range(2)]
    lenient = Lenient(**vars(model))
    with torch.no_grad():
        assert scores_of(lenient, model.init(0), rows[0]) is None
        client, theta = FedPerClient(FedPerConfig(), lenient), SharedPart(model.init(0))
        stack = Cohort(client, fed, RamStore(), Plan(seed=1), RunnerConfig("stack"))
        header = Header("evaluate", 1, 0)
        for answer in stack.handle([Request(k, theta, header) for k in range(2)]):
            assert answer.body["test_accuracy"] == 1


@pytest.mark.parametrize("part", ["body", "head", "head_loss", "sample_losses"])
def test_a_models_own_idea_of_a_loss_is_trained(part):
    """A subclass changes one thing that the loss is made of: twice the outputs, or the loss."""
    twice = staticmethod(lambda *args: 2 * getattr(model, part)(*args))
    fed, local = toy_federation(1, (13,), dim=5), LocalConfig(lr=0.1, batch_size=5)
    model = net(5, (9,), fed.num_classes)
    own = type("Own", (Model,), {part: twice})(**vars(model))
    data, params = fed.client(0).train, model.init(0)
    fast, slow = both(lambda: minimise(own.loss, params, data, Stream(0, 1, 0), local))
    close(fast, slow)
    plain = minimise(model.loss, params, data, Stream(0, 1, 0), local)
    assert not torch.allclose(fast["head.weight"], plain["head.weight"])


@pytest.mark.parametrize("part", ["body", "head", "sample_losses"])
def test_a_models_own_idea_of_a_loss_is_scored(part):
    """In a stack as alone, where no kernel scores."""
    twice = staticmethod(lambda *args: 2 * getattr(model, part)(*args))
    fed = toy_federation(2, (7,), dim=5)
    model = net(5, (9,), fed.num_classes)
    own = type("Own", (Model,), {part: twice})(**vars(model))
    client, theta = FedPerClient(FedPerConfig(), own), SharedPart(model.init(0))
    asked = [Request(k, theta, Header("evaluate", 1, 0)) for k in range(2)]
    stack, loop = (
        [
            a.body["test_loss"]
            for a in Cohort(client, fed, RamStore(), Plan(seed=1), RunnerConfig(how)).handle(asked)
        ]
        for how in ("stack", "loop")
    )
    np.testing.assert_allclose(stack, loop, rtol=1e-5)


def test_parameters_that_do_not_fit_are_torchs_error_and_no_stray_read():
    fed = toy_federation(2, (7,), dim=5)
    model, rows = net(5, (9,), fed.num_classes), [fed.client(k).train for k in range(2)]
    wrong = model.init(0) | {"head.weight": torch.zeros(fed.num_classes, 8)}
    client, block = FedPerClient(FedPerConfig(), model), Block(rows, 7)

    def one(i):
        part = StackedData.of(i, block)
        return client.assess(SharedPart(wrong), OwnPart({}), ClientData(part, part, part), Stream(0, 1, 0))

    with torch.no_grad(), pytest.raises(RuntimeError):
        torch.vmap(one)(torch.arange(2))
    with torch.no_grad(), pytest.raises(RuntimeError):
        minimise_from(model.loss, wrong, init_optimizer(wrong, SGD), rows[0], Stream(0, 1, 0), SGD)
    mine, theirs = model.init(0), soft_proximal(model.loss, 0.7, 1.0, wrong)
    with torch.no_grad(), pytest.raises(RuntimeError):
        minimise_from(theirs, mine, init_optimizer(mine, SGD), rows[0], Stream(0, 1, 0), SGD)


def test_an_evaluation_has_the_same_bits_in_every_stack():
    """With a body for all and heads of their own; and torch's numbers."""
    fed = toy_federation(7, (12, 9, 3, 20), dim=30, classes=4)
    model = net(30, (16,))
    theta = SharedPart({k: v for k, v in model.init(0).items() if not model.is_head(k)})

    def answers(chunk):
        cohort = Cohort(FedPerClient(FedPerConfig(), model), fed, RamStore(), Plan(seed=1), chunk)
        for k in range(7):
            cohort.store.put(k, (0, 0), OwnPart(model.init_head(k)))
        header = Header("evaluate", 3, 0)
        return [a.body for a in cohort.handle([Request(k, theta, header) for k in range(7)])]

    whole = answers(RunnerConfig("stack", chunk=7))
    for other in (RunnerConfig("stack", chunk=2), RunnerConfig("stack", chunk=1)):
        assert whole == answers(other)
    for found, alone in zip(whole, answers(RunnerConfig("loop")), strict=True):
        assert found == pytest.approx(alone, rel=1e-5, nan_ok=True)


def test_padding_is_not_scored_without_the_kernel_either():
    """Ragged clients in one stack have the numbers that they have alone."""
    fed = toy_federation(6, (12, 9, 15), dim=8)
    model = net(8, (6,), fed.num_classes)
    client, theta = FedPerClient(FedPerConfig(), model), SharedPart(model.init(0))
    client.splits = ("train", "valid", "test")

    def answers(runner):
        cohort = Cohort(client, fed, RamStore(), Plan(seed=1), RunnerConfig(runner))
        header = Header("evaluate", 1, 0)
        with autograd_only():
            return [a.body for a in cohort.handle([Request(k, theta, header) for k in range(6)])]

    for found, alone, k in zip(answers("stack"), answers("loop"), range(6), strict=True):
        assert found == pytest.approx(alone, rel=1e-5)
        assert found["train_num"] == fed.num_train[k]


def test_who_defines_predict_does_not_inherit_a_model():
    """A method that predicts otherwise is evaluated as it says."""

    class Zero(FedPerClient):
        def predict(self, shared, memory, x):
            return x.new_zeros(len(x), 4)

    fed = toy_federation(1, (12,), dim=6, classes=4)
    model = net(6, (5,))
    theta, memory = SharedPart(model.init(0)), OwnPart(model.init_head(0))
    client = Zero(FedPerConfig(), model)
    assert client.personal(theta, memory) is None
    found = client.assess(theta, memory, fed.client(0), Stream(0, 1, 0))
    assert float(found["test_loss"]) == pytest.approx(math.log(4))


def test_a_method_that_cannot_predict_says_so():
    class Mute(PersonalizedClient):
        def answer(self, order, memory, data, rng):
            return order, memory

    fed, model = toy_federation(1, (12,), dim=6, classes=4), net(6, (5,))
    with pytest.raises(FedpersError, match="Mute must define `personal` or `predict`"):
        Mute(None, model).assess(None, None, fed.client(0), Stream(0, 1, 0))
