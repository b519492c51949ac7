"""Reports: grouping, mean and spread, the paper's numbers, and runs that do not count."""

import json
import math
from pathlib import Path

import pytest
import yaml

from fedpers.app.cli import main
from fedpers.results import files
from fedpers.results.report.paper import paper_value
from fedpers.results.report.runs import find_runs, group_by_setting
from fedpers.results.report.tables import beside_paper, results, spread

PAPER = {
    "title": "T",
    "table": "Table 1",
    "metric": "accuracy",
    "percent": True,
    "column": "High",
    "last": 2,
    "values": {"fedavg": {"High": [90.0, 0.5]}, "other": {"High": 1}},
}


def make(folder: Path, method="fedavg", seed=0, accuracy=(0.5, 0.7), status="finished", **extra):
    """A run directory as the recorder leaves it."""
    (folder / ".hydra").mkdir(parents=True)
    config = {
        "method": {"name": method, "lr": extra.pop("lr", 0.1)},
        "data": {"name": "digits"},
        "model": {"name": "mlp"},
        "rounds": len(accuracy),
        "seed": seed,
        **extra,
    }
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [
        {"round": t, "split": "test", "accuracy": a, "accuracy_mean": a, "worst_decile": a / 2, "loss": 1.0}
        for t, a in enumerate(accuracy, 1)
    ]
    files.replace_csv(folder / "metrics.csv", rows, list(rows[0]) if rows else ["round", "split"])
    if status:
        summary = {
            "status": status,
            "best": {"accuracy": 0.6},
            "rounds_done": len(accuracy),
            "round_seconds": 1.0,
            "bytes": {"up": 2e6, "down": 4e6},
            "gradient_evals": 8,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_spread():
    assert spread([0.5, 0.7], 100.0) == "60.00 ± 14.14"  # sqrt(0.02) = 0.1414: ddof = 1
    assert spread([0.5]) == "0.5000"
    assert spread([math.nan]) == "-"


def test_mean_over_seeds_one_row_a_method(tmp_path):
    for seed, last in ((0, 0.6), (1, 0.8)):
        make(tmp_path / f"a{seed}", seed=seed, accuracy=(0.1, last))
    make(tmp_path / "b", method="local")
    (setting,) = group_by_setting(find_runs([tmp_path]))
    assert setting.name == "digits · mlp"
    table = results(setting)
    assert table.columns == [
        "method",
        "n",
        "accuracy %",
        "client mean %",
        "worst tenth %",
        "loss",
        "best accuracy",
    ]
    assert table.rows == [
        ["fedavg", "2", "70.00 ± 14.14", "70.00 ± 14.14", "35.00 ± 7.07", "1.0000 ± 0.0000", "60.00 ± 0.00"],
        ["local", "1", "70.00", "70.00", "35.00", "1.0000", "60.00"],
    ]


def test_other_overrides_make_groups_and_settings(tmp_path):
    make(tmp_path / "a", lr=0.1, engine={"name": "ray"})
    make(tmp_path / "b", lr=0.2, engine={"name": "ray"})
    make(tmp_path / "c", method="local", engine={"name": "ray"})
    make(tmp_path / "d", experiment="demo")
    settings = {s.name: [g.name for g in s.groups] for s in group_by_setting(find_runs([tmp_path]))}
    assert settings == {
        "digits · mlp": ["fedavg method.lr=0.1", "fedavg method.lr=0.2", "local"],
        "demo · digits · mlp": ["fedavg"],
    }


def test_the_same_seed_twice_is_said(tmp_path):
    make(tmp_path / "a")
    make(tmp_path / "b")
    (setting,) = group_by_setting(find_runs([tmp_path]))
    assert results(setting).rows[0][1] == "2 (1 seeds)"


def test_beside_the_paper(tmp_path):
    make(tmp_path / "a", accuracy=(0.1, 0.8, 0.9), paper=PAPER)
    make(tmp_path / "b", method="local", accuracy=(0.1, 0.5, 0.7), paper=PAPER)
    (setting,) = group_by_setting(find_runs([tmp_path]))
    (table,) = beside_paper(setting)
    assert table.title == "Beside the paper: T, Table 1"
    assert table.rows == [
        ["fedavg", "High", "1", "85.00", "90 ± 0.5", "-5.00"],
        ["local", "High", "1", "60.00", "-", "-"],
    ]


def test_forms_of_a_papers_value():
    assert paper_value(PAPER, "other") == (1.0, None)
    assert paper_value(PAPER, "unknown") is None
    assert paper_value({"values": {"m": 0.5}}, "m") == (0.5, None)
    assert paper_value({"values": {"m": {"loss": 2}}, "metric": "loss"}, "m") == (2.0, None)


def test_runs_that_do_not_count_are_listed(tmp_path, capsys):
    make(tmp_path / "good")
    make(tmp_path / "killed", status="")
    make(tmp_path / "failed", status="failed")
    make(tmp_path / "empty", accuracy=())
    make(tmp_path / "broken")
    (tmp_path / "broken" / ".hydra" / "config.yaml").write_text("a: [")
    problems = {r.path.name: r.problem for r in find_runs([tmp_path])}
    assert problems == {
        "good": "",
        "killed": "unfinished: round 2 of 2",
        "failed": "failed: no reason noted",
        "empty": "metrics.csv has no evaluation on the test split",
        "broken": "its config cannot be read (ParserError)",
    }
    assert main(["report", str(tmp_path)]) == 0
    for text in (
        capsys.readouterr().out,
        (tmp_path / "report.md").read_text(),
        (tmp_path / "report.html").read_text(),
    ):
        assert "unfinished: round 2 of 2" in text
        assert "70.00" in text


def test_the_html_holds_its_figures(tmp_path):
    make(tmp_path / "a" / "x", accuracy=(0.1, 0.5), paper=PAPER)
    assert main(["report", str(tmp_path / "a" / "x"), "--out", str(tmp_path / "r")]) == 0
    page = (tmp_path / "r" / "report.html").read_text()
    assert page.count('src="data:image/png;base64,') == 2
    assert 'src="report/' not in page
    for name in ("curves", "final"):
        assert f"report/digits-mlp-{name}.png" in (tmp_path / "r" / "report.md").read_text()
        assert (tmp_path / "r" / "report" / f"digits-mlp-{name}.png").is_file()


def test_regression_has_losses_only(tmp_path):
    folder = make(tmp_path / "a")
    rows = [{"round": 1, "split": "test", "loss": 2.0, "worst_decile": 3.0}]
    files.replace_csv(folder / "metrics.csv", rows, list(rows[0]))
    (setting,) = group_by_setting(find_runs([tmp_path]))
    assert results(setting).rows[0][:4] == ["fedavg", "1", "3.0000", "2.0000"]
    assert main(["report", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere", "nowhere: there is no such folder"),
        (".", ".: no run in it or below (a run has .hydra/config.yaml)"),
    ],
)
def test_no_runs(tmp_path, monkeypatch, capsys, name, text):
    monkeypatch.chdir(tmp_path)
    assert main(["report", name]) == 2
    assert capsys.readouterr().err == f"fedpers: error: {text}\n"
