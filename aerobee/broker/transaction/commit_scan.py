"""Finds committed messages in a part of the log. Core.

A decision that was made shortly before a crash may have no op record yet, but a commit has its own record in the log:
the message with the commit bits in sys_flag. The record's fixed part is enough to tell (layout in aerobee/message.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from aerobee.message import MAGIC_BLANK, TRANSACTION_COMMIT, TRANSACTION_MASK
from aerobee.record_head import RECORD_BYTES_MIN, head_struct

_HEAD = head_struct("size", "magic", "sys_flag")


def commits_between(
    read: Callable[[int, int], bytes], start: int, end: int
) -> Generator[tuple[int, int], None, int]:
    """Yield (physical offset, size) of each commit record that begins in [start, end); return where the next record begins.

    `start` is where a record begins. `read(physical offset, size)` returns bytes of one log file, fewer at its end.
    Stops at bytes that are neither a record nor the end of a file, and returns -1: recovery has truncated the log
    there.
    """
    at = start
    while at < end:
        head = read(at, _HEAD.size)
        if len(head) < 8:
            return -1
        if int.from_bytes(head[4:8], "big") == MAGIC_BLANK:
            size = int.from_bytes(head[:4], "big")
            if size < 8:
                return -1
            at += size
            continue
        if len(head) < _HEAD.size:
            return -1
        size, _, sys_flag = _HEAD.unpack(head)
        if size < RECORD_BYTES_MIN:
            return -1
        if sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
            yield at, size
        at += size
    return at
