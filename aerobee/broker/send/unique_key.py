"""Creates a UNIQ_KEY for messages without one: 32 hex digits, as RocketMQ's clients create them.

Follows MessageClientIDSetter: IPv4 4 bytes | u16 process id | i32 salt | i32 ms since the month began | u16 counter.
"""

from __future__ import annotations

from datetime import UTC, datetime


class UniqueKeys:
    """Creates keys. Keys of two brokers differ by address, keys of two runs of a broker by process id and salt."""

    def __init__(self, *, ip: bytes, process_id: int, salt: int) -> None:
        self._prefix = (
            ip[:4] + (process_id & 0xFFFF).to_bytes(2, "big") + (salt & 0xFFFFFFFF).to_bytes(4, "big")
        ).hex()
        self._count = 0
        self._month_ends_ms = 0
        self._month_began_ms = 0

    def next(self, now_ms: int) -> str:
        """A UNIQ_KEY for a message that came without one at `now_ms`: 65,536 different ones a millisecond."""
        if not self._month_began_ms <= now_ms < self._month_ends_ms:
            self._begin_month(now_ms)
        self._count = (self._count + 1) & 0xFFFF
        return f"{self._prefix}{(now_ms - self._month_began_ms) & 0xFFFFFFFF:08x}{self._count:04x}".upper()

    def _begin_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        began = datetime(now.year, now.month, 1, tzinfo=UTC)
        ends = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
        self._month_began_ms = int(began.timestamp() * 1000)
        self._month_ends_ms = int(ends.timestamp() * 1000)
