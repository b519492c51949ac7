"""Any ClientApp in this process: stock Flower strategies run on it unchanged."""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpers.engines.inprocess_grid import FIRST_NODE, LocalGrid, log
from fedpers.flower.messages import error_reply


class AppGrid(LocalGrid):
    """Any ClientApp in this process, one node after another: stock strategies run on it unchanged."""

    def __init__(self, app: ClientApp, num_nodes: int, run_config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._app = app
        self.contexts = {
            FIRST_NODE + p: Context(
                run_id=self._run.run_id,
                node_id=FIRST_NODE + p,
                node_config={"partition-id": p, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for p in range(num_nodes)
        }

    def get_node_ids(self) -> list[int]:
        """All nodes; they are there from the start."""
        return list(self.contexts)

    def _answer(self, messages: Sequence[Message]) -> list[Message]:
        return [self._run_app(m) for m in messages]

    def _run_app(self, message: Message) -> Message:
        try:
            return self._app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # a ClientApp's failure is its reply
            log.debug("a ClientApp failed", exc_info=error)
            return error_reply(message, f"{type(error).__name__}: {error}")
