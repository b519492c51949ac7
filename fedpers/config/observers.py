"""Observers by name: ours, those of other packages, and any class as "pkg.mod:Class"."""

import importlib.metadata
from collections.abc import Sequence
from typing import Any

from fedpers.core.errors import ConfigError, unknown
from fedpers.core.host import from_import_path

GROUP = "fedpers.observers"  # entry points by which other packages add theirs
OBSERVERS = {  # ours; each needs an extra: that of its name, or `monitoring`
    "prometheus": "fedpers.results.prometheus:PrometheusObserver",
    "wandb": "fedpers.results.loggers:WandbObserver",
    "mlflow": "fedpers.results.loggers:MlflowObserver",
}


def observers() -> dict[str, str]:
    """{name: "module:Class"} of all that have a name; ours win."""
    found = {entry.name: entry.value for entry in importlib.metadata.entry_points(group=GROUP)}
    return found | OBSERVERS


def problems(specs: Sequence[str]) -> list[str]:
    """A problem for each name that is not known; classes are not imported."""
    named = [spec for spec in specs if ":" not in spec and spec not in OBSERVERS]
    table = observers() if named else OBSERVERS  # to look at what is installed takes milliseconds
    hint = "; a class of yours is written pkg.mod:Class"
    return [unknown("observer", spec, table) + hint for spec in named if spec not in table]


def observer_class(spec: str) -> Any:
    """The class of a name or of "pkg.mod:Class"; modules of the current folder are found as well.

    Raises:
        ConfigError: it cannot be imported.
    """
    place = observers().get(spec, spec)
    try:
        return from_import_path(place)
    except Exception as error:  # whatever a foreign module does while it is imported
        text = f"cannot import {place} ({type(error).__name__}: {error})"
        raise ConfigError(f"observers: '{spec}': {text}; name a class as pkg.mod:Class") from error
