"""The hot path of messages with a delay level or a time, as Java and Go send them (310, JSON header).

DelayedLane is the definition of what the native twin (native/src/delayed.rs) does. The outcome is that of send_service.py with the
hooks of delay_level.py and timer/timer_hook.py: the message in its level's queue of SCHEDULE_TOPIC_XXXX, or in queue 0
of rmq_sys_wheel_timer with the handle by which it can be recalled in the reply. Whatever is not quite ordinary is left for
the handlers, as in lane/core.py, whose writing of records, queue and index entries is used: two wishes, a number that
is written otherwise than plainly, a time that has passed or lies too far ahead, a transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aerobee.broker.lane.core import LaneCore
from aerobee.broker.lane.pull import number
from aerobee.broker.lane.topic import LaneQueue, LaneTopic
from aerobee.broker.property_names import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAY_SEC,
    TIMER_DELAYS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from aerobee.broker.send.timer_properties import slot_time
from aerobee.broker.topic_table import SCHEDULE_TOPIC
from aerobee.message import COMPRESSED, COMPRESSION_MASK, MULTI_TAGS, PROPERTIES_BYTES_MAX
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import FLAG_ONEWAY, VERSION
from aerobee.remoting.recall_handle import RecallHandle
from aerobee.store.consume_queue import ConsumeQueue

LEVEL_MAX = 128
_WISHES = frozenset({DELAY, *TIMER_DELAYS})
_DIGITS_MAX = 18
_NOT_BATCH = frozenset({"false", "0", 0})
_ORDINARY_SYS_FLAG = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedSends:
    """What a lane needs to store messages for later."""

    schedule_topic: TopicConfig
    timer_topic: TopicConfig
    broker_name: str
    delays_ms: tuple[int, ...]  # of level 1, 2, ...
    is_allowed: Callable[[], bool]  # messages are taken as they come
    arrived: Callable[[str, int, int, int], None]  # (schedule topic, queue id, its new end, due ms)
    timer_arrived: Callable[[], None]
    timer_limits: Callable[
        [], tuple[int, int] | None
    ]  # precision, longest delay, ms; None: all are for the handlers


def delayed_special_properties(ordinary: frozenset[str]) -> frozenset[str]:
    """Properties of messages for later that are for the handlers; `ordinary` are those of ordinary messages."""
    return ordinary - _WISHES


class DelayedLane(LaneCore):
    """Stores single messages for later; a subclass cuts the frames."""

    def __init__(self, *, delayed: DelayedSends, **shared: Any) -> None:
        super().__init__(**shared)
        self._delayed = delayed
        self._delayed_special = delayed_special_properties(self._special_properties)
        self._schedule_topic = LaneTopic(delayed.schedule_topic)
        self._timer_topic = LaneTopic(delayed.timer_topic)
        self._told: set[int] = (
            set()
        )  # of the burst: levels whose delivery knows of their messages, 0 for the timer

    def _store_for_later(self, header: dict[str, Any], body: bytes | bytearray) -> tuple[str, bool]:
        """Store one; return the reply, empty for a one-way request, and whether it waits for the disk.

        Raises one of _NOT_ORDINARY, and has changed nothing then.
        """
        flag, opaque, ext = header["flag"], header["opaque"], header["extFields"]
        topic = self._topics.get(ext["b"]) or self._admit(ext["b"])
        queue_text, properties, born_timestamp = ext["e"], ext["i"], ext["g"]
        if type(queue_text) is not str:
            queue_text = str(number(queue_text))
        lane_queue = topic.queues.get(queue_text) or self._admit_queue(topic, queue_text)
        parts = properties.replace("\x02", "\x01").split("\x01")
        names_and_values = iter(parts)
        pairs = dict(zip(names_and_values, names_and_values))  # noqa: B905 - a last, empty part has no partner
        unique_key = pairs["UNIQ_KEY"]
        sys_flag = 0 if ext["f"] == "0" else number(ext["f"])
        (wish,) = [name for name in parts[: len(parts) & ~1 : 2] if name in _WISHES]
        if (
            properties.count("\x01") != len(parts) >> 1
            or not self._delayed_special.isdisjoint(pairs)
            or not (unique_key.isalnum() and unique_key.isascii())
            or sys_flag & ~_ORDINARY_SYS_FLAG
            or ext["m"] not in _NOT_BATCH
            or (flag and flag != FLAG_ONEWAY)
            or type(opaque) is not int
        ):
            raise ValueError
        level, code, out_ms = self._place_of(wish, pairs[wish])
        stored = self._schedule_topic if level else self._timer_topic
        out_text = "" if level else f"{TIMER_OUT_MS}\x01{out_ms}\x02"
        text = (
            f"{properties if len(parts) & 1 else properties + chr(2)}{self._own_properties}{out_text}"
            f"{REAL_TOPIC}\x01{topic.name}\x02{REAL_QUEUE_ID}\x01{lane_queue.queue_id}\x02"
        ).encode()
        if len(text) > PROPERTIES_BYTES_MAX or len(body) > self._store.config.max_message_size:
            raise ValueError
        hashes = [stored.plain_key_hash(unique_key.encode())]
        keys, tag = pairs.get("KEYS"), pairs.get("TAGS")
        if keys:
            hashes += [stored.key_hash(key) for key in keys.split(" ") if key]
        if tag:
            tag_code, tag_hash = stored.tag(tag)
            hashes.append(tag_hash)
            code = code if level else tag_code
        is_plain = len(born_timestamp) < 20 and born_timestamp.isdigit() and born_timestamp.isascii()
        queue_offset, offset = self._append(
            stored, self._stored_queue(stored, level), body, text, hashes, code, number(ext["h"]), sys_flag,
            int(born_timestamp) if is_plain else number(born_timestamp), number(ext["j"]),
        )  # fmt: skip
        self._count_for(stored, topic, self._log.end - offset)
        if level not in self._told:
            self._told.add(level)
            if level:
                self._delayed.arrived(SCHEDULE_TOPIC, level - 1, queue_offset + 1, code)
            else:
                self._delayed.timer_arrived()
        if flag:
            return "", False
        recall = ""
        if not level:
            handle = RecallHandle(topic.name, self._delayed.broker_name, out_ms + 1, unique_key).encode()
            recall = f'","recallHandle":"{handle}'
        reply = (
            f'{lane_queue.reply_start}{unique_key}","msgId":"{self._store_host_hex}{offset:016X}{self._reply_fields}'
            f'"{queue_offset}{recall}"}},"flag":1,"language":"PYTHON","opaque":{opaque},'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
        )
        length = len(reply)
        words = (length + 4).to_bytes(4, "big") + length.to_bytes(4, "big")
        return words.decode("latin-1") + reply, self._holds and pairs.get("WAIT") != "false"

    def _place_of(self, wish: str, text: str) -> tuple[int, int, int]:
        """The level, 0 for the timer, the tags code of its queue entry as far as that is a time, and TIMER_OUT_MS."""
        if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX:
            raise ValueError
        now_ms, value = self._now_ms, int(text)
        if wish == DELAY:
            if text[0] == "0" or not 0 < value <= min(LEVEL_MAX, len(self._delayed.delays_ms)):
                raise ValueError
            return value, now_ms + self._delayed.delays_ms[value - 1], 0
        limits = self._delayed.timer_limits()
        if limits is None:
            raise ValueError
        precision_ms, longest_ms = limits
        if wish == TIMER_DELIVER_MS:
            deliver_ms = value
        else:
            deliver_ms = now_ms + (value * 1000 if wish == TIMER_DELAY_SEC else value)
        if not 0 < deliver_ms - now_ms <= longest_ms:
            raise ValueError
        return 0, 0, slot_time(deliver_ms, precision_ms)

    def _stored_queue(self, stored: LaneTopic, level: int) -> LaneQueue:
        """Looked up each time: the queue object goes when the topic's queues are deleted."""
        text = str(max(0, level - 1))
        known = stored.queues.get(text)
        if known is None or self._store.queues.get(known.key) is not known.queue:
            queue = self._store.queue(stored.name, int(text))
            if type(queue) is not ConsumeQueue:
                raise ValueError
            known = stored.queues[text] = LaneQueue(queue, int(text))
        return known

    def _count_for(self, stored: LaneTopic, topic: LaneTopic, size: int) -> None:
        """What was just stored in `stored` counts for the topic that it was sent to."""
        stored.count -= 1
        stored.byte_count -= size
        if not stored.count:
            self._touched.remove(stored)
        if not topic.count:
            self._touched.append(topic)
        topic.count += 1
        topic.byte_count += size
        topic.request_count += 1
