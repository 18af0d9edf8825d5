"""The hot path: whole bursts of ordinary sends and pulls, from the bytes of a read to the bytes of the replies.

LaneCore is the definition of what the native twin (native/) does: it takes bytes, the sender's address, the time and
writable buffers, does no IO and owns no memory. Its seam is

    burst(data, position, born_host, now_ms) -> (replies, used, slow, held, puts, gets)

    replies   encoded frames to be sent now
    used      position of the first byte that was not served
    slow      whether a whole frame stands there that is for the handlers (send/, pull/ and all others)
    held      encoded frames to be sent when the log is durable up to its present end
    puts      what was stored, by topic: (topic, messages, bytes of their records, requests)
    gets      what was pulled, in order: Got of lane/pull.py

Lane (lane.py) is the shell that joins it to connections, watermarks and statistics. LANE_VERSION changes with the seam
and with whatever a burst may answer or write: a native lane of another version is not used.

An ordinary frame is SEND_MESSAGE (10, 310), SEND_BATCH_MESSAGE (320) or the oneway form of them, in either header
type, to an existing topic and queue, within all limits, without a property that asks for more than storing it (delay,
timer, transaction, light queues); or a pull (lane/pull.py). Whatever is not, or cannot be parsed, is left for the
handlers, which know every error: no frame is refused here. Numbers stand as JSON integers or as text of digits, and
are what they are in both twins: nothing that only Python would read as a number is ordinary. Nothing is changed before
a message is known to be ordinary, and nothing can fail after its first byte is written.

Records and replies are what send_service.py makes. A stored text is the client's own text with the broker's properties at
its end; RocketMQ writes it again in the order of a hash map, which has no meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from functools import partial
from operator import itemgetter
from typing import Any

import orjson

from aerobee.broker.lane.batch import Shared, cut_batch
from aerobee.broker.lane.pull import Got, GrantKey, LanePulls, PullGrant, number
from aerobee.broker.lane.topic import LaneQueue, LaneTopic
from aerobee.broker.property_names import TIMER_REQUESTS
from aerobee.errors import MalformedRecord, StoreError, WireError
from aerobee.message import (
    COMPRESSED,
    COMPRESSION_MASK,
    MULTI_TAGS,
    PRIORITY,
    PROPERTIES_BYTES_MAX,
)
from aerobee.remoting.binary_header import decode_binary_header
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import FLAG_ONEWAY, VERSION, RemotingCommand, SerializeType
from aerobee.remoting.frame import encode_frame
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.message_store import MessageStore
from aerobee.store.record_layout import Origin

LANE_VERSION = 6
REPLY_BYTES_MAX = 1 << 20  # a burst that answered more ends there, for the peer must take it first
_WORDS = struct.Struct(">II")  # length of the frame behind this word, serialize type << 24 | header length
_SIZE = struct.Struct(">H")
_BATCH = RequestCode.SEND_BATCH_MESSAGE.value
_HEADER = itemgetter("code", "flag", "opaque", "extFields")
_LETTERS = itemgetter("b", "e", "f", "g", "h", "i", "j", "m")
_FIELDS: dict[int, Callable[[Any], tuple[Any, ...]]] = {
    # topic, queue id, sys flag, born timestamp, flag, properties, reconsume times, batch
    RequestCode.SEND_MESSAGE_V2.value: _LETTERS,
    _BATCH: _LETTERS,
    RequestCode.SEND_MESSAGE.value: itemgetter(
        "topic", "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes", "batch"
    ),
}
_PULLS = frozenset({RequestCode.PULL_MESSAGE.value, RequestCode.LITE_PULL_MESSAGE.value})
_NOT_BATCH = frozenset({"false", "0", 0})
_BINARY = SerializeType.ROCKETMQ.value
# A message with one of these is more than a message to store, or the broker would have to replace what it says.
SPECIAL_PROPERTIES = frozenset(
    {
        "DELAY", "TRAN_MSG", "PGROUP", "POP_CK", "REAL_TOPIC", "INNER_MULTI_DISPATCH", "INNER_NUM", "INNER_BASE",
        "MSG_REGION", "TRACE_ON", "CLUSTER", "__CRC32#", "TIMER_OUT_MS", "DEDUP_KEY", PRIORITY,
        *TIMER_REQUESTS,
    }
)  # fmt: skip
_ORDINARY_SYS_FLAG = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
_NOT_ORDINARY = (
    KeyError, ValueError, TypeError, AttributeError, struct.error, OverflowError, WireError, MalformedRecord,
    StoreError,
)  # fmt: skip
_PREFIXES = [
    f"\0\0{chr((n + 4) >> 8)}{chr((n + 4) & 255)}\0\0{chr(n >> 8)}{chr(n & 255)}" for n in range(4096)
]


Put = tuple[str, int, int, int]  # topic, messages, bytes of their records, requests


class LaneCore:
    """Serves bursts.

    `find_topic` returns the config of a topic that is ordinary, else None; `find_grant` says who may pull;
    `waiting` holds the queues at which a pull is parked; with `parks` the lane's pulls may be, too.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        find_topic: Callable[[str], TopicConfig | None],
        find_grant: Callable[[GrantKey], PullGrant | None],
        store_host: bytes,
        own_properties: str,
        reply_fields: str,
        reply_ext: dict[str, str],
        waiting: Container[tuple[str, int]],
        parks: bool = False,
        special_properties: frozenset[str] = SPECIAL_PROPERTIES,
    ) -> None:
        self._store = store
        self._waiting = waiting
        self._log = store.log
        self._find_topic = find_topic
        self._special_properties = special_properties
        self._store_host = store_host
        self._store_host_hex = store_host.hex().upper()
        self._own_properties = own_properties
        self._reply_fields = reply_fields
        self._reply_ext = reply_ext
        self._holds = store.config.is_sync_flush
        self._appender = store.appender
        self._origin = Origin(store_host)
        self._topics: dict[str, LaneTopic] = {}
        self._pulls = LanePulls(store, find_grant, parks)
        # Of the burst: its time, the limit of a body, and the topics that got messages.
        self._now_ms = self._body_bytes_max = 0
        self._touched: list[LaneTopic] = []

    def forget_topics(self) -> None:
        """Topics have changed: look everything up again."""
        self._topics.clear()
        self._pulls.forget()

    def forget_grants(self) -> None:
        """Groups, subscriptions or offsets have changed: ask again who may pull."""
        self._pulls.forget()

    def burst(
        self, data: bytes | bytearray, position: int, born_host: bytes, now_ms: int
    ) -> tuple[bytes, int, bool, bytes, list[Put], list[Got]]:
        """Serve ordinary frames from `position` on, until the data ends or a frame is not ordinary.

        The result is explained above. `born_host` is packed, `now_ms` the store's time.
        """
        self._begin(born_host, now_ms)
        replies: list[str] = []  # to sends, as Latin-1 text
        parts: list[bytes] = []  # replies to pulls, and to the sends before them
        held: list[str] = []
        gets: list[Got] = []
        reply_bytes = 0
        at, size = position, len(data)
        unpack, loads, header_of, fields_of = _WORDS.unpack_from, orjson.loads, _HEADER, _FIELDS.get
        slow = False
        try:
            while size - at >= 8 and reply_bytes < REPLY_BYTES_MAX:
                length, word = unpack(data, at)
                end = at + 4 + length
                if end > size:
                    break
                slow = True  # until this frame is served
                body_at = at + 8 + (word & 0xFFFFFF)
                if body_at > end:
                    break
                if word >> 24:
                    if word >> 24 != _BINARY:
                        break
                    command = decode_binary_header(data[at + 8 : body_at], b"")
                    code, flag, opaque, ext = command.code, command.flag, command.opaque, command.ext or {}
                else:
                    command = None
                    code, flag, opaque, ext = header_of(loads(data[at + 8 : body_at]))
                if (
                    not type(code) is type(flag) is type(opaque) is int
                    or (flag and flag != FLAG_ONEWAY)
                    or not -0x80000000 <= opaque <= 0x7FFFFFFF
                ):
                    break
                names = fields_of(code)
                if names is None:
                    if code not in _PULLS or flag:
                        break
                    frame, got = self._pulls.serve(code, ext, opaque, command, data[at:end])
                    parts += ("".join(replies).encode("latin-1"), frame) if replies else (frame,)
                    replies.clear()
                    gets.append(got)
                    at, slow, reply_bytes = end, False, reply_bytes + len(frame)
                    continue
                fields = names(ext)
                if code == _BATCH:
                    reply = self._batch(fields, data[body_at:end])
                elif fields[7] in _NOT_BATCH:
                    reply = self._single(fields, data[body_at:end])
                else:
                    break
                at, slow = end, False
                if flag:
                    continue
                lane_queue, queue_offset, message_ids, unique_key, waits = reply
                if command is None:
                    text = (
                        f'{lane_queue.reply_start}{unique_key}","msgId":"{message_ids}{self._reply_fields}'
                        f'"{queue_offset}"}},"flag":1,"language":"PYTHON","opaque":{opaque},'
                        f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
                    )
                    length = len(text)
                    text = (_PREFIXES[length] if length < 4096 else _prefix(length)) + text
                else:
                    text = self._binary_reply(command, lane_queue, queue_offset, message_ids, unique_key)
                if waits:
                    held.append(text)
                else:
                    replies.append(text)
        except _NOT_ORDINARY:
            pass  # the frame at `at` is for the handlers; slow is still True
        parts += ["".join(replies).encode("latin-1")] if replies else []  # one part alone is not copied
        puts = self._end() if self._touched else []
        return b"".join(parts), at, slow, "".join(held).encode("latin-1"), puts, gets

    def _end(self) -> list[Put]:
        """Write what a burst leaves to its end; return what was stored."""
        self._appender.end_burst(self._now_ms)
        puts = []
        for topic in self._touched:
            puts.append((topic.name, topic.count, topic.byte_count, topic.request_count))
            topic.count = topic.byte_count = topic.request_count = 0
        self._touched.clear()
        return puts

    def _begin(self, born_host: bytes, now_ms: int) -> None:
        """Set what the records of a burst share."""
        self._now_ms = now_ms
        self._body_bytes_max = self._store.config.max_message_size
        self._appender.begin_burst(self._origin, born_host, now_ms)

    def _single(
        self, fields: tuple[Any, ...], body: bytes | bytearray
    ) -> tuple[LaneQueue, int, str, str, bool]:
        """Store one message; return (queue, queue offset, message id, unique key, waits for the disk).

        Raises one of _NOT_ORDINARY, and has changed nothing then.
        """
        topic_name, queue_text, sys_flag, born_timestamp, flag, properties, tries, _ = fields
        topic = self._topics.get(topic_name) or self._admit(topic_name)
        if type(queue_text) is not str:
            queue_text = str(number(queue_text))
        lane_queue = topic.queues.get(queue_text) or self._admit_queue(topic, queue_text)
        # Text to pairs. Each pair has its separator, or this is not ordinary text.
        parts = properties.replace("\x02", "\x01").split("\x01")
        names_and_values = iter(parts)
        pairs = dict(zip(names_and_values, names_and_values))  # noqa: B905 - a last, empty part has no partner
        if properties.count("\x01") != len(parts) >> 1 or not self._special_properties.isdisjoint(pairs):
            raise ValueError
        unique_key = pairs["UNIQ_KEY"]
        sys_flag = 0 if sys_flag == "0" else number(sys_flag)
        if not (unique_key.isalnum() and unique_key.isascii()) or sys_flag & ~_ORDINARY_SYS_FLAG:
            raise ValueError
        stored = ((properties if len(parts) & 1 else properties + "\x02") + self._own_properties).encode()
        if len(stored) > PROPERTIES_BYTES_MAX or len(body) > self._body_bytes_max:
            raise ValueError
        hashes = [topic.plain_key_hash(unique_key.encode())]
        keys, tag = pairs.get("KEYS"), pairs.get("TAGS")
        if keys:
            hashes += [topic.key_hash(key) for key in keys.split(" ") if key]
        code = 0
        if tag:
            code, tag_hash = topic.tag(tag)
            hashes.append(tag_hash)
        flag = 0 if flag == "0" else number(flag)
        tries = 0 if tries == "0" else number(tries)
        # The usual thirteen digits without a call.
        is_plain = len(born_timestamp) < 20 and born_timestamp.isdigit() and born_timestamp.isascii()
        born_timestamp = int(born_timestamp) if is_plain else number(born_timestamp)
        queue = lane_queue.queue
        queue_offset = queue.max_offset
        # What _append() does, without its call.
        offset = self._appender.append_parts(
            self._origin, queue, topic.field, body, stored, hashes, code, flag, sys_flag, born_timestamp, tries, 0,
            lane_queue.key in self._waiting,
        )  # fmt: skip
        if not topic.count:
            self._touched.append(topic)
        topic.count += 1
        topic.byte_count += self._log.end - offset
        topic.request_count += 1
        waits = self._holds and pairs.get("WAIT") != "false"
        return lane_queue, queue_offset, f"{self._store_host_hex}{offset:016X}", unique_key, waits

    def _append(
        self,
        topic: LaneTopic,
        lane_queue: LaneQueue,
        body: bytes | bytearray,
        properties: bytes,
        hashes: list[int],
        tag_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        reconsume_times: int,
        prepared_offset: int = 0,
    ) -> tuple[int, int]:
        """Store the record with its entries, and count it; return (queue offset, physical offset)."""
        queue = lane_queue.queue
        queue_offset = queue.max_offset
        offset = self._appender.append_parts(
            self._origin, queue, topic.field, body, properties, hashes, tag_code, flag, sys_flag, born_timestamp,
            reconsume_times, prepared_offset, lane_queue.key in self._waiting,
        )  # fmt: skip
        if not topic.count:
            self._touched.append(topic)
        topic.count += 1
        topic.byte_count += self._log.end - offset
        return queue_offset, offset

    def _batch(
        self, fields: tuple[Any, ...], body: bytes | bytearray
    ) -> tuple[LaneQueue, int, str, str, bool]:
        """Store the messages of a batch, back to back in one file; return as _single does."""
        topic_name, queue_text, sys_flag, born_timestamp, _, properties, tries, _ = fields
        topic = self._topics.get(topic_name) or self._admit(topic_name)
        if type(queue_text) is not str:
            queue_text = str(number(queue_text))
        lane_queue = topic.queues.get(queue_text) or self._admit_queue(topic, queue_text)
        names_and_values = iter(properties.replace("\x02", "\x01").split("\x01"))
        outer = dict(zip(names_and_values, names_and_values))  # noqa: B905
        sys_flag, born_timestamp, tries = number(sys_flag), number(born_timestamp), number(tries)
        unique_key = outer["UNIQ_KEY"]
        if (
            "DELAY" in outer
            or sys_flag & ~_ORDINARY_SYS_FLAG
            or len(body) > self._body_bytes_max
            or not (unique_key.isalnum() and unique_key.isascii())
        ):
            raise ValueError
        cut = cut_batch(bytes(body), topic)
        count = cut.message_count
        total = cut.byte_count + count * (self._origin.head.size + len(topic.field) + _SIZE.size)
        queue = lane_queue.queue
        if queue.max_offset + count > queue.room:
            queue.make_room(count)
            if queue.max_offset + count > queue.room:
                raise ValueError  # over the end of the queue's file
        first = queue.max_offset
        hosts = self._origin.pack_hosts(sys_flag, born_timestamp, tries)
        offsets, _ = self._appender.append_run(
            queue,
            count,
            total,
            self._now_ms,
            partial(cut.lay_out, Shared(lane_queue.queue_id, hosts, topic.field)),
            keys=cut.index_entries,
            key_count=len(cut.hashes),
            is_awaited=lane_queue.key in self._waiting,
        )
        if not topic.count:
            self._touched.append(topic)
        topic.count += count
        topic.byte_count += total
        topic.request_count += 1
        # Each the host and the offset in hex, all in one go: a fourth of what one by one takes.
        message_ids = (
            struct.pack(f">{count}q", *offsets).hex(",", 8).upper().replace(",", f",{self._store_host_hex}")
        )
        message_ids = self._store_host_hex + message_ids
        return lane_queue, first, message_ids, unique_key, self._holds and outer.get("WAIT") != "false"

    # --- what is looked up once

    def _admit(self, name: str) -> LaneTopic:
        config = self._find_topic(name)
        if config is None:
            raise KeyError(name)
        topic = self._topics[name] = LaneTopic(config)
        return topic

    def _admit_queue(self, topic: LaneTopic, queue_text: str) -> LaneQueue:
        queue_id = number(queue_text)
        if not 0 <= queue_id < topic.queue_count or str(queue_id) != queue_text:
            raise ValueError
        queue = self._store.queue(topic.name, queue_id)
        if type(queue) is not ConsumeQueue:  # one of another kind has more to write than an entry
            raise ValueError
        lane_queue = topic.queues[queue_text] = LaneQueue(queue, queue_id)
        return lane_queue

    def _binary_reply(
        self,
        request: RemotingCommand,
        lane_queue: LaneQueue,
        queue_offset: int,
        message_ids: str,
        unique_key: str,
    ) -> str:
        ext = {
            "queueId": str(lane_queue.queue_id),
            "transactionId": unique_key,
            "msgId": message_ids,
            **self._reply_ext,
            "queueOffset": str(queue_offset),
        }
        return encode_frame(request.reply(ext=ext)).decode("latin-1")


def _prefix(length: int) -> str:
    return _WORDS.pack(length + 4, length).decode("latin-1")
