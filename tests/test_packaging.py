"""The wheel holds every module and every config of the tree, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.wheels import INSIDE, ROOT, build, copy_tree


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel of a copy of the tree: no network, and no trace in the tree itself."""
    copy = tmp_path_factory.mktemp("tree")
    copy_tree(copy)
    return zipfile.ZipFile(build(copy))


def test_the_wheel_is_the_tree(wheel: zipfile.ZipFile) -> None:
    kinds = ("py", "pyi", "typed", "c", "h", "j2", "css", "js", "tmpl", "service", "conf")
    core = [p for kind in kinds for p in (ROOT / "fedpers").rglob(f"*.{kind}")]
    expected = {p.relative_to(ROOT).as_posix() for p in core}
    for folder in INSIDE:
        files = [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.yaml")]
        expected |= {f"fedpers/{p.relative_to(ROOT).as_posix()}" for p in files}
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert len([name for name in found if name.endswith(".yaml")]) > 0


def test_the_wheel_has_no_top_level_names_but_ours(wheel: zipfile.ZipFile) -> None:
    top = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"fedpers"}


def test_the_wheel_offers_the_command_and_carries_the_license(wheel: zipfile.ZipFile) -> None:
    def info(ending: str) -> str:
        return wheel.read(next(n for n in wheel.namelist() if n.endswith(ending))).decode()

    assert "fedpers = fedpers.app.cli:main" in info(".dist-info/entry_points.txt")
    assert "Apache License" in info("/LICENSE")
    assert "License-Expression: Apache-2.0" in info(".dist-info/METADATA")


def test_the_installed_package_imports_from_anywhere(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = (
        "import fedpers, fedpers.conf, fedpers.strategies.fedavg, fedpers.clients.fedavg; "
        "print(fedpers.__file__, fedpers.strategies.fedavg.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(tmp_path)) for path in done.stdout.split())


def test_datasets_stays_without_init_so_that_it_shadows_nobodys_package() -> None:
    assert (ROOT / "conf" / "__init__.py").is_file()
    for folder in ("strategies", "clients", "datasets"):
        assert not (ROOT / folder / "__init__.py").exists()
