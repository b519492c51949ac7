"""Fields in the header of an order and of an answer besides the exchange itself; flat, as Flower needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpers import __version__
from fedpers.deploy.private_state import Recall, Version

NONE = [-1, -1]  # Flower's records hold no None


@dataclass(frozen=True)
class Order:
    """To one client: which run, who it is there, which state, and how long it may take."""

    run: str
    k: int
    recall: Recall
    limit_s: float
    pipeline: str = ""  # what all devices do to their samples, in JSON; "" before they agreed

    def header(self) -> dict[str, Any]:
        """As plain values."""
        since, keep = self.recall.since, self.recall.keep
        plain: dict[str, Any] = {"run": self.run, "k": self.k, "limit_s": float(self.limit_s)}
        plain |= {"pipeline": self.pipeline, "fedpers": __version__}
        return plain | {"since": list(since or NONE), "keep": list(keep or NONE)}

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> "Order":
        """Read `header` back."""
        recall = Recall(version(header["since"]), version(header["keep"]))
        pipeline = str(header.get("pipeline", ""))
        return cls(str(header["run"]), int(header["k"]), recall, float(header["limit_s"]), pipeline)


def version(pair: Any) -> Version | None:
    """(round, exchange) of a list of two; None for NONE or anything else."""
    if not isinstance(pair, list) or len(pair) != 2 or pair == NONE:
        return None
    return int(pair[0]), int(pair[1])
