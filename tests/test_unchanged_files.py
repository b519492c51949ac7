"""A run goes on, and its models leave it, with the files of data that it began with and no others."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from fedpers.app.cli import main
from fedpers.datasets.unchanged import checksum
from tests.own_nets import FrozenDigits
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
    (out / ".hydra" / "files.json").unlink()
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


def refused(out, key, capsys):
    capsys.readouterr()
    for words in (["run", f"resume={out}", "rounds=2"], ["export", str(out), "--client", "0"]):
        assert main(words) == 2
        assert capsys.readouterr().err.startswith(f"fedpers: error: {key}: has changed since the run began")


def test_other_weights_of_a_frozen_body_are_refused(tmp_path, capsys):
    """Whose model would else be one that nobody has trained."""
    net, file, out = FrozenDigits(), tmp_path / "base.safetensors", tmp_path / "out"
    save_file(net.state_dict(), file)
    words = ["model=module", "model.path=tests.own_nets:FrozenDigits", f"model.weights={file}"]
    words = [*words, "data=digits", "data.num_clients=4", "rounds=1", "observers=[]", f"out={out}"]
    assert main(["run", "method=fedavg", *words]) == 0
    assert main(["run", f"resume={out}", "rounds=2"]) == 0
    with torch.no_grad():
        next(net.parameters())[0] += 1
    save_file(net.state_dict(), file)
    refused(out, f"model.weights={file}", capsys)


def test_other_public_samples_are_refused(tmp_path, capsys):
    file, out = tmp_path / "public.csv", tmp_path / "out"
    data = tables(tmp_path / "data")
    file.write_bytes((data / "anna.csv").read_bytes())
    words = ["method=fedmd", "model=mlp", "data=files", f"data.path={data}", f"data.public_file={file}"]
    assert main(["run", *words, "rounds=1", "observers=[]", f"out={out}"]) == 0
    file.write_bytes((data / "ben.csv").read_bytes())
    refused(out, f"data.public_file={file}", capsys)


def test_another_set_of_hugging_face_in_the_same_folder_is_refused(tmp_path, capsys):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    folder, out = tmp_path / "mine", tmp_path / "out"
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        columns = {"a": rng.normal(size=40), "label": [0, 1] * 20, "client": ["anna", "ben"] * 20}
        datasets.Dataset.from_dict(columns).save_to_disk(folder)
        if seed == 0:
            words = [f"data.name={folder}", "data.partition=natural", "data.num_clients=null", "rounds=1"]
            words = ["data=huggingface", *words, "model=logistic", "observers=[]", f"out={out}"]
            assert main(["run", "method=fedavg", *words]) == 0
    refused(out, f"data.name={folder}", capsys)
