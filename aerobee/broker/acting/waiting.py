"""Pending messages in a slave's log: delay levels, timers, half messages. The log does not grow while it is read.

A message for another broker is sent without the properties that would delay it again; a half message stays a half
message, and the receiving broker checks the producer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from aerobee.broker.acting.escape_bridge import Escaping
from aerobee.broker.delay.redelivery import WaitingMessage
from aerobee.broker.send.timer_properties import due_time, number
from aerobee.broker.timer.delete_key import cancelled_key, waiting_keys
from aerobee.clock import Clock
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


async def waiting_timers(
    store: MessageStore, delivered: Collection[int], *, precision_ms: int, clock: Clock
) -> list[Waits]:
    """Every timer message that is neither delivered nor recalled, and is not a POP record."""
    queue = store.queues.get((WHEEL_TIMER_TOPIC, 0))
    if queue is None:
        return []
    found: list[tuple[Waits, tuple[str, str]]] = []
    cancelled: set[str] = set()
    for offset in range(queue.min_offset, queue.readable_max):
        if offset % LOOKS_PER_PASS == 0:
            await clock.sleep(0)
        entry = queue.entry(offset)
        if entry is None or entry[0] in delivered:
            continue
        message = _read(store, entry[0])
        if message is None or message.properties.get(REAL_TOPIC, "").startswith(SYSTEM_PREFIX):
            continue
        properties = message.properties
        if TIMER_DELETE_KEY in properties:
            cancelled.add(cancelled_key(properties) or "")
            continue
        out_ms = number(properties.get(TIMER_OUT_MS))
        if out_ms is None:
            continue
        due_ms = due_time(
            properties, out_ms, store_timestamp=message.store_timestamp, precision_ms=precision_ms
        )
        found.append((Waits(due_ms, entry[0]), waiting_keys(properties, entry[0])))
    return [each for each, keys in found if cancelled.isdisjoint(keys)]


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
