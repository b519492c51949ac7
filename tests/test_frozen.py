"""Frozen is frozen: constants are never trained, sent, stored, and are the same in every process."""

import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fedpers
from fedpers.app.build import assemble
from fedpers.app.run import execute
from fedpers.config import compose
from fedpers.config.registry import METHODS
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.plan import Plan
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.population import Population
from fedpers.learning.model import build_model
from tests import own_nets


def federation(sizes=(9, 12, 20)):
    rng = np.random.default_rng(0)
    return fedpers.Federation.from_arrays(
        [(rng.normal(size=(n, 1, 4, 4)).astype("float32"), np.arange(n) % 3) for n in sizes]
    )


def model(name="FrozenBase", **options):
    return build_model("module", input_shape=(1, 4, 4), num_outputs=3, task="classification",
                       path=f"tests.own_nets:{name}", **options)  # fmt: skip


def run(tmp_path, method, settings=None, engine=None, name="FrozenBase", **more):
    return fedpers.run(
        {"name": method, **(settings or {})},
        data=federation(),
        model={"name": "module", "path": f"tests.own_nets:{name}", **more},
        rounds=2,
        engine={"name": "inprocess", **(engine or {})},
        out=str(tmp_path / "run"),
    )


def test_what_is_trained_is_what_asks_for_a_gradient():
    net = model()
    assert net.init_trained(0).keys() == {
        "body.middle.weight",
        "body.middle.bias",
        "head.weight",
        "head.bias",
    }
    assert net.init(0).keys() - net.init_trained(0).keys() == {
        "body.base.weight",
        "body.base.bias",
        "body.shift",
    }
    assert net.trains == (8 * 8 + 8 + 8 * 3 + 3, 8 * 8 + 8 + 8 * 3 + 3 + 16 * 8 + 8)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        start = own_nets.FrozenBase()
    assert torch.equal(net.init(3)["body.middle.weight"], start.middle.weight)
    assert torch.equal(net.init(3)["body.base.weight"], net.init(4)["body.base.weight"])  # no seed moves it


def test_its_predictions_are_the_modules_own():
    net, x = model(), torch.randn(5, 1, 4, 4)
    own = own_nets.FrozenBase()
    values = net.init(2)
    names = {
        "fc." + k[5:] if k.startswith("head.") else k.removeprefix("body."): v for k, v in values.items()
    }
    own.load_state_dict(names)
    for params in (values, net.init_trained(2)):
        torch.testing.assert_close(net(params, x), own(x))
    other = values | {"body.base.bias": values["body.base.bias"] + 1}  # a base of somebody else's
    assert not torch.allclose(net(other, x), own(x))
    in_double = {k: v.double() for k, v in net.init_trained(2).items()}
    torch.testing.assert_close(net(in_double, x.double()).float(), own(x))


NEEDS = {"fedbn": {"private": ["body.middle.*"]}}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_base_stays_in_every_method(tmp_path, method):
    try:
        finished = run(tmp_path, method, NEEDS.get(method))
    except ConfigError as error:
        pytest.skip(str(error))
    start = model().init(0)
    try:
        found = finished.model(client=0).params
    except FedpersError:
        found = None
    if found is not None:
        assert all(torch.equal(found[k], start[k]) for k in model().constants)
    stored = [p.stat().st_size for p in (tmp_path / "run" / "checkpoint").rglob("*") if p.is_file()]
    assert stored


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedper"])
def test_what_is_sent_and_stored_does_not_grow_with_the_base(tmp_path, method):
    sizes = []
    for width in (8, 800):
        folder = tmp_path / str(width)
        finished = run(folder, method, kwargs={"width": width, "out": 8})
        stored = sum(p.stat().st_size for p in (folder / "run" / "checkpoint").rglob("*") if p.is_file())
        sizes.append((finished.summaries[0]["bytes"], stored // 4096))
    assert sizes[0] == sizes[1]


def test_patterns_say_what_is_trained():
    net = model("Plain", trainable=["out.*", "hidden.bias"])
    assert net.init_trained(0).keys() == {"body.hidden.bias", "head.weight", "head.bias"}
    assert net.trains == (8 + 27, 16 * 8 + 8 + 27)


@pytest.mark.parametrize(
    "name, trainable, text",
    [
        ("Plain", ["hiden.*", "out.*"], "'hiden.*' fits no parameter"),
        ("Plain", [], "must be a list of patterns"),
        ("Plain", "out.*", "must be a list of patterns"),
        ("Plain", ["hidden.*"], "its head 'out' is frozen.*'out.\\*'"),
        ("FrozenBase", ["base.*", "fc.*"], "names 'base.weight', which the module itself has frozen"),
        ("FrozenHead", None, "its head 'fc' is frozen"),
    ],
)
def test_patterns_that_contradict_are_refused(name, trainable, text):
    with pytest.raises(ConfigError, match=text):
        model(name, **({} if trainable is None else {"trainable": trainable}))


def test_weights_of_a_file(tmp_path, caplog):
    caplog.set_level("INFO", logger="fedpers")
    net = own_nets.FrozenBase()
    save_file({k: v.clone() for k, v in net.state_dict().items()}, tmp_path / "w.safetensors")
    torch.save({"state_dict": net.state_dict()}, tmp_path / "w.pt")
    for file in ("w.safetensors", "w.pt"):
        start = model(weights=str(tmp_path / file)).init(5)
        assert torch.equal(start["body.base.weight"], net.base.weight)
        assert torch.equal(start["head.weight"], net.fc.weight)
    digests = {model().network.digest, model(weights=str(tmp_path / "w.pt")).network.digest}
    assert len(digests) == 2 and "starts anew" not in caplog.text
    headless = {k: v.clone() for k, v in net.state_dict().items() if not k.startswith("fc.")}
    save_file(
        headless | {"fc.weight": torch.zeros(7, 8), "fc.bias": torch.zeros(7)}, tmp_path / "seven.safetensors"
    )
    start = model(weights=str(tmp_path / "seven.safetensors")).init(5)
    assert torch.equal(start["body.middle.bias"], net.middle.bias)
    assert torch.equal(start["head.weight"], model().init(5)["head.weight"])  # of other classes: drawn
    assert "no head 'fc' of the module's shape: it starts anew" in caplog.text


def test_weights_that_do_not_fit_are_refused(tmp_path):
    states = own_nets.FrozenBase().state_dict()
    files = {
        "less": ({k: v for k, v in states.items() if k != "base.bias"}, "'base.bias' is missing.*state_dict"),
        "more": (states | {"odd": torch.zeros(1)}, "'odd' is not in the module .1 such.;"),
        "wrapped": (
            {f"module.{k}": v for k, v in states.items()},
            r"'base.bias' is missing .* the file has 'module.base.bias'.*removeprefix\('module.'\): value",
        ),
        "both": (
            states | {"base.bias": torch.zeros(3), "fc.bias": torch.zeros(7), "fc.weight": torch.zeros(7, 8)},
            r"'base.bias' has shape \(3,\) there.*\(1 such\)",  # the head may differ: it is no fault
        ),
        "shape": (
            states | {"base.bias": torch.zeros(3)},
            r"'base.bias' has shape \(3,\) there and \(\d+,\) in the module",
        ),
    }
    for name, (content, text) in files.items():
        torch.save(content, tmp_path / f"{name}.pt")
        with pytest.raises(ConfigError, match=text):
            model(weights=str(tmp_path / f"{name}.pt"))
    torch.save(own_nets.FrozenBase(), tmp_path / "pickled.pt")
    (tmp_path / "damaged.safetensors").write_bytes(b"12345678")
    for name in ("pickled.pt", "damaged.safetensors"):
        with pytest.raises(ConfigError, match=r"cannot be read as tensors alone[^\x1b]*save_file$"):
            model(weights=str(tmp_path / name))
    for name, text in (("none.pt", "there is no such file"), ("x.npz", "ends in .safetensors")):
        with pytest.raises(ConfigError, match=text):
            model(weights=str(tmp_path / name))


def test_another_process_has_the_same_base_or_is_refused(tmp_path, monkeypatch):
    net = model()
    again = pickle.loads(pickle.dumps(net))
    assert again.network.digest == net.network.digest != ""
    save_file({k: v + 1 for k, v in own_nets.FrozenBase().state_dict().items()}, tmp_path / "w.safetensors")
    sent = pickle.dumps(model(weights=str(tmp_path / "w.safetensors")))
    save_file({k: v + 2 for k, v in own_nets.FrozenBase().state_dict().items()}, tmp_path / "w.safetensors")
    with pytest.raises(FedpersError, match="frozen parameters are not those"):
        pickle.loads(sent)
    with pytest.raises(FedpersError, match="model=module: its frozen parameters"):
        net.check_base("")


@pytest.mark.parametrize("engine", [{"runner": "loop"}, {"workers": 2}])
def test_runners_agree_with_a_drawn_base(tmp_path, engine):
    runs = [run(tmp_path / str(i), "fedper", engine=e) for i, e in enumerate(({}, engine))]
    a, b = (r.model(client=1).params for r in runs)
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=1e-5, atol=1e-6)


def test_summary_says_how_much_is_trained(tmp_path):
    keys = ["method=fedavg", "data=digits", "data.num_clients=3", "rounds=1", "model=module", "device=cpu"]
    cfg = compose.load([*keys, "model.path=tests.own_nets:FrozenDigits"])
    found = execute(cfg, tmp_path)
    assert found["trains"] == {"entries": 4 * 10 + 10, "of": 4 * 10 + 10 + 64 * 4 + 4}
    assert assemble(cfg).model.trains == (50, 310)


def test_what_is_trained_has_memory_only_in_the_models_of_a_run():
    network = model().network
    held = {name: p.untyped_storage().nbytes() for name, p in network.skeleton.named_parameters()}
    frozen = {name for name, p in network.skeleton.named_parameters() if not p.requires_grad}
    assert frozen and all(held[name] == 4 * network.skeleton.get_parameter(name).numel() for name in frozen)
    assert max(size for name, size in held.items() if name not in frozen) <= 4


def test_the_initial_model_is_not_kept_by_clients_who_need_its_size_alone():
    net = model()
    client = METHODS["fedavg"].client_class()(compose.load(["method=fedavg"]).method, net)
    people = Population(client, federation(), RamStore(), Plan())
    assert people.nbytes == sum(v.nbytes for v in net.init_trained(0).values()) and not people.convolves
    assert "params" not in vars(people)
