"""The optimum of a run's objective: solved once, and noted, drawn and tabulated in every round."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from fedpers.app.build import assemble
from fedpers.app.run import execute
from fedpers.app.run_folder import store_config
from fedpers.config import compose
from fedpers.config.registry import METHODS
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.families.unified.objective import make_objective
from fedpers.families.unified.optimality_gap import OptimalityGap, observe_optimality_gap
from fedpers.families.unified.optimum import solve
from fedpers.results.plots import optimality_gap as plots_gap
from fedpers.results.plots import style as figures
from fedpers.results.report import optimality_gap as report_gap
from fedpers.results.report.record import _rows
from fedpers.results.report.runs import find_runs, group_by_setting
from fedpers.results.report.write import write_report
from tests.unified import W, federation, golden, linear_model, logistic, make, settings

SMALL = [
    "+experiment=unified_fig1_mx2",
    "data.num_clients=3",
    "data.dim=2",
    "data.train_per_client=30",
    "data.test_per_client=5",
    "rounds=4",
    "eval_every=2",
    "checkpoint_every=0",
    "device=cpu",
]


def watched(name="acd", fed=None, **options):
    """A run of the golden problem (two clients, f'_m = 1/2 (b - b_m)², b = 0 and 2, λ = 2)."""
    fed = fed or golden()
    strategy, _, grid = make(name, fed, lam=2.0, **options)
    return OptimalityGap(strategy, grid)


def block(x):
    return {W: torch.tensor([[x]], dtype=torch.float64)}


def _touch(figure, path):
    path.touch()
    return path


@pytest.fixture
def no_pictures(pictures, monkeypatch):
    """Figures are made and not rendered, which takes longer than these runs."""
    monkeypatch.setattr(figures, "save", _touch)


# ---- measuring -----------------------------------------------------------------------------------


def test_distances_of_the_golden_problem():
    """u* = 1, so w* = √2; β* = 2/3, 4/3; F* = 1/3; F(0) = 1."""
    it = watched()
    assert it.facts()["objective"] == pytest.approx(1 / 3, abs=1e-12)
    assert it.facts()["start"] == pytest.approx(1.0, abs=1e-12)
    at_start = it.measure(block(0.0), [block(0.0)] * 2)
    assert at_start["suboptimality"] == pytest.approx(2 / 3, abs=1e-12)
    assert at_start["distance"] == pytest.approx(2 + 4 / 9 + 16 / 9, abs=1e-10)
    there = it.measure(block(2**0.5), [block(2 / 3), block(4 / 3)])
    assert max(abs(there["suboptimality"]), there["distance"]) < 1e-12


def test_constants_of_the_golden_problem():
    """L_w = λ/M = 1, L_β = (L' + λ)/M = 1.5; μ = (2λ + μ' - √(μ'² + 4λ²))/(2M)."""
    found = watched().facts()
    assert (found["L_w"], found["L_b"]) == pytest.approx((1.0, 1.5))
    assert found["mu"] == pytest.approx((5 - 17**0.5) / 4)
    assert found["samples"] == 1


@pytest.mark.parametrize("name", ["l2sgd", "pfedme"])
def test_baselines_are_measured_by_the_mixture(name):
    """At β* the mean is u* (MX = MX2), and the envelope's minimum is MX2's."""
    row = METHODS[name]
    strategy = row.strategy_class()(SimpleNamespace(lam=2.0), linear_model(golden()))
    strategy.roster, strategy.state = SimpleNamespace(ids=(0, 1)), SimpleNamespace(params=block(1.0))
    own = [block(2 / 3), block(4 / 3)]
    w, betas = strategy.point(None, [SimpleNamespace(x=b, theta=b) for b in own])
    assert w[W].item() == pytest.approx(2**0.5)
    F = sum(strategy.objective.value(w, b, golden().client(m).train) for m, b in enumerate(betas)) / 2
    assert float(F) == pytest.approx(1 / 3, abs=1e-12)


def test_a_run_notes_the_distance_in_each_round_and_nothing_else_changes(tmp_path, no_pictures):
    summaries = [execute(compose.load([*SMALL, f"optimum={on}"]), tmp_path / on) for on in ("true", "false")]
    with_it, without = (pd.read_csv(tmp_path / on / "metrics.csv") for on in ("true", "false"))
    noted = with_it[with_it.split == "train"]
    facts = summaries[0]["optimum"]
    assert facts["start"] == pytest.approx(math.log(2), abs=1e-12)  # logistic loss of the model 0
    assert noted[["objective", "suboptimality", "distance", "estimation"]].notna().all(axis=None)
    np.testing.assert_allclose(noted.objective - noted.suboptimality, facts["objective"], atol=1e-14)
    assert (noted.suboptimality > -1e-12).all() and facts["objective"] < facts["start"]
    told = without[without.split == "train"].set_index("round").objective
    np.testing.assert_allclose(noted.set_index("round").objective[[2, 4]], told[[2, 4]], rtol=1e-12)
    same = ["round", "split", "loss", "accuracy", "bytes_up", "bytes_down", "iterations"]
    pd.testing.assert_frame_equal(with_it[same], without[same])
    assert "plots/objective.png" in summaries[0]["plots"] and "optimum" not in summaries[1]
    assert "optimum" in json.loads((tmp_path / "true" / "summary.json").read_text())


# ---- where it cannot be --------------------------------------------------------------------------


@pytest.mark.parametrize("override", ["engine=ray", "new_clients=1"])
def test_only_where_all_data_are_at_hand(override):
    with pytest.raises(ConfigError, match="optimum=true: needs engine=inprocess and new_clients=0"):
        compose.load([*SMALL, override])


def test_a_method_without_such_an_objective_is_refused():
    parts = assemble(compose.load([*SMALL, "method=fedavg"]))
    with pytest.raises(ConfigError, match="FedAvg minimises no objective that can be solved"):
        observe_optimality_gap(parts.strategy, None)


def test_a_grid_of_other_processes_is_refused():
    with pytest.raises(ConfigError, match="needs all clients in this process"):
        observe_optimality_gap(assemble(compose.load(SMALL)).strategy, object())


def test_a_model_that_adapts_is_refused():
    with pytest.raises(ConfigError, match="none is solved for Moreau; set optimum=false"):
        watched(objective="moreau")


def test_too_many_parameters_are_refused():
    fed = federation([np.ones((1, 600))] * 2, [[0.0], [1.0]])
    with pytest.raises(ConfigError, match="optimum=true: no optimum is solved for 600 shared and 600"):
        watched(fed=fed, mu=1.0)


@pytest.mark.parametrize(
    ("fed", "what"),
    [
        (federation([[[1.0], [-1.0]]] * 2, [[True, False]] * 2, task="binary"), "infinity|singular"),
        (federation([[[1.0, 1.0]]] * 2, [[0.0], [1.0]]), "singular|infinity"),
    ],
)
def test_no_one_minimum_is_said(fed, what):
    """Separable classes have theirs at infinity; one sample leaves a direction free."""
    f = make_objective(settings("mx2", lam=1.0), linear_model(fed), 2)
    start = {W: torch.zeros(1, *fed.input_shape, dtype=torch.float64)}
    with pytest.raises(FedpersError, match=what):
        solve(f, [fed.client(m).train for m in range(2)], start)


@pytest.mark.parametrize("name", ["fl", "full", "mx2", "mt2", "apfl2"])
def test_the_gradient_vanishes_at_the_optimum(name):
    fed = logistic(n=12)
    f = make_objective(settings(name, l2=0.05), linear_model(fed), 4)
    best = solve(f, [fed.client(m).train for m in range(4)], {W: torch.zeros(1, 3).double()})
    of_w = [f.grad_w(best.w, b, fed.client(m).train) for m, b in enumerate(best.betas)] if best.w else []
    of_b = [f.grad_beta(best.w, b, fed.client(m).train) for m, b in enumerate(best.betas) if b]
    shared = sum(g[W] for g in of_w) if of_w else torch.zeros(1)
    assert shared.abs().max() < 1e-9  # the solver stops at 1e-12 in F
    assert all(g[W].abs().max() < 1e-9 for g in of_b)


# ---- who takes part ------------------------------------------------------------------------------


@pytest.mark.parametrize("override", ["clients_per_round=2", "participation=bernoulli"])
@pytest.mark.parametrize("method", ["acd", "asvrcd", "ascd", "scd", "svrcd", "l2sgd"])
def test_a_method_that_takes_all_clients_refuses_to_draw_some(method, override):
    with pytest.raises(ConfigError, match=rf"{override}: method={method} takes all"):
        assemble(compose.load([*SMALL, f"method={method}", override]))


@pytest.mark.parametrize("more", [["method=lsgd", "clients_per_round=2"], ["clients_per_round=3"]])
def test_drawing_is_allowed_where_it_means_something(more):
    assert assemble(compose.load([*SMALL, *more]))


# ---- pictures and tables -------------------------------------------------------------------------


def rows(gaps, start=1):
    """Rounds with F* = 2: two iterations, one communication and half a second each."""
    return [
        {
            "round": t,
            "split": "train",
            "seconds": 0.5,
            "iterations": 2 * t,
            "communications": t,
            "w_sample_grads": 0,
            "beta_sample_grads": 4 * t,
            "objective": 2 + g,
            "suboptimality": g,
            "distance": g * g,
        }
        for t, g in enumerate(gaps, start)
    ]


def test_axes_add_up():
    found = plots_gap.gap_series([{"round": 1, "split": "train", "seconds": 0.5}, *rows([0.1, 0.01], 2)])
    assert found["seconds"].tolist() == [1.0, 1.5]
    assert found["communications"].tolist() == [2, 3]
    assert plots_gap.gap_series([{"round": 1, "split": "train", "seconds": 0.5}]) == {}


def test_no_picture_of_what_is_not_known(tmp_path):
    assert plots_gap.draw_run([{"round": 1, "split": "train", "seconds": 1.0}], tmp_path) == []


def test_a_panel_for_each_axis_that_moves(tmp_path, monkeypatch):
    labels = []
    monkeypatch.setattr(
        plots_gap.style,
        "save",
        lambda figure, path: labels.extend((ax.get_xlabel(), ax.get_yscale()) for ax in figure.axes) or path,
    )
    plots_gap.compare({"a": [rows([0.1, 0.01]), rows([0.2, 0.01])], "b": [rows([0.1, 1e-5])]}, tmp_path)
    assert labels == [
        (plots_gap.AXES[a], "log")
        for a in ("communications", "iterations", "beta_sample_grads", "seconds", "communications")
    ]


def test_lower_bounds_are_theorem_sixs():
    """√(L_w/μ) = 3, n + √(nL/μ) = 4 + 6 and 4 + 10, log 1/ε = 2."""
    c = {"mu": 1.0, "L_w": 9.0, "L_b": 16.0, "cL_w": 9.0, "cL_b": 25.0, "samples": 4}
    found = report_gap.bounds(c, math.exp(-2))
    assert list(found.values()) == pytest.approx([6.0, 20.0, 28.0])


def test_an_accuracy_is_reached_when_it_is_kept():
    facts = {"start": 3.0, "objective": 2.0}
    assert report_gap.reached(plots_gap.gap_series(rows([0.1, 0.02, 0.3, 0.05, 0.01])), facts, 0.1) == 3
    assert report_gap.reached(plots_gap.gap_series(rows([0.1, 0.2])), facts, 0.1) is None


def test_the_report_has_measured_costs_beside_the_bounds(tmp_path, no_pictures):
    for seed in (0, 1):
        cfg = compose.load([*SMALL, "method=acd", "rounds=2", f"seed={seed}"])
        execute(cfg, tmp_path / str(seed))
        store_config(cfg, tmp_path / str(seed))
    (setting,) = group_by_setting(find_runs([tmp_path]))
    table = report_gap.rate_table(setting)
    columns, (line,) = table.columns, table.rows
    facts = [r.summary["optimum"] for r in setting.groups[0].runs]
    root = np.mean([math.sqrt((f["L_w"] + f["L_b"]) / f["mu"]) for f in facts])
    assert line[1] == f"{root:.3g}" and len(line) == len(columns)
    bound = np.mean([math.sqrt(f["L_w"] / f["mu"]) * math.log(1e6) for f in facts])
    assert line[columns.index("communications") + 1] == f"{bound:.3g}"
    text = write_report([tmp_path]).with_name("report.md").read_text()
    assert "lower bounds" in text and "-objective.png" in text


def test_a_record_with_a_target_has_the_costs_of_each_run(monkeypatch):
    """Of a gap of 1 at the start .1 is left after round 2, and never .01; √κ = √((9 + 16)/1) = 5."""
    facts = {"start": 3.0, "objective": 2.0, "mu": 1.0, "L_w": 9.0, "L_b": 16.0}
    facts |= {"cL_w": 9.0, "cL_b": 25.0, "samples": 4}
    run = SimpleNamespace(summary={"optimum": facts}, rows=rows([0.5, 0.1, 0.02]), config={"seed": 7})
    found = {}
    for eps in (0.1, 0.01):
        group = SimpleNamespace(method="acd", name="acd", runs=[run], paper={"target": eps})
        found[eps] = {row["column"]: row["values"] for row in _rows(group, {})}
    log = math.log(10)
    assert found[0.1] == {
        "√κ": [5.0],
        "iterations": [4.0],
        "iterations/√κ": [0.8],
        "communications": [2.0],
        "√(L_w/μ) log 1/ε": [pytest.approx(3 * log)],
        "∇_w f_mi": [0.0],
        "∇_β f_mi": [8.0],
        "(n + √(n L_β/μ)) log 1/ε": [pytest.approx(14 * log)],
    }
    assert set(found[0.01]) == {"√κ", "√(L_w/μ) log 1/ε", "(n + √(n L_β/μ)) log 1/ε"}
