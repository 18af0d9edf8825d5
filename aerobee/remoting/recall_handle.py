"""The handle by which a timer message is recalled: URL-safe base64 of `v1 topic brokerName timestamp uniqueKey`. Core.

Follows RecallMessageHandle.HandleV1 of RocketMQ. The timestamp is TIMER_OUT_MS + 1, so that the recall
message falls into the timer slot of the message.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """Contents of a handle."""

    topic: str
    broker_name: str
    timestamp_ms: int
    unique_key: str

    def encode(self) -> str:
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.timestamp_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Raises ValueError with the reason for an invalid handle."""
    try:
        padded = text + "=" * (-len(text) % 4)
        parts = base64.b64decode(padded.encode(), altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, UnicodeError) as error:
        raise ValueError("the recall handle is not URL-safe base64 of text") from error
    if len(parts) != 5 or parts[0] != _VERSION:
        raise ValueError("the recall handle does not hold 'v1 topic brokerName timestamp uniqueKey'")
    _, topic, broker_name, timestamp, unique_key = parts
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 19) or not unique_key:
        raise ValueError(f"the recall handle's timestamp is {timestamp!r}")
    return RecallHandle(topic, broker_name, int(timestamp), unique_key)
