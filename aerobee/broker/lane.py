"""The hot path: whole bursts of ordinary sends, from the bytes of a read to the bytes of the replies.

LaneCore is the definition of what a native twin does: it takes bytes, the sender's address, the time and writable
buffers, does no IO and owns no memory. Its seam is

    burst(data, position, born_host, now_ms) -> (replies, used, slow)

`used` is the position of the first byte that was not served, `slow` tells whether a whole frame stands there that is
for the handlers (send.py and all others). Lane is the shell that joins it to connections, watermarks and statistics.

An ordinary frame is SEND_MESSAGE (10, 310), SEND_BATCH_MESSAGE (320) or the oneway form of them, in either header
type, to an existing topic and queue, within all limits, without a property that asks for more than storing it (delay,
timer, transaction, light queues). Whatever is not, or cannot be parsed, is left for the handlers, which know every
error: no frame is refused here. Nothing is changed before a message is known to be ordinary, and nothing can fail
after its first byte is written.

Records and replies are what send.py makes. A stored text is the client's own text with the broker's properties at
its end; RocketMQ writes it again in the order of a hash map, which has no meaning.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Container
from operator import itemgetter
from typing import Any

import orjson

from aerobee.broker.config import PERM_WRITE, LiveConfig
from aerobee.broker.durable_replies import DurableReplies
from aerobee.broker.identity import BrokerIdentity
from aerobee.broker.overload import Overload
from aerobee.broker.parked_pulls import ParkedPulls
from aerobee.broker.send import TIMER_PROPERTIES
from aerobee.broker.send_header import parse_batch
from aerobee.broker.stats import BrokerStats
from aerobee.broker.topic_table import NOT_SENDABLE, SYSTEM_PREFIX, TopicTable
from aerobee.clock import Clock
from aerobee.errors import MalformedRecord, StoreError, WireError
from aerobee.message import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    DLQ_PREFIX,
    LEGAL_NAME,
    MAGIC_V1,
    MULTI_TAGS,
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    java_hash,
    pack_host,
    tags_code,
)
from aerobee.remoting.binary_header import decode_binary_header
from aerobee.remoting.body.topic_config import SINGLE_TAG, TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import FLAG_ONEWAY, VERSION, RemotingCommand, boolean_text
from aerobee.remoting.connection import Connection
from aerobee.remoting.frame import encode_frame
from aerobee.store.config import BrokerRole
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.message_store import MessageStore

_WORDS = struct.Struct(">II")  # length of the frame behind this word, serialize type << 24 | header length
_SIZE = struct.Struct(">H")
_FIELDS: dict[int, Callable[[Any], tuple[Any, ...]]] = {
    # topic, queue id, sys flag, born timestamp, flag, properties, reconsume times
    RequestCode.SEND_MESSAGE_V2: itemgetter("b", "e", "f", "g", "h", "i", "j"),
    RequestCode.SEND_BATCH_MESSAGE: itemgetter("b", "e", "f", "g", "h", "i", "j"),
    RequestCode.SEND_MESSAGE: itemgetter(
        "topic", "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes"
    ),
}
_BATCH_MARKS: dict[int, str] = {RequestCode.SEND_MESSAGE_V2: "m", RequestCode.SEND_MESSAGE: "batch"}
_NOT_BATCH = frozenset({"false", "0", "", None, 0})
# A message with one of these is more than a message to store, or the broker would have to replace what it says.
SPECIAL_PROPERTIES = frozenset(
    {
        "DELAY", "TRAN_MSG", "PGROUP", "POP_CK", "REAL_TOPIC", "INNER_MULTI_DISPATCH", "INNER_NUM", "INNER_BASE",
        "MSG_REGION", "TRACE_ON", "CLUSTER", "__CRC32#", "TIMER_OUT_MS", *TIMER_PROPERTIES,
    }
)  # fmt: skip
_ORDINARY_SYS_FLAG = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
_NOT_ORDINARY = (
    KeyError, ValueError, TypeError, AttributeError, struct.error, OverflowError, WireError, MalformedRecord,
    StoreError,
)  # fmt: skip
_TAG_CODES_KEPT = 4096
_POW31 = [pow(31, n, 1 << 32) for n in range(128)]
_PREFIXES = [
    f"\0\0{chr((n + 4) >> 8)}{chr((n + 4) & 255)}\0\0{chr(n >> 8)}{chr(n & 255)}" for n in range(4096)
]


class _LaneQueue:
    """One queue of an ordinary topic."""

    __slots__ = ("key", "queue", "queue_id", "reply_start")

    def __init__(self, queue: ConsumeQueue, queue_id: int) -> None:
        self.key = (queue.topic, queue_id)
        self.queue = queue
        self.queue_id = queue_id
        self.reply_start = f'{{"code":0,"extFields":{{"queueId":"{queue_id}","transactionId":"'


class _LaneTopic:
    """What the lane knows of one ordinary topic. Dropped when the topic's config changes."""

    __slots__ = (
        "byte_count",
        "count",
        "field",
        "hash_start",
        "name",
        "queue_count",
        "queues",
        "request_count",
        "tags",
    )

    def __init__(self, config: TopicConfig) -> None:
        raw = config.topic_name.encode()
        self.name = config.topic_name
        self.field = bytes((len(raw),)) + raw
        self.queue_count = max(config.read_queue_nums, config.write_queue_nums)
        self.queues: dict[str | int, _LaneQueue] = {}  # by the queue id as it stands on the wire
        self.hash_start = java_hash(config.topic_name + "#") & 0xFFFFFFFF
        self.tags: dict[str, tuple[int, int]] = {}  # tag -> (tags code, hash of its index key)
        self.count = self.byte_count = self.request_count = 0  # of the burst

    def tag(self, tag: str) -> tuple[int, int]:
        """Return the tags code of a queue entry and the hash of the index key `topic#T#tag`."""
        codes = self.tags.get(tag)
        if codes is None:
            if len(self.tags) >= _TAG_CODES_KEPT:
                self.tags.clear()
            codes = self.tags[tag] = (tags_code(tag), _positive(java_hash(f"{self.name}#T#{tag}")))
        return codes

    def key_hash(self, key: str) -> int:
        """The hash of the index key `topic#key`, without building it."""
        size = len(key)
        if size < 128 and key.isascii():
            return _positive(self.hash_start * _POW31[size] + java_hash(key))
        return _positive(java_hash(f"{self.name}#{key}"))


def _positive(value: int) -> int:
    """The absolute value of a Java int; that of the smallest one is 0, as RocketMQ's index has it."""
    value &= 0xFFFFFFFF
    return value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF


class LaneCore:
    """Serves bursts. `touched` holds the topics written to, `held` the replies that wait for the disk.

    `find_topic` returns the config of a topic that is ordinary, else None; `waiting` holds the queues at which a pull is
    parked.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        find_topic: Callable[[str], TopicConfig | None],
        store_host: bytes,
        own_properties: str,
        reply_fields: str,
        reply_ext: dict[str, str],
        waiting: Container[tuple[str, int]],
    ) -> None:
        self._store = store
        self._waiting = waiting
        self._log = store.log
        self._index = store.index
        self._find_topic = find_topic
        self._store_host = store_host
        self._store_host_hex = store_host.hex().upper()
        self._own_properties = own_properties
        self._reply_fields = reply_fields
        self._reply_ext = reply_ext
        self._holds = store.config.is_sync_flush
        self._topics: dict[str, _LaneTopic] = {}
        self._heads: dict[int, struct.Struct] = {}
        self.touched: dict[str, _LaneTopic] = {}
        self.held: list[str] = []
        self.last_offset = -1  # where the youngest record begins

    def forget_topics(self) -> None:
        """Topics or settings have changed: look everything up again."""
        self._topics.clear()

    def burst(
        self, data: bytes | bytearray, position: int, born_host: bytes, now_ms: int
    ) -> tuple[str, int, bool]:
        """Serve ordinary frames from `position` on, until the data ends or a frame is not ordinary.

        Return the encoded replies (Latin-1 text), the position of the first byte not served, and whether a whole
        frame stands there. `born_host` is packed, `now_ms` the store's time.
        """
        replies: list[str] = []
        at, size = position, len(data)
        unpack, loads, fields_of = _WORDS.unpack_from, orjson.loads, _FIELDS
        slow = False
        try:
            while size - at >= 8:
                length, word = unpack(data, at)
                end = at + 4 + length
                if end > size:
                    break
                slow = True  # until this frame is served
                body_at = at + 8 + (word & 0xFFFFFF)
                if body_at > end:
                    break
                if word >> 24:
                    command = decode_binary_header(data[at + 8 : body_at], b"")
                    code, flag, opaque, ext = command.code, command.flag, command.opaque, command.ext or {}
                else:
                    command = None
                    header = loads(data[at + 8 : body_at])
                    code, flag, opaque, ext = (
                        header["code"],
                        header["flag"],
                        header["opaque"],
                        header["extFields"],
                    )
                if (flag and flag != FLAG_ONEWAY) or type(opaque) is not int:
                    break
                fields = fields_of[code](ext)
                if code == RequestCode.SEND_BATCH_MESSAGE:
                    reply = self._batch(fields, data[body_at:end], born_host, now_ms)
                elif ext.get(_BATCH_MARKS[code]) in _NOT_BATCH:
                    reply = self._single(fields, data[body_at:end], born_host, now_ms)
                else:
                    break
                at = end
                slow = False
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
                    self.held.append(text)
                else:
                    replies.append(text)
        except _NOT_ORDINARY:
            pass  # the frame at `at` is for the handlers; slow is still True
        return "".join(replies), at, slow

    def _single(
        self, fields: tuple[Any, ...], body: bytes | bytearray, born_host: bytes, now_ms: int
    ) -> tuple[_LaneQueue, int, str, str, bool]:
        """Store one message; return (queue, queue offset, message id, unique key, waits for the disk).

        Raises one of _NOT_ORDINARY, and has changed nothing then.
        """
        topic_name, queue_text, sys_flag, born_timestamp, flag, properties, tries = fields
        topic = self._topics.get(topic_name) or self._admit(topic_name)
        lane_queue = topic.queues.get(queue_text) or self._admit_queue(topic, queue_text)
        # Text to pairs. Each pair has its separator, or this is not ordinary text.
        parts = properties.replace("\x02", "\x01").split("\x01")
        pairs = dict(zip(parts[::2], parts[1::2]))  # noqa: B905 - a last, empty part has no partner
        if properties.count("\x01") != len(parts) >> 1 or not SPECIAL_PROPERTIES.isdisjoint(pairs):
            raise ValueError
        unique_key = pairs["UNIQ_KEY"]
        sys_flag = int(sys_flag)
        if not (unique_key.isascii() and unique_key.isalnum()) or sys_flag & ~_ORDINARY_SYS_FLAG:
            raise ValueError
        text = properties if len(parts) & 1 else properties + "\x02"
        stored = (text + self._own_properties).encode()
        stored_size = len(stored)
        if stored_size > PROPERTIES_BYTES_MAX or len(body) > self._store.config.max_message_size:
            raise ValueError
        hashes = [topic.key_hash(unique_key)]
        keys, tag = pairs.get("KEYS"), pairs.get("TAGS")
        if keys:
            hashes += [topic.key_hash(key) for key in keys.split(" ") if key]
        code = 0
        if tag:
            code, tag_hash = topic.tag(tag)
            hashes.append(tag_hash)
        queue_offset, offset = self._write(
            topic, lane_queue, body, stored, hashes, code, int(flag), sys_flag, int(born_timestamp), born_host,
            now_ms, int(tries),
        )  # fmt: skip
        topic.request_count += 1
        waits = self._holds and pairs.get("WAIT") != "false"
        return lane_queue, queue_offset, f"{self._store_host_hex}{offset:016X}", unique_key, waits

    def _write(
        self,
        topic: _LaneTopic,
        lane_queue: _LaneQueue,
        body: bytes | bytearray,
        properties: bytes,
        hashes: list[int],
        tag_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        now_ms: int,
        reconsume_times: int,
    ) -> tuple[int, int]:
        """Write record, queue entry and index entries; return (queue offset, physical offset)."""
        log, queue, index = self._log, lane_queue.queue, self._index
        head = self._heads.get(len(born_host)) or self._head_for(born_host)
        if len(born_host) != 8:
            sys_flag |= BORN_HOST_V6
        if len(self._store_host) != 8:
            sys_flag |= STORE_HOST_V6
        queue_offset = queue.max_offset
        if queue_offset >= queue.room:
            queue.make_room(1)
        if not index.has_room(len(hashes)):
            index.make_room(len(hashes), now_ms)
        body_size, properties_size = len(body), len(properties)
        size = head.size + body_size + len(topic.field) + 2 + properties_size
        offset = log.end
        if offset + size > log.limit:
            offset = log.place(size)
        at = offset - log.base
        record = b"".join(
            (
                head.pack(
                    size, MAGIC_V1, zlib.crc32(body) & 0x7FFFFFFF, lane_queue.queue_id, flag, queue_offset, offset,
                    sys_flag, born_timestamp, born_host, now_ms, self._store_host, reconsume_times, 0, body_size,
                ),
                body,
                topic.field,
                _SIZE.pack(properties_size),
                properties,
            )
        )  # fmt: skip
        # Record first, entries second: whoever sees the entry reads the record, and recovery makes what is missing.
        log.buffer[at : at + size] = record
        log.end = offset + size
        queue.append_entry(offset, size, tag_code)
        if index.is_enabled:
            file = index.files[-1]
            for value in hashes:
                file.put(value, offset, now_ms)
        if self._holds or lane_queue.key in self._waiting:
            self._store.announce(queue, offset, now_ms, tag_code)
        else:
            queue.readable_max = queue.max_offset  # what announce() does, when nobody waits
        topic.count += 1
        topic.byte_count += size
        self.last_offset = offset
        if not topic.request_count:
            self.touched[topic.name] = topic
        return queue_offset, offset

    def _batch(
        self, fields: tuple[Any, ...], body: bytes | bytearray, born_host: bytes, now_ms: int
    ) -> tuple[_LaneQueue, int, str, str, bool]:
        """Store the messages of a batch, back to back in one file; return as _single does."""
        topic_name, queue_text, sys_flag, born_timestamp, _, properties, tries = fields
        topic = self._topics.get(topic_name) or self._admit(topic_name)
        lane_queue = topic.queues.get(queue_text) or self._admit_queue(topic, queue_text)
        parts = properties.replace("\x02", "\x01").split("\x01")
        outer = dict(zip(parts[::2], parts[1::2]))  # noqa: B905
        sys_flag, born_timestamp, tries = int(sys_flag), int(born_timestamp), int(tries)
        unique_key = outer["UNIQ_KEY"]
        if (
            "DELAY" in outer
            or sys_flag & ~_ORDINARY_SYS_FLAG
            or len(body) > self._store.config.max_message_size
            or not (unique_key.isascii() and unique_key.isalnum())
        ):
            raise ValueError
        entries = parse_batch(bytes(body))
        prepared = []
        total = hash_count = 0
        head = self._heads.get(len(born_host)) or self._head_for(born_host)
        fixed_size = head.size + len(topic.field) + _SIZE.size
        for entry in entries:
            hashes, code = self._keys_of(topic, entry.properties)
            hash_count += len(hashes)
            total += fixed_size + len(entry.body) + len(entry.properties)
            prepared.append((entry.body, entry.properties, hashes, code, entry.flag))
        # Everything that can fail comes first: room for all of it in one file, and numbers that fit their fields.
        queue, index = lane_queue.queue, self._index
        if queue.max_offset + len(entries) > queue.room:
            queue.make_room(len(entries))
            if queue.max_offset + len(entries) > queue.room:
                raise ValueError
        if not index.has_room(hash_count):
            index.make_room(hash_count, now_ms)
        _INT32_CHECK.pack(sys_flag, tries)
        _INT64_CHECK.pack(born_timestamp)
        self._log.place(total)
        offsets = []
        first = queue.max_offset
        for message_body, message_properties, hashes, code, flag in prepared:
            _, offset = self._write(
                topic, lane_queue, message_body, message_properties, hashes, code, flag, sys_flag, born_timestamp,
                born_host, now_ms, tries,
            )  # fmt: skip
            offsets.append(offset)
        topic.request_count += 1
        message_ids = ",".join([f"{self._store_host_hex}{offset:016X}" for offset in offsets])
        return lane_queue, first, message_ids, unique_key, self._holds and outer.get("WAIT") != "false"

    def _keys_of(self, topic: _LaneTopic, raw: bytes) -> tuple[list[int], int]:
        """Return the index hashes and the tags code of a batch entry's properties."""
        text = raw.decode()
        parts = text.replace("\x02", "\x01").split("\x01")
        if text.count("\x01") != len(parts) >> 1:
            raise ValueError
        pairs = dict(zip(parts[::2], parts[1::2]))  # noqa: B905
        hashes: list[int] = []
        unique_key, keys, tag = pairs.get("UNIQ_KEY"), pairs.get("KEYS"), pairs.get("TAGS")
        if unique_key:
            hashes.append(topic.key_hash(unique_key))
        if keys:
            hashes += [topic.key_hash(key) for key in keys.split(" ") if key]
        if not tag:
            return hashes, 0
        code, tag_hash = topic.tag(tag)
        hashes.append(tag_hash)
        return hashes, code

    # --- what is looked up once

    def _admit(self, name: str) -> _LaneTopic:
        config = self._find_topic(name)
        if config is None:
            raise KeyError(name)
        topic = self._topics[name] = _LaneTopic(config)
        return topic

    def _admit_queue(self, topic: _LaneTopic, queue_text: str | int) -> _LaneQueue:
        queue_id = int(queue_text)
        if not 0 <= queue_id < topic.queue_count or len(topic.queues) > 4 * topic.queue_count:
            raise ValueError
        queue = self._store.queue(topic.name, queue_id)
        if not isinstance(queue, ConsumeQueue):
            raise ValueError
        lane_queue = topic.queues[queue_text] = _LaneQueue(queue, queue_id)
        return lane_queue

    def _head_for(self, born_host: bytes) -> struct.Struct:
        """The record up to its body, for this size of the sender's address."""
        head = struct.Struct(f">IIIiiqqiq{len(born_host)}sq{len(self._store_host)}siqi")
        self._heads[len(born_host)] = head
        return head

    def _binary_reply(
        self,
        request: RemotingCommand,
        lane_queue: _LaneQueue,
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


_INT32_CHECK = struct.Struct(">ii")
_INT64_CHECK = struct.Struct(">q")


def _prefix(length: int) -> str:
    return _WORDS.pack(length + 4, length).decode("latin-1")


class Lane:
    """Joins LaneCore to the broker. Given to RemotingServer as its burst hook."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        stats: BrokerStats,
        durable: DurableReplies,
        overload: Overload,
        parked: ParkedPulls,
        live: LiveConfig,
        identity: BrokerIdentity,
        clock: Clock,
    ) -> None:
        self._store = store
        self._parked = parked
        self._topics = topics
        self._stats = stats
        self._durable = durable
        self._overload = overload
        self._live = live
        self._identity = identity
        self._clock = clock
        self._is_slave = not identity.is_master or store.config.broker_role is BrokerRole.SLAVE
        self._opens_ms = 0
        self._core = self._make_core()
        topics.on_change(lambda _: self._core.forget_topics())
        live.on_change(lambda _: self._settings_changed())

    def burst(self, connection: Connection, data: bytes | bytearray, position: int) -> int:
        """Serve what is ordinary in `data` from `position` on; return the first position that was not served."""
        born_host = connection.lane
        if born_host is None:
            born_host = connection.lane = pack_host(*connection.peer)
        store = self._store
        if self._is_slave or self._overload.reason or not store.is_writable or self._is_closed():
            return position
        core = self._core
        now_ms = store.store_time_now()
        replies, used, _ = core.burst(data, position, born_host, now_ms)
        if core.touched:
            for topic in core.touched.values():
                self._stats.topic_put(topic.name, topic.count, topic.byte_count, topic.request_count)
                topic.count = topic.byte_count = topic.request_count = 0
            core.touched.clear()
            if store.index.is_enabled:
                store.index.files[-1].write_header()
            store.last_store_timestamp, store.last_record_offset = now_ms, core.last_offset
            store.burst_done()
            if replies:
                connection.write(replies.encode("latin-1"))
            if core.held:
                held = "".join(core.held).encode("latin-1")
                core.held.clear()
                self._durable.hold(connection, store.log.end, held)
        return used

    def _is_closed(self) -> bool:
        """Whether startAcceptSendRequestTimeStamp lies ahead."""
        if self._opens_ms and self._clock.now_ms() >= self._opens_ms:
            self._opens_ms = 0
        return self._opens_ms != 0

    def _make_core(self) -> LaneCore:
        config = self._live.value
        trace_on = boolean_text(config.trace_on)
        self._opens_ms = config.start_accept_send_request_time_stamp
        return LaneCore(
            store=self._store,
            find_topic=self._find_ordinary,
            store_host=self._identity.store_host,
            own_properties=(
                f"MSG_REGION\x01{config.region_id}\x02TRACE_ON\x01{trace_on}\x02"
                f"CLUSTER\x01{config.broker_cluster_name}\x02"
            ),
            reply_fields=f'","TRACE_ON":"{trace_on}","MSG_REGION":{_ascii_json(config.region_id)},"queueOffset":',
            reply_ext={"TRACE_ON": trace_on, "MSG_REGION": config.region_id},
            waiting=self._parked.by_queue,
        )

    def _settings_changed(self) -> None:
        self._core = self._make_core()

    def _find_ordinary(self, name: str) -> TopicConfig | None:
        config = self._topics.get(name)
        if (
            config is None
            or name in NOT_SENDABLE
            or name.startswith((RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX))
            or len(name) > TOPIC_BYTES_MAX
            or not LEGAL_NAME.match(name)
            or config.topic_filter_type != SINGLE_TAG
            or config.attributes.get("queue.type", "SimpleCQ") != "SimpleCQ"
            or config.attributes.get("cleanup.policy", "DELETE") != "DELETE"
            or (config.order and not self._live.value.broker_permission & PERM_WRITE)
        ):
            return None
        return config


def _ascii_json(text: str) -> str:
    """A JSON string in which every character is one Latin-1 byte."""
    escaped = orjson.dumps(text).decode()
    return "".join(char if char.isascii() else f"\\u{ord(char):04x}" for char in escaped)
