"""Ranges of configuration values, for `check` of a dataclass."""

from typing import Any


def show(value: Any) -> str:
    """A value as it is written in YAML or on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def bounds(config: Any, **limits: tuple[float | None, float | None]) -> list[str]:
    """Problems of the fields outside [low, high]; None leaves a side open, null values pass.

    >>> from types import SimpleNamespace
    >>> bounds(SimpleNamespace(tau=0), tau=(1, None))
    ['tau=0: must be at least 1']
    """
    problems = []
    for name, (low, high) in limits.items():
        value = getattr(config, name)
        if value is None:
            continue
        if low is not None and not value >= low:
            problems.append(f"{name}={show(value)}: must be at least {low}")
        elif high is not None and not value <= high:
            problems.append(f"{name}={show(value)}: must be at most {high}")
    return problems


def above(config: Any, **limits: float) -> list[str]:
    """Problems of the fields that are not strictly above their limit; null values pass."""
    return [
        f"{name}={show(getattr(config, name))}: must be above {low}"
        for name, low in limits.items()
        if getattr(config, name) is not None and not getattr(config, name) > low
    ]
