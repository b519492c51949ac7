"""What log lines look like: text for people, or with FEDPERS_LOG=json one JSON object a line for programs.

It is an environment variable and no key of a run: how a machine collects its logs is that machine's own
affair, on a server and on each device, and two runs that differ in it are the same run.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from fedpers.core.errors import ConfigError

VARIABLE = "FEDPERS_LOG"
FORMATS = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(message)s"


def wants_json() -> bool:
    """Whether log lines are to be JSON.

    Raises:
        ConfigError: FEDPERS_LOG is neither text nor json.
    """
    chosen = os.environ.get(VARIABLE) or FORMATS[0]
    if chosen not in FORMATS:
        raise ConfigError(f"{VARIABLE}={chosen}: choose one of {', '.join(FORMATS)}")
    return chosen == "json"


def formatter(text: str = TEXT) -> logging.Formatter:
    """The formatter of all handlers of ours; `text` is the line's form where it is not JSON.

    A JSON line has timestamp (UTC), level, logger, message, maybe exc_info, and the record's `extra` fields.

    Raises:
        ConfigError: FEDPERS_LOG is unknown, or the extra `monitoring` is not installed.
    """
    if not wants_json():
        return logging.Formatter(text)
    try:
        from pythonjsonlogger.json import JsonFormatter
    except ImportError as error:
        raise ConfigError(
            f"{VARIABLE}=json needs: pip install prometheus-client python-json-logger ({error})"
        ) from error
    names = {"levelname": "level", "name": "logger"}
    return JsonFormatter("%(levelname)s %(name)s %(message)s", rename_fields=names, timestamp=True)


@contextmanager
def restored() -> Iterator[None]:
    """A block after which loggers have the handlers and levels from before it; new handlers are closed.

    Hydra puts handlers of its own in place of all others, and a command may be a call in a longer process.
    """
    loggers = [logging.getLogger(name) for name in (None, "fedpers", "hydra")]
    before = [(x, x.level, [(h, h.level) for h in x.handlers]) for x in loggers]
    try:
        yield
    finally:
        for logger, level, known in before:
            ours = [h for h in logger.handlers if h not in dict(known)]
            logger.handlers[:] = [h for h, _ in known]
            logger.setLevel(level)
            for handler in ours:
                handler.close()
            for handler, own in known:
                handler.setLevel(own)


def to_stderr(text: str = TEXT, level: int = logging.INFO) -> None:
    """Log to this process's stderr, where nothing else has been set up.

    Raises:
        ConfigError: as `formatter`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
