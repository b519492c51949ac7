"""The parameter algebra: values, gradients, refusals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpers.core import params as P
from fedpers.core import sums
from fedpers.core.compiled import with_whole_rows
from fedpers.core.errors import FedpersError
from fedpers.core.items import ModelBatch, sq_dist_each, sq_dists, weighted_sum_each, weighted_sums
from fedpers.core.threads import in_parts, threads


def sq_dists_of(a, b):
    return sq_dists(ModelBatch([*a, *b]), range(len(a)), range(len(a), len(a) + len(b)))


def tree(seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(2, 3, generator=g, dtype=dtype), "b": torch.randn(4, generator=g, dtype=dtype)}


@pytest.fixture(params=["C", "torch"])
def way(request, monkeypatch):
    """What sums and distances of many are made by."""
    if request.param == "torch":
        monkeypatch.setattr(sums, "library", lambda: None)
    elif sums.library() is None:
        pytest.skip("no C compiler")
    return request.param


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(100, 199), st.floats(-3, 3))
def test_vector_space(seed, other, c):
    a, b = tree(seed), tree(other)
    flat = lambda p: torch.cat([v.reshape(-1) for v in p.values()])  # noqa: E731
    torch.testing.assert_close(flat(P.add(a, b, c)), flat(a) + c * flat(b))
    torch.testing.assert_close(flat(P.sub(a, b)), flat(a) - flat(b))
    torch.testing.assert_close(flat(P.scale(a, c)), c * flat(a))
    torch.testing.assert_close(P.dot(a, b), flat(a) @ flat(b))
    torch.testing.assert_close(P.sq_dist(a, b), ((flat(a) - flat(b)) ** 2).sum())


def test_gradient_of_the_squared_distance():
    """∇ ½μ‖w - w₀‖² = μ(w - w₀): summed over layers, squared, nothing detached."""
    w, w0, mu = {k: v.requires_grad_() for k, v in tree(1).items()}, tree(2), 0.7
    grads = torch.autograd.grad(mu / 2 * P.sq_dist(w, w0), w.values())
    for g, k in zip(grads, w, strict=True):
        torch.testing.assert_close(g, mu * (w[k] - w0[k]).detach(), rtol=0, atol=1e-15)


def test_weighted_mean_normalises_and_weighted_sum_does_not():
    a, b = tree(1), tree(2)
    mean, total = P.weighted_mean([a, b], [1, 3]), P.weighted_sum([a, b], [1, 3])
    torch.testing.assert_close(mean["a"], 0.25 * a["a"] + 0.75 * b["a"])
    torch.testing.assert_close(total["a"], a["a"] + 3 * b["a"])


@pytest.mark.parametrize("size", [1, 31, 200])  # columns that fill no register, and some that do
def test_sums_in_c_and_by_torch_are_those_in_double_precision(way, size):
    g = torch.Generator().manual_seed(size)
    items = torch.randn(5, 1, size, generator=g)
    w = torch.randn(5, generator=g, dtype=torch.float64)
    wanted = (w @ items.double().flatten(1)).view(1, size)
    found = P.weighted_sum([{"a": v} for v in items], w.tolist())["a"]
    torch.testing.assert_close(found, wanted.float(), rtol=1e-7, atol=1e-7)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("number", [1, 4, 9])  # of sums: as few as are taken where they lie, and more
@pytest.mark.parametrize("size", [1, 31, 64, 200])  # less than is taken at once, as much, and more
def test_many_sums_are_those_in_double_precision_to_the_rounding_of_floats(way, size, number):
    """Each of 7 products and 7 sums rounds by half a unit, 2^-24, of a number no larger than Σ |w| |x|."""
    g = torch.Generator().manual_seed(size)
    items = torch.randn(7, size, generator=g)
    w = torch.randn(number, 7, generator=g, dtype=torch.float64)
    found = weighted_sums(ModelBatch([{"a": v, "c": v.flip(0)} for v in items]), w)
    most = 15 * 2**-24 * (w.abs() @ items.double().abs())
    for name, of in (("a", items), ("c", items.flip(1))):
        stack = torch.stack([f[name] for f in found])
        error = (stack.double() - w @ of.double()).abs()
        assert bool((error <= (most if name == "a" else most.flip(1))).all())
        assert stack.dtype == torch.float32 and len(found) == number


@pytest.mark.parametrize(("a", "b"), [(1, 1), (5, 9), (4, 6)])
@pytest.mark.parametrize("size", [3, 2100])  # less than a register, and more than two blocks
def test_distances_in_c_and_by_torch_are_those_of_pairs(way, size, a, b):
    items = torch.randn(a + b, size, generator=torch.Generator().manual_seed(size))
    left, right = items[:a], items[a:]
    wanted = (left[:, None].double() - right.double()).square().sum(2)
    found = sq_dists_of([{"a": v, "c": v[:2]} for v in left], [{"a": v, "c": v[:2]} for v in right])
    wanted += (left[:, None, :2].double() - right[:, :2].double()).square().sum(2)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


def test_what_has_no_plain_memory_is_summed_by_torch(way):
    """Transposed tensors, other types, rows of a stack under vmap, and what somebody differentiates."""
    a = torch.arange(6.0).reshape(2, 3)
    for items in ([a.T, a.T], [a.double(), a.double()], [a[:, ::2], a[:, 1:]]):
        found = P.weighted_sum([{"w": v} for v in items], [2.0, -1.0])["w"]
        torch.testing.assert_close(found, 2 * items[0] - items[1])
    by_vmap = torch.vmap(lambda v: P.weighted_sum([{"w": v}, {"w": v}], [2.0, 1.0])["w"])(a)
    torch.testing.assert_close(by_vmap, 3 * a)
    leaf = a.clone().requires_grad_()
    P.weighted_sum([{"w": leaf}, {"w": a}], [2.0, 1.0])["w"].sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((2, 3), 2.0))


def test_sums_are_taken_in_double_precision(way):
    items = [{"a": torch.tensor([1e8])}, {"a": torch.tensor([1.0])}, {"a": torch.tensor([-1e8])}]
    assert P.weighted_sum(items, [1, 1, 1])["a"].item() == 1.0
    assert P.mean(items)["a"].dtype == torch.float32


@pytest.mark.parametrize("size", [3, 5000])
def test_many_sums_and_distances_are_those_of_pairs(size, way, monkeypatch):
    monkeypatch.setattr(P, "AT_ONCE", 7)
    items = [tree(i, torch.float32) | {"c": torch.full((size,), 1.0 + i)} for i in range(4)]
    w = torch.tensor([[1.0, 0.0, -2.0, 0.5], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    for found, row in zip(weighted_sums(ModelBatch(items), w), w.tolist(), strict=True):
        for name, value in P.weighted_sum(items, row).items():
            torch.testing.assert_close(found[name], value)
    wanted = [[float(P.sq_dist(a, b)) for b in items] for a in items[:2]]
    torch.testing.assert_close(
        sq_dists(ModelBatch(items), [0, 1], range(4)), torch.tensor(wanted).double(), rtol=1e-6, atol=1e-10
    )


@pytest.mark.parametrize("size", [1, 31, 1500])
def test_sums_and_distances_of_groups_are_those_of_each(size, way):
    """Groups of unequal sizes; entries that fill no register, and more than are in the cache together."""
    items = [tree(i, torch.float32) | {"c": i + torch.arange(size) / 7} for i in range(6)]
    groups = [([0, 1, 2], [0.5, -2.0, 1.0]), ([4], [0.1]), ([5, 2, 3, 4], [1.0, 0.0, 3.0, -1.0])]
    chosen, weights = ([x for group in groups for x in group[at]] for at in (0, 1))
    counts, whole = [len(group) for group, _ in groups], ModelBatch(items)
    found = P.rows_of(weighted_sum_each(whole, chosen, weights, counts))
    assert len(found) == 3
    for row, (group, factors) in zip(found, groups, strict=True):
        for name, value in P.weighted_sum([items[i] for i in group], factors).items():
            torch.testing.assert_close(row[name], value, rtol=0, atol=0)
    a, b = [0, 3, 2], [5, 3, 1]
    wanted = torch.tensor([float(P.sq_dist(items[i], items[j])) for i, j in zip(a, b, strict=True)]).double()
    torch.testing.assert_close(sq_dist_each(whole, a, b), wanted, rtol=1e-6, atol=1e-6)


def test_items_are_looked_at_once_and_must_have_the_same_names(way):
    items = ModelBatch([tree(i, torch.float32) for i in range(3)])
    assert len(items) == 3 and items.like is items.models[0]["a"]
    assert (items.places is not None) == (way == "C")
    if way == "C":
        assert items.places["b"] == [w["b"].data_ptr() for w in items.models]
    for other in ({"b": torch.zeros(2, 2)}, {"b": torch.zeros(1).double()}):
        assert ModelBatch([tree(0, torch.float32), tree(0, torch.float32) | other]).places is None
    with pytest.raises(FedpersError, match="do not match: a on one side"):
        ModelBatch([tree(0), {"b": torch.zeros(1)}])
    with pytest.raises(FedpersError, match="nothing to aggregate"):
        weighted_sum_each(items, [1], [1.0], [0, 1])


def test_sides_of_unequal_lengths_come_in_equal_pieces_off_the_cpu(monkeypatch):
    monkeypatch.setattr(P, "AT_ONCE", 7)
    monkeypatch.setattr(P, "ON_GPU", 100)
    few, many = ([torch.empty(50, device="meta")] * count for count in (2, 5))
    pieces = [[part.shape[1] for part in P.in_doubles(side, 5)] for side in (few, many)]
    assert pieces[0] == pieces[1] == [20, 20, 10]


def test_of_nothing_there_are_no_sums_and_no_distances():
    a = [{"w": torch.ones(2)}]
    assert (
        weighted_sums(ModelBatch([]), torch.zeros(0, 0))
        == weighted_sums(ModelBatch(a), torch.zeros(0, 1))
        == []
    )
    assert sq_dist_each(ModelBatch(a), [], []).shape == (0,)
    assert sq_dists(ModelBatch(a), [], [0]).shape == (0, 1) and sq_dists(ModelBatch(a), [0], []).shape == (
        1,
        0,
    )


def test_the_distance_of_near_models_survives_its_rounding(way):
    a = {"w": torch.randn(10_000, generator=torch.Generator().manual_seed(0))}
    b = {"w": a["w"] + 1e-4}
    wanted = float(P.sq_dist({"w": a["w"].double()}, {"w": b["w"].double()}))
    assert float(sq_dists(ModelBatch([a, b]), [0], [1])) == pytest.approx(wanted, rel=1e-5)


def test_split_and_merge_are_inverse():
    a = tree()
    head, body = P.split(a, lambda name: name == "b")
    assert list(head) == ["b"]
    assert P.merge(head, body).keys() == a.keys()
    with pytest.raises(FedpersError, match="two parts at once: b"):
        P.merge(head, a)


def test_refusals():
    with pytest.raises(FedpersError, match="one side only"):
        P.add(tree(), {"a": torch.zeros(2, 3)})
    with pytest.raises(FedpersError, match="no client replied"):
        P.weighted_sum([], [])
    with pytest.raises(FedpersError, match="positive number, not 0"):
        P.weighted_mean([tree()], [0.0])


def test_a_name_that_one_item_alone_has_is_told_wherever_the_item_is():
    a, odd = {"w": torch.ones(2)}, {"w": torch.ones(2), "bias": torch.ones(1)}
    for items in ([odd, a, a], [a, odd, a], [a, a, odd]):
        with pytest.raises(FedpersError, match="do not match: bias on one side only"):
            P.weighted_sum(items, [1.0, 1.0, 1.0])


def test_models_are_alike_in_names_shapes_kinds_and_devices():
    a = {"w": torch.ones(2, 3), "b": torch.ones(2)}
    assert P.alike([a]) and P.alike([a, {"b": torch.zeros(2), "w": torch.zeros(2, 3)}])
    for w in (torch.ones(3, 2), torch.ones(2, 3).double(), torch.ones(2, 3, device="meta")):
        assert not P.alike([a, a, {**a, "w": w}])
    for other in ({"w": a["w"]}, {**a, "c": a["b"]}):
        assert not P.alike([a, other]) and not P.alike([other, a])


@pytest.mark.parametrize("number", [1, 3, 7])  # of combinations: three are made at a time
@pytest.mark.parametrize("size", [1, 31, 70, 65536, 65537])  # the last two go past the caches
def test_combinations_of_each_client_are_its_own(way, size, number):
    C, S, g = 16, 4, torch.Generator().manual_seed(size)
    shared = {"w": torch.randn(size, generator=g), "b": torch.randn(2, 3, generator=g)}
    own = [{k: torch.randn(C, *v.shape, generator=g) for k, v in shared.items()} for _ in range(S - 2)]
    turned = {k: torch.randn(*v.shape, C, generator=g).movedim(-1, 0) for k, v in shared.items()}
    shares = torch.randn(C, number, S, generator=g)
    with torch.no_grad():
        made = torch.func.vmap(lambda *a: P.combinations([shared, *a[:-1]], a[-1]))(*own, turned, shares)
        alike = torch.func.vmap(lambda *a: P.combinations([shared, *a], shares[3]))(*own, turned)
        one = P.combinations([shared, *({k: v[3] for k, v in x.items()} for x in (*own, turned))], shares[3])
    for k, v in shared.items():
        whole = torch.stack([v.expand(C, *v.shape), *(x[k] for x in own), turned[k]], 1).double()
        right = torch.einsum("cjs,cs...->cj...", shares.double(), whole)
        torch.testing.assert_close(torch.stack([m[k] for m in made], 1).double(), right, rtol=0, atol=1e-5)
        for found in (torch.stack([m[k] for m in one]), torch.stack([m[k][3] for m in alike])):
            torch.testing.assert_close(found.double(), right[3], rtol=0, atol=1e-5)


def test_combinations_can_be_differentiated_and_keep_the_items_precision(way):
    items, shares = [tree(1), tree(2)], torch.randn(3, 2, dtype=torch.float64)
    made = P.combinations(items, shares.requires_grad_())
    for row, found in zip(shares, made, strict=True):
        torch.testing.assert_close(found["b"], row[0] * items[0]["b"] + row[1] * items[1]["b"])
    slope = torch.autograd.grad(made[2]["a"].sum(), shares)[0]
    torch.testing.assert_close(slope[2], torch.stack([x["a"].sum() for x in items]))
    assert not slope[:2].any()


def test_combinations_of_float32_may_be_differentiated(way):
    items = [{k: v.float() for k, v in tree(n).items()} for n in (1, 2)]
    f = lambda s: P.combinations(items, s[None])[0]["a"].sum()  # noqa: E731
    slope = torch.func.grad(f)(torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(slope, torch.stack([x["a"].sum() for x in items]))


@pytest.mark.parametrize("size", [3, 2000, 2**16, 2**16 + 1])  # few, some, large, whole registers or not
def test_a_stack_is_torchs(way, size):
    whole = torch.randn(20, 2, size, generator=torch.Generator().manual_seed(1))
    turned = list(whole.movedim(2, 1).contiguous().movedim(1, 2))  # no row lies side by side
    for items in (list(whole.flip(0)), list(whole.double()), list(whole.half()), turned, [whole[3]] * 20):
        assert torch.equal(sums.stack_of(items), torch.stack(items))


@pytest.mark.parametrize(
    ("stack", "copied"),
    [
        (torch.randn(3, 4, 5), False),
        (torch.randn(1, 4, 5).expand(3, 4, 5), False),
        (torch.randn(9, 4, 5)[::3], False),
        (torch.randn(3, 5, 1).mT, False),  # a row of one line: its strides say nothing
        (torch.tensor(1.0).expand(3), False),
        (torch.randn(3, 5, 4).mT, True),
        (torch.randn(3, 8, 5)[:, ::2], True),
        (torch.randn(5).expand(3, 4, 5), True),
    ],
)
def test_a_stack_is_copied_only_if_its_rows_are_not_whole(stack, copied):
    found = with_whole_rows(stack)
    assert (found is not stack) == copied and torch.equal(found, stack)
    assert all(row.is_contiguous() for row in found)


@pytest.mark.parametrize("size", [1, 7, 8, 31, 32, 33, 64, 65, 700])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_one_number_that_is_none_is_found_wherever_it_is(size, bad, kind, way):
    x = torch.full((size,), torch.finfo(kind).max, dtype=kind)  # whose sum is no number
    x[::2] *= -1
    assert sums.all_finite(x)
    assert not any(sums.all_finite(x.index_fill(0, torch.tensor(i), bad)) for i in range(size))


def test_what_has_no_plain_memory_may_hold_no_number_either(way):
    x = torch.ones(3, 4)
    x[1, 2] = torch.nan
    assert sums.all_finite(x.T[:2]) and sums.all_finite(x[:, 3]) and sums.all_finite(x[:0])
    assert not sums.all_finite(x.T[2:]) and not sums.all_finite(x[:, 2]) and not sums.all_finite(x.double())
    assert sums.all_finite(torch.tensor([2**62]))


@pytest.mark.parametrize("count", [2, 3])
def test_several_threads_add_up_to_the_bits_of_one_and_miss_nothing(count, monkeypatch):
    monkeypatch.setattr(sums, "MANY", 100)
    items = [{"a": torch.randn(37, 53), "b": torch.randn(3), "c": torch.randn(0)} for _ in range(5)]
    alone = P.weighted_sum(items, [0.3, 0.1, -2.0, 1e-3, 7.0])
    expected = sum(w * i["a"].double() for w, i in zip([0.3, 0.1, -2.0, 1e-3, 7.0], items, strict=True))
    torch.testing.assert_close(alone["a"], expected.float())
    whole = ModelBatch(items)
    chosen, weights, counts = [0, 3, 4, 1, 2], [1.0, 2.0, 3.0, 4.0, 5.0], [3, 2]
    groups = weighted_sum_each(whole, chosen, weights, counts)
    with threads(count):
        shared = P.weighted_sum(items, [0.3, 0.1, -2.0, 1e-3, 7.0])
        assert all(torch.equal(shared[k], alone[k]) for k in alone)
        again = weighted_sum_each(whole, chosen, weights, counts)
        assert all(torch.equal(again[k], groups[k]) for k in groups)
        for place in (0, 999, 1000, 1960):
            for bad in (math.nan, math.inf, -math.inf):
                x = torch.zeros(1961)
                assert sums.all_finite(x)
                x[place] = bad
                assert not sums.all_finite(x)


def test_what_fails_in_a_thread_fails():
    def run(mine):
        if mine(640)[0]:
            raise ValueError("of the second part")

    with threads(2), pytest.raises(ValueError, match="of the second part"):
        in_parts(run, 640, 1)
