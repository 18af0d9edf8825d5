"""Sends (310) with an option: an acknowledgement level, a dedup key, a priority, LMQs. A core.

Records and replies are the same as those of send/send_service.py: an option is a property of the message, or an attribute
of its topic, that changes where the message goes or when its sender is answered, but not the record (with LMQs it has
their offsets, too). The hooks know the keys of earlier messages, the LMQs, and this master's epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aerobee.broker.fastpath.exclusions import (
    ELIGIBLE_SYS_FLAG,
    LMQS_MAX,
    NOT_BATCH,
    PRIORITY_CHARS_MAX,
    excluded_from_options,
)
from aerobee.broker.fastpath.frame_handlers import Answer, Serve
from aerobee.broker.fastpath.request import (
    UNREADABLE,
    FallBackToHandler,
    Request,
    born_time,
    number,
    read_pairs,
)
from aerobee.broker.fastpath.seam import OptionSettings
from aerobee.broker.fastpath.send import SHORT_NAMES
from aerobee.broker.fastpath.shared import Shared
from aerobee.broker.fastpath.topic import FastQueue, FastTopic
from aerobee.broker.state.ack_level import LEVELS, AckLevel, wanted_level
from aerobee.message import PRIORITY, PROPERTIES_BYTES_MAX, PROPERTY_SEPARATOR, SHARDING_KEY, wants_to_wait
from aerobee.property_names import ACK_LEVEL, DEDUP_KEY
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.protocol import ACK_LEVEL_ATTRIBUTE, EPOCH_FIELD, LEVEL_FIELD, LOG_OFFSET_FIELD
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_table import MULTI_DISPATCH, MULTI_OFFSET


class OptionSends:
    """The frame handler of sends with options."""

    is_send = True

    def __init__(self, shared: Shared, settings: OptionSettings, special_properties: frozenset[str]) -> None:
        """`special_properties` are those of ordinary messages."""
        self._shared = shared
        self._hooks = settings.hooks
        self._find_leveled = settings.find_leveled
        self._special_properties = excluded_from_options(special_properties)
        self._leveled: dict[str, tuple[FastTopic, AckLevel]] = {}  # topics with an ack level, by name
        self._burst, self._epoch = -1, 0

    @property
    def serves(self) -> Mapping[int, Serve]:
        """As FrameHandler.serves."""
        return {RequestCode.SEND_MESSAGE_V2.value: self.serve}

    def forget_topics(self) -> None:
        """As FrameHandler.forget_topics."""
        self._leveled.clear()

    def forget_authorizations(self) -> None:
        """Do nothing: this handler caches no authorizations."""

    def serve(self, request: Request) -> Answer:
        """As Serve."""
        shared = self._shared
        if request.command is not None:
            raise FallBackToHandler
        try:
            topic_name, queue_text, sys_flag, born_timestamp, flag, text, tries, batch = SHORT_NAMES(
                request.ext
            )
            # First the mark of half messages: nothing else of them is read here.
            if (sys_flag := number(sys_flag)) & ~ELIGIBLE_SYS_FLAG or batch not in NOT_BATCH:
                raise ValueError
            pairs = request.pairs
            if pairs is None:
                pairs = request.pairs = read_pairs(text)
            if not self._special_properties.isdisjoint(pairs):
                raise ValueError
            topic, topic_level = self._topic(topic_name)
            level = wanted_level(pairs, {}) if ACK_LEVEL in pairs else topic_level
            dedup_key, priority = pairs.get(DEDUP_KEY), pairs.get(PRIORITY)
            lmqs = self._lmqs(pairs[MULTI_DISPATCH]) if MULTI_DISPATCH in pairs else ()
            if level is None and dedup_key is None and priority is None and not lmqs:
                raise ValueError  # the frame handler of ordinary sends takes it
            queue = shared.queue_of(topic, queue_text)
            if priority is not None:
                queue = self._queue_of(topic, priority, pairs)
            waits = self._waits(level, pairs)
            unique_key = pairs["UNIQ_KEY"]
            if not (unique_key.isalnum() and unique_key.isascii()):
                raise ValueError
            properties = (
                (text if text[-1] == PROPERTY_SEPARATOR else text + PROPERTY_SEPARATOR)
                + shared.own_properties
            ).encode()
            if lmqs:
                offsets = ",".join([str(lmq.max_offset) for lmq in lmqs])
                properties += f"{MULTI_OFFSET}\x01{offsets}\x02".encode()
            body = request.data[request.body_at : request.end]
            if len(properties) > PROPERTIES_BYTES_MAX or len(body) > shared.store.config.max_message_size:
                raise ValueError
            hashes, tag_code = shared.hashes(topic, unique_key, pairs.get("KEYS"), pairs.get("TAGS"))
            flag, tries, born_timestamp = number(flag), number(tries), born_time(born_timestamp)
            if dedup_key is not None and not self._hooks.is_new(topic.name, dedup_key):
                raise ValueError
        except UNREADABLE as error:
            raise FallBackToHandler from error
        queue_offset, offset = shared.append(
            topic, queue, body, properties, hashes, tag_code, flag, sys_flag, born_timestamp, tries
        )
        shared.count_request(topic)
        end = shared.log.end
        if lmqs:
            shared.appender.add_entries(lmqs, offset, end - offset, tag_code)
        if dedup_key is not None:
            self._hooks.stored(
                topic.name,
                dedup_key,
                queue.queue_id,
                queue_offset,
                offset,
                end - offset,
                shared.now_ms,
                unique_key,
            )
        more = "" if level is None else self._level_fields(level, end)
        return queue, queue_offset, shared.message_id(offset), unique_key, waits, more

    def _topic(self, name: object) -> tuple[FastTopic, AckLevel | None]:
        """A topic and its ack level. Raises one of UNREADABLE for a topic that is not eligible."""
        if type(name) is not str:
            raise ValueError
        known = self._leveled.get(name)
        if known is not None:
            return known
        topic = self._shared.topics.get(name)
        if topic is not None:
            return topic, None
        config = self._find_leveled(name)
        if config is None:
            return self._shared.admit(name), None
        found = self._leveled[name] = FastTopic(config), LEVELS[config.attributes[ACK_LEVEL_ATTRIBUTE]]
        return found

    def _queue_of(self, topic: FastTopic, priority: str, pairs: Mapping[str, str]) -> FastQueue:
        """The queue of a priority, as message_type.priority_queue() has it. Raises ValueError for one that means nothing."""
        if (
            not (priority.isascii() and priority.isdigit())
            or len(priority) > PRIORITY_CHARS_MAX
            or SHARDING_KEY in pairs
        ):
            raise ValueError
        return self._shared.queue_of(topic, str(min(int(priority), max(1, topic.write_count) - 1)))

    def _lmqs(self, text: str) -> Sequence[ConsumeQueue]:
        """The queues of the LMQs that a message names, with space for an entry. Raises ValueError for names that are for
        the handlers, StoreError without space."""
        names = text.split(",")
        if len(names) > LMQS_MAX or len(set(names)) < len(names):
            raise ValueError
        lmqs = []
        for name in names:
            lmq = self._hooks.lmq(name)
            if lmq is None:
                raise ValueError
            lmqs.append(lmq)
        for lmq in lmqs:
            lmq.ensure_room(1)
        return lmqs

    def _waits(self, level: AckLevel | None, pairs: Mapping[str, str]) -> bool | str:
        """Whether the reply is deferred; with a level that waits, its name. Raises FallBackToHandler as Shared.waits()."""
        shared = self._shared
        if level is None:
            return (shared.holds_replies or shared.holds_all) and shared.waits(pairs)
        if (level.is_flushed or level.is_replicated) and wants_to_wait(pairs):
            shared.has_leveled = True
            return level.name
        if shared.holds_all:
            raise FallBackToHandler
        return False

    def _level_fields(self, level: AckLevel, end: int) -> str:
        """The fields of a reply that say which level it has, as JSON within the value before them."""
        if self._burst != self._shared.number:
            self._burst, self._epoch = self._shared.number, self._hooks.epoch()
        return f'","{LEVEL_FIELD}":"{level.name}","{EPOCH_FIELD}":"{self._epoch}","{LOG_OFFSET_FIELD}":"{end}'
