"""Delivery of due messages in runs: converts their records to records under their real topics. A core.

Redelivery (delay/redelivery.py) is the reference: it handles any message, one at a time, and every error. PythonDelivery
and its native counterpart (native/src/delivery.rs) write the same bytes, and leave all other records to it;
seam.DeliveryBackend is the seam. An ordinary record has two IPv4 hosts, properties with names and
values, and an existing queue.

`sources` are physical offsets of records that are due, in the order of delivery; `stamp` is only for timer messages,
whose properties contain the times at which they entered and left the wheel. look() returns the timer's data about
records of its topic (send/timer_properties.py explains the values), up to the first one that is not ordinary.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Sequence
from typing import Any
from zlib import crc32

from aerobee.broker.fastpath.permits import open_permits
from aerobee.broker.fastpath.request import UNREADABLE, FallBackToHandler
from aerobee.broker.fastpath.results import DeliveryResult
from aerobee.broker.fastpath.seam import BackendSettings, Looked, Stamp
from aerobee.broker.fastpath.shared import Shared
from aerobee.broker.metrics.metrics import Latency
from aerobee.broker.send.timer_properties import due_time, number
from aerobee.message import HOSTS_V6, MAGIC_V1, PROPERTIES_BYTES_MAX, java_hash
from aerobee.property_names import (
    INNER_PREFIX,
    TIMER_DELETE_KEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
)
from aerobee.record_head import HEAD_V4, RECORD_BYTES_MIN
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.request_stats import RequestStats
from aerobee.store.log.source_pointer import source_pointer
from aerobee.store.message_store import MessageStore

BURST_BYTES_MAX = 1 << 20  # a run that has written more ends, so that other requests are served
_SIZE = struct.Struct(">I")
_TEXTS = bytes(byte for byte in range(256) if byte not in (1, 2))  # all but the separators
_ENQUEUE, _DEQUEUE = TIMER_ENQUEUE_MS.encode(), TIMER_DEQUEUE_MS.encode()
_NO_HOST = bytes(8)  # maximum length of a record's own properties


class PythonDelivery:
    """Delivers runs. `find_topic` returns the config of a topic that is ordinary for deliveries, else None."""

    def __init__(
        self,
        *,
        store: MessageStore,
        find_topic: Callable[[str], TopicConfig | None],
        store_host: bytes,
        waiting: Container[tuple[str, int]],
    ) -> None:
        latency, requests = Latency(), RequestStats()  # deliveries have no client that waits
        settings = BackendSettings(
            store=store,
            find_topic=find_topic,
            find_authorization=lambda key: None,
            store_host=store_host,
            own_properties="",
            reply_fields="",
            reply_ext={},
            waiting=waiting,
            special_properties=frozenset(),
            supports_long_poll=False,
            permits=open_permits(),
            put_steps=latency.steps,
            get_steps=latency.steps,
            put_took=latency.add,
            get_took=latency.add,
            request_rows=requests.fast_rows,
            answered=requests.fast_answered,
        )
        self._shared = Shared(settings)
        self._store_host = store_host

    def forget_topics(self) -> None:
        """As DeliveryBackend.forget_topics."""
        self._shared.forget_topics()

    def deliver(
        self, sources: Sequence[int], now_ms: int, *, readable_end: int, stamp: Stamp | None
    ) -> DeliveryResult:
        """Deliver from the first source on, until one is not ordinary. All of them end before `readable_end`."""
        self._shared.begin(_NO_HOST, now_ms)
        count = byte_count = 0
        fault: Exception | None = None
        try:
            for source in sources:
                if byte_count >= BURST_BYTES_MAX:
                    break
                byte_count += self._deliver_one(source, readable_end, stamp)
                count += 1
        except FallBackToHandler:
            pass  # the source behind the counted ones is for Redelivery
        except Exception as error:
            fault = error
        if self._shared.has_stored:
            self._shared.end()
        return DeliveryResult(count, self._shared.take_stored(), fault)

    def _deliver_one(self, source: int, readable_end: int, stamp: Stamp | None) -> int:
        shared = self._shared
        try:
            record, text, pairs, head = self._read(source, readable_end)
            _, _, crc, _, flag, _, _, sys_flag, born_timestamp, born_ip, born_port, *rest = head
            store_timestamp, _, _, tries, _, body_size = rest
            body = record[HEAD_V4.size : HEAD_V4.size + body_size]
            if (
                any(name.startswith(INNER_PREFIX) for name in pairs)
                or crc32(body) & 0x7FFFFFFF != crc
                or len(self._store_host) != 8
            ):
                raise ValueError
            topic, queue = shared.find(pairs["REAL_TOPIC"], pairs["REAL_QID"])
            if stamp is not None:
                precision_ms, dequeue_ms = stamp
                enqueue_ms = store_timestamp - store_timestamp % precision_ms
                added = b"%b\x01%d\x02%b\x01%d\x02" % (_ENQUEUE, enqueue_ms, _DEQUEUE, dequeue_ms)
                if len(text) + len(added) + 1 <= PROPERTIES_BYTES_MAX:
                    text = text + added if text.endswith(b"\x02") else text + b"\x02" + added
            hashes, code = shared.hashes(
                topic, pairs.get("UNIQ_KEY", ""), pairs.get("KEYS"), pairs.get("TAGS")
            )
        except UNREADABLE as error:
            raise FallBackToHandler from error
        shared.origin.enter(born_ip + born_port.to_bytes(4, "big", signed=True))
        shared.append(
            topic,
            queue,
            body,
            text,
            hashes,
            code,
            flag,
            sys_flag,
            born_timestamp,
            tries,
            source_pointer(source),
        )
        return len(record)

    def look(self, sources: Sequence[int], *, readable_end: int, precision_ms: int) -> list[Looked]:
        """The timer's data about the sources, up to the first one that is not ordinary."""
        found: list[Looked] = []
        hashes: dict[str, int] = {}
        try:
            for source in sources:
                _, _, pairs, head = self._read(source, readable_end)
                out_ms = number(pairs[TIMER_OUT_MS])
                if out_ms is None:
                    break
                due_ms = due_time(pairs, out_ms, store_timestamp=head[11], precision_ms=precision_ms)
                topic = pairs["REAL_TOPIC"]
                if topic not in hashes:
                    hashes[topic] = java_hash(topic)
                found.append((out_ms, due_ms, TIMER_DELETE_KEY in pairs, topic, hashes[topic]))
        except UNREADABLE:
            pass
        return found

    def _read(self, source: int, readable_end: int) -> tuple[bytes, bytes, dict[str, str], tuple[Any, ...]]:
        """The record, its properties as text and parsed, and the numbers of its head.

        Raises ValueError for a record that is not ordinary.
        """
        log = self._shared.log
        at = source - log.base
        if at >= 0:
            (total,) = _SIZE.unpack_from(log.buffer, at)
            record = (
                bytes(log.buffer[at : at + total])
                if RECORD_BYTES_MIN <= total <= readable_end - source
                else b""
            )
        else:
            total = int.from_bytes(log.read(source, 4), "big")
            record = log.read(source, total) if RECORD_BYTES_MIN <= total <= readable_end - source else b""
        if len(record) != total or not record:
            raise ValueError
        head = HEAD_V4.unpack_from(record)
        body_size = head[16]
        body_end = HEAD_V4.size + body_size
        if (
            head[1] != MAGIC_V1
            or head[6] != source
            or head[7] & HOSTS_V6
            or body_size < 0
            or body_end + 3 > total
        ):
            raise ValueError
        text_at = body_end + 3 + record[body_end]
        if text_at > total or total - text_at != int.from_bytes(record[text_at - 2 : text_at], "big"):
            raise ValueError
        text = record[text_at:]
        # The separators alternate: only then the pieces alternate between names and values.
        separators = text.translate(None, _TEXTS)
        half = (len(separators) + 1) // 2
        if (
            separators != (b"\x01\x02" * half)[: len(separators)]
            or b"\x01\x02" in text
            or b"\x02\x01" in text
        ):
            raise ValueError
        parts = text.decode().replace("\x02", "\x01").split("\x01")
        names_and_values = iter(parts)
        pairs = dict(zip(names_and_values, names_and_values))  # noqa: B905 - a last, empty part has no partner
        # No name without a value at either end.
        if not parts[0] or bool(parts[-1]) == bool(len(parts) & 1):
            raise ValueError
        return record, text, pairs, head
