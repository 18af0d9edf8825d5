"""The hot path of transactions: half messages (310) and one-way END_TRANSACTION (37) as Java and Go send them.

What the lane leaves is offered here before it goes to the handlers. The outcome is that of send_service.py with the half
message hook, and of end.py; whatever is not quite ordinary is left for them, as in broker/lane/core.py, whose writing of
records, queue and index entries is used. What makes it cheap: no RemotingCommand, the committed record is cut out of
the half record's bytes (a half text of ours ends with REAL_TOPIC and REAL_QID), index entries are written once a
burst. NativeTransactionLane (lane_native.py) does the same with the native lane.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import orjson

from aerobee.broker.lane.core import Put
from aerobee.broker.lane.delayed import DelayedLane
from aerobee.broker.lane.pull import number
from aerobee.broker.lane.topic import LaneQueue, LaneTopic
from aerobee.broker.property_names import (
    CHECK_TIMES,
    IMMUNITY,
    PREPARED_QUEUE_OFFSET,
    PRODUCER_GROUP,
    TRAN_MSG,
    TRANSACTION_ID,
)
from aerobee.broker.topic_table import HALF_TOPIC
from aerobee.broker.transaction.book import OpenTransaction
from aerobee.broker.transaction.half_message import immunity_ms
from aerobee.broker.transaction.ledger import Ledger
from aerobee.errors import AerobeeError
from aerobee.message import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    HEAD_V4,
    MAGIC_V1,
    MULTI_TAGS,
    PROPERTIES_BYTES_MAX,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import FLAG_ONEWAY, VERSION
from aerobee.store.consume_queue import ConsumeQueue

_COMMIT, _ROLLBACK = str(TRANSACTION_COMMIT), str(TRANSACTION_ROLLBACK)
_WORDS = struct.Struct(">II")
_END_START = b'{"code":%d,' % RequestCode.END_TRANSACTION
_SEND_START = b'{"code":%d,' % RequestCode.SEND_MESSAGE_V2
_HALF_MARK = b"TRAN_MSG\\u0001true\\u0002"
_HALF_FIELD = bytes((len(HALF_TOPIC),)) + HALF_TOPIC.encode()
_REAL_TOPIC = b"\x02REAL_TOPIC\x01"
_REAL_QUEUE = b"\x02REAL_QID\x01"
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6
_ORDINARY = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK | TRANSACTION_PREPARED
_OWN = frozenset({TRANSACTION_ID, "REAL_QID", CHECK_TIMES, PREPARED_QUEUE_OFFSET})
_NOT_ORDINARY = (
    KeyError, ValueError, TypeError, AttributeError, struct.error, OverflowError, AerobeeError,
)  # fmt: skip


def special_properties(ordinary: frozenset[str]) -> frozenset[str]:
    """Properties of half messages that are for the handlers; `ordinary` are those of ordinary messages."""
    return (ordinary - {TRAN_MSG, PRODUCER_GROUP}) | _OWN


class TransactionLaneCore(DelayedLane):
    """Serves the frames of a burst that belong to transactions, and messages for later (lane/delayed.py).

    `opened` is told of each transaction that begins.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        opened: Callable[[OpenTransaction], None],
        is_allowed: Callable[[], bool],
        half_topic: TopicConfig,
        **shared: Any,
    ) -> None:
        """`is_allowed`: half messages are taken as they come. `shared` are the arguments of DelayedLane."""
        super().__init__(**shared)
        self._ledger = ledger
        self._opened = opened
        self._is_allowed = is_allowed
        self._half = LaneTopic(half_topic)
        # Of the burst: the first transaction that began, the first to be asked about; the half queue.
        self._first: OpenTransaction | None = None
        self._half_lane: LaneQueue | None = None
        self._special_properties = special_properties(self._special_properties)

    def transactions(
        self, data: bytes | bytearray, position: int, born_host: bytes, now_ms: int
    ) -> tuple[bytes, int, bytes, list[Put]]:
        """Serve transaction frames from `position` on; return (replies, used, held, puts) as LaneCore.burst does."""
        self._begin(born_host, now_ms)
        self._first = self._half_lane = None
        replies: list[str] = []
        held: list[str] = []
        at, size, ended = position, len(data), 0
        unpack, loads = _WORDS.unpack_from, orjson.loads
        takes_halves, takes_delayed = self._is_allowed(), self._delayed.is_allowed()
        self._told.clear()
        try:
            while size - at >= 8:
                length, word = unpack(data, at)
                end = at + 4 + length
                body_at = at + 8 + (word & 0xFFFFFF)
                if end > size or word >> 24 or body_at > end:
                    break
                head = data[at + 8 : body_at]
                if head.startswith(_END_START):
                    self._end_one(loads(head))
                    ended += 1
                elif takes_halves and head.startswith(_SEND_START) and _HALF_MARK in head:
                    header = loads(head)
                    text, waits = self._prepare(header, data[body_at:end], born_host)
                    if text:
                        (held if waits else replies).append(text)
                elif takes_delayed and head.startswith(_SEND_START) and _HALF_MARK not in head:
                    text, waits = self._store_for_later(loads(head), data[body_at:end])
                    if text:
                        (held if waits else replies).append(text)
                else:
                    break
                at = end
        except _NOT_ORDINARY:
            pass  # the frame at `at` is for the handlers
        puts = self._end() if self._touched else []
        if self._first is not None:
            self._opened(self._first)
        if ended:
            self._ledger.decisions_made()
        return "".join(replies).encode("latin-1"), at, "".join(held).encode("latin-1"), puts

    # --- a half message

    def _prepare(self, header: dict[str, Any], body: bytes | bytearray, born_host: bytes) -> tuple[str, bool]:
        """Store one; return the reply, empty for a one-way request, and whether it waits for the disk."""
        flag, opaque, ext = header["flag"], header["opaque"], header["extFields"]
        topic = self._topics.get(ext["b"]) or self._admit(ext["b"])
        queue_text, properties = ext["e"], ext["i"]
        lane_queue = topic.queues.get(queue_text) or self._admit_queue(topic, queue_text)
        parts = properties.replace("\x02", "\x01").split("\x01")
        names_and_values = iter(parts)
        pairs = dict(zip(names_and_values, names_and_values))  # noqa: B905 - a last, empty part has no partner
        unique_key, group = pairs["UNIQ_KEY"], pairs[PRODUCER_GROUP]
        text = ext["f"]
        sys_flag = TRANSACTION_PREPARED if text == "4" else number(text)
        if (
            properties.count("\x01") != len(parts) >> 1
            or not self._special_properties.isdisjoint(pairs)
            or pairs[TRAN_MSG] != "true"
            or not (unique_key.isalnum() and unique_key.isascii() and group)
            or sys_flag & ~_ORDINARY
            or sys_flag & TRANSACTION_MASK != TRANSACTION_PREPARED
            or ext["j"] != "0"
            or ext["m"] not in ("false", "0")
            or (flag and flag != FLAG_ONEWAY)
            or type(opaque) is not int
        ):
            raise ValueError
        stored = (
            f"{properties if len(parts) & 1 else properties + chr(2)}{self._own_properties}{TRANSACTION_ID}\x01"
            f"{unique_key}\x02REAL_TOPIC\x01{topic.name}\x02REAL_QID\x01{lane_queue.queue_id}\x02"
        ).encode()
        if len(stored) > PROPERTIES_BYTES_MAX or len(body) > self._store.config.max_message_size:
            raise ValueError
        half = self._half
        keys, tag = pairs.get("KEYS", ""), pairs.get("TAGS", "")
        hashes, code = self._hashes(half, unique_key, keys, tag)
        user_flag, born_timestamp = ext["h"], ext["g"]
        self._origin.enter(born_host)
        queue_offset, offset = self._append(
            half, self._half_lane or self._half_queue(), body, stored, hashes, code, 0 if user_flag == "0" else number(user_flag),
            sys_flag & ~TRANSACTION_MASK, number(born_timestamp), 0,
        )  # fmt: skip
        half.request_count += 1
        transaction = OpenTransaction(
            (group, unique_key),
            topic.name,
            queue_offset,
            offset,
            stored_ms=self._now_ms,
            immunity_ms=immunity_ms(pairs) if IMMUNITY in pairs else None,
        )
        transaction.size = self._log.end - offset
        transaction.marks = (keys, tag)
        transaction = self._ledger.book.prepared(transaction)
        if transaction.immunity_ms is not None:
            self._opened(transaction)
        elif self._first is None:
            self._first = transaction
        if flag:
            return "", False
        text = (
            f'{lane_queue.reply_start}{unique_key}","msgId":"{self._store_host_hex}{offset:016X}{self._reply_fields}'
            f'"{queue_offset}"}},"flag":1,"language":"PYTHON","opaque":{opaque},'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
        )
        length = len(text)
        return f"{_WORDS.pack(length + 4, length).decode('latin-1')}{text}", (
            self._holds and pairs.get("WAIT") != "false"
        )

    def _half_queue(self) -> LaneQueue:
        """Looked up for each burst: the queue object goes when the topic's queues are deleted."""
        queue = self._store.queue(HALF_TOPIC, 0)
        known = self._half.queues.get("0")
        if known is None or known.queue is not queue:
            if not isinstance(queue, ConsumeQueue):
                raise ValueError
            known = self._half.queues["0"] = LaneQueue(queue, 0)
        self._half_lane = known
        return known

    # --- its end

    def _end_one(self, header: dict[str, Any]) -> None:
        """Carry out one decision about a transaction that is open and named right."""
        ext = header["extFields"]
        if header["flag"] != FLAG_ONEWAY:
            raise ValueError
        transaction = self._ledger.book.by_key[ext["producerGroup"], ext["transactionId"]]
        if (
            str(transaction.queue_offset) != ext["tranStateTableOffset"]
            or str(transaction.physical_offset) != ext["commitLogOffset"]
            or transaction.immunity_ms is not None
        ):
            raise ValueError
        decision = ext["commitOrRollback"]
        if decision == _COMMIT:
            self._commit(transaction)
            self._ledger.committed(transaction)
        elif decision == _ROLLBACK:
            self._ledger.rolled_back(transaction)
        else:
            raise ValueError

    def _commit(self, transaction: OpenTransaction) -> None:
        """Write the committed record, cut out of the half record."""
        at, marks = transaction.physical_offset, transaction.marks
        if marks is None or not transaction.size:
            raise ValueError  # one that came another way: from a start, a check, the handlers
        log = self._log
        place = at - log.base
        record = (
            bytes(log.buffer[place : place + transaction.size])
            if place >= 0
            else log.read(at, transaction.size)
        )
        (
            total, magic, _, _, flag, _, physical_offset, sys_flag, born_timestamp, born_ip, born_port, _, _, _,
            tries, _, body_size,
        ) = HEAD_V4.unpack_from(record)  # fmt: skip
        body_end = HEAD_V4.size + body_size
        text_at = body_end + len(_HALF_FIELD) + 2
        if (
            total != len(record)
            or magic != MAGIC_V1
            or physical_offset != at
            or sys_flag & _HOSTS_V6
            or record[body_end : text_at - 2] != _HALF_FIELD
        ):
            raise ValueError
        topic_at = record.rindex(_REAL_TOPIC, text_at)
        properties = record[text_at : topic_at + 1]
        if b"WAIT\x01true\x02" not in properties:
            raise ValueError
        topic = self._topics.get(transaction.topic) or self._admit(transaction.topic)
        queue_text = record[
            topic_at + len(_REAL_TOPIC) + len(topic.field) - 1 + len(_REAL_QUEUE) : -1
        ].decode()
        lane_queue = topic.queues.get(queue_text) or self._admit_queue(topic, queue_text)
        hashes, code = self._hashes(topic, transaction.key[1], *marks)
        born_host = born_ip + born_port.to_bytes(4, "big")
        self._origin.enter(born_host)
        self._append(
            topic, lane_queue, record[HEAD_V4.size : body_end], properties, hashes, code, flag,
            sys_flag | TRANSACTION_COMMIT, born_timestamp, tries, at,
        )  # fmt: skip
        topic.request_count += 1

    # --- helpers

    def _hashes(self, topic: LaneTopic, unique_key: str, keys: str, tag: str) -> tuple[list[int], int]:
        """Index hashes and tags code of a message."""
        hashes = [topic.key_hash(unique_key)]
        if keys:
            hashes += [topic.key_hash(key) for key in keys.split(" ") if key]
        if not tag:
            return hashes, 0
        code, tag_hash = topic.tag(tag)
        hashes.append(tag_hash)
        return hashes, code
