"""Flower's SuperLink with models on their way in a database of their own.

Flower keeps them beside nodes, runs and heartbeats in one SQLite file, and gives up a request that has
waited five seconds for it: while pieces of a large model are written, heartbeats and polls fail with
"database is locked" and the run with them. Here models lie in NAME-objects.db, and requests wait.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fedpers.core.errors import FedpersError
from fedpers.deploy.submit import QUIET

WAIT_MS = 600_000  # for a database; a request that takes longer is given up by its sender
MARK = "FEDPERS_SUPERLINK"  # in the environment of server apps: they were started by this SuperLink
PLAIN_MB = 100.0  # of an order that Flower's own SuperLink carries through one database


def main(arguments: Sequence[str]) -> None:
    """Run a SuperLink with Flower's own arguments, until it ends.

    Raises:
        FedpersError: Flower's parts are not where they were.
    """
    os.environ.update({**QUIET, MARK: "1"})
    _divide()
    from flwr.superlink.cli.flower_superlink import flower_superlink

    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


def _divide() -> None:
    from flwr.supercore import sql_mixin
    from flwr.superlink import config_loader

    try:
        factory, pragmas = config_loader.ObjectStoreFactory, dict(sql_mixin.SQLITE_PRAGMAS)
    except AttributeError as error:
        raise FedpersError(f"this version of flwr keeps its database elsewhere ({error})") from error
    pragmas["busy_timeout"] = str(WAIT_MS)
    sql_mixin.SQLITE_PRAGMAS = tuple(pragmas.items())  # type: ignore[assignment]  # typed by its length
    config_loader.ObjectStoreFactory = lambda database: factory(objects_of(database))  # type: ignore[assignment, misc]


def objects_of(database: str) -> str:
    """Where models on their way lie: beside a file, in memory where the SuperLink has none."""
    path = Path(database)
    return database if database.startswith(":") else str(path.with_name(f"{path.stem}-objects.db"))


def check_size(size: int) -> None:
    """Refuse an order that the SuperLink over this process would not carry, before anybody is sent it.

    Args:
        size: of the order, in bytes.

    Raises:
        FedpersError: the SuperLink is Flower's own, and the order is larger than PLAIN_MB.
    """
    if size > PLAIN_MB * 1e6 and MARK not in os.environ:
        raise FedpersError(
            f"an order has {size / 1e6:.0f} MB; flower-superlink --database gives up above some "
            f'{PLAIN_MB:.0f} MB ("database is locked"); start the SuperLink as `fedpers superlink`, '
            "with the same arguments"
        )
