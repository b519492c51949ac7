"""Reports: grouping, ranking, the paper's numbers, what may be overwritten, runs that do not count."""

import csv
import json
import math
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fedpers.app.cli import main
from fedpers.results import files, pages
from fedpers.results.report import document, record
from fedpers.results.report.paper import paper_value
from fedpers.results.report.runs import find_runs, group_by_setting, read_run
from fedpers.results.report.standings import compare
from fedpers.results.report.tables import beside_paper, spread
from fedpers.results.report.view import view
from fedpers.results.report.wording import sentence
from tests.reports import make

PAPER = {
    "title": "T",
    "table": "ReportTable 1",
    "metric": "accuracy",
    "percent": True,
    "column": "High",
    "last": 2,
    "values": {"fedavg": {"High": [90.0, 0.5]}, "other": {"High": 1}},
}


def test_spread():
    assert spread([0.5, 0.7], 100.0) == "60.00 ± 14.14"  # sqrt(0.02) = 0.1414: ddof = 1
    assert spread([0.5]) == "0.5000"
    assert spread([math.nan]) == "-"


# ---- groups and ranks ---------------------------------------------------------------------------


def test_rows_are_ranked_by_what_validation_chose(tmp_path):
    """FedAvg ends higher, but in the round that validation chose local training is better."""
    for seed in (0, 1):
        make(tmp_path / f"a{seed}", seed=seed, accuracy=(0.1, 0.9), best=0.5 + seed / 10)
        make(tmp_path / f"b{seed}", "local", seed, accuracy=(0.1, 0.6), best=0.7)
    (comparison,) = compare(*group_by_setting(find_runs([tmp_path])))
    assert comparison.by_validation
    assert [(s.rank, s.name, round(s.score, 3)) for s in comparison.rows] == [
        (1, "local", 0.7),
        (2, "fedavg", 0.55),
    ]
    table = view(comparison, [], tmp_path)["ranking"]
    assert table.columns[:5] == ["#", "method", "accuracy %", "vs local", "vs fedavg"]
    assert table.rows[1][:3] == ["2", "fedavg", "55.00 ± 7.07"]
    assert table.rows[1][3].startswith("\N{MINUS SIGN}15.00 (") and table.rows[0][3] == "-"


def test_without_validation_the_last_round_ranks_and_that_is_said(tmp_path):
    make(tmp_path / "a", accuracy=(0.1, 0.9), best=None)
    make(tmp_path / "b", "local", accuracy=(0.1, 0.6), best=0.7)
    (comparison,) = compare(*group_by_setting(find_runs([tmp_path])))
    assert not comparison.by_validation and comparison.rows[0].name == "fedavg"
    assert view(comparison, [], tmp_path)["ranking_note"].startswith(
        "Test accuracy after the last round, for some run"
    )


def test_clients_hurt_are_counted_by_seed_and_partition_id(tmp_path):
    ours = {0: (0.9, 0.4), 1: (0.5, 0.5)}
    for seed, accuracies in ours.items():
        for method, table in (("fedavg", accuracies), ("local", (0.5, 0.5))):
            run = make(tmp_path / f"{method}{seed}", method, seed)
            rows = [{"partition_id": k, "accuracy": a} for k, a in enumerate(table)]
            files.replace_csv(run / "clients.csv", rows, list(rows[0]))
    (comparison,) = compare(*group_by_setting(find_runs([tmp_path])))
    found = next(s for s in comparison.rows if s.name == "fedavg")
    assert (found.clients.gained, found.clients.hurt, found.clients.count) == (0.25, 0.25, 4)
    assert found.client_spread == pytest.approx(0.125)  # 0.25 in seed 0, 0 in seed 1


def hospitals(root: Path, names=("Ahus, Oslo", "007", 'Ng\u1eef "B"')) -> Path:
    """Two methods on two seeds; in seed 1 the clients have other partition ids."""
    accuracy = {"local": ((0.5, 0.6, 0.7), (0.5, 0.6, 0.9)), "fedavg": ((0.7, 0.7, 0.7), (0.6, 0.8, 0.8))}
    for method, seeds in accuracy.items():
        for seed, values in enumerate(seeds):
            run = make(root / f"{method}{seed}", method, seed)
            order = list(range(3)) if seed == 0 else [2, 0, 1]
            rows = [{"partition_id": i, "accuracy": values[k], "name": names[k]} for i, k in enumerate(order)]
            files.replace_csv(run / "clients.csv", rows, list(rows[0]))
    return root


def test_a_table_of_clients_by_name(tmp_path):
    """By name, not by partition id. Gains .2, .1, 0 and .1, .2, -.1: seeds' means .1 and .0667, p by hand."""
    (comparison,) = compare(*group_by_setting(find_runs([hospitals(tmp_path)])))
    shown = view(comparison, [], tmp_path)
    _, gains, each = shown["tables"]
    t = ((0.1 + 0.2 / 3) / 2) / ((0.1 - 0.2 / 3) / 2)  # mean / (standard deviation / sqrt 2) of two means
    p = 1 - 2 * math.atan(t) / math.pi
    assert gains.rows[0][:3] == ["fedavg", "6", "+8.33"] and gains.rows[0][4] == f"{p:.2g}"
    assert gains.rows[0][5:] == ["67%", "17%"]
    assert each.columns == ("client", "fedavg", "local")
    assert {r[0]: r[1:] for r in each.rows} == {
        "Ahus, Oslo": ["65.00", "50.00"],
        "007": ["75.00", "60.00"],
        'Ng\u1eef "B"': ["75.00", "80.00"],
    }
    assert "Ahus, Oslo" in {d.get("called") for d in shown["data"]["clients"]}


def test_all_clients_are_in_a_file_of_the_report(tmp_path):
    assert main(["report", str(hospitals(tmp_path))]) == 0
    (path,) = (tmp_path / "report").glob("*-clients.csv")
    rows = list(csv.DictReader(path.open(newline="", encoding="utf-8")))
    assert len(rows) == 12
    (row,) = [r for r in rows if (r["method"], r["seed"], r["name"]) == ("fedavg", "1", "007")]
    assert float(row["accuracy"]) == 0.8 and float(row["gain"]) == pytest.approx(0.2)


def test_clients_without_names_have_no_table_of_their_own(tmp_path):
    """Another seed may have dealt others: client 0 of one seed is not client 0 of the next."""
    (comparison,) = compare(*group_by_setting(find_runs([hospitals(tmp_path, names=("", "", ""))])))
    assert len(view(comparison, [], tmp_path)["tables"]) == 2


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


def test_a_run_of_a_version_that_lacked_a_key_had_its_default(tmp_path):
    """As in a sweep that goes on after an upgrade."""
    new = {"data": {"name": "digits", "balanced": False}, "stop": {"patience": None}, "devices": []}
    runs = [make(tmp_path / "0"), make(tmp_path / "1", seed=1, **new)]
    other = make(tmp_path / "2", seed=0, data={"name": "digits", "balanced": True})
    (setting,) = group_by_setting(map(read_run, [*runs, other]))
    assert [(g.condition, len(g.runs)) for g in setting.groups] == [
        ("data.balanced=False", 2),
        ("data.balanced=True", 1),
    ]


def test_only_methods_under_the_same_conditions_are_compared(tmp_path):
    for rounds in (5, 9):
        for method in ("fedavg", "local"):
            make(tmp_path / f"{method}{rounds}", method, clients_per_round=rounds)
    found = {c.name: [s.name for s in c.rows] for c in compare(*group_by_setting(find_runs([tmp_path])))}
    assert found == {f"digits · mlp · clients_per_round={n}": ["fedavg", "local"] for n in (5, 9)}


def test_the_same_seed_twice_is_said_and_counts_once(tmp_path):
    make(tmp_path / "a", best=0.5)
    make(tmp_path / "b", best=0.7)
    (comparison,) = compare(*group_by_setting(find_runs([tmp_path])))
    assert comparison.rows[0].scores == {0: pytest.approx(0.6)}
    assert view(comparison, [], tmp_path)["ranking"].rows[0][-1] == "2 (1 seeds)"


# ---- the sentence -------------------------------------------------------------------------------


def verdict(tmp_path: Path, **best: tuple[float, ...]) -> tuple[str, str]:
    for method, values in best.items():
        for seed, value in enumerate(values):
            make(tmp_path / f"{method}{seed}", method, seed, best=value)
    return sentence(*compare(*group_by_setting(find_runs([tmp_path]))))


def test_a_winner_is_named(tmp_path):
    said = verdict(tmp_path, local=(0.5, 0.51, 0.505), fedavg=(0.9, 0.92, 0.91))
    assert said[0] == "fedavg is best on these 3 seeds"
    text = said[1].replace("\N{NO-BREAK SPACE}", " ")
    assert "accuracy 91.00 %" in text and "local (40.50 points below, p 5.1e-05)" in text


def test_the_smallest_loss_wins_and_is_said_to_be_below_the_others(tmp_path):
    for method, losses in {"local": (1.0, 1.125, 1.0), "fedavg": (0.5, 0.5625, 0.4375)}.items():
        for seed, loss in enumerate(losses):
            folder = make(tmp_path / f"{method}{seed}", method, seed, best=None)
            rows = [{"round": 1, "split": "test", "loss": loss}]
            files.replace_csv(folder / "metrics.csv", rows, list(rows[0]))
    headline, why = sentence(*compare(*group_by_setting(find_runs([tmp_path]))))
    assert headline == "fedavg is best on these 3 seeds"
    assert why.startswith("Its loss 0.5 is below every other's. Worse than fedavg: local (0.5417 above, p ")


def test_no_winner_is_named_where_seeds_disagree(tmp_path):
    # gaps -.1, .1, .03: mean .01, t = .01 / (.1015 / sqrt 3) = .171, two degrees of freedom
    said = verdict(tmp_path, local=(0.9, 0.8, 0.85), fedavg=(0.8, 0.9, 0.88))
    assert (
        said[0].replace("\N{NO-BREAK SPACE}", " ")
        == "3 seeds are too few: local is 1.00 points below, p 0.88"
    )


def test_who_is_beaten_is_named_with_its_gap_where_the_first_place_is_open(tmp_path):
    five = {
        "a": (0.9, 0.91, 0.92, 0.93, 0.94),
        "b": (0.93, 0.88, 0.93, 0.9, 0.95),
        "c": (0.5, 0.52, 0.51, 0.53, 0.52),
    }
    said = [part.replace("\N{NO-BREAK SPACE}", " ") for part in verdict(tmp_path, **five)]
    assert said[0] == "a is ahead of c on these 5 seeds"
    assert "Not settled: b (0.20 points below, p 1). If gap and spread stay as they are, more than" in said[1]
    assert "Worse than a: c (40.40 points below, p " in said[1]


def test_how_many_seeds_would_settle_it_is_said(tmp_path):
    """Gaps -.05, .35: d = .15 / .2828 = .53; (1.96 + .84)² / d² + 1.96² / 2 = 29.8, two-sided 5 %."""
    said = verdict(tmp_path, local=(0.5, 0.5), fedavg=(0.45, 0.85))
    assert said[1].endswith("If gap and spread stay as they are, 30 seeds would settle local.")


def test_a_sentence_names_few(tmp_path):
    said = verdict(tmp_path, **{f"m{i}": (0.5 + i / 100, 0.6 - i / 100) for i in range(9)})
    assert said[1].count("points below") == 4 and "and 4 others. " in said[1]


def test_one_seed_names_no_winner(tmp_path):
    said = verdict(tmp_path, local=(0.9,), fedavg=(0.1,))
    assert said[0].startswith("One seed is too few to compare: local has the best accuracy 90.00")


# ---- beside the paper ---------------------------------------------------------------------------


def test_beside_the_paper(tmp_path):
    make(tmp_path / "a", accuracy=(0.1, 0.8, 0.9), paper=PAPER)
    make(tmp_path / "b", method="local", accuracy=(0.1, 0.5, 0.7), paper=PAPER)
    (setting,) = group_by_setting(find_runs([tmp_path]))
    (table,) = beside_paper(setting)
    assert table.title == "Beside the paper: T, ReportTable 1"
    assert table.rows == [
        ["fedavg", "High", "1", "85.00", "90 ± 0.5", "-5.00"],
        ["local", "High", "1", "60.00", "-", "-"],
    ]


def test_a_file_holds_the_metrics_that_the_experiment_names(tmp_path):
    """Without printed numbers too; `seconds` is in no evaluation, but in the rounds' own rows."""
    paper = {"metric": {"accuracy": "accuracy_mean", "s": "seconds"}}
    for seed, accuracy in enumerate((0.5, 0.7)):
        make(tmp_path / str(seed), seed=seed, accuracy=(0.1, accuracy), paper=paper)
    (setting,) = group_by_setting(find_runs([tmp_path]))
    rows = record.record(setting)["results"]
    assert {r["column"]: r["values"] for r in rows} == {"accuracy": [0.5, 0.7], "s": [0.5, 0.5]}


def test_a_file_holds_the_metrics_that_a_run_asked_for(tmp_path):
    """`metrics=` of a run, by the names of their columns and as they are, beside the usual ones."""
    run = make(tmp_path / "a", accuracy=(0.1, 0.5), metrics=["perplexity", "my_scores:sure", "accuracy"])
    table = pd.read_csv(run / "metrics.csv")
    table.assign(perplexity=[2.0] * (len(table) - 1) + [7.5], sure=0.25).to_csv(
        run / "metrics.csv", index=False
    )
    (setting,) = group_by_setting(find_runs([tmp_path]))
    found = {r["column"]: r["values"] for r in record.record(setting)["results"]}
    assert (found["perplexity"], found["sure"], found["accuracy"]) == ([7.5], [0.25], [50.0])


def test_forms_of_a_papers_value():
    assert paper_value(PAPER, "other") == (1.0, None)
    assert paper_value(PAPER, "unknown") is None
    assert paper_value({"values": {"m": 0.5}}, "m") == (0.5, None)
    assert paper_value({"values": {"m": {"loss": 2}}, "metric": "loss"}, "m") == (2.0, None)


# ---- what is written ----------------------------------------------------------------------------


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
        assert "60.00" in text


def test_what_is_trained_is_told_where_some_is_frozen(tmp_path):
    run = make(tmp_path / "a")
    summary = json.loads((run / "summary.json").read_text())
    for trains, text in (((50, 310), "mlp, trains 50 of 310 parameters"), ((310, 310), "mlp")):
        summary["trains"] = dict(zip(("entries", "of"), trains, strict=True))
        (run / "summary.json").write_text(json.dumps(summary))
        (comparison,) = compare(*group_by_setting(find_runs([tmp_path])))
        assert dict(view(comparison, [], tmp_path)["facts"])["model"] == text


def test_the_documents(tmp_path):
    for seed in (0, 1):
        make(tmp_path / "a, b" / f"{seed}", seed=seed, accuracy=(0.1, 0.5), paper=PAPER, best=0.5 + seed / 10)
    assert main(["report", str(tmp_path / "a, b"), "--out", str(tmp_path / "r")]) == 0
    out = tmp_path / "r"
    page = (out / "report.html").read_text()
    assert 'href="../a%2C%20b/0/"' in page and "fedpers run method=fedavg seed=0" in page
    assert "0123456789abcdef" in page and "http" not in page.split("<script>")[0]
    assert {p.name for p in (out / "report").iterdir()} == {
        ".fedpers-report",
        "paper.tex",
        *(f"digits-mlp{end}" for end in ("-curves.png", "-final.png", ".csv", ".tex")),
    }
    assert "report/digits-mlp-curves.png" in (out / "report.md").read_text()
    (row,) = csv.DictReader((out / "report" / "digits-mlp.csv").read_text().splitlines())
    assert (row["rank"], row["method"], row["runs"], float(row["mean"])) == ("1", "fedavg", "2", 0.55)
    tex = (out / "report" / "digits-mlp.tex").read_text()
    assert "1 & fedavg & 55.00 $\\pm$ 7.07 &" in tex
    assert tex.index("\\toprule") < tex.index("\\midrule") < tex.index("\\bottomrule")


def test_the_table_of_a_paper(tmp_path, capsys):
    """Two data sets: on one both are open, on the other one is best; worst_decile is half the accuracy."""
    best = {
        "digits": {"a_b": (0.9, 0.8, 0.85), "local": (0.8, 0.9, 0.88)},
        "mnist": {"a_b": (0.9, 0.91, 0.92)},
    }
    best["mnist"]["local"] = (0.5, 0.52, 0.51)
    for data, methods in best.items():
        for method, values in methods.items():
            for seed, value in enumerate(values):
                folder = tmp_path / data / f"{method}{seed}"
                make(folder, method, seed, (0.1, value), best=value, data={"name": data})
    assert main(["report", str(tmp_path), "--columns", "score,worst_decile,loss"]) == 0
    said = capsys.readouterr().out
    assert "digits · mlp: 3 seeds are too few" in said and "mnist · mlp: a_b is best" in said
    text = (tmp_path / "report" / "paper.tex").read_text()
    head, second, *rows = [line for line in text.splitlines() if "&" in line]
    assert r"\multicolumn{3}{c}{digits $\cdot$ mlp} & \multicolumn{3}{c}{mnist $\cdot$ mlp}" in head
    assert second.count(r"{worst tenth \%}") == 2 and second.count("{loss}") == 2
    assert r"a\_b & 85.00 $\pm$ 5.00$^\dagger$ & 42.50 $\pm$ 2.50$^\dagger$ & " in rows[1]
    assert r"local & \textbf{86.00} $\pm$ 5.29 & \textbf{43.00} $\pm$ 2.65 & " in rows[0]
    assert r"\multicolumn{7}{l}{\footnotesize $^\dagger$ not significantly different" in text
    assert r"& \textbf{91.00} $\pm$ 1.00 &" in rows[1] and r"& 51.00 $\pm$ 1.00 & 25.50" in rows[0]
    assert main(["report", str(tmp_path), "--columns", "f1"]) == 2


def test_means_that_are_printed_alike_are_bold_alike(tmp_path):
    """0.90001 and 0.9 in all seeds are 90.00 both; 0.8 is not."""
    for method, value in (("a", 0.90001), ("b", 0.9), ("c", 0.8)):
        for seed in range(2):
            make(tmp_path / f"{method}{seed}", method, seed, (0.1, value), best=value)
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "paper.tex").read_text()
    assert text.count(r"\textbf{90.00}") == 2 and r"c & 80.00" in text and r"{accuracy \%}" in text


def test_latex_and_csv_escape_what_is_special(tmp_path):
    make(tmp_path, method="a_b%", lr="x, y")
    make(tmp_path / "c", method="a_b%", lr="z")
    (comparison,) = compare(*group_by_setting(find_runs([tmp_path])))
    shown = view(comparison, [], tmp_path)
    assert r"a\_b\% method.lr=x, y &" in document.latex(**shown)
    assert "a_b% method.lr=x, y" in {
        r["name"] for r in csv.DictReader(document.table_csv(shown["records"]).splitlines())
    }


def test_the_same_runs_give_the_same_report(tmp_path):
    make(tmp_path / "a")
    before = [main(["report", str(tmp_path)]), (tmp_path / "report.html").read_bytes()]
    assert before == [main(["report", str(tmp_path)]), (tmp_path / "report.html").read_bytes()]


@pytest.mark.parametrize("name", ["report.md", "report.html", "report/notes.txt"])
def test_a_file_of_the_users_is_never_overwritten(tmp_path, capsys, name):
    make(tmp_path / "runs" / "a")
    theirs = tmp_path / "out" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine\n")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "was not written by fedpers report; move it away" in error and error.count("\n") == 1
    assert [p for p in (tmp_path / "out").rglob("*") if p.is_file()] == [theirs]
    assert theirs.read_text() == "mine\n"


def test_without_a_finished_run_nothing_is_written(tmp_path, capsys):
    make(tmp_path / "a", status="")
    make(tmp_path / "b", status="failed")
    before = sorted(tmp_path.rglob("*"))
    assert main(["report", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("fedpers: error: no run to report\n")
    assert "unfinished: round 2 of 2" in shown.err and "failed: no reason noted" in shown.err
    assert sorted(tmp_path.rglob("*")) == before


def test_regression_has_losses_only(tmp_path):
    for method, loss in (("fedavg", 2.0), ("local", 1.5)):
        folder = make(tmp_path / method, method, best=None)
        rows = [{"round": 1, "split": "test", "loss": loss, "worst_decile": 3.0}]
        files.replace_csv(folder / "metrics.csv", rows, list(rows[0]))
    (comparison,) = compare(*group_by_setting(find_runs([tmp_path])))
    assert [(s.name, s.score) for s in comparison.rows] == [("local", 1.5), ("fedavg", 2.0)]
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


# ---- one experiment as JSON ---------------------------------------------------------------------


def test_the_json_of_an_experiment(tmp_path):
    for seed, last in ((0, 0.7), (1, 0.9)):
        make(tmp_path / "runs" / f"{seed}", seed=seed, accuracy=(0.1, last, last), paper=PAPER)
    path = tmp_path / "x.json"
    command = ["report", str(tmp_path / "runs"), "--json", str(path)]
    assert main(command) == 0 and main(command) == 0  # its own file may be replaced
    found = json.loads(path.read_text())
    assert found["commands"] == ["fedpers run -m method=fedavg seed=0,1"]
    assert found["commits"] == ["0123456789abcdef"] and found["versions"] == {"fedpers": "0.1.0"}
    (row,) = found["results"]
    assert (row["runs"], row["seeds"], row["values"]) == (2, [0, 1], [70.0, 90.0])
    assert row["mean"] == pytest.approx(80.0) and row["std"] == pytest.approx(math.sqrt(200))
    assert (row["paper"], row["paper_std"], row["column"]) == (90.0, 0.5, "High")


def test_the_json_has_the_distances_to_local_training_and_a_page_shows_them(tmp_path):
    """Gaps 5, 10 and 2: mean 17/3, and 4.3027 (t, two degrees of freedom) standard errors of 2.3333."""
    for seed, (alone, ours) in enumerate(((0.7, 0.75), (0.8, 0.9), (0.6, 0.62))):
        for method, value in (("local", alone), ("fedavg", ours)):
            run = make(tmp_path / "runs" / f"{method}{seed}", method, seed, accuracy=(0.1, value), best=value)
            rows = [{"partition_id": k, "accuracy": value + d} for k, d in ((0, 0.1), (1, -0.1))]
            files.replace_csv(run / "clients.csv", rows, list(rows[0]))
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    assert main(["report", str(tmp_path / "runs"), "--json", str(folder / "x.json")]) == 0
    found = json.loads((folder / "x.json").read_text())["differences"]
    to_local, to_fedavg = (next(r for r in found if r["reference"] == m) for m in ("local", "fedavg"))
    assert (to_local["method"], to_fedavg["method"]) == ("fedavg", "local")
    for tested in (to_local["seeds"], to_local["clients"]):  # both clients gain what their seed does
        assert (tested["gap"], tested["low"], tested["high"]) == pytest.approx(
            (17 / 3, -4.373, 15.706), abs=1e-3
        )
    assert (to_local["clients"]["better"], to_local["clients"]["worse"]) == (1.0, 0.0)
    assert to_fedavg["seeds"]["gap"] == pytest.approx(-17 / 3) and to_fedavg["clients"] is None
    text = pages.render("differences of x.json", tmp_path, "..")
    assert "| fedavg | local training | 3 | +5.67 (-4.37 to +15.71) | 0.14 |" in text
    assert "| 100% | 0% |" in text and "the round that validation chose" in text


def test_a_json_holds_one_experiment(tmp_path, capsys):
    make(tmp_path / "a")
    make(tmp_path / "b", experiment="demo")
    assert main(["report", str(tmp_path), "--json", str(tmp_path / "x.json")]) == 2
    assert "--json holds one experiment" in capsys.readouterr().err
    assert not list(tmp_path.glob("*report*")) and not (tmp_path / "x.json").exists()


def test_commands_that_are_no_grid_stand_alone(tmp_path):
    words = [["method=a", "seed=0"], ["method=b", "seed=1"]]
    for name, each in zip("ab", words, strict=True):
        make(tmp_path / name, name)
        (tmp_path / name / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(each))
    found = record.commands(find_runs([tmp_path]))
    assert found == ["fedpers run method=a seed=0", "fedpers run method=b seed=1"]


def test_runs_that_set_a_key_more_are_a_sweep_of_their_own(tmp_path):
    for method, more in (("a", []), ("b", []), ("c", ["method.x=1"])):
        for seed in (0, 1):
            name = f"{method}{seed}"
            make(tmp_path / name, name)
            words = [f"method={method}", f"seed={seed}", *more]
            (tmp_path / name / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(words))
    found = record.commands(find_runs([tmp_path]))
    assert found == ["fedpers run -m method=a,b seed=0,1", "fedpers run -m method=c seed=0,1 method.x=1"]


def test_what_makes_an_experiment_smaller_is_named(tmp_path):
    run = make(tmp_path / "a", experiment="fedsoft_table1_synthetic")
    words = ["method=fedavg", "rounds=20", "engine.workers=2", "data.limit=9", "data.mixture=linear"]
    (run / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(words))
    assert record.changed(find_runs([tmp_path])) == ["rounds=20", "data.limit=9"]  # its sweep has mixtures


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ([], "full size"),
        (["eval_every=500"], "full size"),  # measured less often
        (["rounds=20", "eval_every=5"], "reduced: rounds=20"),
    ],
)
def test_only_what_makes_a_run_smaller_is_named_with_its_size(changed, found):
    assert record.size({"changed": changed, "paper": {"table": "Table 1"}}) == found


def test_a_part_of_the_data_is_not_the_full_size():
    notes = [
        "rotated copies",
        "incomplete copy: 1 of 5 training batches, 10,000 images; accuracies are lower",
    ]
    found = record.size({"changed": ["rounds=20"], "paper": {"table": "Table 1"}, "notes": notes})
    assert found == "reduced: rounds=20, incomplete copy: 1 of 5 training batches, 10,000 images"


def test_an_evaluation_is_ranked_and_set_against_its_floors_seed_by_seed(tmp_path):
    """Seeds in another order, a floor that lacks one: that difference is left out."""
    best = {"ditto": {0: 0.9, 1: 0.7}, "local": {1: 0.5, 0: 0.6}, "fedavg": {0: 0.8}}
    for method, scores in best.items():
        for seed, score in scores.items():
            make(tmp_path / f"{method}-{seed}", method, seed, best=score)
        search = {"runs": [f"{method}-{seed}" for seed in scores], "found": {"lr": 1.0}, "trials": []}
        (tmp_path / ".search" / method).mkdir(parents=True)
        files.replace_json(tmp_path / ".search" / method / "search.json", search)
    (setting,) = group_by_setting(find_runs([tmp_path]))
    rows = {(r["method"], r["column"]): r["values"] for r in record.record(setting)["results"]}
    order = list(dict.fromkeys(method for method, _ in rows))
    assert order == ["ditto", "fedavg", "local"]
    assert rows["ditto", "accuracy, round chosen on validation"] == [90, 70]
    assert rows["ditto", "above local"] == pytest.approx([30, 20])
    assert rows["fedavg", "above local"] == pytest.approx([20])
    assert ("ditto", "above fedavg") not in rows
    assert rows["ditto", "worst tenth"] == [35, 35] and rows["ditto", "MB sent"] == [6, 6]


def test_a_search_of_a_regression_is_told_in_losses_of_which_the_smaller_is_better(tmp_path):
    best = {"ditto": (1.0, 1.5), "local": (1.25, 2.0), "fedavg": (2.5, 3.0)}
    for method, losses in best.items():
        for seed, loss in enumerate(losses):
            folder = make(tmp_path / f"{method}-{seed}", method, seed)
            rows = [{"round": 1, "split": "test", "loss": loss, "worst_decile": 2 * loss}]
            files.replace_csv(folder / "metrics.csv", rows, list(rows[0]))
            summary = json.loads((folder / "summary.json").read_text())
            summary["best"] = {"loss": loss, "accuracy": None, "round": 1}
            (folder / "summary.json").write_text(json.dumps(summary))
        search = {"runs": [f"{method}-0", f"{method}-1"], "found": {"lr": 1.0}, "trials": []}
        (tmp_path / ".search" / method).mkdir(parents=True)
        files.replace_json(tmp_path / ".search" / method / "search.json", search)
    (setting,) = group_by_setting(find_runs([tmp_path]))
    rows = {(r["method"], r["column"]): r["values"] for r in record.record(setting)["results"]}
    assert list(dict.fromkeys(method for method, _ in rows)) == ["ditto", "local", "fedavg"]
    assert rows["ditto", "loss, round chosen on validation"] == [1.0, 1.5]
    assert rows["ditto", "below local"] == [0.25, 0.5] and rows["fedavg", "below local"] == [-1.25, -1.0]
    assert rows["ditto", "worst tenth"] == [2.0, 3.0]
    assert not any("accuracy" in column or "above" in column for _, column in rows)


def test_the_number_beside_the_papers_may_be_of_any_last_evaluations(tmp_path, capsys):
    make(tmp_path / "runs" / "0", accuracy=(0.2, 0.4, 0.9), paper=PAPER)
    found = []
    for more in ([], ["--last", "1"], ["--last", "3"]):
        file = tmp_path / "x.json"
        assert main(["report", str(tmp_path / "runs"), "--json", str(file), *more]) == 0
        found.append(json.loads(file.read_text())["results"][0]["mean"])
    assert found == pytest.approx([65, 90, 50])
    assert main(["report", str(tmp_path / "runs"), "--last", "0"]) == 2
    assert "--last 0" in capsys.readouterr().err
