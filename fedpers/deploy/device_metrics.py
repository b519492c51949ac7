"""Counters of a device's client for Prometheus, in a file that the node exporter reads.

It is on where FEDPERS_PROMETHEUS_FILE is set for the SuperNode. Nothing listens: devices only dial out.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

from fedpers.core.errors import ConfigError

FILE = "FEDPERS_PROMETHEUS_FILE"


class DeviceMetrics:
    """Counts and times the orders that a device answers.

    Raises:
        ConfigError: the extra `monitoring` is not installed.
    """

    def __init__(self, file: str) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise ConfigError(
                f"{FILE} needs: pip install prometheus-client python-json-logger ({error})"
            ) from error
        self._client: Any = prometheus_client
        self._file, self._registry = file, prometheus_client.CollectorRegistry()
        registry = self._registry
        prometheus_client.ProcessCollector(registry=registry)  # memory, CPU
        self._orders = prometheus_client.Counter(
            "fedpers_device_orders", "Orders by outcome", ["kind", "outcome"], registry=registry
        )
        self._seconds = prometheus_client.Summary(
            "fedpers_device_order_seconds", "Time of an order", ["kind"], registry=registry
        )
        self._round = prometheus_client.Gauge(
            "fedpers_device_round", "Round of the last order", registry=registry
        )
        self._last = prometheus_client.Gauge(
            "fedpers_device_last_order_timestamp_seconds", "When it was answered", registry=registry
        )

    @classmethod
    def chosen(cls) -> "DeviceMetrics | None":
        """The metrics of this process; None where FEDPERS_PROMETHEUS_FILE is not set."""
        file = os.environ.get(FILE)
        return cls(file) if file else None

    def note(self, header: Mapping[str, Any], seconds: float, failed: bool) -> None:
        """Count an order that took `seconds`, and write the file."""
        kind = str(header.get("kind"))
        self._orders.labels(kind, "failed" if failed else "answered").inc()
        self._seconds.labels(kind).observe(seconds)
        if kind != "query":  # the roll call belongs to no round
            self._round.set(int(header["t"]))
        self._last.set(time.time())
        self._client.write_to_textfile(self._file, self._registry)
