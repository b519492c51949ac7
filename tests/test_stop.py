"""Runs that end before their last round, and what a report says of runs that did or did not reach a score."""

import math
from dataclasses import replace

import numpy as np
import pytest

import fedpers
from fedpers.app.cli import main
from fedpers.checks.case import make_case
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.config import compose
from fedpers.config.stop import StopConfig
from fedpers.core.errors import ConfigError
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.results.early_stop import why
from fedpers.results.files import read_csv
from fedpers.results.report import budgets
from fedpers.results.report.figures import costs
from fedpers.results.report.runs import SeedGroup, Setting, StoredRun
from fedpers.results.summary import read_summary
from fedpers.strategies.fedavg import FedAvg

QUICK = ["method=fedavg", "data.num_clients=3", "data.limit=120", "model.hidden=[4]", "method.local.lr=0.3"]


def rows(values, split="valid", metric="accuracy"):
    return [{"round": t, "split": split, metric: v} for t, v in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("config", "values", "ends"),
    [
        ({"target": 0.8}, [0.1, 0.79], False),
        ({"target": 0.8}, [0.1, 0.8], True),
        ({"metric": "loss", "target": 0.8}, [1.0, 0.81], False),
        ({"metric": "loss", "target": 0.8}, [1.0, 0.8], True),
        ({"patience": 2}, [0.5, 0.4, 0.6, 0.6], False),
        ({"patience": 2}, [0.5, 0.4, 0.6, 0.6, 0.6], True),  # as good is not better
        ({"patience": 2}, [math.nan, math.nan, math.nan, 0.1], False),  # nothing to be better than
        ({"patience": 2}, [0.5, math.nan, math.nan], True),
        ({"metric": "loss", "patience": 1}, [1.0, 0.9, 0.8], False),
        ({"metric": "loss", "patience": 1}, [1.0, 0.9, 0.95], True),
    ],
)
def test_when_a_run_ends(config, values, ends):
    stop = StopConfig(**config)
    found = rows(values, metric=stop.metric) + rows([0.0] * len(values), "test", stop.metric)
    assert bool(why(stop, found)) == ends


def test_test_data_ends_nothing():
    test = rows([0.99] * 5, "test")
    assert not why(StopConfig(target=0.9), test + rows([0.1] * 5))
    with pytest.raises(ConfigError, match=r"stop.metric=accuracy: no validation data has it"):
        why(StopConfig(target=0.9), test)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stop.patience=0"], "stop.patience=0: must be at least 1"),
        (["stop.metric=acuracy"], "metric 'acuracy' is unknown; did you mean 'accuracy'"),
        (["stop.metric=ece", "stop.target=0.1"], r"stop.metric=ece: nobody measures it; add metrics=\[ece\]"),
        (["stop.target=0.9", "eval_every=0"], "stop: eval_every=0 measures nothing"),
        (["stop.target=0.9", "data.valid_fraction=0"], "stop: it goes by validation data, and there is none"),
        (["stop.target=best"], "stop.target=best: expected a number"),
    ],
)
def test_what_cannot_end_a_run_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        compose.load(words)


def test_the_keys_may_stand_in_one_word():
    cfg = compose.load(["stop={metric:loss,target:0.3,patience:4}"])
    assert cfg.stop == StopConfig("loss", 0.3, 4)


def bits(out):
    metrics = [
        {k: v for k, v in r.items() if not k.endswith("seconds")} for r in read_csv(out / "metrics.csv")[0]
    ]
    return metrics, (out / "clients.csv").read_text(), dict(np.load(out / "arrays.npz"))


def equal(one, other):
    assert one[:2] == other[:2]
    assert one[2].keys() == other[2].keys()
    assert all(np.array_equal(v, other[2][k], equal_nan=True) for k, v in one[2].items())


class Killed(BaseException):
    pass


class Killer(fedpers.Observer):
    """`UserObservers` hold back exceptions of observers, but not what ends a process."""

    def __init__(self, at, event):
        setattr(self, event, lambda t, *_: self.strike(t == at))

    def strike(self, now):
        if now:
            raise Killed


def test_a_run_that_was_killed_ends_where_the_undisturbed_one_did(tmp_path):
    """Patience looks back over the kill; the round of the end has its evaluation and its checkpoint."""
    settings = {"rounds": 60, "checkpoint_every": 2, "eval_every": 2, "stop": {"patience": 3}}
    words = QUICK[1:]
    fedpers.run("fedavg", *words, out=tmp_path / "a", **settings)
    summary = read_summary(tmp_path / "a")
    end = summary["stopped"]["round"]
    assert 8 <= end < 60 and summary["rounds_done"] == end and summary["final"]["round"] == end
    assert "stop.patience=3: valid accuracy no better than" in summary["stopped"]["why"]
    for at, event in ((end, "after_round"), (end - 1, "on_round"), (end // 2, "on_round")):
        out = tmp_path / f"killed{at}"
        with pytest.raises(Killed):
            fedpers.run("fedavg", *words, out=out, observers=[Killer(at, event)], **settings)
        assert main(["run", f"resume={out}"]) == 0
        equal(bits(tmp_path / "a"), bits(out))
        assert read_summary(out)["stopped"] == summary["stopped"]
    assert main(["run", f"resume={tmp_path / 'a'}"]) == 0  # once it has ended there is nothing to go on with
    assert read_summary(tmp_path / "a")["rounds_done"] == end


class Enough(fedpers.Observer):
    def should_stop(self, t):
        return t == 3


class Broken(fedpers.Observer):
    def should_stop(self, t):
        raise RuntimeError("not my day")


def test_an_observer_may_ask_for_the_end_and_a_broken_one_ends_nothing(tmp_path):
    run = fedpers.run(
        "fedavg", *QUICK[1:], rounds=5, eval_every=2, out=tmp_path / "a", observers=[Broken(), Enough()]
    )
    summary = read_summary(run.paths[0])
    assert summary["stopped"] == {"round": 3, "why": "asked for by Enough"}
    assert summary["final"]["round"] == 3  # evaluated, though eval_every would pass over it
    assert summary["observer_failures"] == {"Broken": 3}


def test_flowers_own_argument_ends_a_run():
    """As flwr 1.43 has it: a function of the round and of the result so far."""
    case, asked = make_case(FedAvg, FedAvgClient, FedAvgConfig()), []

    def enough(t, result):
        asked.append((t, sorted(result.train_metrics_clientapp)))
        return t == 2

    server = case.server()
    found = server.start(InProcessGrid(case.cohort()), num_rounds=5, should_stop=enough)
    assert asked == [(1, [1]), (2, [1, 2])] and server.rounds_done == 2
    assert sorted(found.train_metrics_clientapp) == [1, 2] and found.arrays


# ---- reports --------------------------------------------------------------------------------------


def stored(values, **stop):
    """A run whose round t costs t seconds and 1 MB up; evaluated on validation data."""
    train = [
        {"round": t, "split": "train", "seconds": float(t), "bytes_up": 1e6, "bytes_down": 0.0, "gflops": 2.0}
        for t in range(1, len(values) + 1)
    ]
    config = {
        "method": {"name": "m"},
        "stop": {"metric": "accuracy", "target": None, "patience": None} | stop,
    }
    return StoredRun(None, config, {}, train + rows(values))


def table(*groups, target=None):
    setting = Setting("s", [SeedGroup(runs) for runs in groups])
    (found,) = budgets.tables(setting, target)
    return found


def test_what_it_took_to_reach_a_score():
    found = table([stored([0.1, 0.5, 0.9]), stored([0.6, 0.7, 0.8]), stored([0.1, 0.2, 0.5])], target=0.5)
    assert "valid accuracy 50%" in found.title
    assert found.columns == ("method", "reached", "rounds", "MB", "GFLOP", "seconds")
    assert found.rows == [["m", "3 of 3", "2", "2", "4", "3"]]  # the middle of rounds 2, 1 and 3


def test_runs_that_never_reached_it_count_as_later_and_are_marked():
    reached, never = stored([0.1, 0.6]), stored([0.1, 0.2, 0.3, 0.4])
    assert table([reached, reached, never], target=0.5).rows == [["m", "2 of 3", "2", "2", "4", "3"]]
    assert table([reached, never, never], target=0.5).rows == [["m", "1 of 3", "> 4", "> 4", "> 8", "> 10"]]


def test_a_score_that_nobody_names_is_one_that_half_reach():
    good, bad = [stored([0.2, 0.93])], [stored([0.2, 0.41])]
    assert "accuracy 90%" in table(good, bad).title
    assert table(good, bad).rows[1][1] == "0 of 1"
    assert "accuracy 40%" in table(good, bad, bad).title
    assert "accuracy 85%" in table([stored([0.1, 0.95], target=0.85)]).title


def test_no_accuracy_no_table():
    run = replace(stored([]), rows=[{"round": 1, "split": "train"}, *rows([0.4], metric="loss")])
    assert budgets.tables(Setting("s", [SeedGroup([run])])) == []


def test_each_axis_of_the_figures_has_its_own_costs():
    found = costs(stored([0.1, 0.2, 0.3]))
    assert found[3] == {"bytes": 3e6, "gradients": 0, "seconds": 6.0, "hours": 0.0}
    run = stored([0.1])
    run.rows[0]["virtual_seconds"] = 7200.0
    assert costs(run)[1]["hours"] == 2.0


def test_a_report_has_the_table(tmp_path, capsys):
    words = ["run", "-m", *QUICK, "seed=0,1", "rounds=3", f"out={tmp_path / 's'}"]
    assert main(words) == 0 and main(["report", str(tmp_path / "s"), "--target", "0.2"]) == 0
    assert "to reach valid accuracy 20%" in (tmp_path / "s" / "report.md").read_text()
