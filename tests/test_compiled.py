"""Kernels are compiled once, outlive a process that is killed meanwhile, and leave nothing behind."""

import ctypes
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedpers.core import compiled as module
from fedpers.core import sums
from fedpers.core.compiled import Patience, compiled
from fedpers.learning.kernels import library
from tests.deployment.matrix import fault

# -O0: what is asked is who compiles when and what is left, not how fast the code is
SLOW = '#!/bin/sh\nsleep {seconds}\nexec {cc} "$@" -O0\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDPERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "patience", Patience())
    path = tmp_path / "one.c"
    path.write_text("int one(void) { return 41; }\n")
    return path


def slow_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    import shutil

    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "cc"
    script.write_text(SLOW.format(seconds=seconds, cc=cc))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def left(tmp_path: Path) -> list[str]:
    return sorted(p.suffix for p in (tmp_path / "cache").iterdir())


def wait_for(tmp_path: Path) -> None:
    until = time.monotonic() + 60
    while left(tmp_path) != [".so"] and time.monotonic() < until:
        time.sleep(0.1)


def test_who_is_patient_gets_the_library(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_compiler(tmp_path, monkeypatch, 0.2)
    assert compiled([source]).one() == 41
    assert left(tmp_path) == [".so"]


@fault(15)
def test_who_is_not_goes_on_without_it_and_finds_it_later(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_compiler(tmp_path, monkeypatch, 1.5)
    module.patience.seconds = 0.1
    assert compiled([source]) is None and not module.patience.rewarded
    wait_for(tmp_path)
    assert module.patience.rewarded and compiled([source]).one() == 41


@fault(15)
def test_a_process_that_is_killed_meanwhile_does_not_begin_for_ever(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_compiler(tmp_path, monkeypatch, 1.5)
    code = "import sys, pathlib as p, fedpers.core.compiled as c; c.compiled([p.Path(sys.argv[1])])"
    process = subprocess.Popen([sys.executable, "-c", code, str(source)], start_new_session=True)
    until = time.monotonic() + 60
    while not list((tmp_path / "cache").glob("*")) and time.monotonic() < until:
        if (tmp_path / "cache").is_dir():
            break
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(tmp_path)
    assert left(tmp_path) == [".so"] and compiled([source]).one() == 41


def test_a_source_that_does_not_compile_leaves_nothing(tmp_path: Path, source: Path) -> None:
    source.write_text("this is no C\n")
    assert compiled([source]) is None
    assert left(tmp_path) == []


def test_what_killed_compilers_left_is_removed(tmp_path: Path, source: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "tmpold").mkdir(parents=True)
    for name in ("native-0.so.1.part", "native-0.so.2.part"):
        (cache / name).touch()
    for old in ("tmpold", "native-0.so.1.part"):
        os.utime(cache / old, (0, 0))
    compiled([source])
    names = {p.name for p in cache.iterdir()}
    assert not names & {"tmpold", "native-0.so.1.part"} and "native-0.so.2.part" in names


V2, V3, V4 = (" ".join(sorted(parts)) for parts in reversed(module.LEVELS["x86_64"].values()))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
@pytest.mark.parametrize(
    ("flags", "level"), [(V4, "v4"), (V3, "v3"), (f"{V3} avx512f", "v3"), (V2, "v2"), ("sse2", "none")]
)
def test_an_image_holds_a_library_for_each_level_and_the_best_that_runs_is_taken(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, flags: str, level: str
) -> None:
    """The code tells what it was compiled for; no compiler is left when it is used."""
    slow_compiler(tmp_path, monkeypatch, 0.0)
    monkeypatch.setattr(module, "PREBUILT", tmp_path / "prebuilt")
    source.write_text(
        "int one(void) {\n#ifdef __AVX512F__\nreturn 4;\n#elif defined(__AVX2__)\nreturn 3;\n"
        "#elif defined(__SSE4_2__)\nreturn 2;\n#else\nreturn 1;\n#endif\n}\n"
    )
    assert len(module.build_portable([source])) == 3
    monkeypatch.setattr(module, "_flags", lambda: f"flags : fpu {flags}")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = module.portable([source])
    assert (found.stem.rpartition("-")[2] if found else "none") == level
    assert (compiled([source]) is None) == (level == "none")
    if found and level in ("v2", "v3"):  # whether a v4 runs depends on this machine
        assert ctypes.CDLL(str(found)).one() == int(level[1])


def test_a_library_of_other_sources_is_not_taken(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_compiler(tmp_path, monkeypatch, 0.0)
    monkeypatch.setattr(module, "PREBUILT", tmp_path / "prebuilt")
    module.build_portable([source])
    source.write_text("int one(void) { return 42; }\n")
    assert module.portable([source]) is None and compiled([source]).one() == 42


SOURCES = {"kernels": library.SOURCES, "sums": sums.SOURCES}
TARGETS = [("cc", "x86_64", "-march=x86-64"), ("aarch64-linux-gnu-gcc", "", "-march=armv8-a")]


@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize(("compiler", "machine", "march"), TARGETS)
def test_other_processors_are_compiled_for(
    compiler: str, machine: str, march: str, sources: str, tmp_path: Path
) -> None:
    """Without AVX2, and for another family; what this machine has is compiled for by every other test.

    -O0: a compiler refuses instructions that a processor lacks before it optimises.
    """
    if shutil.which(compiler) is None or machine not in ("", platform.machine()):
        pytest.skip(f"no {compiler} for {march}")
    flags = [march if f == "-march=native" else f for f in module.FLAGS]
    code = [str(s) for s in SOURCES[sources] if s.suffix == ".c"]
    command = [compiler, *flags, "-O0", "-Wall", "-Werror=implicit-function-declaration", *code]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out.so"), "-lm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_more_flags_make_another_library(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source.write_text("int one(void) { return ONE; }\n")
    for value in (1, 2):
        monkeypatch.setenv("FEDPERS_CFLAGS", f"-DONE={value}")
        assert compiled([source]).one() == value
