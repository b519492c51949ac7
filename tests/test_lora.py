"""Adapters on frozen linear layers: against plain algebra, alone and in stacks, with and without Dropout."""

import numpy as np
import pytest
import torch
from torch import nn

import fedpers
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig, Weights
from fedpers.core.errors import ConfigError
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.messages import Header, Request
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig
from tests import own_nets
from tests.methods.helpers import config, simulated

LORA = {"rank": 2, "alpha": 6}


def model(name="Plain", shape=(1, 4, 4), **options):
    return build_model("module", input_shape=shape, num_outputs=3, task="classification",
                       path=f"tests.own_nets:{name}", **options)  # fmt: skip


def federation(sizes=(9, 14, 20, 14), shape=(1, 4, 4), tokens=0):
    rng = np.random.default_rng(0)
    draw = (
        (lambda n: rng.integers(tokens, size=(n, *shape)))
        if tokens
        else (lambda n: rng.normal(size=(n, *shape)))
    )
    data = [(draw(n).astype("int64" if tokens else "float32"), np.arange(n) % 3) for n in sizes]
    return fedpers.Federation.from_arrays(data, tokens=bool(tokens))


def trained(net, fed, runner, local=None):
    """Each client's parameters after one local training; none may fail."""
    cfg = FedAvgConfig(local=local or LocalConfig(lr=0.2, epochs=2, batch_size=4))
    cohort = Cohort(FedAvgClient(cfg, net), fed, RamStore(), Plan(seed=1), RunnerConfig(runner))
    requests = [Request(k, Weights(cohort.params), Header("train", 3, 0)) for k in range(fed.num_clients)]
    return [a.body.params for a in cohort.handle(requests)], cohort


def assert_stack_is_loop(net, fed, **more):
    loop, _ = trained(net, fed, "loop", **more)
    stack, cohort = trained(net, fed, "stack", **more)
    assert not cohort.runner.looped and not cohort.runner.said  # nothing fell back
    for a, b in zip(loop, stack, strict=True):
        for k in a:
            torch.testing.assert_close(a[k], b[k], rtol=1e-5, atol=1e-6)
    return loop


def test_outputs_are_those_of_plain_algebra_and_of_merged_weights():
    net, x = model(lora=LORA), torch.randn(5, 1, 4, 4)
    start = net.init(3)
    own = own_nets.Plain()
    own.load_state_dict(net.network.plain_state(start))
    assert torch.equal(net(start, x), own(x))  # an adapter begins as nothing
    params = start | {"body.hidden.lora_B": torch.randn(8, 2), "head.bias": torch.randn(3)}
    W, b, A, B = (params[f"body.hidden.{k}"].double().numpy() for k in ("weight", "bias", "lora_A", "lora_B"))
    merged = W + 6 / 2 * B @ A
    hidden = np.tanh(x.flatten(1).double().numpy() @ merged.T + b)
    outputs = hidden @ params["head.weight"].double().numpy().T + params["head.bias"].double().numpy()
    np.testing.assert_allclose(net(params, x).double(), outputs, atol=1e-5)
    state = net.network.plain_state(params)
    np.testing.assert_allclose(state["hidden.weight"].double(), merged, atol=1e-6)
    own.load_state_dict(state)
    torch.testing.assert_close(net(params, x), own(x), rtol=1e-5, atol=1e-6)


def test_adapters_and_the_head_are_trained_and_nothing_else():
    net = model(lora=LORA)
    assert net.init_trained(0).keys() == {
        "body.hidden.lora_A", "body.hidden.lora_B", "head.weight", "head.bias"
    }  # fmt: skip
    assert net.constants.keys() == {"body.hidden.weight", "body.hidden.bias"}
    assert net.trains == (2 * 16 + 8 * 2 + 27, 2 * 16 + 8 * 2 + 27 + 16 * 8 + 8)
    a, b = net.init_trained(1)["body.hidden.lora_A"], net.init_trained(2)["body.hidden.lora_A"]
    assert not torch.equal(a, b) and float(a.abs().max()) <= 1 / 4  # uniform within 1/√in
    only_b = model(lora=LORA, trainable=["*lora_B", "out.*"])
    assert only_b.init_trained(0).keys() == {"body.hidden.lora_B", "head.weight", "head.bias"}
    assert "body.hidden.lora_A" in only_b.constants


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_stack_is_the_loop(dropout):
    """With minibatches that are not full, and clients of unequal size."""
    ends = assert_stack_is_loop(model(lora={**LORA, "dropout": dropout}), federation())
    assert not any(torch.equal(a["body.hidden.lora_A"], ends[0]["body.hidden.lora_A"]) for a in ends[1:])


def test_dropout_draws_each_clients_own_numbers():
    net = model("Dropping")
    ends = assert_stack_is_loop(net, federation())
    off, _ = trained(model("Dropping", kwargs={"p": 0.0}), federation(), "loop")
    assert not torch.allclose(ends[0]["head.weight"], off[0]["head.weight"], atol=1e-3)


def test_dropout_keeps_a_share_and_the_mean():
    from fedpers.core.rng import Stream
    from fedpers.learning.draws import drawing, own_draws

    layer = nn.Sequential(nn.Dropout(0.3))
    assert own_draws(layer)
    x = torch.ones(400, 500)
    with drawing([Stream(1, 2, 3)]):
        one, two = layer(x), layer(x)
    with drawing([Stream(1, 2, 3)]):
        again = layer(x)
    with drawing([Stream(1, 2, 4)]):
        other = layer(x)
    assert torch.equal(one, again) and not torch.equal(one, two) and not torch.equal(one, other)
    assert set(one.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.7))}
    assert abs(float(one.mean()) - 1) < 5 * (0.3 / 0.7 / 200_000) ** 0.5  # five standard errors
    assert torch.equal(layer.eval()(x), x)


def test_what_vmap_cannot_stack_is_said_before_anything_runs():
    assert "random draws beside nn.Dropout" in model("Functional").network.alone
    assert "only one client at a time" in model("Branching").network.alone
    assert model("Dropping").network.alone == ""


def test_layers_that_torch_would_read_past_are_adapted_in_both_modes():
    """nn.TransformerEncoderLayer reads its weights directly in evaluation mode, unless it is told not to."""
    net, x = model("Encoder", lora={"rank": 2}), torch.randn(3, 1, 4, 4)
    params = net.init(0)
    moved = params | {k: torch.randn_like(v) for k, v in params.items() if "lora_B" in k}
    with torch.no_grad():
        assert not torch.allclose(net(moved, x), net(params, x))
        merged = own_nets.Encoder()
        merged.load_state_dict(net.network.plain_state(moved))
        torch.testing.assert_close(net(moved, x), merged.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "lora, text",
    [
        ({"rank": 0}, "model.lora.rank is 0; it must be a whole number, 1 or more"),
        ({"alpha": 4}, "it must be {rank: 4, alpha: 8}"),
        ({"rank": 2, "alpha": -1}, "model.lora.alpha is -1; it must be a number above 0"),
        ({"rank": 2, "dropout": 1}, "model.lora.dropout is 1; it must be at least 0 and below 1"),
        ({"rank": 2, "targets": "hidden"}, "model.lora.targets is 'hidden'; it must be a list"),
        ({"rank": 2, "tagrets": ["hidden"]}, "key of model.lora"),
        ({"rank": 2, "targets": ["hiden"]}, "'hiden' fits no torch.nn.Linear.*there is none"),
        ({"rank": 2, "targets": ["out"]}, "'out' fits no torch.nn.Linear.*but for the head 'out'"),
        (3, "model.lora is 3"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(lora, text):
    with pytest.raises(ConfigError, match=text):
        model(lora=lora)


def test_a_layer_of_another_kind_is_named():
    with pytest.raises(ConfigError, match="'conv' is a Conv2d"):
        model("CNN", lora={"rank": 2, "targets": ["conv"]})
    with pytest.raises(ConfigError, match=r"all linear layers.*such are none"):
        model("CNN", lora={"rank": 2})


@pytest.mark.parametrize("method", ["fedper", "ditto", "pflego", "ifca"])
def test_methods_leave_the_base_and_send_adapters_alone(tmp_path, method):
    found = fedpers.run({"name": method}, data=federation(), rounds=2, out=str(tmp_path / "run"),
                        model={"name": "module", "path": "tests.own_nets:Plain", "lora": LORA})  # fmt: skip
    params = found.model(client=0).params or {}
    if method != "ifca":  # whose clients choose
        assert torch.equal(params["body.hidden.weight"], model(lora=LORA).constants["body.hidden.weight"])


def test_parts_know_adapters():
    from fedpers.families.split_models.parts import cut

    net = model(lora=LORA)
    assert cut(net, net.init_trained(0), "adapters")[1].keys() == {"body.hidden.lora_A", "body.hidden.lora_B"}


def rounds(method, settings, lora, trainable=None, count=2):
    """(server's state, clients' states) after some rounds; full batches."""
    net = model(lora=lora, **({"trainable": trainable} if trainable else {}))
    return (net, *simulated(method, config(method, **settings), federation(), net, count, dtype="float32"))


def test_ffa_lora_averages_products_exactly():
    """Sun et al., ICLR 2024: with A frozen the mean of products B_k A is the mean of B_k, times A."""
    net, server, cohort = rounds("fedavg", {}, LORA, ["*lora_B", "out.*"])
    assert server.state.params.keys() == {"body.hidden.lora_B", "head.weight", "head.bias"}
    for trainable, exact in ((["*lora_B", "out.*"], True), (["*lora_*", "out.*"], False)):
        net = model(lora=LORA, trainable=trainable)
        ends, cohort = trained(net, federation(), "stack")
        n = torch.tensor([float(x) for x in cohort.federation.num_train])
        mean = {k: sum(w * e[k] for w, e in zip(n / n.sum(), ends, strict=True)) for k in ends[0]}
        products = [net.network.plain_state(net.init(1) | e)["hidden.weight"] for e in ends]
        wanted = sum(w * p for w, p in zip(n / n.sum(), products, strict=True))
        found = net.network.plain_state(net.init(1) | mean)["hidden.weight"]
        assert torch.allclose(found, wanted, atol=1e-6) is exact


def test_fedsa_lora_shares_a_and_keeps_b():
    """Guo et al., ICLR 2025: A is averaged over the clients, B stays where it is."""
    own = ["*lora_B", "head.*"]
    net, server, cohort = rounds("fedper", {"personal": own, "head_init": "common"}, LORA, count=1)
    ends, _ = trained_from(net, cohort.client.config.local)
    assert server.state.part.keys() == {"body.hidden.lora_A"}
    n = torch.tensor([float(x) for x in cohort.federation.num_train])
    mean = sum(w * e["body.hidden.lora_A"] for w, e in zip(n / n.sum(), ends, strict=True))
    torch.testing.assert_close(server.state.part["body.hidden.lora_A"], mean, rtol=1e-5, atol=1e-6)
    for k, state in cohort.store.states.items():
        for name in ("body.hidden.lora_B", "head.weight", "head.bias"):
            torch.testing.assert_close(state.own[name], ends[k][name], rtol=1e-5, atol=1e-6)


def trained_from(net, local):
    """What each client makes of the model's start in round 1 of seed 0."""
    fed = federation()
    cohort = Cohort(FedAvgClient(FedAvgConfig(local=local), net), fed, RamStore(), Plan(seed=0))
    requests = [Request(k, Weights(cohort.params), Header("train", 1, 0)) for k in range(fed.num_clients)]
    return [a.body.params for a in cohort.handle(requests)], cohort


def test_dual_adapters_are_one_to_share_and_one_to_keep():
    """W + α/r (B A + B' A'), of which A' and B' stay with their client (as in FedDPA and FedALT)."""
    net, x = model(lora={**LORA, "dual": True}), torch.randn(5, 1, 4, 4)
    params = {k: torch.randn_like(v) if "lora" in k else v for k, v in net.init(0).items()}
    W = params["body.hidden.weight"].double()
    for own in ("", "own_"):
        A, B = (params[f"body.hidden.{own}lora_{f}"].double() for f in "AB")
        W = W + 3 * B @ A
    hidden = torch.tanh(x.flatten(1).double() @ W.T + params["body.hidden.bias"].double())
    outputs = hidden @ params["head.weight"].double().T + params["head.bias"].double()
    torch.testing.assert_close(net(params, x).double(), outputs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        net.network.plain_state(params)["hidden.weight"].double(), W, rtol=1e-5, atol=1e-5
    )
    _, server, cohort = rounds("fedalt", {"personal": ["*own_lora_*", "head.*"]}, {**LORA, "dual": True})
    assert server.state.part.keys() == {"body.hidden.lora_A", "body.hidden.lora_B"}
    kept = {"body.hidden.own_lora_A", "body.hidden.own_lora_B", "head.weight", "head.bias"}
    assert all(state.own.keys() == kept for state in cohort.store.states.values())
