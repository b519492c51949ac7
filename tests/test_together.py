"""Out of vmap and back, and what a stack hands back: all clients' values, each client's own."""

import numpy as np
import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgConfig, Weights
from fedpers.core.data import Data
from fedpers.core.items import ModelBatch
from fedpers.core.plan import Plan
from fedpers.core.pytree import flatten, record
from fedpers.core.rng import MaskedStream, Stream
from fedpers.core.vmap import (
    PerClient,
    numbers,
    on_stacks,
    one_by_one,
    outside,
    over_rows,
    readable,
    scalar,
    shared,
    stack_of,
    together,
    unwrapped,
)
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.engines.stack import Columns
from fedpers.engines.stacked_data import Block, StackedData, StackedStream
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.messages import Header, Request
from fedpers.learning.gradients import stacked
from fedpers.learning.kernels import assess as assess_module
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.scoring import losses_of_each, mean_losses_of, sample_losses_of
from fedpers.learning.local_training import minimise, minimise_each
from fedpers.learning.losses import Frozen, soft_proximal
from tests.test_dense import LOCALS, SGD, both, close, net


def test_over_rows_is_vmap():
    """Also where a result is the same for all, or an argument is one row again and again."""
    a, b = torch.randn(4, 3, 2), torch.randn(3, 2).expand(4, 3, 2)

    def f(x, y):
        return x.T @ y, (x * y).sum(), torch.ones(2)

    for found, wanted in zip(over_rows(f, a, b), torch.vmap(f)(a, b), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="random"):
        over_rows(lambda x: [torch.rand_like(x)], a)


@pytest.mark.parametrize("opened", ["inference", "vmap", "gradient"])
def test_what_is_shared_is_a_plain_tensor_wherever_it_is_first_asked_for(opened):
    made, found = [], []

    @shared
    def ones(count):
        made.append(count)
        return torch.ones(count)

    def ask(x):
        found.append(ones(3))
        return (x * found[0]).sum()

    x = torch.tensor([1.0, 2.0, 4.0])
    if opened == "inference":
        with torch.inference_mode():
            ask(x)
    elif opened == "vmap":
        assert over_rows(lambda row: [ask(row)], x.expand(2, 3))[0].tolist() == [7.0, 7.0]
    else:
        assert torch.func.grad(ask)(x).tolist() == [1.0, 1.0, 1.0]
    again = ones(3)
    assert again is found[0] and made == [3]
    assert readable(again) and unwrapped() and not again.is_inference() and not again.requires_grad
    with torch.enable_grad():  # autograd may keep it
        w = x.clone().requires_grad_()
        assert torch.autograd.grad((w * again).sum(), w)[0].tolist() == [1.0, 1.0, 1.0]


def test_shared_numbers_have_their_type_and_one_object_each():
    half, one = scalar(0.5, torch.float64), scalar(1.0, torch.float32)
    assert (half.shape, half.dtype, float(half)) == ((), torch.float64, 0.5)
    assert (one.dtype, float(one)) == (torch.float32, 1.0)
    assert scalar(0.5, torch.float64) is half and scalar(0.5, torch.float32) is not half
    assert numbers(4, "cpu").tolist() == [0, 1, 2, 3] and numbers(0, "cpu").shape == (0,)


def test_outside_nothing_is_open_and_afterwards_all_is_again():
    """Within a gradient within a vmap; also where what is done there fails."""
    seen = []

    def fails():
        seen.append(unwrapped())
        raise ValueError("there")

    def loss(x):
        with pytest.raises(ValueError, match="there"):
            outside(fails)
        assert outside(lambda a, b: (unwrapped(), a - b), 5, 3) == (True, 2) and not unwrapped()
        return (x * x).sum()

    found = over_rows(lambda row: [torch.func.grad(loss)(row)], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))[0]
    assert found.tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert seen == [True] and unwrapped()
    with pytest.raises(ValueError, match="there"):
        over_rows(lambda row: on_stacks(lambda stack: fails(), row), torch.ones(2, 1))
    assert unwrapped()


def test_values_that_are_apart_and_rows_of_stacks_are_read_side_by_side():
    x, w = torch.tensor([[1.0, 5.0], [4.0, 2.0], [0.0, 7.0]]), {"a": torch.tensor([10.0, 20.0, 30.0])}

    def larger(row, name, tree, both):
        return {"value": max(row.tolist()) + tree["a"] + both, "name": torch.tensor(len(name))}

    def inside(x, a):
        found = one_by_one(larger, x, PerClient(["p", "qq", "rrr"]), {"a": a}, torch.tensor(0.5))
        return found["value"], found["name"] + x.sum()

    value, name = over_rows(inside, x, w["a"])
    assert value.tolist() == [15.5, 24.5, 37.5]
    assert name.tolist() == [7.0, 8.0, 10.0]
    alone = one_by_one(larger, x[0], "p", {"a": torch.tensor(1.0)}, torch.tensor(0.5))
    assert float(alone["value"]) == 6.5


def test_together_asks_once_for_all_clients():
    asked = []

    def f(xs, names):
        asked.append(names)
        return torch.stack(xs), torch.tensor([len(names)] * len(xs))

    x = torch.arange(6.0).reshape(3, 2)
    found, count = over_rows(lambda row: together(f, row, PerClient("abc")), x)
    assert torch.equal(found, x) and count.tolist() == [3, 3, 3]
    assert torch.equal(together(f, x[0], "d")[0], x[0])
    assert [list(names) for names in asked] == [["a", "b", "c"], ["d"]]


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_a_share_of_the_samples_of_stacked_clients_is_each_ones_own_draw(share):
    fed = toy_federation(3, (9, 13, 6), dim=4)
    parts = [fed.client(k).train for k in range(3)]
    block, streams = Block(parts, 13), [Stream(0, 1, k) for k in range(3)]

    def inside(i):
        some = StackedStream(i, streams, block.sizes, 13).some(StackedData.of(i, block), share)
        return some.x, some.mask, some.num

    x, mask, num = over_rows(inside, torch.arange(3))
    for k, part in enumerate(parts):
        own = Stream(0, 1, k).some(part, share)
        n = max(1, int(share * len(part)))
        assert len(own) == n == num[k] == mask[k].sum()
        assert torch.equal(x[k, :n], own.x) and not mask[k, n:].any()
        assert {tuple(row) for row in own.x.tolist()} <= {tuple(row) for row in part.x.tolist()}


@pytest.mark.parametrize("sizes", [(9, 13, 6, 9), (9, 9)], ids=str)
def test_a_number_by_size_is_each_clients_own(sizes):
    fed = toy_federation(len(sizes), sizes, dim=4)
    parts = [fed.client(k).train for k in range(len(sizes))]
    block, clients = Block(parts, max(sizes)), torch.arange(len(sizes))

    def inside(i):
        data = StackedData.of(i, block)
        return data.by_size(lambda n: 1 / n), data.num

    found, num = over_rows(inside, clients)
    assert found.dtype is num.dtype is parts[0].mask.dtype
    assert torch.equal(found, torch.stack([p.by_size(lambda n: 1 / n) for p in parts]))
    assert torch.equal(found, torch.tensor([1 / n for n in sizes])) and num.tolist() == list(sizes)


@record("test_together.State")
class State:
    """What stays, what comes with the order, what is made anew, and what all share."""

    stays: torch.Tensor
    came: torch.Tensor
    new: torch.Tensor
    number: float


class Keeper(PersonalizedClient):
    """Keeps some leaves of its state as they are."""

    def initial_state(self, params, data, rng):
        return State(torch.tensor([float(len(data))]), torch.zeros(2), torch.zeros(2), float(len(data)))

    def answer(self, order, state, data, rng):
        new = order.params["head.bias"] + state.stays
        return Weights({"head.bias": new}), State(state.stays, order.params["head.bias"], new, state.number)

    def personal(self, shared, state):
        return shared.params


@pytest.mark.parametrize("runner", ["loop", "stack"])
def test_leaves_of_a_state_that_stay_are_not_copied_and_none_holds_a_stack(runner):
    """One client of four is not asked: what the others keep would hold all memory for as long as each."""
    fed, model = toy_federation(4, (9,) * 4, dim=4), net(4, ())  # of one size: they share a stack
    client, store = Keeper(FedAvgConfig(), model), RamStore()
    cohort = Cohort(client, fed, store, Plan(seed=1), RunnerConfig(runner, chunk=3))
    orders = [Weights({"head.bias": v}) for v in torch.arange(12.0).reshape(3, 4).unbind(0)]  # views
    before = {}
    for t in (1, 2):
        before = {k: store.states[k] for k in range(3)} if t == 2 else {}
        found = cohort.handle([Request(k, orders[k], Header("train", t, 0)) for k in range(3)])
        assert not any(isinstance(a, Exception) for a in found)
    for k in range(3):
        state, n = store.states[k], len(fed.client(k).train)
        assert state.stays is before[k].stays and state.stays.tolist() == [n]
        assert torch.equal(state.came, orders[k].params["head.bias"])
        assert torch.equal(state.new, orders[k].params["head.bias"] + n)
        assert all(t.untyped_storage().nbytes() == t.nbytes for t in (state.stays, state.came, state.new))
        assert state.number == n


class Publisher(PersonalizedClient):
    """Keeps what it sends, and something else before and behind it."""

    def initial_state(self, params, data, rng):
        return {"before": torch.zeros(2), "sent": torch.zeros(4), "behind": torch.zeros(3)}

    def answer(self, order, state, data, rng):
        new = order.params["head.bias"] * len(data)
        kept = {"before": new[:2] + 1, "sent": new, "behind": new[:3] + 2}
        return Weights({"other": new - 1, "head.bias": new}), kept


@pytest.mark.parametrize("all_asked", [True, False])
def test_what_is_sent_and_kept_is_one_tensor_only_where_stacks_are_kept(all_asked):
    """A state that is kept alone has memory of its own; no leaf takes another's place."""
    fed, store = toy_federation(4, (9,) * 4, dim=4), RamStore()
    cohort = Cohort(
        Publisher(FedAvgConfig(), net(4, ())), fed, store, Plan(seed=1), RunnerConfig("stack", chunk=4)
    )
    orders = [Weights({"head.bias": torch.full((4,), k / 4.0)}) for k in range(4)]
    asked = range(4 if all_asked else 3)
    for k, a in enumerate(cohort.handle([Request(k, orders[k], Header("train", 1, 0)) for k in asked])):
        new, state = orders[k].params["head.bias"] * len(fed.client(k).train), store.states[k]
        assert torch.equal(a.body.params["head.bias"], new) and torch.equal(a.body.params["other"], new - 1)
        assert torch.equal(state["sent"], new)
        assert torch.equal(state["before"], new[:2] + 1) and torch.equal(state["behind"], new[:3] + 2)
        same = state["sent"].data_ptr() == a.body.params["head.bias"].data_ptr()
        alone = state["sent"].untyped_storage().nbytes() == state["sent"].nbytes
        assert (same, alone) == (all_asked, not all_asked)


class Counter(PersonalizedClient):
    """Keeps a sum, and says where what it was given lies."""

    def initial_state(self, params, data, rng):
        return {"sum": torch.zeros(6), "matrix": torch.zeros(2, 3)}

    def answer(self, order, state, data, rng):
        new = order.params["head.bias"].sum()
        self.seen.append({k: stack_of(v).data_ptr() for k, v in state.items()})
        return Weights({"head.bias": state["sum"]}), {k: v + new for k, v in state.items()}


def test_states_of_all_clients_stay_in_their_stack_and_are_read_there():
    """In another order, or by fewer, they are stacked anew; the numbers are the same."""
    fed, client = toy_federation(4, (9,) * 4, dim=4), Counter(FedAvgConfig(), net(4, ()))
    client.seen, store = [], RamStore()
    cohort = Cohort(client, fed, store, Plan(seed=1), RunnerConfig("stack", chunk=4))
    orders = [Weights({"head.bias": torch.full((4,), k / 4.0)}) for k in range(4)]
    in_place, total = [], torch.zeros(4)
    for t, asked in enumerate(([0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 1, 3], [0, 1], [0, 1, 2, 3]), start=1):
        places = {k: v.data_ptr() for k, v in store.states[0].items()} if t > 1 else {}
        found = cohort.handle([Request(k, orders[k], Header("train", t, 0)) for k in asked])
        assert all(
            torch.equal(a.body.params["head.bias"], total[k].expand(6))
            for a, k in zip(found, asked, strict=True)
        )
        total[asked] += torch.arange(4.0)[asked]
        in_place.append(client.seen[-1] == places)
        own = [
            leaf.untyped_storage().nbytes() == leaf.nbytes for k in asked for leaf in store.states[k].values()
        ]
        assert any(own) == all(own) == (len(asked) < 4)
    assert in_place == [False, True, False, False, False]
    for k in range(4):
        assert all(torch.equal(v, total[k].expand(v.shape)) for v in store.states[k].values())


def several(J, local):
    """(how to train J models of each of three unequal clients in a stack, the models, who wants which)"""
    fed = toy_federation(3, (9, 13, 6), dim=6)
    model, block = net(6, (9,), fed.num_classes), Block([fed.client(k).train for k in range(3)], 13)
    names = list(model.init(0))
    stacks = [torch.stack([model.init(3 * j + c)[k] for c in range(3)]) for j in range(J) for k in names]
    wanted = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()[:, :J]

    def train(how):
        def inside(i, wanted, *leaves):
            given = iter(leaves)
            models = [{k: next(given) for k in names} for _ in range(J)]
            rng = StackedStream(i, [Stream(0, 1, k) for k in range(3)], block.sizes, block.size)
            found = how(
                model.loss, models, StackedData.of(i, block), [MaskedStream(rng, w) for w in wanted], local
            )
            return [w[k] for w in found for k in names]

        with stacked(), torch.no_grad():
            return over_rows(inside, torch.arange(3), wanted, *stacks)

    return train, stacks, wanted


def one_after_the_other(loss, models, data, rngs, cfg):
    return [minimise(loss, w, data, rng, cfg) for w, rng in zip(models, rngs, strict=True)]


@pytest.mark.skipif(native.library() is None, reason="no C compiler")
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_several_models_of_unequal_clients_are_trained_as_one_by_one(local):
    """Bit for bit by the kernel; a model that a client does not want, or none does, stays as it is."""
    train, start, wanted = several(4, local)
    found, each = train(minimise_each), train(one_after_the_other)
    assert all(torch.equal(a, b) for a, b in zip(found, each, strict=True))
    if local.batch_size:  # without minibatches nobody is asked which rows count
        for j, (a, b) in enumerate(zip(found[::4], start[::4], strict=True)):
            same = [torch.equal(x, y) for x, y in zip(a, b, strict=True)]
            assert same == [not w for w in wanted[:, j].tolist()]


def test_of_no_models_none_is_trained():
    fed = toy_federation(1, (13,), dim=6)
    assert minimise_each(net(6, ()).loss, [], fed.client(0).train, [], SGD) == []


@pytest.mark.parametrize("kind", ["frozen", "proximal"])
def test_several_models_on_losses_made_of_others(kind):
    def loss(model):
        params = model.init(9)
        if kind == "frozen":
            return Frozen(model.loss, {k: v for k, v in params.items() if not model.is_head(k)})
        return soft_proximal(model.loss, 0.3, 1.0, params)

    fed = toy_federation(1, (13,), dim=6)
    model = net(6, (9,), fed.num_classes)
    names = [k for k in model.init(0) if kind == "proximal" or model.is_head(k)]
    models = [{k: model.init(j)[k] for k in names} for j in range(3)]

    def train():
        rngs = [Stream(0, 1, j) for j in range(3)]
        found = minimise_each(loss(model), models, fed.client(0).train, rngs, SGD)
        return {f"{j} {k}": v for j, w in enumerate(found) for k, v in w.items()}

    fast, slow = both(train)
    close(fast, slow)
    with torch.no_grad():
        alone = minimise(loss(model), models[1], fed.client(0).train, Stream(0, 1, 1), SGD)
    for k, v in alone.items():
        assert torch.equal(fast[f"1 {k}"], v)


@pytest.mark.parametrize("head_alone", [False, True])
def test_losses_of_several_clients_models_are_those_of_each(head_alone, monkeypatch):
    """Samples of unequal clients, some of them parts; one call of the kernel for all."""
    fed = toy_federation(3, (9, 13, 6), dim=6)
    model, calls = net(6, (9,), fed.num_classes), []
    datas = [fed.client(0).train, fed.client(1).train.part(lambda n: np.arange(1, n)), fed.client(2).train]
    loss, models = model.loss, [[model.init(3 * c + j) for j in range(2)] for c in range(3)]
    if head_alone:
        loss = Frozen(model.loss, {k: v for k, v in model.init(7).items() if not model.is_head(k)})
        models = [[{k: v for k, v in w.items() if model.is_head(k)} for w in group] for group in models]
    assess = assess_module._assess
    monkeypatch.setattr(assess_module, "_assess", lambda *args: calls.append(1) or assess(*args))
    with torch.no_grad():
        found = losses_of_each(loss, ModelBatch([w for group in models for w in group]), datas)
        assert len(calls) == (native.library() is not None)
        for group, data, losses in zip(models, datas, found, strict=True):
            wanted = torch.stack([loss(w, data) for w in group])
            torch.testing.assert_close(losses, wanted, rtol=1e-5, atol=1e-6)
            with autograd_only():
                torch.testing.assert_close(
                    losses_of_each(loss, ModelBatch(group), [data])[0], wanted, rtol=0, atol=0
                )


@pytest.mark.parametrize(("dim", "hidden"), [(32, ()), (33, ()), (32, (16,)), (48, (32, 5)), (16, (40,))])
def test_losses_on_parts_are_those_of_their_copies(dim, hidden):
    """Unequal parts, one with more rows than go through the layers together; some layers are packed."""
    fed = toy_federation(3, (9, 13, 90), dim=dim)
    model = net(dim, hidden, fed.num_classes)
    picked = [[8, 0, 3], [12], list(range(89, 2, -1))]
    parts = [fed.client(c).train.part(lambda n, rows=rows: np.array(rows)) for c, rows in enumerate(picked)]
    models = [[model.init(3 * c + j) for j in range(2)] for c in range(3)]
    with torch.no_grad():
        found = losses_of_each(model.loss, ModelBatch([w for group in models for w in group]), parts)
        for group, c, rows, losses in zip(models, range(3), picked, found, strict=True):
            whole = fed.client(c).train
            copy = Data(whole.x[rows], whole.y[rows], whole.mask[rows])
            with autograd_only():
                wanted = torch.stack([model.loss(w, copy) for w in group])
            torch.testing.assert_close(losses, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", [-1, 9])
def test_a_row_that_is_no_sample_is_refused(row):
    fed = toy_federation(1, (9,), dim=6)
    model = net(6, (), fed.num_classes)
    part = fed.client(0).train.part(lambda n: np.array([0, row]))
    if native.library() is None:
        pytest.skip("no C compiler")
    with torch.no_grad(), pytest.raises(IndexError, match="no sample"):
        losses_of_each(model.loss, ModelBatch([model.init(0)]), [part])


@pytest.mark.parametrize("shared", [False, True])
def test_losses_of_samples_are_each_models_own_whether_it_is_everybodys_or_not(shared):
    """In a stack of unequal clients, of two models; what pads a client's samples has none."""
    fed = toy_federation(3, (9, 13, 6), dim=6)
    model, block = net(6, (9,), fed.num_classes), Block([fed.client(k).train for k in range(3)], 13)
    names = list(model.init(0))
    given = [[model.init(j if shared else 3 * j + c) for c in range(3)] for j in range(2)]
    rows = [torch.stack([w[k] for w in group]) for group in given for k in names]
    rows = [r[0].expand(r.shape) if shared else r for r in rows]

    def inside(i, *leaves):
        values = iter(leaves)
        models = [{k: next(values) for k in names} for _ in range(2)]
        data = StackedData.of(i, block)
        return [sample_losses_of(model, models, data), mean_losses_of(model, models, data)]

    with stacked(), torch.no_grad():
        found, means = over_rows(inside, torch.arange(3), *rows)
        with autograd_only():
            found_by_torch, by_torch = over_rows(inside, torch.arange(3), *rows)
        assert means.dtype == by_torch.dtype == torch.float64
        torch.testing.assert_close(means, by_torch, rtol=1e-6, atol=1e-7)
        for c, n in enumerate(block.sizes):
            data = fed.client(c).train
            for j in range(2):
                wanted = model.sample_losses(model(given[j][c], data.x), data.y)
                torch.testing.assert_close(found[c, j, :n], wanted, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(found_by_torch[c, j, :n], wanted, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(means[c, j], wanted.double().mean(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "rows, shared, copied",
    [
        (range(4), True, False),
        (range(4), False, True),
        (range(3), True, True),
        ((0, 2), True, False),  # too far apart for one view of both
        ((0, 2), False, True),
    ],
)
def test_what_stays_of_a_stack_is_copied_unless_all_of_it_stays(rows, shared, copied):
    """A row that is kept alone would keep the memory of all; a stack that was made of rows is theirs."""
    whole = torch.arange(8.0).view(4, 2)
    leaves = [[whole.unbind()[k]] for k in rows]
    columns = Columns(leaves, flatten((leaves[0][0],))[1], "cpu", True, shared)
    value = columns.stacks[0][0]
    columns.row([value])
    kept = columns.unchanged(value)
    assert [t.tolist() for t in kept] == whole[list(rows)].tolist()
    assert [t._base is None for t in kept] == [copied] * len(rows)
    assert all(t.untyped_storage().nbytes() == (1 if copied else len(rows)) * t.nbytes for t in kept)


@pytest.mark.parametrize("shared", [True, False])
def test_a_number_that_stays_is_no_tensor_afterwards(shared):
    columns = Columns([[1.5], [2.5]], flatten((1.5,))[1], "cpu", True, shared)
    value = columns.stacks[0][0]
    columns.row([value])
    assert columns.unchanged(value) == [1.5, 2.5]
    assert all(type(x) is float for x in columns.unchanged(value))
