"""`flwr run .`: a node keeps its client's states under the id of the run, which no other run has."""

from types import SimpleNamespace

import pytest

from fedpers.app import client_app, server_app
from fedpers.app.run import execute
from fedpers.bench.app_grid import AppGrid
from fedpers.config import compose
from fedpers.core.errors import CheckpointError, ConfigError, ReplyError
from fedpers.results.files import read_csv

WORDS = "method=fedper data.num_clients=4 data.partition=classes data.classes_per_client=2 seed=3"


@pytest.fixture
def flwr_run(tmp_path, monkeypatch):
    """The app that `flwr run . --run-config "overrides='...'"` starts, on nodes of this process."""
    monkeypatch.setenv("FEDPERS_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def start(words):
        for kept in (client_app._files, client_app._cohort):
            kept.cache_clear()  # each run has processes of its own
        config = {"overrides": words}
        server_app.main(AppGrid(client_app.app, 4, config), SimpleNamespace(run_config=config))

    return start


def losses(out):
    return [row["loss"] for row in read_csv(out / "metrics.csv")[0] if row["split"] == "test"]


def in_process(words, out):
    execute(compose.load(words.split()), out)
    return losses(out)


@pytest.mark.parametrize("other", ["rounds=2", "rounds=2 clients_per_round=2"])
def test_no_run_starts_from_what_another_left(flwr_run, tmp_path, other):
    """The runs have one method, data, model and seed, and differ in rounds or cohort."""
    flwr_run(f"{WORDS} rounds=4 out=first")
    flwr_run(f"{WORDS} {other} out=second")
    assert losses(tmp_path / "second") == in_process(f"{WORDS} {other}", tmp_path / "alone")
    folders = list((tmp_path / "state").iterdir())
    assert len(folders) == 2 and all(f.stat().st_mode & 0o077 == 0 for f in folders)


def test_a_run_that_goes_on_finds_its_own_states(flwr_run, tmp_path):
    flwr_run(f"{WORDS} rounds=2 out=run")
    flwr_run(f"{WORDS} rounds=5 out=other")
    flwr_run(f"{WORDS} rounds=4 resume=run")
    assert losses(tmp_path / "run") == in_process(f"{WORDS} rounds=4", tmp_path / "alone")


def test_a_run_goes_on_as_itself_and_where_its_states_are(flwr_run, tmp_path):
    flwr_run(f"{WORDS} rounds=2 out=run")
    execute(compose.load(f"{WORDS} rounds=2".split()), tmp_path / "alone")
    with pytest.raises(ConfigError, match="another run is there \\(seed: 3 there, 4 here"):
        flwr_run(f"{WORDS} rounds=4 resume=run".replace("seed=3", "seed=4"))
    with pytest.raises(ConfigError, match="leave out out="):
        flwr_run(f"{WORDS} rounds=4 resume=run out=elsewhere")
    with pytest.raises(CheckpointError, match="did not keep their own states; go on with it by  fedpers run"):
        flwr_run(f"{WORDS} rounds=4 resume=alone")
    with pytest.raises(CheckpointError, match="keep their own states; continue it with  flwr run"):
        execute(compose.resumed(tmp_path / "run", ["rounds=4", "engine.name=inprocess"]), tmp_path / "run")


@pytest.mark.parametrize("run", ["", "../../x", "A" * 32, "0" * 31])
def test_an_order_of_no_run_is_refused(flwr_run, tmp_path, monkeypatch, run):
    """The id becomes a folder's name, so nothing else may come from the network."""
    from fedpers.flower.strategy import PersonalizedStrategy

    begin = PersonalizedStrategy.__init__

    def other(self, *args, **more):
        begin(self, *args, **more)
        self.run_id = run

    monkeypatch.setattr(PersonalizedStrategy, "__init__", other)
    with pytest.raises(ReplyError, match="expected an id of 32 hexadecimal digits"):
        flwr_run(f"{WORDS} rounds=2 out=run")
    assert not (tmp_path / "state").exists()
