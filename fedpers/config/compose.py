"""Command line overrides to a RunConfig, by way of Hydra; every mistake is collected."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedpers.config import hydra_internals, registry, run_names, search, slips
from fedpers.config.hydra_internals import Composer
from fedpers.config.run_config import RESUMABLE, RunConfig, from_mapping
from fedpers.core.errors import ConfigError, unknown
from fedpers.datasets.registry import DATASETS, data_sets

CONF = "fedpers.conf"
GROUPS = ("method", "data", "model", "engine", "aggregation", "privacy", "systems", "experiment")
OWN_FILES = "Files of your own are read by data=files data.path=FILE (docs/own_data.md)"


def load(overrides: Sequence[str] = ()) -> RunConfig:
    """One run from Hydra overrides, e.g. load(["method=fedavg", "rounds=3"]).

    Raises:
        ConfigError: lists every mistake.
    """
    with _hydra() as compose:
        lines, problems = _tidy(compose, overrides, sweep=False)
        problems += [
            f"{key}= is for the command that makes many runs, fedpers run; this is one"
            for key in search.KEYS
            if key in (o.key_or_group for o in _parsed(lines))
        ]
        return _load(compose, lines, problems)


def prepare(
    overrides: Sequence[str], sweep: bool, config_dir: str | None = None
) -> tuple[list[str], search.SweepConfig]:
    """(the overrides as Hydra takes them, how their runs are to be made), after each run was checked.

    `config_dir` is a folder of the user's own YAML files, searched before ours.

    Raises:
        ConfigError: lists every mistake.
    """
    with _hydra(config_dir) as compose:
        lines, problems = _tidy(compose, overrides, sweep)
        parsed = _parsed(lines)
        problems += slips.given_twice(parsed)
        one = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
        jobs = hydra_internals.sweep_jobs(lines) if sweep and not problems else [one]
        for job in _unlike(jobs):
            try:
                _load(compose, job, [])
            except ConfigError as error:
                problems += [p for p in error.problems if p not in problems]
        if problems:
            raise ConfigError(*problems)
        values: Any = OmegaConf.to_container(compose(jobs[0] if jobs else []))
    settings = search.sweep_config(values, [])
    assert settings is not None  # its values were checked with the first run's
    _check_settings(settings, parsed, sweep, jobs)
    return [*lines, *(run_names.settings(parsed, jobs) if sweep else ())], settings


def _unlike(jobs: Iterable[list[str]]) -> Iterator[list[str]]:
    """Of jobs that are alike but for their seed the first, and each seed once: to compose one takes long."""
    seen = set[tuple[str, ...]]()
    for job in jobs:
        seed = tuple(word for word in job if word.startswith("seed="))
        others = tuple(word for word in job if word not in seed)
        if not {seed, others} <= seen:
            seen |= {seed, others}
            yield job


def _check_settings(
    settings: search.SweepConfig, parsed: Sequence[Override], sweep: bool, jobs: Sequence[Any]
) -> None:
    """Raise ConfigError where the keys of the command do not go with its runs, `jobs`."""
    given = [o for o in parsed if o.key_or_group in search.KEYS]
    for override in given:
        if override.is_sweep_override():
            raise ConfigError(f"{override.key_or_group}: takes one value, for all runs")
    names = [o.key_or_group for o in given]
    if not jobs and names:
        raise ConfigError(f"{names[0]}=: Hydra's own sweeper only; the chosen one has options of its own")
    if settings.jobs != 1 and "jobs" in names and not sweep and not settings.tune:
        raise ConfigError(f"jobs={settings.jobs}: this command makes one run only; add -m and several values")


def space(cfg: DictConfig, overrides: Sequence[str]) -> list[str]:
    """What a search may try for the method of a composed config; not what the user's overrides fix."""
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    return search.space_of(plain, [o.key_or_group for o in _parsed(overrides)])


def from_omegaconf(cfg: DictConfig, overrides: Sequence[str] = ()) -> RunConfig:
    """One run from a composed config; `overrides` are the user's, which `hyper:` does not change.

    Raises:
        ConfigError: lists every mistake.
    """
    try:
        plain: Any = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(first_line(error)) from error
    plain.pop("hydra", None)
    parsed = _parsed(overrides)
    chosen = [str(o.value()) for o in parsed if o.key_or_group == "experiment"]
    if chosen:
        plain["experiment"] = chosen[-1]
    return from_mapping(plain, [o.key_or_group for o in parsed])


def choices(group: str) -> list[str]:
    """The names that `group=` may be, those of other packages included."""
    with _hydra():
        return _choices(group)


def resumed(folder: Path, overrides: Sequence[str]) -> RunConfig:
    """The run in `folder`, to go on with; `overrides` may change only what `RESUMABLE` names.

    Raises:
        ConfigError: there is no run in the folder, or an override may not change.
    """
    path = folder / ".hydra" / "config.yaml"
    if not path.is_file():
        raise ConfigError(
            f"resume={folder}: no run there ({path} does not exist); "
            f"give a run directory, such as runs/<date>/<time>-..."
        )
    try:
        saved: Any = OmegaConf.load(path)
    except Exception as error:  # whatever YAML finds wrong with a damaged file
        raise ConfigError(f"resume={folder}: {path} cannot be read: {first_line(error)}") from error
    with _hydra() as compose:
        lines, problems = _tidy(compose, overrides, sweep=False)
        keys = [o.key_or_group for o in _parsed(lines)]
        problems += [
            f"{k} cannot change when a run is resumed; only {', '.join(RESUMABLE)} can"
            for k in keys
            if k.split(".")[0] not in RESUMABLE
        ]
        if problems:
            raise ConfigError(*problems)
        changed = _changes(compose(lines), keys)
    return from_omegaconf(OmegaConf.merge(saved, changed, {"resume": str(folder)}))  # type: ignore[arg-type]


def _changes(composed: DictConfig, keys: list[str]) -> DictConfig:
    """The part of the config that the overrides set; a whole group where they pick a file."""
    changed = OmegaConf.create({})
    for key in keys:
        OmegaConf.update(changed, key, OmegaConf.select(composed, key), force_add=True)
    return changed


# --- inside Hydra --------------------------------------------------------------------------------


@contextmanager
def _hydra(config_dir: str | None = None) -> Iterator[Composer]:
    """Hydra with our YAML files, the user's folder of them and other packages' methods and data."""
    try:
        with hydra.initialize_config_module(CONF, **hydra_internals.BASE):
            if config_dir:
                if not Path(config_dir).is_dir():
                    raise ConfigError(f"--config-dir {config_dir}: there is no such folder")
                hydra_internals.search_first(str(Path(config_dir).absolute()), CONF)
            _offer_foreign_methods()
            _offer_foreign_data()
            yield Composer()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(first_line(error)) from error


def _choices(group: str) -> list[str]:
    return sorted(GlobalHydra.instance().config_loader().get_group_options(group))


def _offer_foreign_methods() -> None:
    """Add methods of other packages, which need no YAML file: their dataclasses have the defaults."""
    for name in registry.methods().keys() - registry.METHODS.keys():
        try:
            config = registry.method(name).config_class()
            node = {"name": name, **asdict(config()), search.SPACE: list(getattr(config, search.SPACE, ()))}
        except Exception:  # broken: the registry has warned, and choosing it says why
            node = {"name": name}
        if name not in _choices("method"):
            ConfigStore.instance().store(group="method", name=name, node=node, provider="fedpers")


def _offer_foreign_data() -> None:
    """Add data sets of other packages: by their own clients, if they have some, else dealt."""
    for name, row in data_sets().items():
        if name not in DATASETS and name not in _choices("data"):
            node = {"name": name, **({"partition": "natural", "num_clients": None} if row.natural else {})}
            ConfigStore.instance().store(group="data", name=name, node=node, provider="fedpers")


def _load(compose: Composer, lines: list[str], problems: list[str]) -> RunConfig:
    """Compose and check; earlier problems are reported together with those found here."""
    try:
        run = from_omegaconf(compose(lines), lines)
    except ConfigError as error:
        problems = [*problems, *error.problems]
    except (HydraException, OmegaConfBaseException) as error:
        problems = [*problems, first_line(error)]
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return run


def _tidy(compose: Composer, overrides: Sequence[str], sweep: bool) -> tuple[list[str], list[str]]:
    """(overrides that can be composed, problems of the others).

    `+experiment=x` may be written without the plus; a key that the chosen YAML files leave out is
    added, so that the dataclasses say what is wrong with it or take it.
    """
    problems: list[str] = []
    parsed = [o for text in slips.joined(overrides) for o in _parse(text, problems)]
    wrong = {o.key_or_group: p for o in parsed if _is_group(o) for p in _wrong_choice(o)}
    sweeps = [] if sweep else [o for o in parsed if o.is_sweep_override()]
    problems += wrong.values()
    problems += [
        f"{o.input_line} is a sweep over several values: add -m, or put quotes around it" for o in sweeps
    ]
    good = [o for o in parsed if o not in sweeps and o.key_or_group.split(".")[0] not in wrong]
    groups = [o for o in good if _is_group(o)]
    fixed = [_group_line(o) for o in groups if not o.is_sweep_override()]
    base = compose(fixed)
    values = [_value_line(o, base) for o in good if not _is_group(o)]
    return [*map(_group_line, groups), *values], problems


def _parsed(overrides: Sequence[str]) -> list[Override]:
    return list(OverridesParser.create().parse_overrides(list(overrides)))


def _parse(text: str, problems: list[str]) -> list[Override]:
    try:
        found = _parsed([text])
        if all(o.key_or_group for o in found):
            return found
        reason = "there is no key"
    except HydraException as error:
        reason = first_line(error)
    problems.append(f"'{text}' is no override (key=value): {slips.remedy(text) or reason}")
    return []


def _is_group(override: Override) -> bool:
    return override.key_or_group in GROUPS and not override.is_delete()


def _wrong_choice(override: Override) -> Iterator[str]:
    group, known = override.key_or_group, _choices(override.key_or_group)
    values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.value()]
    for value in values:
        if str(value) not in known:
            text = unknown({"data": "data set"}.get(group, group), str(value), known)
            yield f"{text}. {OWN_FILES}" if group == "data" and any(c in str(value) for c in "/\\.") else text


def _group_line(override: Override) -> str:
    text = str(override.input_line).lstrip("+")
    return f"+{text}" if override.key_or_group == "experiment" else text


def _value_line(override: Override, base: DictConfig) -> str:
    line, key = str(override.input_line), override.key_or_group
    if override.is_delete() or key.startswith("hydra.") or "/" in key:
        return line
    text = line.lstrip("+")
    chosen = OmegaConf.select(base, key)
    if isinstance(chosen, DictConfig) and "name" in chosen:  # a name for what has a name and keys
        return f"++{text}" if isinstance(override.value(), dict) else text.replace(key, f"{key}.name", 1)
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(base, parent) if parent else base
    return text if isinstance(node, DictConfig) and last in node else f"++{text}"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without colours; its type where it has none."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__
