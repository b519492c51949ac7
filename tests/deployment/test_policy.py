"""A device does what its owner's policy allows, and nothing of a run is imported before that was asked."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fedpers.config.compose import load
from fedpers.config.run_config import to_mapping
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.deploy import device_grid, resident, roll_call
from fedpers.deploy.deal import deal
from fedpers.deploy.orders import Order
from fedpers.deploy.policy import Policy
from fedpers.deploy.private_state import Recall
from tests.deployment.fake_link import DATA, Link, column, configs, on_devices
from tests.deployment.matrix import fault

RUN = {"method": {"name": "fedavg"}, "model": {"name": "mlp"}, "privacy": {"name": "off"}, "rounds": 20}
DP = {"name": "dp", "clip": 1.0, "noise_multiplier": 1.0}
TRAIN = {"kind": "train", "t": 1}
NET = """
from pathlib import Path
from torch import nn

Path({mark!r}).touch()

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(roll_call, "LOOK_S", 0.01)
    resident._seat.cache_clear()


ALLOWED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"methods": ["fedavg"]}, {}),
    ({"models": ["mlp"]}, {}),
    ({"models": ["torchvision:resnet18"]}, {"model": {"library": "torchvision", "name": "resnet18"}}),
    ({"modules": ["mine:Net"]}, {"model": {"name": "module", "path": "mine:Net"}}),
    ({"least_noise": 1.0, "largest_norm": 1.0}, {"privacy": DP}),
    ({"most_rounds": 20}, {}),
    ({"modules": ["mine:lion"]}, {"method": {"name": "fedavg", "local": {"optimizer": "mine:lion"}}}),
    ({"files": ["base.safetensors"]}, {"model": {"name": "mlp", "weights": "base.safetensors"}}),
    ({}, {"data": {"standardise": "federated"}}),
]


@pytest.mark.parametrize(("policy", "run"), ALLOWED)
def test_what_a_policy_allows(policy: dict[str, Any], run: dict[str, Any]) -> None:
    Policy.of(policy).check(RUN | run, TRAIN)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"model": {"name": "module", "path": "os:getcwd"}}, "model.path=os:getcwd; it allows no module"),
    ({}, {"model": {"name": "mlp", "path": "os:getcwd"}}, "model.path=os:getcwd"),
    ({"models": ["mlp"]}, {"model": {"name": "module", "path": "mine:Net"}}, "model.path=mine:Net"),
    ({"modules": ["mine:Net"]}, {"model": {"name": "module", "path": "mine:Other"}}, "it allows mine:Net"),
    ({}, {"model": {"library": "timm", "name": "resnet18"}}, "model=timm:resnet18"),
    ({}, {"method": {"name": "unheard"}}, "method=unheard"),
    ({}, {"method": None}, "method=None"),
    ({"methods": ["pflego"]}, {}, "method=fedavg; it allows pflego"),
    ({"methods": []}, {}, "method=fedavg"),
    ({"models": ["cnn"]}, {}, "model=mlp; it allows cnn"),
    ({"least_noise": 1.0}, {}, "privacy=off"),
    ({"largest_norm": 1.0}, {}, "privacy=off"),
    ({"least_noise": 1.0}, {"privacy": {"name": "central", "noise_multiplier": 9.0}}, "privacy=central"),
    ({"least_noise": 1.1}, {"privacy": DP}, "privacy.noise_multiplier=1.0; it wants at least 1.1"),
    ({"least_noise": 1.0}, {"privacy": DP | {"noise_multiplier": "9"}}, "privacy.noise_multiplier=9"),
    ({"least_noise": 1.0}, {"privacy": DP | {"noise_multiplier": float("nan")}}, "noise_multiplier=nan"),
    ({"largest_norm": 0.9}, {"privacy": DP}, "privacy.clip=1.0; it allows at most 0.9"),
    ({"most_rounds": 19}, {}, "rounds=20; it allows at most 19"),
    ({"most_rounds": 19}, {"rounds": None}, "rounds=None"),
    ({"may_tell": []}, {"eval_train": True}, "training evaluation: not told"),
    ({"may_tell": []}, {"data": {"standardise": "federated"}}, "sums: not told"),
    (
        {},
        {"method": {"name": "fedavg", "local": {"optimizer": "mine:lion"}}},
        "method.local.optimizer=mine:lion; it allows no module",
    ),
    ({}, {"method": {"name": "lsgd", "objective": {"name": "a.b:C"}}}, "method.objective.name=a.b:C"),
    ({}, {"method": {"name": "fedavg", "more": [["os:getcwd"]]}}, "method.more=os:getcwd"),
    (
        {},
        {"model": {"name": "mlp", "weights": "/etc/base.pt"}},
        "model.weights=/etc/base.pt; it allows no file",
    ),
]


@pytest.mark.parametrize(("policy", "run", "why"), REFUSED)
def test_what_a_policy_refuses(policy: dict[str, Any], run: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match="refused by this device's policy") as found:
        Policy.of(policy).check(RUN | run, TRAIN)
    assert why in str(found.value)


def test_a_round_beyond_the_most_is_refused_whatever_the_run_says() -> None:
    with pytest.raises(ConfigError, match="rounds=21; it allows at most 20"):
        Policy.of({"most_rounds": 20}).check(RUN, TRAIN | {"t": 21})


@pytest.mark.parametrize("header", [{"kind": "evaluate", "t": 1}, {"kind": "train", "t": 1, "assess": True}])
def test_an_evaluation_is_not_told_where_it_may_not_be(header: dict[str, Any]) -> None:
    Policy().check(RUN, header)
    with pytest.raises(ConfigError, match="evaluation: not told"):
        Policy.of({"may_tell": ["label_counts"]}).check(RUN, header)


WRONG = [{"method": ["fedavg"]}, {"methods": "fedavg"}, {"most_rounds": 0}, {"most_rounds": True},
         {"least_noise": -1.0}, {"largest_norm": 0}, {"may_tell": ["names"]}, {"modules": [1]}]  # fmt: skip


@pytest.mark.parametrize("found", WRONG)
def test_a_policy_that_is_not_understood_is_refused_by_its_key(found: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"policy.{next(iter(found))}"):
        Policy.of(found)


def test_a_digest_is_of_values_not_of_how_they_are_written(tmp_path: Path) -> None:
    a, b = tmp_path / "a.toml", tmp_path / "b.toml"
    a.write_text("# ours\nmost_rounds = 5\n")
    b.write_text("least_noise = 0.0\nmost_rounds=5")
    assert Policy.read(str(a)).digest == Policy.read(str(b)).digest != Policy().digest
    with pytest.raises(ConfigError, match="policy cannot be read"):
        Policy.read(str(tmp_path / "none.toml"))


def asked(tmp_path: Path, monkeypatch: Any, policy: str | None) -> dict[str, Any]:
    """What a device says when a run names a module, whose import leaves the file `mark`."""
    (tmp_path / "tried_net.py").write_text(NET.format(mark=str(tmp_path / "mark")))
    monkeypatch.syspath_prepend(str(tmp_path))
    _, cfg = configs("fedavg", 1, "model=module", "model.path=tried_net:Net")
    deal(load(["data=digits", *DATA]).data, 3, tmp_path / "data")
    node = {"data": str(tmp_path / "data" / "site-0.npz"), "state": str(tmp_path / "state")}
    if policy is not None:
        (tmp_path / "policy.toml").write_text(policy)
        node["policy"] = str(tmp_path / "policy.toml")
    header = {"kind": "query", "t": 0, "e": 0, **Order("0" * 32, -1, Recall(None, None), 9.0).header()}
    sys.modules.pop("tried_net", None)
    (tmp_path / "mark").unlink(missing_ok=True)
    request = {"header": header | {"skeleton": "{}"}, "node": node, "config": json.dumps(to_mapping(cfg))}
    return resident.answer(request, [])[0]


@fault(14)
def test_a_module_of_a_run_is_not_imported_where_no_policy_allows_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    for policy in (None, "", 'modules = ["tried_net:Other"]', 'models = ["mlp"]'):
        with pytest.raises(ConfigError, match=r"refused by this device's policy: model.path=tried_net:Net"):
            asked(tmp_path, monkeypatch, policy)
        assert not (tmp_path / "mark").exists()


def test_a_module_that_the_owner_allows_is_imported(tmp_path: Path, monkeypatch: Any) -> None:
    text = 'modules = ["tried_net:Net"]'
    assert asked(tmp_path, monkeypatch, text)["policy"] == Policy.of({"modules": ["tried_net:Net"]}).digest
    assert (tmp_path / "mark").exists()


def test_label_counts_that_may_not_be_told_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('may_tell = ["evaluation"]')
    _, cfg = configs("fedavg", 1)
    link = Link(tmp_path, cfg)
    link.options["policy"] = str(tmp_path / "policy.toml")
    out = on_devices(link, cfg, tmp_path / "out")
    assert column(out, "refused") == ["0"]
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"


def test_a_method_that_needs_label_counts_says_who_does_not_tell_them(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('may_tell = ["evaluation"]')
    _, cfg = configs("ppfl", 1)
    link = Link(tmp_path, cfg)
    link.options["policy"] = str(tmp_path / "policy.toml")
    with pytest.raises(FedpersError, match=r"site-0, site-1, site-2 .*label_counts"):
        on_devices(link, cfg, tmp_path / "out")
