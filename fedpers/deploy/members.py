"""The clients admitted to a SuperLink: their names and Flower's ids of them, in a file beside their keys."""

import json
import shutil
from pathlib import Path
from typing import Any, Protocol

from fedpers.core.errors import ConfigError, FedpersError

FILE = "admitted.json"  # {name: Flower's id of the node}
KNOWN = "Public key already in use"  # what Flower says of a key that it has


class Control(Protocol):
    """A SuperLink's Control API, see `fedpers.deploy.submit.Link`."""

    @property
    def home(self) -> Path:
        """A folder for files of a call."""

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """The JSON that a command of Flower's prints."""


class Members:
    """The admitted clients of one SuperLink."""

    def __init__(self, link: Control, folder: Path) -> None:
        self.link, self.path = link, folder / FILE

    @property
    def ids(self) -> dict[str, str]:
        """{name: id}."""
        try:
            return {str(k): str(v) for k, v in json.loads(self.path.read_text(encoding="utf-8")).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{self.path} cannot be read: {error}; remove it and admit the keys again"
            ) from error

    def admit(self, name: str, public: Path) -> str | None:
        """Let in whoever holds this key; returns why not, None if it is admitted, now or already."""
        copy = self.link.home / "key.pub"
        shutil.copy(public, copy)
        try:
            found = self.link.flwr("supernode", "register", str(copy), "fedpers", "--name", name)
        except FedpersError as error:
            if KNOWN in str(error):
                print(f"{name} was admitted before")
                return None
            return f"{name} is not admitted: {error}"
        if "node-id" in found:
            self._keep(self.ids | {name: str(found["node-id"])})
        print(f"{name} is admitted")
        return None

    def lines(self) -> list[str]:
        """A line a node: name, id, status, since when; a node whose name is not known here is called ?."""
        names = {number: name for name, number in self.ids.items()}
        nodes = self.link.flwr("supernode", "list", "fedpers")["nodes"]
        rows = [(names.get(n["node-id"], "?"), n["node-id"], n["status"], n["online-at"]) for n in nodes]
        head = ("name", "id", "status", "online since")
        return ["{:<24} {:<20} {:<12} {}".format(*row) for row in (head, *sorted(rows))]

    def revoke(self, name: str) -> None:
        """Let a client in no longer.

        Raises:
            ConfigError: nobody of this name was admitted from here.
        """
        ids = self.ids
        if name not in ids:
            raise ConfigError(
                f"{name}: not admitted; admitted are {', '.join(sorted(ids)) or 'none'} ({self.path})"
            )
        self.link.flwr("supernode", "unregister", ids.pop(name), "fedpers")
        self._keep(ids)

    def _keep(self, ids: dict[str, str]) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(dict(sorted(ids.items())), indent=1), encoding="utf-8")
        part.replace(self.path)
