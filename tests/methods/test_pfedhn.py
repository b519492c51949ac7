"""pFedHN against a restatement by torch's modules, for clients that never trained, and as a mean."""

import numpy as np
import pytest
import torch

from fedpers.clients.pfedhn import PFedHNConfig, Weights
from fedpers.method import LocalConfig, Plan, Roster
from fedpers.strategies.pfedhn import EMBEDDINGS, PFedHN, State, made
from tests.methods.helpers import chosen, doubles, network, simulated, smoke
from tests.oracles.pfedhn import Hypernetwork, optimizer, server_step
from tests.oracles.unlike import train

FED = doubles(classes=5)
MODEL = network(FED, "mlp")
FULL = LocalConfig(lr=0.3, epochs=2, batch_size=0)


def start(cfg, seed):
    """The state before the first round."""
    strategy = PFedHN(cfg, MODEL, Plan(seed=seed, dtype="float64"))
    params = {k: v.double() for k, v in MODEL.init(seed).items()}
    roster = Roster(tuple(range(6)), torch.zeros(6), {})
    return strategy.init(roster, params, np.random.default_rng([seed, 0, 0])), params


def restated(cfg, seed):
    """The restatement's hypernetwork with the same start."""
    maker, params = start(cfg, seed)[0].maker, MODEL.init(seed)
    shapes = {name: value.shape for name, value in params.items()}
    net = Hypernetwork(6, maker[EMBEDDINGS].shape[1], cfg.hidden, cfg.depth, shapes)
    with torch.no_grad():
        net.embeddings.weight.copy_(maker[EMBEDDINGS])
        for i in range(cfg.depth + 1):
            net.trunk[2 * i].weight.copy_(maker[f"B{i}.weight"])
            net.trunk[2 * i].bias.copy_(maker[f"B{i}.bias"])
        for layer, name in zip(net.out, shapes, strict=True):
            layer.weight.copy_(maker[f"A.{name}"])
            layer.bias.copy_(params[name].flatten())
    return net


def trained(theta, k):
    """The client's full-batch steps; `theta` is {name: tensor} with one hidden layer and the head."""
    part, names = FED.client(k).train, list(theta)
    w, b, head, bias = (theta[n].detach() for n in names)
    layers, (head, bias) = train([(w, b)], (head, bias), part.x.flatten(1), part.y, {}, 0.3, 2, 0.0)
    return dict(zip(names, [*layers[0], head, bias], strict=True))


@pytest.mark.parametrize(("drawn", "depth", "dim"), [(3, 2, 0), (1, 0, 3)])
def test_rounds_equal_a_restatement(drawn, depth, dim):
    """Some of six unequal clients a round; embeddings move by their momentum while clients pause."""
    cfg = PFedHNConfig(dim, 7, depth, 0.2, 0.5, 0.8, 0.01, FULL)
    server, _ = simulated("pfedhn", cfg, FED, MODEL, 5, seed=1, clients_per_round=drawn)
    net = restated(cfg, 1)
    sgd = optimizer(net, 0.2, 0.5, 0.8, 0.01)
    for t in range(1, 6):
        now = chosen(server, t)
        server_step(net, sgd, {k: trained(net(k), k) for k in now})
    torch.testing.assert_close(
        server.state.maker[EMBEDDINGS], net.embeddings.weight.detach(), rtol=0, atol=1e-12
    )
    for k in range(6):
        found = server.evaluation_message(server.state, k).params
        for name, value in net(k).items():
            torch.testing.assert_close(found[name], value.detach(), rtol=0, atol=1e-12)


def test_the_model_starts_near_the_initial_one_and_embeddings_have_a_length():
    state, params = start(PFedHNConfig(hidden=5), 3)
    assert state.maker[EMBEDDINGS].shape == (6, 2)
    still = {k: v * (not k.startswith("A.")) for k, v in state.maker.items()}
    for name, value in made(still, still[EMBEDDINGS][0]).items():
        assert torch.equal(value, params[name])


def test_a_client_that_never_trained_gets_the_model_of_the_mean_embedding():
    server, _ = simulated("pfedhn", PFedHNConfig(hidden=5, local=FULL), FED, MODEL, 2, new_clients=2)
    maker = server.state.maker
    assert len(maker[EMBEDDINGS]) == 4
    mean = made(maker, maker[EMBEDDINGS].mean(0))
    for k in server.unseen:
        found = server.evaluation_message(server.state, k).params
        assert all(torch.equal(found[name], mean[name]) for name in mean)


def test_where_nothing_tells_clients_apart_it_is_a_step_towards_the_mean():
    cfg = PFedHNConfig(hidden=5, server_lr=0.25, momentum=0.0, weight_decay=0.0)
    server = PFedHN(cfg, MODEL)
    server.roster = Roster(tuple(range(3)), torch.ones(3), {})
    server.row = {k: k for k in range(3)}
    maker = {k: v if k.startswith("a.") else torch.zeros_like(v) for k, v in start(cfg, 2)[0].maker.items()}
    before = {k: v.clone() for k, v in maker.items()}
    generator = server.round(State(maker, {k: torch.zeros_like(v) for k, v in maker.items()}), 1, None)
    server.sample = lambda rng: [0, 1, 2]
    orders = next(generator)
    replies = {k: Weights({n: v + k for n, v in order.params.items()}) for k, order in orders.items()}
    with pytest.raises(StopIteration) as end:
        generator.send(replies)
    for name, value in end.value.value.maker.items():
        moved = 0.25 if name.startswith("a.") else 0.0  # a quarter of the way to the mean, which is 1 away
        torch.testing.assert_close(value, before[name] + moved)


def test_what_it_cannot_be():
    lines = PFedHNConfig(-1, 0, -1, 0.0, 0.0, 1.0, -1.0).check()
    assert [line.partition("=")[0] for line in lines] == [
        "embed_dim", "hidden", "depth", "weight_decay", "momentum", "server_lr", "embed_lr",
    ]  # fmt: skip


def test_runs_on_digits(tmp_path):
    assert smoke("pfedhn", tmp_path)["rounds"] == 3
