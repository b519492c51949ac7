"""A run goes on, and its models leave it, with the files of data that it began with and no others."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedpers.app.cli import main
from fedpers.datasets.unchanged import checksum
from tests.test_run_folder import content


def tables(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for client in ("anna", "ben"):
        rows = "".join(f"{a:.3f},{b:.3f},{int(a > 0)}\n" for a, b in rng.normal(size=(30, 2)))
        (folder / f"{client}.csv").write_text(f"a,b,label\n{rows}", encoding="utf-8")
    return folder


def began(tmp_path: Path) -> tuple[Path, Path]:
    data, out = tables(tmp_path / "data"), tmp_path / "out"
    words = ["method=fedper", "model=mlp", "data=files", f"data.path={data}", "rounds=1", "observers=[]"]
    assert main(["run", *words, f"out={out}"]) == 0
    return data, out


def changed_value(data):
    """The last row's class."""
    text = (data / "ben.csv").read_text(encoding="utf-8").rstrip()
    (data / "ben.csv").write_text(f"{text[:-1]}{1 - int(text[-1])}\n", encoding="utf-8")


def gone_column(data):
    for file in data.iterdir():
        lines = file.read_text(encoding="utf-8").splitlines()
        file.write_text("\n".join(line.split(",", 1)[1] for line in lines) + "\n", encoding="utf-8")


def another_client(data):
    shutil.copy(data / "anna.csv", data / "carl.csv")


def other_name(data):
    (data / "ben.csv").rename(data / "bob.csv")


@pytest.mark.parametrize("change", [changed_value, gone_column, another_client, other_name])
def test_files_that_have_changed_are_refused(change, tmp_path, capsys):
    data, out = began(tmp_path)
    before = content(out)
    change(data)
    capsys.readouterr()
    for words in (["run", f"resume={out}", "rounds=2"], ["export", str(out), "--client", "0"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert (
            said.startswith(f"fedpers: error: data.path={data}: has changed") and "put the files back" in said
        )
        assert content(out) == before


def test_the_same_files_elsewhere_in_time_and_beside_others_are_taken(tmp_path):
    data, out = began(tmp_path)
    for file in data.iterdir():
        text = file.read_bytes()
        file.unlink()
        file.write_bytes(text)  # another time of change, perhaps another order
    (data / "README.txt").write_text("notes of mine", encoding="utf-8")
    (data / ".cache").mkdir()
    assert main(["run", f"resume={out}", "rounds=2"]) == 0
    assert main(["export", str(out), "--client", "0"]) == 0


def test_a_run_that_noted_no_checksum_goes_on(tmp_path):
    data, out = began(tmp_path)
    (out / ".hydra" / "data.sha256").unlink()
    changed_value(data)
    assert main(["run", f"resume={out}", "rounds=2"]) == 0


def test_a_relative_path_from_another_folder_is_told(tmp_path, monkeypatch, capsys):
    tables(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    words = ["method=fedper", "model=mlp", "data=files", "data.path=data", "rounds=1", "observers=[]"]
    assert main(["run", *words, "out=out"]) == 0
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    capsys.readouterr()
    assert main(["run", "resume=../out", "rounds=2"]) == 2
    said = capsys.readouterr().err
    assert "data.path=data: the run's data are not here" in said and "call this command there" in said


def test_the_checksum_is_of_names_and_contents(tmp_path):
    """Of a folder of images: a class renamed is another set; of one file: its name does not count."""
    for k in "ab":
        folder = tmp_path / "set" / "anna" / k
        folder.mkdir(parents=True)
        Image.fromarray(np.full((4, 4), 7, np.uint8)).save(folder / "1.png")
    before = checksum(tmp_path / "set")
    (tmp_path / "set" / "anna" / "b").rename(tmp_path / "set" / "anna" / "c")
    assert checksum(tmp_path / "set") != before
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("a,label\n1,0\n", encoding="utf-8")
    shutil.copy(one, two)
    assert checksum(one) == checksum(two)
