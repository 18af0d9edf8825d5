"""The metrics of the semantic conventions of messaging clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.metrics import Meter

from aerobee.contrib.opentelemetry.attributes import (
    CONSUMER_GROUP,
    DESTINATION,
    ERROR_TYPE,
    OPERATION_NAME,
    OPERATION_TYPE,
    SERVER_ADDRESS,
    SERVER_PORT,
    SYSTEM,
    Attributes,
)

# Buckets that the conventions recommend, in seconds.
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
# Of a span's attributes those of a metric: few values each.
_COMMON = (
    SYSTEM,
    OPERATION_NAME,
    DESTINATION,
    CONSUMER_GROUP,
    ERROR_TYPE,
    SERVER_ADDRESS,
    SERVER_PORT,
)


class Metrics:
    """The instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        self._operation = _histogram(
            meter,
            "messaging.client.operation.duration",
            "Duration of messaging operation initiated by a producer or consumer client.",
        )
        self._process = _histogram(meter, "messaging.process.duration", "Duration of processing operation.")
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )

    def ended(self, attributes: Attributes, seconds: float, count: int) -> None:
        """An operation with `count` messages ended."""
        kind = attributes[OPERATION_TYPE]
        chosen = _chosen(attributes, _COMMON)
        if kind == "process":
            self._process.record(seconds, chosen)
        else:
            self._operation.record(seconds, {**chosen, OPERATION_TYPE: kind})
        if kind == "send":
            self._sent.add(count, chosen)
        elif kind in ("receive", "process") and count:
            self._consumed.add(count, chosen)


def _histogram(meter: Meter, name: str, text: str) -> Any:
    return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=BOUNDS_S)


def _chosen(attributes: Attributes, names: Iterable[str]) -> dict[str, Any]:
    return {name: attributes[name] for name in names if name in attributes}
