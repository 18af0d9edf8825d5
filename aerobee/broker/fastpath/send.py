"""Sends of one message (10, 310) that only need storing. A core.

Records and replies are the same as those of send/send_service.py. A stored text is the client's own text with the
broker's properties at its end; RocketMQ writes it again in the order of a hash map, which has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from aerobee.broker.fastpath.exclusions import ELIGIBLE_SYS_FLAG, NOT_BATCH
from aerobee.broker.fastpath.frame_handlers import Answer, Serve
from aerobee.broker.fastpath.request import (
    NO_ROOM,
    UNREADABLE,
    FallBackToHandler,
    Request,
    born_time,
    number,
    read_pairs,
)
from aerobee.broker.fastpath.shared import Shared
from aerobee.broker.fastpath.topic import SMALL_BYTES
from aerobee.message import PROPERTIES_BYTES_MAX, PROPERTY_SEPARATOR
from aerobee.remoting.codes import RequestCode

# topic, queue id, sys flag, born timestamp, flag, properties, reconsume times, batch
SHORT_NAMES: Callable[[dict[str, Any]], tuple[Any, ...]] = itemgetter("b", "e", "f", "g", "h", "i", "j", "m")
_WORDS: Callable[[dict[str, Any]], tuple[Any, ...]] = itemgetter(
    "topic", "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes", "batch"
)
_SEND_MESSAGE = RequestCode.SEND_MESSAGE.value


class Sends:
    """The frame handler of single sends."""

    is_send = True

    def __init__(self, shared: Shared, special_properties: frozenset[str]) -> None:
        self._shared = shared
        self._append = shared.appender.append_parts
        self._special_properties = special_properties

    @property
    def serves(self) -> Mapping[int, Serve]:
        """As FrameHandler.serves."""
        return dict.fromkeys((RequestCode.SEND_MESSAGE_V2.value, _SEND_MESSAGE), self.serve)

    def serve(self, request: Request) -> Answer:
        """As Serve."""
        shared = self._shared
        try:
            topic_name, queue_text, sys_flag, born_timestamp, flag, text, tries, batch = (
                SHORT_NAMES(request.ext) if request.code != _SEND_MESSAGE else _WORDS(request.ext)
            )
            if batch not in NOT_BATCH:
                raise ValueError
            # First the mark of half messages: nothing else of them is read here.
            if sys_flag == "0":
                sys_flag = 0
            elif (sys_flag := number(sys_flag)) & ~ELIGIBLE_SYS_FLAG:
                raise ValueError
            topic = shared.topics.get(topic_name) or shared.admit(topic_name)
            queue = topic.queues.get(queue_text) or shared.admit_queue(topic, queue_text)
            pairs = request.pairs = read_pairs(text)
            if not self._special_properties.isdisjoint(pairs):
                raise ValueError
            waits = shared.holds_replies and shared.waits(pairs)
            unique_key = pairs["UNIQ_KEY"]
            if not (unique_key.isalnum() and unique_key.isascii()):
                raise ValueError
            properties = (
                (text if text[-1] == PROPERTY_SEPARATOR else text + PROPERTY_SEPARATOR)
                + shared.own_properties
            ).encode()
            body = request.data[request.body_at : request.end]
            if len(properties) > PROPERTIES_BYTES_MAX or len(body) > shared.store.config.max_message_size:
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
            born_timestamp = born_time(born_timestamp)
        except UNREADABLE as error:
            raise FallBackToHandler from error
        # What shared.append() and count_request() do, inlined: their calls cost 3,100 of the 88,000 instructions of a send (3 %).
        target = queue.queue
        queue_offset = target.max_offset
        try:
            offset = self._append(
                shared.origin, target, topic.field, body, properties, hashes, code, flag, sys_flag,
                born_timestamp, tries, 0, queue.key in shared.waiting,
            )  # fmt: skip
        except NO_ROOM as error:
            raise FallBackToHandler from error
        shared.has_stored = True
        if not topic.is_touched:
            topic.is_touched = True
            shared.touched.append(topic)
        topic.count += 1
        size = shared.log.end - offset
        topic.byte_count += size
        if size > SMALL_BYTES:
            topic.note_size(size)
        topic.request_count += 1
        shared.stored_count += 1
        return (
            queue, queue_offset, f"{shared.store_host_hex}{offset:016X}", unique_key, waits, "",
        )  # fmt: skip

    def forget_topics(self) -> None:
        """Do nothing: this handler caches no topics."""

    def forget_authorizations(self) -> None:
        """Do nothing: this handler caches no authorizations."""
