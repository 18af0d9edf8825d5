"""Messages that a consumer sends back (36), as Java and Go ask for it (JSON header). A core.

The outcome is that of send/send_back_service.py with the hook of send/delay_level.py: the record is stored again in the queue of
its level in SCHEDULE_TOPIC_XXXX, from where it goes to the group's retry topic. Dead messages, those that wait an exact time, and
records that are not in the log's current file are left to the handler.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import orjson

from aerobee.broker.fastpath.exclusions import (
    ELIGIBLE_SYS_FLAG,
    LEVEL_MAX,
    SEND_BACK_EXTRAS,
    SEND_BACK_LEVEL_MAX,
    SEND_BACK_PAIRS_MAX,
    SEND_BACK_RECORD_BYTES_MAX,
    SEND_BACK_SPECIAL,
)
from aerobee.broker.fastpath.pop import empty_reply
from aerobee.broker.fastpath.request import Request, number
from aerobee.broker.fastpath.seam import SendBackHooks
from aerobee.broker.fastpath.shared import Shared
from aerobee.broker.fastpath.topic import FastTopic
from aerobee.broker.send.send_header import FIRST_RETRY_LEVEL, VERSION_WITH_MAX_RECONSUME
from aerobee.message import (
    DLQ_PREFIX,
    HOSTS_V6,
    LEGAL_NAME,
    MAGIC_V1,
    ORIGIN_POSITION,
    RETRY_PREFIX,
    TOPIC_BYTES_MAX,
    TRIES_MAX,
)
from aerobee.property_names import DELAY, REAL_QUEUE_ID, REAL_TOPIC
from aerobee.record_head import HEAD_V4, RECORD_BYTES_MIN

_unpack_head = HEAD_V4.unpack_from


class _Group(NamedTuple):
    """A group that takes messages back."""

    topic: FastTopic  # its retry topic
    tries_max: int  # tries after which a message is dead


class StoredAgain(NamedTuple):
    """A message to store for its next try."""

    group: _Group
    level: int
    born_host: bytes
    body: bytes
    properties: str
    pairs: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    tries: int
    first_topic: str


class SendBacks:
    """Reads these requests and their records for Delayed, which stores the message."""

    def __init__(self, shared: Shared, hooks: SendBackHooks, broker_name: str) -> None:
        self._shared = shared
        self._hooks = hooks
        self._broker_name = broker_name
        self._groups: dict[str, _Group] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def forget(self) -> None:
        """Groups or topics have changed."""
        self._groups.clear()

    def read(self, request: Request, level_count: int) -> StoredAgain:
        """The message of a request. Raises one of UNREADABLE for one that is the handler's."""
        shared, ext = self._shared, request.ext
        if (
            request.command is not None
            or any(name in ext for name in SEND_BACK_EXTRAS)
            or ext.get("unitMode", "false") != "false"
        ):
            raise ValueError
        tries_text = ext.get("maxReconsumeTimes", "")
        tries_asked = -1 if tries_text == "" else number(tries_text)
        header = orjson.loads(request.data[request.start + 8 : request.body_at])
        version = header.get("version", 0)
        if type(version) is not int or not -(1 << 31) <= version < 1 << 31:
            raise ValueError
        offset, name, level = number(ext["offset"]), ext["group"], number(ext["delayLevel"])
        if type(name) is not str or not 0 <= level <= SEND_BACK_LEVEL_MAX:
            raise ValueError
        group = self._groups.get(name) or self._find_group(name)
        record = self._record(offset)
        (
            total, magic, crc, queue_id, flag, queue_offset, own_offset, sys_flag, born_timestamp, born_ip, born_port, _, store_ip,
            store_port, tries, _, body_size,
        ) = _unpack_head(record)  # fmt: skip
        body_end = HEAD_V4.size + body_size
        if (
            total != len(record)
            or magic != MAGIC_V1
            or own_offset != offset
            or sys_flag & HOSTS_V6
            or body_size < 0
            or body_end + 3 > total
        ):
            raise ValueError
        text_at = body_end + 3 + record[body_end]
        if text_at > total or total - text_at != int.from_bytes(record[text_at - 2 : text_at], "big"):
            raise ValueError
        body, tries_max = record[HEAD_V4.size : body_end], group.tries_max
        if version >= VERSION_WITH_MAX_RECONSUME and tries_asked >= 0:
            tries_max = tries_asked
        if (
            sys_flag & ~ELIGIBLE_SYS_FLAG
            or min(born_port, store_port) < 0
            or (body and crc32(body) & 0x7FFFFFFF != crc)
            or len(body) > shared.store.config.max_message_size
            or tries >= min(tries_max, TRIES_MAX)
        ):
            raise ValueError
        level = min(level or FIRST_RETRY_LEVEL + tries, level_count)
        if not 1 <= level <= LEVEL_MAX:
            raise ValueError
        topic = record[body_end + 1 : text_at - 2].decode()
        pairs = _read_pairs(record[text_at:].decode())
        is_retry = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        first_topic = pairs["RETRY_TOPIC"] if is_retry else topic
        if is_retry and not (len(first_topic) <= TOPIC_BYTES_MAX and LEGAL_NAME.match(first_topic)):
            raise ValueError
        if not self._hooks.is_record(topic, queue_id, queue_offset, offset, total):
            raise ValueError
        retry_queue = self._hooks.pick(group.topic.write_count) if group.topic.write_count != 1 else 0
        pairs["RETRY_TOPIC"] = first_topic
        store_host = store_ip + store_port.to_bytes(4, "big")
        pairs.setdefault("ORIGIN_MESSAGE_ID", f"{store_host.hex().upper()}{offset:016X}")
        if not is_retry:
            pairs[ORIGIN_POSITION] = f"{self._broker_name}/{queue_id}@{queue_offset}"
        pairs["WAIT"] = "false"
        pairs[DELAY] = str(level)
        pairs[REAL_TOPIC], pairs[REAL_QUEUE_ID] = group.topic.name, str(retry_queue)
        properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
        born_host = born_ip + born_port.to_bytes(4, "big")
        return StoredAgain(
            group, level, born_host, body, properties, pairs, flag, sys_flag, born_timestamp, tries + 1, first_topic
        )  # fmt: skip

    def answer(self, request: Request, again: StoredAgain, *, waits: bool) -> None:
        """Answer a request whose message is stored, and count it."""
        shared = self._shared
        if not self._counts:
            shared.at_end.append(self._end)
        key = (request.ext["group"], again.first_topic)
        self._counts[key] = self._counts.get(key, 0) + 1
        shared.has_counted = True
        if request.flag:
            shared.codes.append(-request.code)
            return
        texts, codes = shared.outputs[waits]
        texts.append(empty_reply(request.opaque).decode("latin-1"))
        codes.append(request.code)

    def _end(self) -> None:
        counts, self._counts = self._counts, {}
        for (group, topic), count in counts.items():
            self._hooks.sent_back(group, topic, count)

    def _find_group(self, name: str) -> _Group:
        found = self._hooks.group(name)
        if found is None:
            raise KeyError(name)
        config, tries_max = found
        group = self._groups[name] = _Group(FastTopic(config), tries_max)
        return group

    def _record(self, offset: int) -> bytes:
        """The bytes of the record at an offset of the log's current file, at which anything may be. Raises ValueError."""
        shared = self._shared
        log = shared.log
        at = offset - log.base
        if at < 0 or at + 4 > len(log.buffer):
            raise ValueError
        size = int.from_bytes(log.buffer[at : at + 4], "big")
        if not RECORD_BYTES_MIN <= size <= SEND_BACK_RECORD_BYTES_MAX or at + size > len(log.buffer):
            raise ValueError
        return bytes(log.buffer[at : at + size])


def _read_pairs(text: str) -> dict[str, Any]:
    """Properties of which each has a name and a value, none occurs twice, and none makes more of the message than a record to
    store. Raises ValueError for others.
    """
    if "\0" in text:  # the handler looks whether the disk has lost a sector
        raise ValueError
    pieces = text.removesuffix("\x02").split("\x02")
    pairs = dict(piece.split("\x01") for piece in pieces)
    if (
        len(pairs) != len(pieces)
        or len(pieces) > SEND_BACK_PAIRS_MAX
        or not all(pairs)
        or not all(pairs.values())
    ):
        raise ValueError
    if any(name.startswith(SEND_BACK_SPECIAL) for name in pairs):
        raise ValueError
    return pairs
