"""Converts times between protobuf's form and milliseconds. Core.

Computed from seconds and nanoseconds by hand: what clients send may lie outside the range for which protobuf's own conversions
work (the official Python client 5.1.2 writes a delivery time's milliseconds into the seconds).
"""

from __future__ import annotations

from typing import Any

SECONDS_MAX = 253_402_300_799  # the end of the year 9999; more are milliseconds


def timestamp_ms(timestamp: Any) -> int:
    """Milliseconds since 1970 of a Timestamp."""
    seconds = int(timestamp.seconds)
    return seconds if seconds > SECONDS_MAX else seconds * 1000 + timestamp.nanos // 1_000_000


def duration_ms(duration: Any) -> int:
    """Milliseconds of a Duration."""
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def set_ms(target: Any, ms: int) -> None:
    """Write milliseconds into a Timestamp or a Duration."""
    target.seconds, rest = divmod(ms, 1000)
    target.nanos = rest * 1_000_000
