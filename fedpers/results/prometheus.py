"""A run's numbers for Prometheus: a file for the node exporter, and an address to be scraped by option.

Off unless it is named: observers=[prometheus]. FEDPERS_PROMETHEUS_FILE is the file, by default metrics.prom
in the run directory; with FEDPERS_PROMETHEUS_ADDRESS=127.0.0.1:9464 they are served there as well.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpers.core.errors import ConfigError
from fedpers.flower.observer import Observer
from fedpers.results.recorder import COSTS

FILE, ADDRESS = "FEDPERS_PROMETHEUS_FILE", "FEDPERS_PROMETHEUS_ADDRESS"
# Columns of a training row that count what happened in it, so that their sum is worth having.
COUNTS = {*COSTS, "asked", "answered", "late", "refused", "retried", "reinitialised"} - {"seconds"}
LABELS = ("run", "method", "data", "seed")
STATES = ("running", "finished", "failed")


class PrometheusObserver(Observer):
    """Keeps gauges and counters of a run, and writes them after each round.

    Raises:
        ConfigError: the extra `monitoring` is not installed, or the address is none.
    """

    def __init__(self) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise ConfigError(
                f"observers=[prometheus] needs: pip install prometheus-client python-json-logger ({error})"
            ) from error
        self._client: Any = prometheus_client
        self._address = _address(os.environ.get(ADDRESS))
        self._registry = prometheus_client.CollectorRegistry()
        self._made: dict[str, Any] = {}
        self._server: Any = None
        self._labels: dict[str, str] = {}

    def on_start(self, out: Path, config: Mapping[str, Any]) -> None:
        """Begin to serve, and tell that the run is on its way."""
        values = (out.name, config["method"]["name"], config["data"]["name"], str(config["seed"]))
        self._labels = dict(zip(LABELS, values, strict=True))
        self._file = Path(os.environ.get(FILE) or out / "metrics.prom")
        self._gauge("rounds", "Rounds that are wanted").set(config["rounds"])
        self._tell("running")
        if self._address is not None:
            host, port = self._address
            self._server, _ = self._client.start_http_server(port, host, self._registry)

    def on_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the numbers of metrics.csv: counts of a round are summed, others are as they are now."""
        for row in rows:
            for name, value in row.items():
                if name in ("round", "split"):
                    continue
                if name == "seconds":
                    self._of("Summary", "round_seconds", "Time of a round").observe(value)
                elif row["split"] == "train" and name in COUNTS:
                    self._of("Counter", name, f"Sum of {name} over rounds").inc(value)
                else:
                    self._gauge(name, f"Column {name} of metrics.csv", split=row["split"]).set(value)

    def after_round(self, t: int) -> None:
        """Write what is known after round t."""
        self._gauge("round", "The last round that is done").set(t)
        self._gauge("last_round_timestamp_seconds", "When it was done").set(time.time())
        self._write()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Tell how it ended, and serve no longer."""
        if not self._labels:  # it never started
            return
        self._tell(str(summary.get("status")))
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _tell(self, state: str) -> None:
        for name in STATES:
            self._gauge("run_state", "1 for the state that the run is in", state=name).set(name == state)
        self._write()

    def _gauge(self, name: str, about: str, **more: str) -> Any:
        return self._of("Gauge", name, about, **more)

    def _of(self, kind: str, name: str, about: str, **more: str) -> Any:
        """The metric of a name, with this run's labels; made when it is first asked for."""
        full = "fedpers_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
        if full not in self._made:
            make = getattr(self._client, kind)
            self._made[full] = make(full, about, [*LABELS, *more], registry=self._registry)
        return self._made[full].labels(**self._labels, **more)

    def _write(self) -> None:
        self._client.write_to_textfile(str(self._file), self._registry)  # whole or not at all


def _address(text: str | None) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{ADDRESS}={text}: expected HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)
