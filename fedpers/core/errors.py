"""The errors a user can cause. Each message names the thing, the value and the remedy."""

import difflib
from collections.abc import Iterable


class FedpersError(Exception):
    """A mistake that the command line shows as one message, without a traceback (exit status 2)."""


class ConfigError(FedpersError):
    """The configuration is wrong; lists every mistake that was found."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class DataError(FedpersError):
    """A data file is missing or damaged, or the data cannot be split as asked."""


class ReplyError(FedpersError):
    """A client failed, or answered something that cannot be aggregated."""


class CheckpointError(FedpersError):
    """A checkpoint cannot be written or read."""


def unknown(what: str, value: str, known: Iterable[str]) -> str:
    """Say that `value` is not a known `what`, with a guess and all that is known.

    >>> unknown("method", "fedsfot", ["fedavg", "fedsoft"])
    "method 'fedsfot' is unknown; did you mean 'fedsoft'? Known: fedavg, fedsoft"
    """
    options = sorted(known)
    longer = (
        [o for o in options if o.startswith(value)] if len(value) > 2 else []
    )  # resnet: resnet18_gn, not lenet
    guess = longer or difflib.get_close_matches(value, options, n=1)
    hint = f"; did you mean '{guess[0]}'?" if guess else "."
    return f"{what} '{value}' is unknown{hint} Known: {', '.join(options)}"
