"""Selects the queue of a message group, or of a lite topic: equal names get equal queues while the number of queues stays
the same. Core.

Source: SelectableMessageQueue, Guava's Hashing.consistentHash (RocketMQ 5.5.0): a jump-consistent hash of the group's Java hash.
"""

from __future__ import annotations

from aerobee.message import java_hash

_MULTIPLIER, _MASK = 2_862_933_555_777_941_757, (1 << 64) - 1
_ONE = float(1 << 31)


def group_queue(message_group: str, queue_count: int) -> int:
    """A number from 0 to `queue_count` - 1; 0 where there is no queue."""
    state = java_hash(message_group) & _MASK
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / _ONE))
        if not 0 <= following < queue_count:
            return candidate
        candidate = following
