"""What all tests share."""

import copy
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpers.core.host import WANTED

for name, value in WANTED.items():  # as the command's own process does
    os.environ.setdefault(name, value)
torch.set_num_threads(1)

# Flower and TensorBoard import absl, whose log handler keeps the stderr of that moment and closes
# it when Hydra sets up logging anew: were that pytest's, every later test of the process would fail.
with redirect_stderr(sys.__stderr__):
    import absl.logging  # noqa: F401


@pytest.fixture(scope="session")
def data_root() -> Path:
    """A folder with the real data sets: $FEDPERS_DATA."""
    named = os.environ.get("FEDPERS_DATA")
    if not named:
        pytest.skip("no data sets: set FEDPERS_DATA to a folder that has them")
    return Path(named)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With --dist loadgroup a file's tests run in one worker, which makes the file's fixtures once; files
    with slow tests are first, so that none of them is left for the end, when one worker has nothing to do."""
    slow = set()
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("ray"):
            slow.add(item.path)
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    items.sort(key=lambda item: item.path not in slow)


# variables that pytest sets; that torch, Ray, Flower, W&B and scikit-learn set once they are imported or used
OTHERS = ("PYTEST_", "KMP_", "TORCHINDUCTOR_", "RAY_", "GRPC_", "BROWSER_USE_", "WANDB_SERVICE")
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SIGNALS = [s for s in HANDLED if signal.getsignal(s) is not signal.SIG_IGN]  # not what nohup ignores


def _process() -> dict[str, Any]:
    """What a run might change for its whole process, by name."""
    loggers = logging.root, logging.getLogger("fedpers")
    handlers = [h for x in loggers for h in x.handlers if not type(h).__module__.startswith("_pytest.")]
    signals = {int(s): signal.getsignal(s) for s in SIGNALS}
    return {
        "log handlers": handlers,
        **{f"${k}": v for k, v in os.environ.items() if not k.startswith(OTHERS)},
        "signal handlers": signals,
        "folder": Path.cwd(),
        "torch's threads": torch.get_num_threads(),
        "torch's type": torch.get_default_dtype(),
        "torch's determinism": torch.are_deterministic_algorithms_enabled(),
        "torch's gradients": torch.is_grad_enabled(),
    }


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A test that leaves its process otherwise than it found it fails: a later test, or a user's program
    that calls fedpers, would go on with that."""
    before = _process()
    yield
    after = _process()
    names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    left = {name: (before.get(name), after.get(name)) for name in sorted(names)}
    for handler in set(after["log handlers"]) - set(before["log handlers"]):
        logging.root.removeHandler(handler)
        logging.getLogger("fedpers").removeHandler(handler)
    for name in names:
        if name.startswith("$") and before.get(name) is None:
            del os.environ[name[1:]]
        elif name.startswith("$"):
            os.environ[name[1:]] = before[name]
    torch.set_num_threads(before["torch's threads"])
    assert not left, f"what the test left, as it was and as it is: {left}"


# What a run spends outside its training is the same for every run and costs more than a tiny run's
# training: a tenth of a second to read and merge our YAML files, three tenths to draw its pictures.


@pytest.fixture(scope="session", autouse=True)
def files_are_read_once() -> Iterator[None]:
    """Hydra reads and lists the package's YAML files once a session; folders of a test's own each time."""
    from hydra.core.plugins import Plugins

    Plugins.instance()  # which executes the module below anew: a class from before would not be Hydra's
    from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource

    def once(method: Any, found: dict[tuple[Any, ...], Any]) -> Any:
        def ask(self: Any, *args: Any, **options: Any) -> Any:
            key = (self.path, args, tuple(options.items()))
            if key not in found:
                found[key] = method(self, *args, **options)
            return copy.deepcopy(found[key])

        return ask

    with pytest.MonkeyPatch.context() as patch:
        for name in ("load_config", "list", "is_group", "is_config"):
            ask = once(getattr(ImportlibResourcesConfigSource, name), {})
            patch.setattr(ImportlibResourcesConfigSource, name, ask)
        yield


@pytest.fixture(scope="session", autouse=True)
def files_are_merged_once(files_are_read_once: None) -> Iterator[None]:
    """Commands that choose the same YAML files share what these were merged to; tests/test_composer.py
    holds that each gets what Hydra would have composed. Not with folders of a test's own."""
    from fedpers.config.hydra_internals import Composer

    begin = Composer.__init__
    merged: dict[tuple[str, ...], Any] = {}

    def begin_knowing(self: Any) -> None:
        begin(self)
        sources = self.loader.get_search_path().get_path()
        if not any((source.path or "").startswith("file:") for source in sources):
            self.chosen = merged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Composer, "__init__", begin_knowing)
        yield


@pytest.fixture
def nothing_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command merges its files anew: for tests that count."""
    from fedpers.config.hydra_internals import Composer

    begin = Composer.__init__

    def begin_empty(self: Any) -> None:
        begin(self)
        self.chosen = {}

    monkeypatch.setattr(Composer, "__init__", begin_empty)


@pytest.fixture(scope="session", autouse=True)
def drawing() -> Iterator[Any]:
    """Runs in this process draw nothing but where a test asks for `pictures`; returns what draws."""
    from fedpers.results.plots import curves

    draw = curves.draw_run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "draw_run", lambda *_: [])
        yield draw


@pytest.fixture
def pictures(drawing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw their pictures: for tests that look at them."""
    monkeypatch.setattr("fedpers.results.plots.curves.draw_run", drawing)
