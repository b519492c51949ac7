"""Clients that run one by one: none twice, no padded row, in the precision that was asked for."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig, Weights
from fedpers.core.data import Data
from fedpers.core.plan import Plan
from fedpers.core.rng import Stream
from fedpers.engines.chunk_size import without_rest
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import LONELY, WIDE, RunnerConfig
from fedpers.engines.stack import run_chunk
from fedpers.flower.messages import Header, Request
from fedpers.learning.local_training import minimise
from fedpers.learning.minibatches import minibatches
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig
from fedpers.learning.stackable import saved_bytes


class Counting(FedAvgClient):
    """Counts for how many clients an answer is computed."""

    served = 0

    def answer(self, order, state, data, rng):
        type(self).served += len(data.block.parts)
        return super().answer(order, state, data, rng)


def answers(runner, count=5, hidden=(16,), local=None):
    fed = toy_federation(count, (12,), dim=30, classes=4)
    net = build_model("mlp", input_shape=(30,), num_outputs=4, task="classification", hidden=list(hidden))
    config = FedAvgConfig(local=local or LocalConfig(lr=0.1, epochs=2, batch_size=5))
    Counting.served = 0
    cohort = Cohort(Counting(config, net), fed, RamStore(), Plan(seed=1), runner)
    requests = [Request(k, Weights(cohort.params), Header("train", 3, 0)) for k in range(count)]
    return [a.body.params for a in cohort.handle(requests)]


def test_models_of_which_two_have_no_room_are_looped_and_nobody_twice():
    loop = answers(RunnerConfig("loop"), hidden=[3000])
    tight = answers(RunnerConfig("stack", memory_mb=3), hidden=[3000])  # 0.4 MB, of which a stack holds 6
    assert Counting.served == 5
    assert all(torch.equal(a[k], b[k]) for a, b in zip(loop, tight, strict=True) for k in a)


@pytest.mark.parametrize("count, chunk", [(5, 4), (5, 2), (7, 3), (21, 20)])
def test_no_client_is_left_over_and_computed_twice(count, chunk):
    answers(RunnerConfig("stack", chunk=chunk), count=count)
    assert Counting.served == count


def test_sizes_of_chunks_leave_nobody_alone():
    for waiting in range(2, 30):
        for size in range(2, 12):
            left, sizes = waiting, []
            while left:
                sizes.append(min(left, without_rest(left, min(size, left), 100)))
                left -= sizes[-1]
            assert min(sizes) > 1 and sum(sizes) == waiting and max(sizes) <= max(size, 3)
    assert without_rest(3, 2, 2) == 2  # no room for three


def test_a_loop_computes_no_padded_row():
    data = Data(torch.arange(11.0)[:, None], torch.arange(11) % 2, torch.ones(11))
    batches = list(minibatches(data, Stream(0, 1, 0), LocalConfig(epochs=2, batch_size=4)))
    assert [len(b) for b in batches] == [4, 4, 3, 4, 4, 3]
    for passed in (batches[:3], batches[3:]):
        assert sorted(torch.cat([b.x[:, 0] for b in passed]).tolist()) == list(range(11))
        assert all(bool(b.mask.all()) for b in passed)


def test_rows_that_a_module_sees_are_the_samples():
    rows = []
    net = build_model("module", input_shape=(1, 4, 4), num_outputs=3, task="classification",
                      path="tests.own_nets:Plain")  # fmt: skip
    seen = net.network.skeleton.hidden.register_forward_hook(lambda m, given, out: rows.append(len(out)))
    x = torch.randn(11, 1, 4, 4)
    data = Data(x, torch.arange(11) % 3, torch.ones(11))
    with torch.no_grad():
        minimise(net.loss, net.init(0), data, Stream(0, 1, 0), LocalConfig(epochs=3, batch_size=10))
    seen.remove()
    assert sum(rows) == 33 and rows == [10, 1] * 3


def test_precision_holds_in_loops():
    how = {"local": LocalConfig(lr=0.1, epochs=1, batch_size=12)}
    exact, rounded, stacked = (
        answers(RunnerConfig(runner, precision=p), **how)
        for runner, p in (("loop", "float32"), ("loop", "bf16"), ("stack", "bf16"))
    )
    for a, b, c in zip(exact, rounded, stacked, strict=True):
        far = max(float((a[k] - b[k]).abs().max()) for k in a)
        assert 1e-6 < far < 1e-2  # 8 bits of mantissa
        assert max(float((b[k] - c[k]).abs().max()) for k in a) < 2e-3


def test_padding_alone_stays_whole():
    """A batch of weight 0, which a method makes to leave a step out, keeps its rows."""
    data = Data(torch.randn(4, 2), torch.zeros(4), torch.ones(4))
    index, weight = torch.arange(4).reshape(2, 2), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert [len(b) for b in data.take(index, weight)] == [2, 2]
    assert np.isclose(float(data.take(index, weight)[0].num), 0)


# ---- modules that could be stacked, and are faster alone -----------------------------------------------


def modules_answers(monkeypatch, fed, runner="auto", assess=False):
    """(what clients of a module answer, the sizes of their stacks, the runner)."""
    net = build_model("module", input_shape=(16,), num_outputs=3, task="classification",
                      path="tests.own_nets:Plain")  # fmt: skip
    config, Counting.served = FedAvgConfig(local=LocalConfig(lr=0.1, epochs=2, batch_size=5)), 0
    cohort = Cohort(Counting(config, net), fed, RamStore(), Plan(seed=1), RunnerConfig(runner))
    stacks = []

    def counted(population, chunk, *rest):
        stacks.append(len(chunk))
        return run_chunk(population, chunk, *rest)

    monkeypatch.setattr("fedpers.engines.runner.run_chunk", counted)
    header = Header("train", 3, 0, assess=assess)
    answers = cohort.handle([Request(k, Weights(cohort.params), header) for k in range(fed.num_clients)])
    return [getattr(a.body, "reply", a.body).params for a in answers], stacks, cohort.runner


def alike(ours, theirs):
    return all(torch.allclose(a[k], b[k], atol=1e-6) for a, b in zip(ours, theirs, strict=True) for k in a)


def test_a_client_of_sizes_that_no_other_has_is_computed_once(monkeypatch):
    fed = toy_federation(3, (12, 12, 40), dim=16)
    found, stacks, runner = modules_answers(monkeypatch, fed)
    assert stacks == [2] and Counting.served == 3 and LONELY in runner.said
    assert alike(found, modules_answers(monkeypatch, fed, "loop")[0])


def test_clients_whose_test_samples_differ_in_number_train_in_one_stack(monkeypatch):
    whole, kept = toy_federation(4, (12,), dim=16), [6, 1, 2, 4]
    parts = [whole.client(k) for k in range(4)]
    shorter = lambda d, n: Data(d.x[:n], d.y[:n], d.mask[:n])  # noqa: E731
    cut = [replace(p, test=shorter(p.test, n)) for p, n in zip(parts, kept, strict=True)]
    fed = replace(whole, client=cut.__getitem__, num_test=np.array(kept))
    assert modules_answers(monkeypatch, fed)[1] == [4]
    found, stacks, _ = modules_answers(monkeypatch, fed, assess=True)  # which the test samples are for
    assert stacks == [] and Counting.served == 4
    assert alike(found, modules_answers(monkeypatch, fed, "loop")[0])


@pytest.mark.parametrize("room, stacked", [(0, [4]), (-1, [])])
def test_clients_whose_steps_keep_much_run_alone(room, stacked, monkeypatch):
    fed = toy_federation(4, (12,), dim=16)
    network = build_model("module", input_shape=(16,), num_outputs=3, task="classification",
                          path="tests.own_nets:Plain").network  # fmt: skip
    monkeypatch.setattr("fedpers.engines.runner.BUSY", 5 * network.activations + room)  # a step of 5 samples
    found, stacks, runner = modules_answers(monkeypatch, fed)
    assert stacks == stacked and (WIDE in runner.said) == (not stacked)
    assert alike(found, modules_answers(monkeypatch, fed, "loop")[0])
    assert modules_answers(monkeypatch, fed, "stack")[1] == [4]  # whoever asks for stacks gets them


def test_attention_counts_as_a_stack_computes_it():
    class Attends(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    L = 64  # a number for each two tokens, of inputs of one number a token
    assert saved_bytes(Attends(), torch.rand(2, 1, L, 1, requires_grad=True)) >= 4 * L * L
