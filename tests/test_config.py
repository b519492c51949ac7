"""Overrides -> RunConfig: composition, experiments, and the text of every kind of mistake."""

import importlib.metadata
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from fedpers.app.launch import run_command
from fedpers.config import compose, hydra_internals, registry, search, slips
from fedpers.config.registry import METHODS, Method
from fedpers.config.run_config import RESUMABLE, RunConfig, from_mapping, to_mapping
from fedpers.core.errors import ConfigError

CONF = Path(__file__).resolve().parents[1] / "conf"


def mistakes(*overrides, sweep=False):
    with pytest.raises(ConfigError) as caught:
        compose.prepare(overrides, sweep)
    return list(caught.value.problems)


# ---- what is right ------------------------------------------------------------------------------


def test_defaults():
    run = compose.load()
    assert (run.method_name, run.data.name, run.model.name) == ("pflego", "digits", "mlp")
    assert run.engine.name == "inprocess"
    assert isinstance(run, RunConfig)


def test_overrides_of_groups_and_keys():
    run = compose.load(
        [
            "method=fedavg",
            "method.local.lr=1e-3",
            "rounds=1e3",
            "engine=ray",
            "engine.num_gpus=0.25",
            "model.hidden=[8,4]",
            "data.num_clients=7",
        ]
    )
    assert run.method.local.lr == 0.001
    assert run.rounds == 1000
    assert run.engine.num_gpus == 0.25
    assert run.model.options["hidden"] == [8, 4]
    assert run.data.num_clients == 7


def test_a_key_that_the_yaml_leaves_out_needs_no_plus():
    assert compose.load(["data.partition=dirichlet", "data.alpha=0.25"]).data.alpha == 0.25


@pytest.mark.parametrize("method", sorted(METHODS))
def test_saved_config_reads_back_equal(method):
    run = compose.load([f"method={method}", "data=mnist", "clients_per_round=3"])
    saved = OmegaConf.to_yaml(OmegaConf.create(to_mapping(run)))
    assert from_mapping(yaml.safe_load(saved)) == run


@pytest.mark.parametrize("method", sorted(METHODS))
def test_yaml_of_a_method_says_what_its_dataclass_says(method):
    written = yaml.safe_load((CONF / "method" / f"{method}.yaml").read_text(encoding="utf-8"))
    assert written.pop("search")  # of tune=, in no run
    plain = to_mapping(compose.load([f"method={method}"]))["method"]
    default = asdict(METHODS[method].config_class()())
    if "objective" in written:  # its keys depend on its name
        assert written["objective"].items() <= plain["objective"].items()
        written["objective"] = plain["objective"]
    assert {k: _with_round_options(v) for k, v in written.items()} == plain
    assert plain == {"name": method, **json.loads(json.dumps(default))}  # tuples as lists


# Keys of a local training that no method's file repeats: docs/experiments.md has them.
RARE = {"keep_momentum": False, "schedule": "constant", "horizon": 0, "warmup": 0, "warmup_steps": 0}
RARE |= {"step_schedule": "constant", "betas": [0.9, 0.999], "eps": 1e-8, "clip_norm": 0.0}
RARE |= {"micro_batch": 0, "label_smoothing": 0.0, "class_weights": []}


def _with_round_options(value):
    return RARE | value if isinstance(value, dict) and "batch_size" in value else value


def test_rare_keys_are_read_from_the_command_line():
    given = ["betas=[0.8,0.9]", "optimizer=adamw", "class_weights=[1,2]", "step_schedule=cosine"]
    local = compose.load(["method=fedavg", *(f"method.local.{each}" for each in given)]).method.local
    assert (local.betas, local.class_weights) == ((0.8, 0.9), (1.0, 2.0)) and local.optimizer == "adamw"


@pytest.mark.parametrize("group", ["data", "model", "engine", "aggregation", "privacy", "systems"])
def test_every_file_of_a_group_is_valid(group):
    for name in compose.choices(group):
        extra = {"libsvm": ["data.file=a9a"], "table": ["systems.path=devices.csv"]}.get(name, [])
        assert compose.load([f"{group}={name}", *extra])


def test_yaml_top_level_says_what_the_dataclass_says():
    written = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    run = compose.load()
    assert {k: written.pop(k) for k in search.KEYS} == asdict(search.SweepConfig())
    keys = written.keys() - {"defaults", "hydra"}
    stored = to_mapping(run)
    assert {k: stored[k] for k in keys} == {k: written[k] for k in keys}
    assert {f for f in RunConfig.__dataclass_fields__ if f not in keys} == {
        "method_name",
        "method",
        "data",
        "model",
        "engine",
        "aggregation",
        "privacy",
        "systems",
        "experiment",
        "paper",
    }


# ---- what is wrong ------------------------------------------------------------------------------


def test_unknown_method_with_a_guess():
    known = ", ".join(sorted(METHODS))
    assert mistakes("method=fedavgg") == [
        f"method 'fedavgg' is unknown; did you mean 'fedavg'? Known: {known}"
    ]


def test_a_file_as_data_set_is_told_how_files_are_read():
    (line,) = mistakes("data=tables/visits.csv")
    assert "data set 'tables/visits.csv' is unknown" in line and "data=files data.path=FILE" in line
    (line,) = mistakes("data=visits")
    assert "data.path" not in line


def test_unknown_experiment_with_and_without_plus():
    for text in ("+experiment=nope", "experiment=nope"):
        (line,) = mistakes(text)
        assert line.startswith("experiment 'nope' is unknown. Known:")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("rounds=ten", "rounds=ten: expected an integer"),
        ("rounds=-3", "rounds=-3: must be at least 1"),
        ("rounds=2.5", "rounds=2.5: expected an integer"),
        ("seed=-1", "seed=-1: must be at least 0"),
        ("device=gpu", "device=gpu: expected one of auto, cpu, cuda, cuda:N"),
        ("engine.chunk=0", "engine.chunk=0: must be at least 1"),
        ("engine.num_cpus=0", "engine.num_cpus=0: must be above 0"),
        ("method.tau=0", "method.tau=0: must be at least 1"),
        (
            "method.head_step=exct",
            "method.head_step=exct: expected one of exact, paper; did you mean 'exact'?",
        ),
        (
            "method.taw=3",
            "method.taw is unknown; did you mean method.tau? Allowed: adapt_steps, beta, head_init, "
            "head_step, own_classes, personal, report, rho, scale, server_optimizer, tau",
        ),
        (
            "+method.taw=3",
            "method.taw is unknown; did you mean method.tau? Allowed: adapt_steps, beta, head_init, "
            "head_step, own_classes, personal, report, rho, scale, server_optimizer, tau",
        ),
        ("model.hiden=[3]", "model.hiden is unknown; did you mean model.hidden? Allowed: bias, hidden, init"),
        ("data.num_clients=many", "data.num_clients=many: expected an integer or null"),
        ("seed=1,2", "seed=1,2 is a sweep over several values: add -m, or put quotes around it"),
    ],
)
def test_one_mistake_is_one_line(override, line):
    assert mistakes(override) == [line]


def test_a_text_that_is_no_override():
    (line,) = mistakes("rounds")
    assert line.startswith("'rounds' is no override (key=value): ")
    assert mistakes("=3") == ["'=3' is no override (key=value): there is no key"]
    assert mistakes("rounds") == ["'rounds' is no override (key=value): write rounds=VALUE"]


def test_all_mistakes_in_one_go():
    lines = mistakes(
        "method=fedsfot", "rounds=ten", "seed=-1", "engine.runner=fast", "model=mpl", "rownds=3", "["
    )
    starts = [
        "'['",
        "method 'fedsfot'",
        "model 'mpl'",
        "engine.runner=fast",
        "rownds is unknown",
        "rounds=ten",
        "seed=-1",
    ]
    assert len(lines) == len(starts)
    assert all(any(line.startswith(s) for line in lines) for s in starts)


def test_keys_of_an_unknown_method_are_not_judged():
    assert len(mistakes("method=fedsfot", "method.num_centers=3")) == 1


def test_a_sweep_is_checked_before_it_starts():
    one, two = mistakes("rounds=1,0,-1", "method=pflego,fdavg", "seed=-1", sweep=True)  # swept: not now
    assert one.startswith("method 'fdavg' is unknown; did you mean 'fedavg'?")
    assert two.startswith("seed=-1")
    assert mistakes("rounds=1,0,-1", sweep=True) == [
        "rounds=0: must be at least 1",
        "rounds=-1: must be at least 1",
    ]


# ---- experiments --------------------------------------------------------------------------------

EXPERIMENT = """
# @package _global_
defaults:
  - override /method: fedavg
rounds: 3
hyper:
  all: {local: {batch_size: 7}, tau: 4}
  fedavg: {local: {lr: 0.5}}
  pflego: {beta: 0.007}
paper: {title: T, values: {fedavg: {accuracy: 0.5}}}
hydra: {sweeper: {params: {method: 'pflego,fedavg', seed: '0,1'}}}
"""


@pytest.fixture
def load(tmp_path):
    """Load with an experiment `demo` in a folder of the user's."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "demo.yaml").write_text(EXPERIMENT)

    def load_demo(*overrides):
        with compose._hydra(str(tmp_path)) as composer:
            lines, problems = compose._tidy(composer, overrides, sweep=False)
            return compose._load(composer, lines, problems)

    return load_demo


def test_an_experiment_sets_method_budget_and_hyper_parameters(load):
    run = load("+experiment=demo")
    assert (run.method_name, run.rounds, run.experiment) == ("fedavg", 3, "demo")
    assert (run.method.local.lr, run.method.local.batch_size) == (0.5, 7)
    assert run.paper["values"]["fedavg"]["accuracy"] == 0.5


def test_another_method_takes_its_own_hyper_parameters(load):
    run = load("+experiment=demo", "method=pflego")
    assert (run.method.beta, run.method.tau) == (0.007, 4)


def test_the_command_line_wins(load):
    run = load("experiment=demo", "rounds=5", "method.local.lr=0.1")
    assert (run.rounds, run.method.local.lr, run.method.local.batch_size) == (5, 0.1, 7)


def test_the_default_sweep_and_overriding_it(tmp_path, load):
    with compose._hydra(str(tmp_path)):
        jobs = hydra_internals.sweep_jobs(["+experiment=demo"])
        fewer = hydra_internals.sweep_jobs(["+experiment=demo", "seed=7"])
    assert [sorted(job) for job in jobs] == [
        ["+experiment=demo", f"method={m}", f"seed={s}"] for m in ("pflego", "fedavg") for s in (0, 1)
    ]
    assert [sorted(job)[2] for job in fewer] == ["seed=7", "seed=7"]


# ---- resuming -----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    run = compose.load(["method=fedavg", "rounds=3", "engine.workers=2"])
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(OmegaConf.create(to_mapping(run)), tmp_path / ".hydra" / "config.yaml")
    return tmp_path, run


def test_resumed_config_is_the_saved_one_with_the_changes(saved):
    folder, run = saved
    again = compose.resumed(folder, ["rounds=9", "engine=ray", "engine.num_cpus=2"])
    assert (again.rounds, again.engine.name, again.engine.num_cpus) == (9, "ray", 2)
    assert (again.method, again.data, again.resume) == (run.method, run.data, str(folder))


def test_what_may_not_change(saved):
    with pytest.raises(ConfigError) as caught:
        compose.resumed(saved[0], ["method.local.lr=1", "seed=3", "rounds=4"])
    allowed = ", ".join(RESUMABLE)
    assert list(caught.value.problems) == [
        f"{k} cannot change when a run is resumed; only {allowed} can" for k in ("method.local.lr", "seed")
    ]


def test_resuming_where_no_run_is(tmp_path):
    with pytest.raises(ConfigError, match="no run there"):
        compose.resumed(tmp_path, [])


def test_resuming_a_damaged_config(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read"):
        compose.resumed(tmp_path, [])


# ---- methods of other packages ------------------------------------------------------------------


@dataclass(frozen=True)
class MineConfig:
    gain: float = 2.0


MINE = Method("mine", "x:X", "x:Y", f"{__name__}:MineConfig", "a paper", "runs")


@pytest.fixture
def foreign(monkeypatch):
    """Entry points: a good one, one that cannot be imported, one that is no Method."""

    def entry(name, value):
        return importlib.metadata.EntryPoint(name, value, registry.GROUP)

    entries = [
        entry("mine", f"{__name__}:MINE"),
        entry("broken", "no_such_module:ROW"),
        entry("odd", "math:pi"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    monkeypatch.setattr(registry, "_warned", set())


def test_a_broken_entry_is_listed_and_warned_about_once(foreign):
    with pytest.warns(RuntimeWarning) as seen:
        table = registry.methods()
        registry.methods()
    assert [str(w.message).split(" (")[0] for w in seen] == ["the method 'broken'", "the method 'odd'"]
    assert table["mine"].status == "runs"
    assert (table["broken"].status, table["odd"].status) == ("broken", "broken")
    with pytest.raises(ConfigError, match="method 'broken' cannot be used: ModuleNotFoundError"):
        registry.method("broken")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_foreign_method_needs_no_yaml(foreign):
    run = compose.load(["method=mine", "method.gain=3"])
    assert (run.method_name, run.method) == ("mine", MineConfig(3.0))


def test_unknown_method_of_the_registry():
    with pytest.raises(ConfigError, match=r"method 'pflgo' is unknown; did you mean 'pflego'\?"):
        registry.method("pflgo")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_row_names_classes_that_exist(name):
    row = METHODS[name]
    assert all(isinstance(c, type) for c in (row.strategy_class(), row.client_class(), row.config_class()))


@pytest.mark.parametrize("group", ["method", "data", "model", "engine"])
def test_every_key_of_a_config_file_has_a_comment(group):
    """On its line; the file's own comment, its first line, stands for the name."""
    for path in (CONF / group).glob("*.yaml"):
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        assert first.startswith("# ") and first.endswith("."), path
        keys = [k for k in lines if not k.startswith(("name:", "  - "))]  # a list's items are no keys
        assert not [k for k in keys if "#" not in k], path


def test_python_3_14_looks_at_hydras_help(monkeypatch):
    """There argparse formats the help of an option when it is added; Hydra 1.3 gives one that is no text."""
    import argparse

    def check_help(self, action):  # as in Python 3.14
        if action.help and "%" not in action.help:
            return

    add = argparse.ArgumentParser._add_action

    def add_action(self, action):
        self._check_help(action)
        return add(self, action)

    monkeypatch.setattr(argparse.ArgumentParser, "_check_help", check_help, raising=False)
    monkeypatch.setattr(argparse.ArgumentParser, "_add_action", add_action)
    with pytest.raises(TypeError):  # what a user saw
        hydra_internals.get_args_parser()
    args = hydra_internals.parse_arguments(["rounds=3"], "fedpers run")
    assert args.overrides == ["rounds=3"] and "shell completion" in hydra_internals._parser("x").format_help()
    assert argparse.ArgumentParser._check_help is check_help


def test_options_and_overrides_in_any_order():
    args = hydra_internals.parse_arguments(["a=1", "-m", "b=1,2", "--cfg", "job", "c=3"], "fedpers run")
    assert (args.overrides, args.multirun, args.cfg) == (["a=1", "b=1,2", "c=3"], True, "job")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["seed=0,1", "seed=2"], "seed: given 2 times (seed=0,1, seed=2); give it once"),
        (["method=fedavg,local", "method=fedper"], "method: given 2 times"),
    ],
)
def test_a_key_to_sweep_over_is_given_once(overrides, said):
    with pytest.raises(ConfigError) as error:
        compose.prepare(overrides, sweep=True)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rounds: 5", "write rounds=5"),
        ("rounds:5", "write rounds=5"),
        ("method.local.lr", "write method.local.lr=VALUE"),
        ("engine.address=[::1]:8000", "put quotes around it: \"engine.address='[::1]:8000'\""),
        ("model=resnet", "did you mean 'resnet18_gn'?"),
        ("method.local.lr=0.1", "method.local is unknown. Allowed: "),
        ("method.local.lr=0.1", " more would use it"),
    ],
)
def test_a_slip_is_told_what_was_meant(word, said):
    with pytest.raises(ConfigError) as error:
        compose.load([word])
    assert said in str(error.value)
    quoted = compose.load(["engine=ray", "engine.address='[::1]:8000'"])
    assert quoted.engine.address == "[::1]:8000"


@pytest.mark.parametrize("words", [["rounds:", "5"], ["rounds", "5"], ["rounds", "=", "5"]])
def test_a_key_and_its_value_apart_are_one_slip(words):
    with pytest.raises(ConfigError) as error:
        compose.load([*words, "seed=1"])
    (line,) = str(error.value).splitlines()
    assert line.endswith("write rounds=5")


def test_a_key_of_a_group_is_told_where_it_is():
    with pytest.raises(ConfigError, match=r"lr is unknown; did you mean method.local.lr\?"):
        compose.load(["method=fedavg", "lr=0.1"])
    with pytest.raises(ConfigError, match=r"local is unknown; did you mean method.local\?"):
        compose.load(["method=fedavg", "local.lr=0.1"])


@pytest.mark.parametrize("words", [["--rounds", "5"], ["--rounds=5"], ["-rounds=5"]])
def test_a_key_with_dashes_is_told_what_to_write(words):
    with pytest.raises(ConfigError) as error:
        run_command([*words, "method=fedavg"])
    assert str(error.value).endswith("has no dashes: write rounds=5")


def test_words_without_dashes_are_let_through():
    for words in ([], ["rounds=5"], ["-m", "seed=0,1"], ["--cfg", "job"], ["-h"]):
        slips.refuse_dashes(words, ["rounds", "seed"])


def test_an_option_that_is_no_key_is_told_without_a_page_of_usage():
    with pytest.raises(ConfigError, match=r"unrecognized arguments: --round"):
        hydra_internals.parse_arguments(["--rounds", "5"], "fedpers run")
