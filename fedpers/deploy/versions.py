"""Which versions of this package work together: those whose first two numbers are alike (1.4.0, 1.4.2)."""

import re

from fedpers import __version__

VERSION = re.compile(r"\d{1,5}\.\d{1,5}[\w.+-]{0,40}")


def mismatch(other: object, who: str) -> str | None:
    """Why this machine does not work with another's version; None if it does.

    Args:
        other: what the other machine says.
        who: the other machine, such as "the server".
    """
    if not isinstance(other, str) or not VERSION.fullmatch(other):
        return (
            f"{who} does not tell its version of fedpers, here is {__version__}; install one version on all"
        )
    if other.split(".")[:2] == __version__.split(".")[:2]:
        return None
    return (
        f"{who} has fedpers {other}, here is {__version__}; install versions with the same first two numbers"
    )
