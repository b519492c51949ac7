"""Ten mistakes that users make: one message each, status 2, no traceback, nothing lost."""

import shutil

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fedpers.app.cli import main

QUICK = ["data.num_clients=4", "rounds=2", "checkpoint_every=1"]


def mistake(capsys, *argv):
    """The one message on stderr of a command that must fail with status 2."""
    with pytest.raises(SystemExit) as left:
        raise SystemExit(main(list(argv)))
    text = capsys.readouterr().err
    assert left.value.code == 2, text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("method=pflgo", ["pflgo", "did you mean 'pflego'"]),
        ("method.taw=3", ["method.taw", "did you mean method.tau"]),
        ("rounds=ten", ["rounds=ten", "integer"]),
        ("rounds=-3", ["rounds=-3", "at least 1"]),
        ("data.partition=clases", ["clases", "did you mean 'classes'"]),
        ("data.num_clients=5000", ["5000"]),
        ("data=mnist", ["fedpers data fetch mnist"]),
        ("model=lenet", ["lenet", "8"]),
        ("clients_per_round=50", ["clients_per_round=50", "4 clients"]),
        ("device=cuda", ["device=cuda"]),
        ("engine.precision=tf32", ["engine.precision=tf32", "device=cuda", "bf16"]),
        ("engine.precision=bf8", ["engine.precision=bf8", "float32, tf32, bf16"]),
    ],
)
def test_one_clear_message(tmp_path, capsys, monkeypatch, override, parts):
    import torch

    if override in ("device=cuda", "engine.precision=tf32") and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    monkeypatch.setenv("FEDPERS_DATA", str(tmp_path / "nothing"))
    text = mistake(capsys, "run", *QUICK, f"out={tmp_path / 'run'}", override)
    assert all(part in text for part in parts), text


def test_all_mistakes_at_once(tmp_path, capsys):
    text = mistake(capsys, "run", "rounds=0", "method.tau=0", "method.betta=1", f"out={tmp_path / 'run'}")
    assert all(part in text for part in ("rounds=0", "tau=0", "betta")), text


def test_a_corrupt_idx_file(tmp_path, capsys, data_root, monkeypatch):
    raw = tmp_path / "MNIST" / "raw"
    shutil.copytree(data_root / "MNIST" / "raw", raw)
    damaged = next(p for p in raw.iterdir() if p.name.startswith("train-images") and p.suffix != ".gz")
    damaged.write_bytes(damaged.read_bytes()[:100_000])
    monkeypatch.setenv("FEDPERS_CACHE", str(tmp_path / "cache"))
    text = mistake(capsys, "run", *QUICK, "data=mnist", f"data.root={tmp_path}", f"out={tmp_path / 'run'}")
    assert damaged.name in text


def test_resume_from_a_truncated_checkpoint_keeps_what_was_written(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", *QUICK, f"out={out}"]) == 0
    results = [out / name for name in ("metrics.csv", "summary.json", ".hydra/config.yaml", "clients.csv")]
    before = [path.read_bytes() for path in results]
    state = next((out / "checkpoint").glob("round-*/state.safetensors"))
    state.write_bytes(state.read_bytes()[:50])
    text = mistake(capsys, "run", f"resume={out}", "rounds=4")
    assert "state.safetensors" in text
    assert [path.read_bytes() for path in results] == before


def test_resume_from_a_checkpoint_of_an_older_format(tmp_path, capsys):
    """Up to format 1, records were named by their module and files had no format."""
    out = tmp_path / "run"
    assert main(["run", *QUICK, f"out={out}"]) == 0
    before = (out / "metrics.csv").read_bytes()
    state = next((out / "checkpoint").glob("round-*/state.safetensors"))
    with safe_open(state, framework="np") as file:
        skeleton = file.metadata()["skeleton"].replace("pflego.State", "fedpers.strategies.pflego.State")
    save_file(load_file(state), state, metadata={"skeleton": skeleton})
    text = mistake(capsys, "run", f"resume={out}", "rounds=4")
    assert "state.safetensors is of format 1" in text and "start the run anew" in text
    assert (out / "metrics.csv").read_bytes() == before


def test_resume_without_a_run(tmp_path, capsys):
    assert str(tmp_path / "none") in mistake(capsys, "run", f"resume={tmp_path / 'none'}")


def test_unwritable_out(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert "out=" in mistake(capsys, "run", *QUICK, f"out={tmp_path / 'file' / 'run'}")


def test_out_of_disk(tmp_path, capsys, monkeypatch):
    from fedpers.results import checkpoint

    def full(path, body):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_record", full)
    text = mistake(capsys, "run", *QUICK, f"out={tmp_path / 'run'}")
    assert "No space left on device" in text
    assert (tmp_path / "run" / "metrics.csv").exists()


def test_a_mistake_before_the_first_round_does_not_occupy_its_folder(tmp_path, capsys):
    out = f"out={tmp_path / 'run'}"
    mistake(capsys, "run", *QUICK, "data.num_clients=5000", out)
    assert main(["run", *QUICK, out]) == 0
    assert "there is a run already" in mistake(capsys, "run", *QUICK, out)
