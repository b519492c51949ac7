"""What a release is made of: sdist and wheel, their metadata, one version, the bundle of a Flower app."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import fedpers
from tests.wheels import ROOT, build, copy_tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with its sdist and its wheel in dist/."""
    copy = tmp_path_factory.mktemp("tree")
    copy_tree(copy)
    build(copy, "sdist")
    build(copy)
    return copy


def test_an_index_would_take_them(tree: Path) -> None:
    pytest.importorskip("twine", reason="twine is not installed: pip install twine")
    files = sorted(map(str, (tree / "dist").iterdir()))
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def test_the_wheel_of_the_sdist_is_the_wheel(tree: Path, tmp_path: Path) -> None:
    sdist, wheel = next((tree / "dist").glob("*.tar.gz")), next((tree / "dist").glob("*.whl"))
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build(next(tmp_path.iterdir()))
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_there_is_one_version(tree: Path) -> None:
    names = {p.name for p in (tree / "dist").iterdir()}
    version = fedpers.__version__
    assert names == {f"fedpers-{version}.tar.gz", f"fedpers-{version}-py3-none-any.whl"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version and citation["cff-version"] == "1.2.0"
    assert {"title", "authors", "message", "license"} <= citation.keys()


def test_flower_makes_its_bundle(tree: Path) -> None:
    """`flwr build`, what a SuperLink and Flower's hub take."""
    done = subprocess.run(
        [sys.executable, "-c", "from flwr.cli.app import app; app()", "build", "--app", "."],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (bundle,) = tree.glob("*.fab")
    inside = set(zipfile.ZipFile(bundle).namelist())
    assert {"pyproject.toml", "fedpers/app/server_app.py", "conf/config.yaml", "clients/fedavg.py"} <= inside
