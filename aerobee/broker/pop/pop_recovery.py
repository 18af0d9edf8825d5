"""Recovery of POP from the log, at the start and when the broker becomes master: the in-flight table, and offsets after
a crash.

consumerOffset.json is written every few seconds. Later pops are in no file, but each pop wrote a check point: the
group's offset is raised to the end of the newest one. `log_end` of that file separates the check points that it does
not include. Acknowledgements follow their check point in the log, so all check points within the window are known
completely. It takes some microseconds per record.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_TAG,
    CheckPointKey,
    decode_acks,
    decode_check_point,
)
from aerobee.broker.pop.in_flight import InFlightTable
from aerobee.broker.pop.revive_log import REVIVE_QUEUES
from aerobee.errors import MalformedFrame
from aerobee.message import Record, decode_records, tags_code
from aerobee.store.log.source_pointer import source_pointer
from aerobee.store.log.stored_message import GetStatus
from aerobee.store.message_store import MessageStore
from aerobee.system_names import REVIVE_GROUP, WHEEL_TIMER_TOPIC

log = logging.getLogger(__name__)

WINDOW_MS = 600_000  # twice the longest invisible time of RocketMQ's push consumer
# Maximum number of records per queue; the window is shorter if the broker wrote more in that time.
RECORDS_MAX = 300_000
READ_COUNT = 256  # records a step, some 3 ms
ACKS_PER_STEP = 1_024
CODES = frozenset(map(tags_code, (CK_TAG, ACK_TAG, BATCH_ACK_TAG)))


Piece = tuple[str, int, int]  # topic, queue id, offset from which READ_COUNT messages are read


def recover_pops(
    store: MessageStore, *, revive_topic: str, offsets: ConsumerOffsets, in_flight: InFlightTable
) -> int:
    """Fill `in_flight` and raise the groups' offsets; return the number of found check points. Blocking."""
    steps = recovering_pops(store, revive_topic=revive_topic, offsets=offsets, in_flight=in_flight)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            count: int = end.value
            return count


def recovering_pops(
    store: MessageStore, *, revive_topic: str, offsets: ConsumerOffsets, in_flight: InFlightTable
) -> Generator[Piece | None, None, int]:
    """As recover_pops(), in steps of some milliseconds: each yields what the next step reads. Until it ends the broker
    serves no pop and no acknowledgement.
    """
    queues = [(WHEEL_TIMER_TOPIC, 0), *((revive_topic, queue_id) for queue_id in range(REVIVE_QUEUES))]
    since_ms = max(
        store.last_store_timestamp - WINDOW_MS,
        *(store.store_time(*queue, store.max_offset(*queue) - RECORDS_MAX) for queue in queues),
    )
    acks: list[bytes] = []
    count = 0
    buffered = offsets.had_pop_buffer or offsets.has_pop_buffer
    settled: set[CheckPointKey] = set()
    written_at: dict[CheckPointKey, int] = {}
    for topic, queue_id in queues:
        done = offsets.query(REVIVE_GROUP, topic, queue_id) if topic == revive_topic else None
        for record in _records(store, topic, queue_id, since_ms):
            if isinstance(record, tuple):
                yield record
                continue
            if topic == WHEEL_TIMER_TOPIC and not _is_deliverable(record, revive_topic):
                continue
            try:
                if record.tag != CK_TAG:
                    acks.append(record.body)
                    continue
                point = decode_check_point(record.body)
            except MalformedFrame as error:
                log.error("%s queue %d offset %d: %s", topic, queue_id, record.queue_offset, error)
                continue
            if done is not None and record.queue_offset <= done:
                settled.add(point.key)
            written_at.setdefault(point.key, _written_at(record))
            if in_flight.get(point.key) is None:
                in_flight.add(point, "")
                count += 1
            # With the merge buffer a later check point may be in the log while an earlier one was only in
            # memory.
            if 0 <= offsets.log_end <= record.physical_offset and point.offsets and not buffered:
                # A recreated topic begins at 0: check points of the deleted one do not apply to the new
                # queue.
                end = store.next_offset(point.topic, point.queue_id)
                _raise_offset(
                    offsets, point.group, point.topic, point.queue_id, min(end, point.offsets[-1] + 1)
                )
    for number, body in enumerate(acks):
        if not number % ACKS_PER_STEP:
            yield None
        try:
            ack = decode_acks(body)
        except MalformedFrame:
            continue  # logged when revival reads it
        for offset in ack.offsets:
            in_flight.ack(ack.key, offset)
    yield from in_flight.settling_doubles(written_at)
    for key in settled:
        in_flight.revived(key)
    in_flight.known_since_ms = max(in_flight.known_since_ms, since_ms)
    return count


def _records(store: MessageStore, topic: str, queue_id: int, since_ms: int) -> Iterator[Record | Piece]:
    """Records of a queue, and before some of them what is read for them."""
    end = store.max_offset(topic, queue_id)
    at = store.min_offset(topic, queue_id)
    if at < end:
        at = max(at, store.offset_by_time(topic, queue_id, since_ms))
    while at < end:
        yield topic, queue_id, at
        result = store.get_messages(topic, queue_id, at, count_max=READ_COUNT, tag_codes=CODES)
        if result.next_offset <= at:
            return
        at = result.next_offset
        if result.status is GetStatus.FOUND:
            yield from decode_records(result.body, check_crc=False)


def _written_at(record: Record) -> int:
    """Physical offset at which the broker wrote what a record says: the timer's delivery names the record that it was made from."""
    source_offset = source_pointer(record.prepared_transaction_offset)  # its own inverse
    return source_offset if source_offset >= 0 else record.physical_offset


def _is_deliverable(record: Record, revive_topic: str) -> bool:
    """Whether the timer will deliver this record to the revive topic. A record's checksum covers only its body, so a
    record whose properties a power loss damaged decodes but is never delivered. In that case the reply of the record's
    pop was never sent, and the group's offset stays before the popped messages.
    """
    properties = record.properties
    if properties.get("REAL_TOPIC") != revive_topic:
        return False
    times = (properties.get("TIMER_OUT_MS", ""), properties.get("TIMER_DELIVER_MS", ""))
    return all(text.isascii() and text.isdigit() for text in (properties.get("REAL_QID", ""), *times))


def _raise_offset(offsets: ConsumerOffsets, group: str, topic: str, queue_id: int, offset: int) -> None:
    known = offsets.query(group, topic, queue_id)
    if (known is None and offset > 0) or (known is not None and known < offset):
        offsets.commit(group, topic, queue_id, offset)
