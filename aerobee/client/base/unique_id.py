"""Message ids that a client assigns (UNIQ_KEY), in RocketMQ's format. Pure: time and salt are arguments.

32 hex digits for an IPv4 address, 56 for IPv6, upper case. Source: MessageClientIDSetter.

    4 or 16 bytes IP | uint16 process id | int32 salt | int32 ms since the start of the month | uint16 counter
"""

from __future__ import annotations

import datetime
import ipaddress
import struct


class UniqueIds:
    """Generator of ids, which are distinct if fewer than 65,536 are requested in one millisecond."""

    __slots__ = ("_head", "_head_ms", "_month_end_ms", "_month_start_ms", "counter", "prefix")

    def __init__(self, *, ip: str, process_id: int, salt: int, counter: int = 0) -> None:
        """`salt`: 32 random bits that distinguish two clients of one process."""
        packed = ipaddress.ip_address(ip).packed
        self.prefix = (packed + struct.pack(">HI", process_id & 0xFFFF, salt & 0xFFFFFFFF)).hex().upper()
        self.counter = counter
        self._head = ""  # prefix of the ids of `_head_ms`: all but the counter
        self._head_ms = -1
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next_id(self, now_ms: int) -> str:
        """Return a new id. `now_ms` is the wall clock."""
        if now_ms != self._head_ms:
            self._head = self._head_of(now_ms)
            self._head_ms = now_ms
        self.counter = counter = (self.counter + 1) & 0xFFFF
        return self._head + "%04X" % counter  # noqa: UP031  half of what a format string takes

    def _head_of(self, now_ms: int) -> str:
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = month_bounds_ms(now_ms)
        # A month has at most 2,678,400,000 ms, which passes 2**31: the upper days wrap to negative, as in Java.
        return f"{self.prefix}{now_ms - self._month_start_ms & 0xFFFFFFFF:08X}"


def month_bounds_ms(now_ms: int) -> tuple[int, int]:
    """Start of the month of `now_ms` and of the next one, in UTC."""
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = (start + datetime.timedelta(days=32)).replace(day=1)
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)
