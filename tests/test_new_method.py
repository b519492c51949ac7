"""`fedpers new-method`: a package that the command knows; tests/test_installed.py runs its own tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedpers.app.cli import main
from fedpers.app.new_method import FILES

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A new package."""
    folder = tmp_path_factory.mktemp("new") / "mine"
    assert main(["new-method", "soft_mix", "--out", str(folder)]) == 0
    return folder


def test_the_command_knows_it_once_it_is_installed(package, tmp_path):
    """Installed is: on the path, with the metadata that an installer writes from pyproject.toml."""
    info = package / "src" / "fedpers_soft_mix-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fedpers-soft-mix\nVersion: 0.1.0\n")
    line = re.search(r'^soft_mix = "(.+)"$', (package / "pyproject.toml").read_text(), re.M)
    (info / "entry_points.txt").write_text(f"[fedpers.methods]\nsoft_mix = {line[1]}\n")
    words = [
        "method=soft_mix",
        "method.alpha=0.3",
        "rounds=1",
        "data.num_clients=3",
        f"out={tmp_path / 'run'}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "fedpers", "run", *words, "--config-dir", str(package / "conf")],
        env={**os.environ, "PYTHONPATH": str(package / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "alpha: 0.3" in (tmp_path / "run" / ".hydra" / "config.yaml").read_text()


def test_it_is_the_template_of_the_documentation(package):
    """The two pairs say the same, names and layout aside."""

    def words(path: Path) -> list[str]:
        text = re.sub(r'^""".*?^"""', "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        text = re.sub(r"^(from|import) [^(\n]*(\(.*?\))?$", "", text, flags=re.M | re.S)
        text = re.sub(r'""".*?"""', "", text, flags=re.S)
        text = text.replace("SoftMix", "Template").replace('@record("soft_mix.', '@record("')
        text = re.sub(r'@record\("\w+"\)', "@record", text)
        return re.findall(r"[\w.@αβ]+", re.sub(r"#.*", "", text))

    for side, file in (("clients", "client.py"), ("strategies", "strategy.py")):
        theirs = ROOT / "docs" / "template" / f"{side}_apfl_fixed.py"
        assert words(package / "src" / "fedpers_soft_mix" / file) == words(theirs)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("My-Method", "must be small letters"),
        ("class", "must be small letters"),
        ("fedavg", "there is a method of that name"),
    ],
)
def test_a_name_that_cannot_be(name, text, tmp_path, capsys):
    assert main(["new-method", name, "--out", str(tmp_path / "x")]) == 2
    assert text in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_a_folder_with_something_in_it_is_left_alone(package, capsys):
    assert main(["new-method", "other", "--out", str(package)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_every_template_is_written():
    folder = ROOT / "fedpers" / "app" / "new_method_files"
    assert {p.name.removesuffix(".tmpl") for p in folder.iterdir()} == set(FILES)
