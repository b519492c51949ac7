"""Every registered method passes every contract check, and its YAML file is its dataclass."""

from dataclasses import asdict
from pathlib import Path

import pytest

from fedpers.checks.contract import CHECKS, make_case
from fedpers.config import compose, registry
from fedpers.families.unified.mixture import MX2Settings
from fedpers.learning.optimizers import LocalConfig
from tests.methods.helpers import TOYS

METHODS = registry.METHODS
# A method that is made for another task than classes, or whose defaults suit no toy, says so here.
OPTIONS: dict[str, dict] = {
    # one full batch from a common start: the pull is zero, and both models are rightly equal
    "ditto": {"config": {"local": LocalConfig(batch_size=4)}},
    "fedbn": {"config": TOYS["fedbn"]},
}
# Fewer passes of the same training, and constants that need not be estimated: `acd` has them estimated.
KNOWN = {"config": {"objective": MX2Settings(mu=0.1, L=1.0, cL=1.0)}}
QUICK = {name: KNOWN for name in ("lsgd", "scd", "ascd", "svrcd", "asvrcd")} | {
    "fedtgp": {"config": {"server_epochs": 5}}
}


def case(name, more=OPTIONS):
    row = METHODS[name]
    options = dict(more.get(name, {}))
    config = row.config_class()(**options.pop("config", {}))
    return make_case(row.strategy_class(), row.client_class(), config, **options)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_contract(name, check):
    check(case(name, OPTIONS | QUICK))


@pytest.mark.parametrize("name", METHODS)
def test_yaml_is_dataclass(name):
    """The defaults a user reads in conf/method/NAME.yaml are those of the dataclass."""
    assert asdict(compose.load([f"method={name}"]).method) == asdict(METHODS[name].config_class()())


def test_everything_is_covered():
    """A file without a row, or a row without its companions, is found here."""
    root = Path(__file__).parent.parent
    stems = lambda folder, ending: {p.stem for p in (root / folder).glob(f"*.{ending}")}  # noqa: E731
    assert stems("conf/method", "yaml") == set(METHODS)
    strategies = {row.strategy.rpartition(":")[0].rpartition(".")[2] for row in METHODS.values()}
    assert stems("strategies", "py") == strategies
    assert len(METHODS) >= 4
