"""FedBN against a restatement, as FedAvg and FedPer, and on a network that normalises."""

import numpy as np
import pytest
from torch import nn

from fedpers.app.run import execute
from fedpers.clients.fedbn import FedBNConfig
from fedpers.config import compose
from fedpers.core.errors import ConfigError
from fedpers.families.split_models.parts import cut
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig
from tests.methods.helpers import chosen, config, doubles, initial_parts, network, same, samples, simulated
from tests.oracles.fedbn import fedbn_round

FED = doubles()
MODEL = network(FED, "mlp")
NAMES = {"body": "dense1", "head": "head"}


def test_rounds_with_private_biases_equal_a_numpy_restatement():
    cfg = FedBNConfig(["*.bias"], LocalConfig(lr=0.3, epochs=2, batch_size=0))
    server, cohort = simulated("fedbn", cfg, FED, MODEL, 4, seed=1, clients_per_round=4)
    parts = dict(zip(("body", "head"), initial_parts(MODEL, 1), strict=True))
    shared = {part: both["w"] for part, both in parts.items()}
    own = [{part: both["b"] for part, both in parts.items()}] * 6
    for t in range(1, 5):
        shared, own = fedbn_round(shared, own, samples(FED), chosen(server, t), 0.3, 2)
    for part, name in NAMES.items():
        np.testing.assert_allclose(server.state.part[f"{name}.weight"], shared[part], rtol=0, atol=1e-13)
        for k, state in cohort.store.states.items():
            np.testing.assert_allclose(state.own[f"{name}.bias"], own[k][part], rtol=0, atol=1e-13)


def test_with_a_private_head_and_clients_of_equal_size_it_is_fedper():
    fed, local = doubles(sizes=(8,)), LocalConfig(lr=0.3, epochs=2, batch_size=4)
    ours, mine = simulated("fedbn", FedBNConfig(["head.*"], local), fed, MODEL, 3, clients_per_round=4)
    theirs, other = simulated(
        "fedper", config("fedper", local=local, head_init="common"), fed, MODEL, 3, clients_per_round=4
    )
    assert same(ours.state.part, theirs.state.part)
    assert all(same(mine.store.states[k].own, state.own) for k, state in other.store.states.items())


def test_the_default_names_all_normalisation_of_a_resnet_and_nothing_else():
    model = build_model("resnet18_gn", input_shape=(3, 8, 8), num_outputs=2, task="classification")
    shared, own = cut(model, model.init(0), FedBNConfig().private)
    skeleton = model.network.skeleton
    norms = [
        f"{name}.{p}"
        for name, m in skeleton.named_modules()
        for p, _ in m.named_parameters(recurse=False)
        if isinstance(m, nn.GroupNorm)
    ]
    assert sorted(own) == sorted(norms) and len(norms) == 40
    assert len(shared) + len(own) == len(model.init(0))


def test_a_model_that_does_not_normalise_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"private=norms: model 'mlp' has no norm.*model=resnet18_gn.*dense1"
    ):
        execute(compose.load(["method=fedbn", "rounds=1"]), tmp_path)


def test_runs_on_digits(tmp_path):
    cfg = compose.load(["method=fedbn", "method.private=[dense1.*]", "rounds=3", "data.num_clients=6"])
    assert execute(cfg, tmp_path)["rounds"] == 3


def test_the_default_goes_by_the_types_of_layers_not_by_their_names():
    model = build_model("module", input_shape=(1, 4, 4), num_outputs=3, task="classification",
                        path="tests.own_nets:Unnamed")  # fmt: skip
    own = cut(model, model.init(0), FedBNConfig().private)[1]
    places = {"block.1.weight", "block.1.bias", "block.3.weight", "block.3.bias", "squeeze.weight"}
    assert own.keys() == {f"body.{place}" for place in places}
