"""What we need of Hydra's private modules; a new version of Hydra can break this file alone."""

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

import hydra
import hydra.utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import _run_hydra, create_config_search_path, get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig

from fedpers.core.errors import ConfigError

# Hydra's defaults as of 1.3, which 1.3 asks for by name; 1.4 has these alone, and no longer wants to be asked
BASE: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
CALLED = ["fedpers.*", "logging.*", "hydra.*", "hydra_plugins.*", "colorlog.*"]  # by its configs


def search_first(folder: str, package: str) -> None:
    """Have Hydra, which is initialised, look for YAML files in `folder`, then in the Python package."""
    path = create_config_search_path(f"pkg://{package}")
    path.prepend("command-line", f"file://{folder}")
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2("fedpers", path)


def sweep_jobs(lines: list[str]) -> list[list[str]]:
    """The overrides of each run of a sweep, as Hydra's basic sweeper makes them; [] for another sweeper."""
    loader = GlobalHydra.instance().config_loader()
    cfg = loader.load_configuration("config", lines, RunMode.MULTIRUN, validate_sweep_overrides=False)
    settings = cfg.hydra
    if not settings.sweeper._target_.endswith(".BasicSweeper"):
        return []  # it chooses its runs while it goes on
    params = [f"{k}={v}" for k, v in (settings.sweeper.params or {}).items()]
    parsed = OverridesParser.create(loader).parse_overrides([*params, *settings.overrides.task])
    batches = BasicSweeper.split_arguments(parsed, None)
    return [[*settings.overrides.hydra, *job] for batch in batches for job in batch]


class Composer:
    """`hydra.compose`, for many runs: the files that a choice of groups leads to are read and merged once.

    Of a sweep most runs differ in values alone, and reading the files is nearly all of a composition.
    """

    def __init__(self) -> None:
        self.loader: Any = GlobalHydra.instance().config_loader()
        self.chosen: dict[tuple[str, ...], DictConfig] = {}  # by the overrides that pick files

    def __call__(self, lines: list[str]) -> DictConfig:
        files: list[str] = []
        values: list[Override] = []
        for override in OverridesParser.create().parse_overrides(lines):
            if self._picks_files(override):
                files.append(str(override.input_line))
            else:
                values.append(override)
        key = tuple(files)
        if key not in self.chosen:
            self.chosen[key] = hydra.compose("config", overrides=files)
        cfg = copy.deepcopy(self.chosen[key])
        ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
        return cfg

    def _picks_files(self, override: Override) -> bool:
        """Hydra's own rule; and what is for Hydra itself, which a composed config no longer holds."""
        if override.is_hydra_override():
            return True
        return self.loader.repository.group_exists(override.key_or_group) and not isinstance(
            override.value(), dict
        )


def parse_arguments(argv: Sequence[str], program: str) -> Any:
    """Hydra's command line options and overrides, in any order, as a namespace of argparse.

    Raises:
        ConfigError: an option is none of Hydra's.
    """
    return _parser(program).parse_intermixed_args(list(argv))


def run_hydra(args: Any, program: str, package: str, job: Callable[[DictConfig], Any]) -> None:
    """Do what the options `args` ask for: show a config or help, or compose, name folders and call `job`.

    Of a sweep, `compose.prepare` has checked the runs that `sweep_jobs` names.
    """
    with _checked_before(), _allowed():
        _run_hydra(args, _parser(program), job, f"pkg://{package}", "config")


def _allowed() -> AbstractContextManager[Any]:
    """What configs of Hydra's own may call: our log lines, its plugins. Hydra before 1.4 does not ask."""
    allow = getattr(hydra.utils, "execution_whitelist", None)
    return allow(CALLED) if allow else nullcontext()


@contextmanager
def _checked_before() -> Iterator[None]:
    """Have the basic sweeper compose each run once, where it starts it, and not all before that too."""
    check: Any = Sweeper.validate_batch_is_legal

    def check_others(self: Sweeper, batch: Sequence[Sequence[str]]) -> None:
        if type(self).__name__ != BasicSweeper.__name__:  # by name: Hydra imports its plugins once more
            check(self, batch)

    Sweeper.validate_batch_is_legal = check_others  # type: ignore[method-assign]
    try:
        yield
    finally:
        Sweeper.validate_batch_is_legal = check  # type: ignore[method-assign]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong by an error of ours, and not by a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see fedpers run --help")


def _parser(program: str) -> Any:
    with _help_of_any_type():
        parser = get_args_parser()
    parser.prog, parser.__class__ = program, _Parser
    for action in parser._actions:
        action.help = str(action.help).splitlines()[0] if action.help else None
    return parser


@contextmanager
def _help_of_any_type() -> Iterator[None]:
    """Let Hydra 1.3 give an option a help that is no text, which argparse looks at from Python 3.14 on."""
    check = getattr(argparse.ArgumentParser, "_check_help", None)
    if check is None:
        yield
        return
    argparse.ArgumentParser._check_help = lambda self, action: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del argparse.ArgumentParser._check_help  # type: ignore[attr-defined]
        if getattr(argparse.ArgumentParser, "_check_help", None) is not check:  # it was this class's own
            argparse.ArgumentParser._check_help = check  # type: ignore[attr-defined]
