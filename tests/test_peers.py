"""Weights on the simplex, choice of peers, mixtures, routing: values from mathematics."""

import math

import pytest
import torch

from fedpers.core import sums as kernels
from fedpers.core.rng import SameBatches, Stream
from fedpers.families.peers.messages import sum_by_owner
from fedpers.families.peers.weights import (
    Peer,
    draw_peers,
    model_step,
    no_scores,
    posterior,
    ranks,
    reweighed,
    scaled_rows,
    weighted,
)
from fedpers.learning.mixing import mixture
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig, init_optimizer

ALL = torch.ones(5, dtype=torch.bool)
F64 = torch.float64


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_the_posterior_is_on_the_simplex_whatever_the_losses(scale):
    losses = scale * torch.tensor([3.0, 1.0, 2.0, 5.0, 1.0], dtype=F64)
    w = posterior(losses, ALL)
    assert torch.isfinite(w).all() and (w >= 0).all() and abs(float(w.sum()) - 1) < 1e-12
    torch.testing.assert_close(posterior(losses + 123.0, ALL), w)
    if scale == 0:
        assert torch.equal(w, torch.full((5,), 0.2, dtype=F64))
    if scale == 1e6:
        assert w.tolist() == [0, 0.5, 0, 0, 0.5]


def test_what_is_not_allowed_has_no_weight():
    w = posterior(torch.zeros(5, dtype=F64), torch.tensor([True, False, True, False, False]))
    assert w.tolist() == [0.5, 0, 0.5, 0, 0]


def scores(beta, mask, rounds, losses, ids=(0, 1, 2, 3, 4), start=None):
    s = start or no_scores(torch.full((5,), 0.2, dtype=F64))
    for _ in range(rounds):
        s = reweighed(s, torch.tensor(ids), torch.tensor(losses, dtype=F64), beta, mask)
    return s


@pytest.mark.parametrize("beta", [0.1, 0.6, 1.0])
@pytest.mark.parametrize("k", [1, 4])
def test_the_moving_average_has_its_closed_form(beta, k):
    """From 0 under a constant loss c: (1 - (1-β)^k) c; masked it starts at c and stays there."""
    c = torch.tensor([1.0, 2, 3, 4, 5], dtype=F64)
    torch.testing.assert_close(scores(beta, False, k, c.tolist()).average, (1 - (1 - beta) ** k) * c)
    torch.testing.assert_close(scores(beta, True, k, c.tolist()).average, c)


def test_beta_0_is_uniform_for_ever_and_beta_1_is_the_current_loss():
    c = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert torch.equal(scores(0.0, False, 7, c).w, torch.full((5,), 0.2, dtype=F64))
    other = scores(1.0, False, 1, c[::-1], start=scores(1.0, False, 3, c))
    torch.testing.assert_close(other.w, torch.softmax(-torch.tensor(c[::-1], dtype=F64), 0))


def test_losses_add_up_without_beta():
    c = torch.tensor([1.0, 2, 3, 4, 5], dtype=F64)
    torch.testing.assert_close(scores(None, False, 3, c.tolist()).w, torch.softmax(-3 * c, 0))


def test_models_that_were_not_tried_keep_their_loss_and_their_average_moves_to_it():
    s = scores(0.5, False, 1, [1.0, 2, 3, 4, 5])
    after = scores(0.5, False, 1, [9.0, 9.0], ids=(0, 2), start=s)
    assert after.last.tolist() == [9, 2, 9, 4, 5]
    assert after.average[1] == 0.5 * 1.0 + 0.5 * 2.0  # from β·2 = 1 towards the stale 2


def test_masked_models_have_no_weight_until_they_are_tried():
    s = scores(0.6, True, 2, [1.0, 1.0], ids=(3, 1))
    assert s.w.tolist() == [0, 0.5, 0, 0.5, 0] and s.seen.tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_costs_the_weight_for_one_round_only(bad):
    s = scores(0.6, True, 1, [1.0, 1, 1, 1, 1])
    hit = scores(0.6, True, 1, [1.0, bad], ids=(0, 1), start=s)
    assert hit.w.tolist() == [0.25, 0, 0.25, 0.25, 0.25] and hit.last[1] == 1
    assert torch.equal(scores(0.6, True, 1, [1.0, 1.0], ids=(0, 1), start=hit).w, s.w)
    assert weighted([{"a": torch.tensor([bad, 1.0])}], hit.w[1:2])[0]["a"].tolist() == [0, 0]


def draws(rank, num, epsilon, times=4000, me=1):
    rank = torch.tensor(rank, dtype=F64)
    found = [draw_peers(rank, torch.tensor(me), num, epsilon, Stream(0, t, 0)) for t in range(times)]
    return torch.stack(found)


@pytest.mark.parametrize("num", [0, 1, 3, 4])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_peers_are_different_and_never_oneself(num, epsilon):
    for row in draws([0.1, 0.5, 0.2, 0.2, 0.0], num, epsilon, times=50).tolist():
        assert len(set(row)) == num and 1 not in row and set(row) <= {0, 2, 3, 4}


def test_a_mate_among_many_is_found_after_as_many_as_an_urn_says():
    """Untried models come first: of K - 1 = 199 with 9 mates the first is number 200/10 on average."""
    K, M, first = 200, 2, []
    mates, me = set(range(1, 10)), torch.tensor(0)
    for draw in range(300):
        s, tried = no_scores(torch.full((K,), 1 / K, dtype=F64)), 0
        for t in range(K):
            found = draw_peers(ranks(s, True), me, M, 0.0, Stream(1, t, draw))
            hits = [b in mates for b in found.tolist()]
            if any(hits):
                first.append(tried + 1 + hits.index(True))
                break
            tried += M
            s = reweighed(s, found, torch.ones(M, dtype=F64), 0.6, True)
    assert abs(sum(first) / len(first) - 20) < 3 * 17.7 / 300**0.5  # 17.7: the law's deviation


def test_greedy_takes_the_largest_and_breaks_ties_evenly():
    found = draws([0.1, 0.9, 0.3, 0.1, 0.1], 2, 0.0)
    assert (found[:, 0] == 2).all()
    share = [(found[:, 1] == k).double().mean() for k in (0, 3, 4)]
    assert all(abs(s - 1 / 3) < 0.035 for s in share)  # 4.7 standard deviations of 4000 draws


def test_epsilon_1_includes_everybody_alike_and_one_coin_decides_for_all():
    found = draws([0.9, 0.0, 0.5, 0.1, 0.0], 2, 1.0)
    for k in (0, 2, 3, 4):
        assert abs((found == k).any(1).double().mean() - 2 / 4) < 0.035
    mixed = draws([0.9, 0.0, 0.5, 0.1, 0.0], 2, 0.3)
    best = ((mixed == 0).any(1) & (mixed == 2).any(1)).double().mean()
    assert abs(best - (0.7 + 0.3 / 6)) < 0.035  # C(4, 2) = 6 pairs are alike likely


@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
def test_the_loss_of_a_mixture_is_that_of_the_mixed_probabilities(task):
    name = {"regression": "linear"}.get(task, "logistic")
    model = build_model(name, input_shape=(4,), num_outputs=3 if task != "regression" else 1, task=task)
    x = torch.randn(6, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    params = [{k: v.double() for k, v in model.init(seed).items()} for seed in range(3)]
    outputs = torch.stack([model(p, x) for p in params])
    w = torch.tensor([0.5, 0.2, 0.3], dtype=F64)
    mixed = mixture(model, outputs, w)
    if task == "classification":
        y = torch.tensor([0, 1, 2, 0, 1, 2])
        probs = torch.einsum("j,jnk->nk", w, outputs.softmax(-1))
        torch.testing.assert_close(mixed.exp().sum(1), torch.ones(6, dtype=F64))
        want = -probs[torch.arange(6), y].log()
    elif task == "binary":
        y = torch.tensor([0, 1, 1, 0, 1, 0])
        p = torch.einsum("j,jnk->nk", w, outputs.sigmoid())[:, 0]
        want = -torch.where(y == 1, p, 1 - p).log()
    else:
        y = torch.zeros(6, 1, dtype=F64)
        want = torch.einsum("j,jnk->nk", w, outputs)[:, 0] ** 2
    torch.testing.assert_close(model.sample_losses(mixed, y), want)
    one = mixture(model, outputs, torch.tensor([0.0, 1.0, 0.0], dtype=F64))
    torch.testing.assert_close(model.sample_losses(one, y), model.sample_losses(outputs[1], y))
    plain = mixture(model, outputs, w, "logits")
    torch.testing.assert_close(plain, torch.einsum("j,jnk->nk", w, outputs))


def test_sums_go_to_their_owner_in_the_order_of_senders():
    def g(v):
        return {"a": torch.tensor([float(v)])}

    w = [0.1, 0.2, 0.7], [0.5, 0.5, 0.0]
    sent = [(torch.tensor([0, 2]), (g(1), g(10)), w[0]), (torch.tensor([1, 0]), (g(100), g(1000)), w[1])]
    sums = sum_by_owner(sent)
    assert {b: float(total["a"]) for b, (total, _) in sums.items()} == {0: 1001, 1: 100, 2: 10}
    assert {b: round(float(v), 6) for b, (_, v) in sums.items()} == {0: 0.6, 1: 0.5, 2: 0.7}


def test_what_came_without_weight_is_read_only_where_nothing_else_came():
    parts = [{"a": torch.tensor([v])} for v in (1.0, 2.0, 4.0, 0.0)]
    w, none = [0.5, 0.0], [0.0, 0.0]
    to_first, to_both = torch.tensor([0]), torch.tensor([1, 0])
    sums = sum_by_owner(
        [(to_both, (parts[3], parts[0]), w), (to_first, (parts[1],), w), (to_first, (parts[2],), w)]
    )
    assert {b: (float(total["a"]), float(v)) for b, (total, v) in sums.items()} == {
        0: (7.0, 1.5),
        1: (0.0, 0.0),
    }
    again = sum_by_owner(
        [(to_first, (parts[0],), w), (to_first, (parts[2],), none), (to_first, (parts[1],), none)]
    )
    assert again[0][0] is parts[0] and float(again[0][1]) == 0.5


def test_the_same_batches_come_again():
    again, once = SameBatches(Stream(1, 2, 3)), Stream(1, 2, 3)
    first, second = again.schedule(10, 4, 2, 0), again.schedule(10, 4, 2, 0)
    want = once.schedule(10, 4, 2, 0)
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, second, want, strict=True))


@pytest.mark.parametrize("kernel", [True, False])
def test_rows_times_weights_are_exactly_zero_without_weight(kernel, monkeypatch):
    """Also of what is no number; of an expanded stack, and of one whose rows are far apart."""
    if not kernel:
        monkeypatch.setattr(kernels, "library", lambda: None)
    elif kernels.library() is None:
        pytest.skip("no C compiler")
    g = torch.Generator().manual_seed(0)
    stacks = [
        {"a": torch.randn(3, 2, 20, generator=g), "b": torch.randn(3, 4, generator=g)} for _ in range(2)
    ]
    stacks[0]["a"] = torch.randn(2, 20, generator=g).expand(3, 2, 20)
    stacks[1]["b"] = torch.randn(3, 9, generator=g)[:, 2:6]
    stacks[0]["b"][1] = torch.nan
    chosen, weights = [(0, 2), (0, 1), (1, 0), (1, 1)], [0.3, 0.0, 1.0, -2.0]
    found = scaled_rows(stacks, chosen, weights)
    for k, rows in found.items():
        for row, (n, c), w in zip(rows, chosen, weights, strict=True):
            assert torch.equal(row, (stacks[n][k][c].double() * w).float() if w else torch.zeros_like(row))


@pytest.mark.parametrize("alone", [True, False])
def test_weights_and_steps_of_a_stack_are_those_of_each_client(alone):
    """Also where there is no weight, or no number in what came for it."""
    g = torch.Generator().manual_seed(0)
    a, phi = ({"a": torch.randn(4, 2, 3, generator=g), "b": torch.randn(4, 2, generator=g)} for _ in range(2))
    a["a"][1], a["b"][1] = torch.nan, torch.inf
    w = torch.tensor([0.25, 0.0, 1e-4, 1.5], dtype=torch.float64)
    shares = [0.25, 0.0, 1e-4, 1.5]

    def both(a, w, phi):
        stepped = model_step(Peer(phi, init_optimizer(phi, LocalConfig()), None), a, w, True).phi
        times = weighted([phi, a, a], torch.stack([1 - w, torch.zeros_like(w), w]))
        return *times[1:], stepped

    each = [
        both(*({k: v[i] for k, v in t.items()} if isinstance(t, dict) else t[i] for t in (a, w, phi)))
        for i in range(4)
    ]
    stack = torch.vmap(both)(a, w, phi)
    for i, share in enumerate(shares):
        none, times, step = each[i] if alone else ({k: v[i] for k, v in t.items()} for t in stack)
        for k in a:
            assert torch.equal(none[k], torch.zeros_like(a[k][i]))
            wanted = share * a[k][i] if share else torch.zeros_like(times[k])
            torch.testing.assert_close(times[k], wanted, rtol=1e-6, atol=0)
            wanted = a[k][i] / share if share >= 1e-3 else phi[k][i]
            torch.testing.assert_close(step[k], wanted, rtol=1e-6, atol=0)
