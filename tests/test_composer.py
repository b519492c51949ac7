"""Configs of many runs, their files read once, are those that Hydra composes one by one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf

from fedpers.app import launch
from fedpers.app.cli import main
from fedpers.config import compose, hydra_internals
from fedpers.config.hydra_internals import Composer
from fedpers.core.errors import ConfigError

JOBS = [
    [],
    ["method=ditto", "method.lam=0.3"],
    ["method=ditto", "method.local.lr=0.5", "seed=7"],  # the files of the job before
    ["method=ditto"],  # what the job before set must not stay
    ["data=digits", "method=fedper", "~method.local.momentum"],
    ["+experiment=benchmark", "method=pflego", "data.num_clients=5"],
    ["model=mlp", "model.hidden=[4,5]", "++model.more={a: 1, b: [2]}"],
    ["++method={name: local, local: {lr: 0.25}}"],  # a mapping for a group sets values and picks no file
    ["method=fedavg", "hydra.sweep.dir=elsewhere", "rounds=3"],
]
WRONG = [["method.no_such_key=1"], ["method=fedavg", "~rounds.x"], ["+seed=3"], ["++method=ditto"]]


@pytest.fixture
def inside() -> Iterator[None]:
    with hydra.initialize_config_module(compose.CONF, **hydra_internals.BASE):
        yield


def plain(cfg: DictConfig) -> tuple[Any, Any, Any]:
    """What a config says, with its interpolations as they are and resolved, and whether new keys may come."""
    texts = OmegaConf.to_container(cfg)
    return texts, OmegaConf.to_container(cfg, resolve=True), OmegaConf.is_struct(cfg)


def test_each_is_what_hydra_composes_in_any_order(inside: None) -> None:
    composer = Composer()
    for job in [*JOBS, *reversed(JOBS)]:
        assert plain(composer(job)) == plain(hydra.compose("config", overrides=job)), job


@pytest.mark.parametrize("job", WRONG, ids=" ".join)
def test_what_hydra_refuses_is_refused_in_its_words(inside: None, job: list[str]) -> None:
    with pytest.raises(HydraException) as ours:
        Composer()(job)
    with pytest.raises(HydraException) as theirs:
        hydra.compose("config", overrides=job)
    assert str(ours.value) == str(theirs.value)


@pytest.fixture
def merged(nothing_merged: None, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A list that grows by the overrides of each composition by Hydra."""
    overrides_of: list[list[str]] = []
    composed = hydra.compose

    def counted(name: str, overrides: list[str]) -> DictConfig:
        overrides_of.append(overrides)
        return composed(name, overrides=overrides)

    monkeypatch.setattr(hydra_internals.hydra, "compose", counted)
    return overrides_of


def test_a_sweep_over_values_reads_the_files_of_each_choice_once(merged: list[list[str]]) -> None:
    compose.prepare(["method=fedavg,local", "seed=0,1,2", "rounds=1,2"], sweep=True)
    assert sorted(merged) == [[], ["method=fedavg"], ["method=local"]]  # [] to see which keys there are


def test_runs_that_differ_in_their_seed_alone_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read, checked = compose._load, []
    monkeypatch.setattr(compose, "_load", lambda c, job, more: checked.append(job) or read(c, job, more))
    compose.prepare(["method=fedavg,local", "seed=0,1,2"], sweep=True)
    assert sorted(map(sorted, checked)) == [
        ["method=fedavg", "seed=0"],
        ["method=fedavg", "seed=1"],
        ["method=fedavg", "seed=2"],
        ["method=local", "seed=0"],
    ]
    with pytest.raises(ConfigError, match="seed=-1"):
        compose.prepare(["method=fedavg,local", "seed=0,-1"], sweep=True)
    with pytest.raises(ConfigError, match="rounds=0"):
        compose.prepare(["seed=0,1", "rounds=1,0"], sweep=True)


def test_one_run_reads_its_files_once(merged: list[list[str]]) -> None:
    compose.load(["method=ditto", "data=digits", "method.lam=0.5", "rounds=1"])
    assert merged == [["method=ditto", "data=digits"]]


def test_a_sweep_composes_each_run_once_more_where_it_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Any] = []
    composed, check = ConfigLoaderImpl.load_sweep_config, Sweeper.validate_batch_is_legal

    def counted(self: Any, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        started.append(sweep_overrides)
        return composed(self, master_config, sweep_overrides)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counted)
    monkeypatch.setattr(launch, "_execute", lambda cfg, *_: started.append(cfg.seed) or {})
    assert main(["run", "-m", "seed=4,5,6", f"out={tmp_path / 'sweep'}"]) == 0
    assert started == [["seed=4"], 4, ["seed=5"], 5, ["seed=6"], 6]
    assert Sweeper.validate_batch_is_legal is check  # of another program in this process
