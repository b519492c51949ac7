"""FedCP against a restatement, its discrepancy far from 0, its noise, and what it refuses."""

import numpy as np
import pytest
import torch

from fedpers.clients.fedcp import ClientState, FedCPClient, FedCPConfig, SharedPart
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.families.split_models.policy import POLICY, mmd
from fedpers.learning.draws import drawing, seed_of, uniform
from fedpers.method import LocalConfig, Plan, Roster, Stream
from fedpers.strategies.fedcp import FedCP
from tests.methods.helpers import batches, chosen, doubles, network, simulated, smoke
from tests.oracles import fedcp as oracle

FED = doubles()
MODEL = network(FED, "mlp")
NAMES = {"dense1.weight": "w", "dense1.bias": "b", "head.weight": "H", "head.bias": "c"}
NAMES |= {POLICY + k: v for k, v in {"weight": "W", "bias": "B", "scale": "S", "shift": "T"}.items()}
LOCAL = LocalConfig(lr=0.4, epochs=2, batch_size=4)


def flat(params):
    """By the restatement's names."""
    return {next(v for k, v in NAMES.items() if name.endswith(k)): p for name, p in params.items()}


def start(seed):
    """The shared part before the first round, and the model."""
    strategy = FedCP(FedCPConfig(), MODEL, Plan(seed=seed, dtype="float64"))
    params = {k: v.double() for k, v in MODEL.init(seed).items()}
    rng = np.random.default_rng([seed, 0, 0])  # the server's, before round 1
    return strategy.init(Roster((), torch.zeros(0), {}), params, rng), params


def steps(t, k, count=4):
    """The minibatches of client k in round t, each with its uniform numbers, from their documented keys."""
    part, seed = FED.client(k).train, seed_of(Stream(1, t, k))
    for step, rows in enumerate(batches(1, t, k, len(part), 4, 2)):
        bits = np.random.Philox(key=[seed, 1 << 44 | step << 16 | 1])
        u = np.random.Generator(bits).random((len(rows), count), dtype=np.float32)
        yield part.x[rows].flatten(1), part.y[rows], torch.from_numpy(u).double()


def test_rounds_equal_a_restatement():
    """Three of six unequal clients a round, with minibatches that are not full."""
    assert len({len(FED.client(k).train) for k in range(6)}) > 1
    server, cohort = simulated("fedcp", FedCPConfig(0.7, LOCAL), FED, MODEL, 3, seed=1, clients_per_round=3)
    part = flat(start(1)[0].part)
    heads = [{k: part[k] for k in "Hc"}] * 6
    for t in range(1, 4):
        sent, sizes = [], []
        for k in chosen(server, t):
            reply, heads[k] = oracle.train(part, heads[k], steps(t, k), 0.4, 0.7)
            sent.append(reply)
            sizes.append(len(FED.client(k).train))
        part = {n: sum(s * r[n] for s, r in zip(sizes, sent, strict=True)) / sum(sizes) for n in part}
    close = {"rtol": 0, "atol": 1e-6}  # the logit of a number is taken in float32
    for name, value in flat(server.state.part).items():
        torch.testing.assert_close(value, part[name], **close)
    for k, state in cohort.store.states.items():
        for name, value in flat(state.own).items():
            torch.testing.assert_close(value, heads[k][name], **close)
        test = FED.client(k).test
        own, v = heads[k], heads[k]["H"].sum(0)
        _, out = oracle.outputs(part, own, part, test.x.flatten(1), v, torch.zeros(2, 1))
        loss = float(torch.nn.functional.cross_entropy(out, test.y))
        assert server.client_metrics["test_loss"][k] == pytest.approx(loss, abs=1e-6)


def test_the_condition_is_of_the_personal_head():
    """Plain SGD on cross entropy keeps the sum of a head's rows: rounds alone do not show whose it is."""
    shared, params = start(4)
    generator = torch.Generator().manual_seed(5)
    heads = {k: v for k, v in params.items() if MODEL.is_head(k)}
    own = {k: torch.randn(v.shape, generator=generator).double() for k, v in heads.items()}
    client, part, rng = FedCPClient(FedCPConfig(0.7, LOCAL), MODEL), FED.client(0), Stream(1, 1, 0)
    with torch.no_grad(), drawing([rng]):
        reply, state = client.answer(shared, ClientState(own), part.train, rng)
    wanted, head = oracle.train(flat(shared.part), flat(own), steps(1, 0), 0.4, 0.7)
    for found, expected in ((flat(reply.part), wanted), (flat(state.own), head)):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)
    given, v = flat(shared.part), flat(own)["H"].sum(0)
    _, out = oracle.outputs(given, flat(own), given, part.test.x.flatten(1), v, torch.zeros(2, 1))
    torch.testing.assert_close(client.predict(shared, ClientState(own), part.test.x), out)


def test_where_heads_are_alike_the_policy_changes_no_prediction():
    """s + r = 1, so that only the biases count twice."""
    shared, params = start(2)
    head = {k: v for k, v in params.items() if MODEL.is_head(k)}
    x = FED.client(0).train.x
    found = FedCPClient(FedCPConfig(), MODEL).predict(shared, ClientState(head), x)
    torch.testing.assert_close(found, MODEL(params, x) + params["head.bias"])


def test_right_after_training_a_client_predicts_with_the_head_that_it_received():
    shared, _ = start(3)
    reply = SharedPart({k: v + 1 for k, v in shared.part.items()})
    found = FedCPClient(FedCPConfig(), MODEL).local_model(shared, reply).part
    for name, value in found.items():
        assert torch.equal(value, (shared if MODEL.is_head(name) else reply).part[name])


def test_a_discrepancy_is_right_far_from_zero_and_leaves_padding_out():
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(6, 5, generator=rng) for _ in range(2))
    mask = torch.tensor([1.0, 1, 1, 1, 0, 0])
    wanted = float(oracle.mmd(a[:4].double(), b[:4].double()))
    assert float(mmd(a, b, mask)) == pytest.approx(wanted, abs=1e-6)
    assert float(mmd(a + 3000, b + 3000, mask)) == pytest.approx(wanted, abs=1e-3)
    assert float(mmd(a, a, mask)) == pytest.approx(0, abs=1e-6)


def test_a_loss_may_draw_where_its_client_class_says_so():
    with pytest.raises(FedpersError, match="set `draws = True`"):
        uniform(torch.zeros(2))


def test_what_it_cannot_be():
    assert FedCPConfig(-0.1).check()[0].startswith("lam=")
    (line,) = FedCPConfig(local=LocalConfig(micro_batch=2)).check()
    assert line.startswith("local.micro_batch=2: ")
    assert FedCPConfig(0.0, LocalConfig(micro_batch=2)).check() == []
    fed = doubles(task="binary")
    server, _ = simulated("fedcp", FedCPConfig(local=LOCAL), fed, network(fed, "mlp"), 2)
    assert np.isfinite(server.client_metrics["test_loss"]).all()


def test_features_of_tokens_are_refused(monkeypatch):
    from fedpers.core.tasks import TASKS
    from fedpers.learning.model import Model

    monkeypatch.setattr(Model, "kind", property(lambda self: TASKS["tokens"]))
    with pytest.raises(ConfigError, match="method fedcp compares and separates features of samples"):
        start(1)


def test_runs_on_digits(tmp_path):
    assert smoke("fedcp", tmp_path)["rounds"] == 3
