"""Simulated devices: what a virtual clock says, whose replies are late, who can be asked; for all methods."""

import math

import numpy as np
import pytest

import fedpers
from fedpers.app.build import assemble
from fedpers.app.cli import main
from fedpers.config import compose, registry
from fedpers.core.errors import ConfigError, DataError, ReplyError
from fedpers.core.plan import Plan
from fedpers.core.systems import Systems, SystemsConfig, read
from fedpers.flower.clock import Clock, Effort
from fedpers.flower.sampling import drawn, reachable
from fedpers.results.files import read_csv

QUICK = ["data.num_clients=6", "data.limit=240", "model.hidden=[4]", "rounds=3"]
ALIKE = SystemsConfig("drawn", gflops=2.0, mbit_down=8.0, mbit_up=4.0, spread=0.0)


def clock(config=ALIKE, n=3, now=0.0):
    return Clock(Systems(config, n, 0), lambda g, f, h: g + 10 * f + 100 * h, now)


def test_an_exchange_takes_what_its_bytes_and_operations_take():
    """2 MB down at 1 MB/s, 6 GFLOP at 2 a second, 1 MB up at half a MB/s."""
    assert clock().seconds({1: Effort(2_000_000, 1_000_000, 6 * 10**9)}) == {1: pytest.approx(2 + 3 + 2)}


def efforts(*seconds):
    return {k: Effort(flops=int(s * 2 * 10**9)) for k, s in enumerate(seconds)}


@pytest.mark.parametrize(
    ("deadline", "most", "late", "now"),
    [
        (None, 3, set(), 5.0),  # as long as the slowest
        (None, 2, {0}, 2.0),  # as long as the second
        (3.0, 3, {0}, 3.0),  # until the deadline
        (3.0, 2, {0}, 2.0),  # enough before the deadline
        (1.5, 2, {0, 2}, 1.5),
        (9.0, 3, set(), 5.0),
    ],
)
def test_the_server_waits_for_the_first_or_until_the_deadline(deadline, most, late, now):
    c = clock(SystemsConfig("drawn", gflops=2.0, spread=0.0, deadline_s=deadline))
    assert c.pass_by(efforts(5.0, 1.0, 2.0), most, (1, 0)) == late
    assert c.now == pytest.approx(now)


def test_a_deadline_that_nobody_meets_is_named():
    c = clock(SystemsConfig("drawn", gflops=2.0, spread=0.0, deadline_s=0.5))
    with pytest.raises(ReplyError, match=r"systems.deadline_s=0.5: round 1: the fastest of 3 .* take 1 sim"):
        c.pass_by(efforts(5.0, 1.0, 2.0), 3, (1, 0))


def test_who_is_first_in_the_same_instant_is_drawn():
    """Each of four alike is among the first two in half of the rounds."""
    first = np.zeros(4)
    for t in range(1, 401):
        late = clock(n=4).pass_by(efforts(1.0, 1.0, 1.0, 1.0), 2, (t, 0))
        first += [k not in late for k in range(4)]
    assert np.all(np.abs(first / 400 - 0.5) < 4 * math.sqrt(0.25 / 400))


def test_speeds_are_log_normal_around_the_median():
    speeds = Systems(SystemsConfig("drawn", gflops=7.0, spread=0.5), 20_000, 3).at("gflops", 0.0)
    logs = np.log(speeds / 7.0)
    assert abs(logs.mean()) < 4 * 0.5 / math.sqrt(20_000) and abs(logs.std() - 0.5) < 0.01


def test_clients_are_there_as_often_as_said():
    systems = Systems(SystemsConfig("drawn", available=0.3), 1000, 0)
    there = np.mean([systems.available(t, 0.0) for t in range(1, 51)])
    assert abs(there - 0.3) < 4 * math.sqrt(0.21 / 50_000) and not systems.always


# ---- tables -----------------------------------------------------------------------------------------

TRACE = "client,since_s,gflops,available\n0,,4,1\n1,,8,0\n1,100,,1\n0,200,2,\n"


def test_a_table_says_what_changes_when(tmp_path):
    (tmp_path / "t.csv").write_text(TRACE)
    systems = Systems(SystemsConfig("table", path=str(tmp_path / "t.csv"), spread=0.0, gflops=5.0), 3, 0)
    assert [systems.at("gflops", now).tolist() for now in (0, 150, 200)] == [[4, 8, 5], [4, 8, 5], [2, 8, 5]]
    assert [systems.at("available", now).tolist() for now in (0, 99.9, 100)] == [
        [1, 0, 1],
        [1, 0, 1],
        [1, 1, 1],
    ]
    assert not systems.always


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,speed\n0,1\n", "column 'speed' is no column of such a table; columns: client, since_s"),
        ("gflops\n1\n", "column 'client' is missing"),
        ("client,gflops\n7,1\n", "line 2: client=7: expected a client below 3"),
        ("client,gflops\n0.5,1\n", "line 2: client=0.5"),
        ("client,gflops\n0,fast\n", "line 2: gflops=fast: expected a number"),
        ("client,gflops\n0,0\n", "line 2: gflops=0"),
        ("client,gflops\n0,nan\n", "line 2: gflops=nan"),
        ("client,available\n0,1.5\n", "line 2: available=1.5"),
        ("client,gflops\n0,1\n0,2\n", "client 0 has two rows since 0 s"),
        ("client,gflops\n0,1,2\n", "line 2 has other columns"),
        ("client,gflops\n,1\n", "line 2: no client"),
    ],
)
def test_a_table_with_a_fault_is_refused_by_its_line(tmp_path, text, said):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        read(tmp_path / "t.csv", 3)


def test_a_table_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none.csv: cannot be read"):
        read(tmp_path / "none.csv", 3)


# ---- who is asked -----------------------------------------------------------------------------------


def test_over_selection_asks_so_many_more():
    ids = list(range(10))
    asked = drawn(ids, 3, Plan(extra=2), np.random.default_rng(0), ids)
    assert len(asked) == 5 and asked == sorted(set(asked))
    assert drawn(ids, 3, Plan(extra=2), np.random.default_rng(0), [1, 2, 9]) == [1, 2, 9]


def test_only_clients_that_are_there_are_drawn():
    c = clock(SystemsConfig("drawn", available=0.5), n=40)
    for t in range(1, 6):
        there = reachable(range(40), c, t)
        assert 0 < len(there) < 40
        assert set(drawn(range(40), 8, Plan(), np.random.default_rng(t), there)) <= set(there)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["engine.extra=2", "clients_per_round=3"], "engine.extra=2: nobody is slower than another"),
        (["engine.extra=2", "systems=drawn"], "engine.extra=2: set clients_per_round="),
        (["systems.gflops=3"], "systems.gflops: without effect for systems=off"),
        (["systems=drawn", "systems.gflops=0"], "systems.gflops=0: must be above 0"),
        (["systems=drawn", "systems.available=1.2"], "systems.available=1.2: must be at most 1"),
        (["systems=drawn", "systems.path=x.csv"], "systems.path=x.csv: without effect"),
        (["systems=table"], "systems.path=null: give a csv file"),
        (["systems=drawn", "privacy=dp"], "systems=drawn privacy=dp: what privacy was spent"),
        (["systems=drawn", "engine=deployment"], "systems=drawn: real devices have their own time"),
    ],
)
def test_what_does_not_fit_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        compose.load(words)


def test_a_method_without_devices_refuses_their_clock(tmp_path, capsys):
    """It would stand in reports as one that takes no time."""
    assert main(["run", "method=central", *QUICK, "systems=drawn", f"out={tmp_path / 'a'}"]) == 2
    assert "systems= method=central: no device trains" in capsys.readouterr().err


def rows_of(out):
    return [r for r in read_csv(out / "metrics.csv")[0] if r["split"] == "train"]


@pytest.mark.parametrize("method", sorted(registry.METHODS))
def test_every_method_runs_on_devices_that_come_late_and_go_or_says_why_not(method):
    words = [f"method={method}", *QUICK, "clients_per_round=2", "device=cpu", "model=logistic"]
    words = [w for w in words if "hidden" not in w]
    slow = ["systems=drawn", "systems.available=0.7", "engine.extra=2"]
    try:
        compose.load([*words, *slow])
        parts = assemble(compose.load([*words, *slow]))
    except ConfigError as error:
        assert "set it to 0" in str(error) or "takes all" in str(error) or "clients_per_round" in str(error)
        return
    assert not parts.strategy.takes_all and not parts.strategy.draws_itself


@pytest.mark.parametrize("method", ["fedavg", "ditto", "pflego", "fedper", "pfedme", "ifca"])
def test_late_replies_change_who_is_averaged_and_time_is_told(tmp_path, method):
    if method not in registry.METHODS:
        pytest.skip("no such method")
    words = [*QUICK, "clients_per_round=2", "systems=drawn", "systems.spread=1", "engine.extra=2"]
    run = fedpers.run(method, *words, out=tmp_path / "a")
    rows = rows_of(run.paths[0])
    assert all(r["late"] >= 2 and r["virtual_seconds"] > 0 and r["failures"] == 0 for r in rows)


def test_time_goes_on_where_a_killed_run_left_it(tmp_path):
    words = [
        "method=fedavg",
        *QUICK,
        "clients_per_round=3",
        "systems=table",
        f"systems.path={tmp_path / 't.csv'}",
    ]
    (tmp_path / "t.csv").write_text(
        "client,since_s,gflops\n" + "".join(f"{k},0.008,0.001\n" for k in range(6))
    )
    assert main(["run", *words, "rounds=6", "checkpoint_every=1", f"out={tmp_path / 'a'}"]) == 0
    assert main(["run", *words, "rounds=3", "checkpoint_every=1", f"out={tmp_path / 'b'}"]) == 0
    assert main(["run", f"resume={tmp_path / 'b'}", "rounds=6"]) == 0
    one, other = ([r["virtual_seconds"] for r in rows_of(tmp_path / n)] for n in "ab")
    assert one == other and max(one) > 2 * min(one)  # devices became slow


def test_a_report_shows_simulated_hours_and_replies_that_were_left_out(tmp_path):
    extra = ["systems=drawn", "clients_per_round=2", "engine.extra=3"]
    words = ["run", "-m", "method=fedavg", "seed=0,1", *QUICK, *extra, f"out={tmp_path / 's'}"]
    assert main(words) == 0 and main(["report", str(tmp_path / "s")]) == 0
    text = (tmp_path / "s" / "report.md").read_text()
    assert "simulated hours" in text
    (heads,) = [line for line in text.splitlines() if "late a round" in line]
    row = text.splitlines()[text.splitlines().index(heads) + 2]
    assert dict(zip(heads.split("|"), row.split("|"), strict=True))[" late a round "] == " 3 "
    assert '"hours": ' in (tmp_path / "s" / "report.html").read_text()
