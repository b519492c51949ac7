"""GPFL against a restatement, its valve, and what it says of classes."""

import numpy as np
import pytest
import torch

from fedpers.clients.gpfl import EMBEDDINGS, VALVE, GPFLConfig, valve
from fedpers.core.errors import ConfigError
from fedpers.method import LocalConfig, Plan, Roster
from fedpers.strategies.gpfl import GPFL
from tests.methods.helpers import chosen, doubles, network, quadratics, samples, simulated, smoke
from tests.oracles.blocks import average, sizes
from tests.oracles.gpfl import log_softmax, outputs, train

FED = doubles()
MODEL = network(FED, "mlp")
PLAN = {"seed": 1, "clients_per_round": 3}
NAMES = {"dense1.weight": "w", "dense1.bias": "b", "head.weight": "H", "head.bias": "c", EMBEDDINGS: "E"}
NAMES |= {
    half + long: short + str(i)
    for i, half in enumerate(VALVE)
    for long, short in {"weight": "W", "bias": "B", "scale": "S", "shift": "T"}.items()
}


def flat(params):
    """By the restatement's names."""
    return {next(v for k, v in NAMES.items() if name.endswith(k)): p.numpy() for name, p in params.items()}


def start(seed):
    """What a run begins with, of the shared part and of a head."""
    strategy = GPFL(GPFLConfig(), MODEL, Plan(seed=seed, dtype="float64"))
    params = {k: v.double() for k, v in MODEL.init(seed).items()}
    rng = np.random.default_rng([seed, 0, 0])  # the server's, before round 1
    shared = strategy.init(Roster((), torch.zeros(0), {}), params, rng)
    return flat(shared.part), flat({k: v for k, v in params.items() if MODEL.is_head(k)})


def test_rounds_equal_a_numpy_restatement():
    """Three of six unequal clients a round; of six clients one lacks a class."""
    assert (FED.label_counts == 0).any()
    lam, mu = 0.3, 0.05
    cfg = GPFLConfig(lam, mu, LocalConfig(lr=0.2, epochs=2, batch_size=0))
    server, cohort = simulated("gpfl", cfg, FED, MODEL, 3, **PLAN)
    part, head = start(1)
    heads, data = [head] * 6, samples(FED)
    shares = [np.bincount(y, minlength=3) / len(y) for _, y in data]
    for t in range(1, 4):
        parts = []
        for i in chosen(server, t):
            p = train(part | heads[i], *data[i], shares[i], 0.2, 2, lam, mu)
            heads[i] = {k: p[k] for k in "Hc"}
            parts.append({k: p[k] for k in part})
        part = average(parts, [sizes(data)[i] for i in chosen(server, t)])
    for name, value in flat(server.state.part).items():
        np.testing.assert_allclose(value, part[name], rtol=0, atol=1e-12)
    for i, state in cohort.store.states.items():
        for name, value in flat(state.head).items():
            np.testing.assert_allclose(value, heads[i][name], rtol=0, atol=1e-12)
        test = FED.client(i).test
        said = log_softmax(outputs(part | heads[i], test.x.numpy(), part["E"], shares[i]))
        loss = -said[np.arange(len(test)), test.y.numpy()].mean()
        assert server.client_metrics["test_loss"][i] == pytest.approx(loss, rel=1e-10)


def test_a_valve_whose_layers_are_silent_lets_features_through():
    """γ and β are 0 where LayerNorm's scale and shift are."""
    M = 4
    w = {
        half + part: torch.zeros(M, M) if part == "weight" else torch.zeros(M)
        for half in VALVE
        for part in ("weight", "bias", "scale", "shift")
    }
    z = torch.rand(5, M)
    assert torch.equal(valve(w, z, torch.rand(M)), z)
    w[VALVE[1] + "shift"] = torch.full((M,), -2.0)
    assert not valve(w, z, torch.rand(M)).any()


def test_embeddings_learn_the_directions_of_their_classes():
    """The cosine of a class's features with its own embedding grows above those with others."""
    cfg = GPFLConfig(0.0, 0.0, LocalConfig(lr=0.3, epochs=20, batch_size=0))
    margins = []
    for rounds in (1, 8):
        server, _ = simulated("gpfl", cfg, FED, MODEL, rounds)
        w = server.state.part
        x = torch.cat([FED.client(k).train.x for k in range(6)])
        y = torch.cat([FED.client(k).train.y for k in range(6)])
        z = valve(w, MODEL.body(w, x), w[EMBEDDINGS].mean(0))
        cosine = torch.nn.functional.cosine_similarity(z[:, None], w[EMBEDDINGS], dim=2)
        own = cosine[torch.arange(len(y)), y]
        margins.append(float((own - (cosine.sum(1) - own) / 2).mean()))
    assert margins[1] > margins[0] + 0.1


def test_binary_tasks_are_taken_and_regressions_refused():
    fed = doubles(task="binary")
    server, _ = simulated("gpfl", GPFLConfig(), fed, network(fed), 2)
    assert server.state.part[EMBEDDINGS].shape[0] == 2
    assert np.isfinite(server.client_metrics["test_loss"]).all()
    fed = quadratics([1.0, 2.0], [3.0, 4.0], [3, 5])
    with pytest.raises(ConfigError, match="method gpfl has an embedding of each class"):
        simulated("gpfl", GPFLConfig(), fed, network(fed, "linear"), 1)


@pytest.mark.parametrize("values", [{"lam": -0.1}, {"mu": -0.1}])
def test_what_it_cannot_be(values):
    (line,) = GPFLConfig(**values).check()
    assert line.startswith(f"{next(iter(values))}=")


def test_runs_on_digits(tmp_path):
    assert smoke("gpfl", tmp_path)["rounds"] == 3
