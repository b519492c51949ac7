"""When Hugging Face's hub is out of reach its libraries use their caches at once, without messages."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOGGER = "huggingface_hub.utils._http"  # says what failed, then waits and asks again: half a minute a file
REFUSED = "ConnectError", "ConnectionError", "gaierror"  # of httpx, of requests and of sockets
AWAY = "OfflineModeIsEnabled", "LocalEntryNotFoundError"  # of a hub that HF_HUB_OFFLINE=1 turned off
SWITCH = "HF_HUB_OFFLINE"
HOLDERS = "huggingface_hub.constants", "datasets.config"  # modules that read it when they are imported


class Reach(logging.Filter):
    """Looks at each failed request while it is reported; the first without a connection turns the hub off."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = False
        self._before: list[tuple[Any, bool]] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a log line is shown; lines about the lost connection are not."""
        error = sys.exc_info()[1]
        if not self.lost and error is not None and type(error).__name__ in REFUSED:
            self._turn_off()
        return not self.lost

    def _turn_off(self) -> None:
        self.lost = True
        for name in HOLDERS:
            if (module := sys.modules.get(name)) is not None and hasattr(module, SWITCH):
                self._before.append((module, getattr(module, SWITCH)))
                setattr(module, SWITCH, True)

    def restore(self) -> None:
        """Allow requests to the hub again."""
        for module, value in self._before:
            setattr(module, SWITCH, value)

    def hint(self, error: BaseException) -> str:
        """The message for a failure because the hub is out of reach; "" for other failures."""
        chain: BaseException | None = error
        while chain is not None and not any(name in repr(chain) for name in AWAY):
            chain = chain.__cause__ or chain.__context__
        if not self.lost and chain is None:
            return ""
        host = getattr(sys.modules.get(HOLDERS[0]), "ENDPOINT", "https://huggingface.co")
        return f"Hugging Face's hub ({host}) is out of reach, and it is not among what was downloaded before"


@contextmanager
def asked_once() -> Iterator[Reach]:
    """While this is open, a hub without a connection is asked once; its libraries then use what they keep."""
    reach, logger = Reach(), logging.getLogger(LOGGER)
    logger.addFilter(reach)
    try:
        yield reach
    finally:
        logger.removeFilter(reach)
        reach.restore()
