"""Flower's SuperLink with models on their way in a database of their own.

Flower keeps them beside nodes, runs and heartbeats in one SQLite file, and gives up a request that has
waited five seconds for it: while pieces of a large model are written, heartbeats and polls fail with
"database is locked" and the run with them. Here models lie in NAME-objects.db, and requests wait.
Flower also writes at each request that it looked for tasks whose process went away, and every request
waits for that; here it looks once a second.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedpers.core.errors import FedpersError
from fedpers.deploy.submit import QUIET

WAIT_MS = 600_000  # for a database; a request that takes longer is given up by its sender
MARK = "FEDPERS_SUPERLINK"  # in the environment of server apps: they were started by this SuperLink
LOOK_S = 1.0  # between two looks for tasks that ended without a word; their heartbeats come every 30 s
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
    from flwr.supercore.corestate.sql_corestate import SqlCoreState
    from flwr.superlink import config_loader

    try:
        factory, pragmas = config_loader.ObjectStoreFactory, dict(sql_mixin.SQLITE_PRAGMAS)
        SqlCoreState._cleanup_expired_task_tokens = seldom(SqlCoreState._cleanup_expired_task_tokens)  # type: ignore[assignment, method-assign]
    except AttributeError as error:
        raise FedpersError(f"this version of flwr keeps its database elsewhere ({error})") from error
    pragmas["busy_timeout"] = str(WAIT_MS)
    sql_mixin.SQLITE_PRAGMAS = tuple(pragmas.items())  # type: ignore[assignment]  # typed by its length
    config_loader.ObjectStoreFactory = lambda database: factory(objects_of(database))  # type: ignore[assignment, misc]


def seldom(work: Callable[[Any], None]) -> Callable[[Any], None]:
    """A method that does its work at most once in LOOK_S for each object, and otherwise nothing."""

    def now_and_then(self: Any) -> None:
        now = time.monotonic()
        if now - vars(self).get(MARK, -LOOK_S) >= LOOK_S:
            setattr(self, MARK, now)
            work(self)

    return now_and_then


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
