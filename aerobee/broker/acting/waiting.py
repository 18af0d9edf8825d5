"""Pending messages in a slave's log: delay levels, timers, half messages. The log does not grow while it is read.

Pending timers come from the slave's copy of the timer wheel (timer/pending_timers.py), so that neither the timer topic nor
the log is read whole.

A message for another broker is sent without the properties that would delay it again; a half message stays a half
message, and the receiving broker checks the producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aerobee.broker.acting.escape_bridge import Escaping
from aerobee.broker.delay.redelivery import WaitingMessage
from aerobee.broker.send.timer_properties import due_time, number
from aerobee.broker.timer.delete_key import cancelled_key, waiting_keys
from aerobee.broker.timer.pending_timers import PendingTimers
from aerobee.errors import MalformedRecord
from aerobee.message import TRANSACTION_PREPARED
from aerobee.property_names import (
    DELAY,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAYS,
    TIMER_DELETE_KEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TRANSACTION_ID,
)
from aerobee.store.message_store import MessageStore
from aerobee.system_names import HALF_TOPIC, SCHEDULE_TOPIC, SYSTEM_PREFIX, WHEEL_TIMER_TOPIC

LOOKS_PER_PASS = 500  # timer messages per slice, then the event loop continues
RECORD_BYTES = 4_096  # number of bytes read ahead of a record whose size is unknown; longer ones are rare
_LEFT_OUT = frozenset(
    {
        DELAY, REAL_TOPIC, REAL_QUEUE_ID, TIMER_OUT_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TRANSACTION_ID,
        *TIMER_DELAYS,
    }
)  # fmt: skip


class Waits(NamedTuple):
    """One pending record. `level` is 0 for timers and half messages, `queue_offset` its offset in the level's queue."""

    due_ms: int
    physical_offset: int
    level: int = 0
    queue_offset: int = 0
    is_timer: bool = False


def waiting_of_level(
    store: MessageStore, level: int, start: int, delay_ms: int, now_ms: int
) -> Iterator[Waits]:
    """The pending messages of a delay level from queue offset `start` on, in the order of delivery."""
    queue = store.queues.get((SCHEDULE_TOPIC, level - 1))
    if queue is None:
        return
    for offset in range(max(start, queue.min_offset), queue.readable_max):
        entry = queue.entry(offset)
        if entry is not None:
            # A due time beyond the level's whole delay comes from a clock that was set back: it is due now.
            due_ms = entry[2] if entry[2] <= now_ms + delay_ms else now_ms
            yield Waits(due_ms, entry[0], level, offset)


@dataclass(slots=True)
class WaitingTimers:
    """Timer messages that wait, and the keys of those that are recalled. Recalled messages and POP's records are among
    `waits`: stays() tells when one is due.
    """

    waits: list[Waits]
    cancelled: set[str]


async def waiting_timers(
    store: MessageStore, pending: PendingTimers, delivered: Collection[int], *, precision_ms: int
) -> WaitingTimers:
    """Timer messages that are not delivered: those of `pending`, and those of the timer topic from its queue offset on.

    Reads the latter, the messages that cancel others, and those whose due time no unit names; each from memory, to which
    a thread brings them first.
    """
    unread = sorted(
        offset for offset, due_ms in pending.due.items() if not due_ms and offset not in delivered
    )
    found = WaitingTimers(
        [
            Waits(due_ms, offset, is_timer=True)
            for offset, due_ms in pending.due.items()
            if due_ms and offset not in delivered
        ],
        set(),
    )
    for offsets in _parts([*unread, *sorted(pending.cancelling)]):
        await store.warm_records([(offset, RECORD_BYTES) for offset in offsets])
        for offset in offsets:
            _take(store, offset, found, pending, precision_ms)
    queue = store.queues.get((WHEEL_TIMER_TOPIC, 0))
    start, end = (
        (max(pending.queue_offset, queue.min_offset), queue.readable_max) if queue is not None else (0, 0)
    )
    for part in _parts(range(start, end)):
        assert queue is not None
        entries = [entry for offset in part if (entry := queue.entry(offset)) is not None]
        missing = [entry for entry in entries if entry[0] not in delivered and entry[0] not in pending.due]
        await store.warm_records([(entry[0], entry[1]) for entry in missing])
        for entry in missing:
            _take(store, entry[0], found, pending, precision_ms)
        await asyncio.sleep(0)
    return found


def _parts(offsets: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(offsets), LOOKS_PER_PASS):
        yield offsets[begin : begin + LOOKS_PER_PASS]


def _take(
    store: MessageStore, offset: int, found: WaitingTimers, pending: PendingTimers, precision_ms: int
) -> None:
    """Add the timer message at a physical offset to `found`, if it waits or cancels another."""
    message = _read(store, offset)
    if message is None or message.properties.get(REAL_TOPIC, "").startswith(SYSTEM_PREFIX):
        return
    properties = message.properties
    if TIMER_DELETE_KEY in properties:
        found.cancelled.add(cancelled_key(properties) or "")
        return
    out_ms = number(properties.get(TIMER_OUT_MS))
    if out_ms is None:
        return
    due_ms = due_time(properties, out_ms, store_timestamp=message.store_timestamp, precision_ms=precision_ms)
    if due_ms >= pending.due_from_ms:
        found.waits.append(Waits(due_ms, offset, is_timer=True))


def stays(store: MessageStore, waits: Waits, cancelled: Collection[str]) -> bool:
    """Whether a due timer message is delivered to no topic: it is recalled, or a record of POP."""
    message = _read(store, waits.physical_offset)
    if message is None:
        return False
    properties = message.properties
    return properties.get(REAL_TOPIC, "").startswith(SYSTEM_PREFIX) or any(
        key in cancelled for key in waiting_keys(properties, waits.physical_offset)
    )


def leaving(store: MessageStore, waits: Waits, inner_group: str) -> Escaping | None:
    """The message to send to another broker; None when its record is gone, or undeliverable."""
    message = _read(store, waits.physical_offset)
    if message is None:
        return None
    topic = message.properties.get(REAL_TOPIC, "")
    if not topic or topic == HALF_TOPIC or topic.startswith(SYSTEM_PREFIX):
        return None
    is_half = message.topic == HALF_TOPIC
    return Escaping(
        topic=topic,
        queue_id=max(0, number(message.properties.get(REAL_QUEUE_ID)) or 0),
        body=message.body,
        properties={name: value for name, value in message.properties.items() if name not in _LEFT_OUT},
        group=message.properties.get(PRODUCER_GROUP) or inner_group,
        flag=message.flag,
        sys_flag=message.sys_flag | (TRANSACTION_PREPARED if is_half else 0),
        born_timestamp=message.born_timestamp,
        reconsume_times=message.reconsume_times,
    )


def _read(store: MessageStore, physical_offset: int) -> WaitingMessage | None:
    data = store.read_record(physical_offset)
    if data is None:
        return None
    try:
        return WaitingMessage(data)
    except MalformedRecord:
        return None
