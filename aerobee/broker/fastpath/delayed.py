"""Messages with a delay level or a time, as Java and Go send them (310, JSON header). A core.

The outcome is that of send/send_service.py with the hooks of send/delay_level.py and timer/timer_hook.py: the message
in its level's queue of SCHEDULE_TOPIC_XXXX, or in queue 0 of rmq_sys_wheel_timer with the handle by which it can be
recalled in the reply. Messages that are not ordinary are left to the handlers: two delays, a number in an unusual form,
a time in the past or too far ahead, a transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from aerobee.broker.fastpath.exclusions import ELIGIBLE_SYS_FLAG, LEVEL_MAX, NOT_BATCH, excluded_from_delayed
from aerobee.broker.fastpath.frame_handlers import Answer, Serve
from aerobee.broker.fastpath.request import (
    UNREADABLE,
    FallBackToHandler,
    Request,
    born_time,
    number,
    read_pairs,
    repeated_names,
)
from aerobee.broker.fastpath.seam import DelaySettings
from aerobee.broker.fastpath.send import SHORT_NAMES
from aerobee.broker.fastpath.send_back import SendBacks
from aerobee.broker.fastpath.shared import Shared
from aerobee.broker.fastpath.topic import FastQueue, FastTopic
from aerobee.broker.send.timer_properties import DIGITS_MAX, slot_time
from aerobee.message import PROPERTIES_BYTES_MAX, PROPERTY_SEPARATOR
from aerobee.property_names import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAY_SEC,
    TIMER_DELAYS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.recall_handle import RecallHandle
from aerobee.store.queue.consume_queue import ConsumeQueue

_DELAYS = frozenset({DELAY, *TIMER_DELAYS})
_LOG = logging.getLogger("aerobee.broker.fastpath")


class _Turn(NamedTuple):
    """State of one burst."""

    burst: int
    is_allowed: bool
    limits: tuple[int, int] | None
    told: set[int]  # levels whose delivery was notified in this burst, 0 for the timer


# Due time of a message: its level, 0 for the timer; for a level the time in its queue entry; for the timer
# TIMER_OUT_MS.
_Due = tuple[int, int, int]


class Delayed:
    """The frame handler of delayed messages."""

    is_send = True

    def __init__(self, shared: Shared, settings: DelaySettings, special_properties: frozenset[str]) -> None:
        """`special_properties` are those of ordinary messages."""
        self._shared = shared
        self._hooks = settings.hooks
        self._broker_name = settings.broker_name
        self._delays_ms = settings.delays_ms
        self._special_properties = excluded_from_delayed(special_properties)
        self._schedule_topic = FastTopic(settings.schedule_topic)
        self._timer_topic = FastTopic(settings.timer_topic)
        self._turn = _Turn(-1, False, None, set())
        self._send_backs: SendBacks | None = None  # None: they are the handler's
        if settings.send_backs is not None:
            self._send_backs = SendBacks(shared, settings.send_backs, settings.broker_name)

    def forget_topics(self) -> None:
        """As FrameHandler. Its queues are looked up for each burst."""
        self.forget_authorizations()

    def forget_authorizations(self) -> None:
        """As FrameHandler."""
        if self._send_backs is not None:
            self._send_backs.forget()

    @property
    def serves(self) -> Mapping[int, Serve]:
        """As FrameHandler.serves."""
        served: dict[int, Serve] = {RequestCode.SEND_MESSAGE_V2.value: self.serve}
        if self._send_backs is not None:
            served[RequestCode.CONSUMER_SEND_MSG_BACK.value] = partial(self._send_back, self._send_backs)
        return served

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
            if sys_flag == "0":
                sys_flag = 0
            elif (sys_flag := number(sys_flag)) & ~ELIGIBLE_SYS_FLAG:
                raise ValueError
            pairs = request.pairs
            if pairs is None:
                pairs = request.pairs = read_pairs(text)
            # Usually no name occurs twice: then the text need not be searched again.
            names = pairs if len(pairs) == text.count("\x01") else repeated_names(text)
            (delay,) = [name for name in names if name in _DELAYS]
            if not self._special_properties.isdisjoint(pairs) or batch not in NOT_BATCH:
                raise ValueError
            waits = (shared.holds_replies or shared.holds_all) and shared.waits(pairs)
            turn = self._turn
            if turn.burst != shared.number:
                turn = self._turn_of_burst()
            due = self._due(turn, delay, pairs[delay])
            level, entry_code, out_ms = due
            topic, queue = shared.find(topic_name, queue_text)
            unique_key = pairs["UNIQ_KEY"]
            if not (unique_key.isalnum() and unique_key.isascii()):
                raise ValueError
            out_text = "" if level else f"{TIMER_OUT_MS}\x01{out_ms}\x02"
            properties = (
                f"{text if text[-1] == PROPERTY_SEPARATOR else text + PROPERTY_SEPARATOR}{shared.own_properties}{out_text}"
                f"{REAL_TOPIC}\x01{topic.name}\x02{REAL_QUEUE_ID}\x01{queue.queue_id}\x02"
            ).encode()
            body = request.data[request.body_at : request.end]
            if len(properties) > PROPERTIES_BYTES_MAX or len(body) > shared.store.config.max_message_size:
                raise ValueError
            stored = self._schedule_topic if level else self._timer_topic
            hashes, tag_code = [stored.plain_key_hash(unique_key.encode())], 0
            keys, tag = pairs.get("KEYS"), pairs.get("TAGS")
            if keys or tag:
                hashes, tag_code = shared.hashes(stored, unique_key, keys, tag)
            flag = 0 if flag == "0" else number(flag)
            tries = 0 if tries == "0" else number(tries)
            born_timestamp = born_time(born_timestamp)
            stored_queue = self._stored_queue(stored, level)
        except UNREADABLE as error:
            raise FallBackToHandler from error
        queue_offset, offset = shared.append(
            stored, stored_queue, body, properties, hashes, entry_code if level else tag_code, flag, sys_flag,
            born_timestamp, tries,
        )  # fmt: skip
        shared.count_for(stored, topic, shared.log.end - offset)
        if level not in turn.told:
            self._tell(due, queue_offset)
        recall = ""
        if not level:
            handle = RecallHandle(topic.name, self._broker_name, out_ms + 1, unique_key).encode()
            recall = f'","recallHandle":"{handle}'
        return queue, queue_offset, shared.message_id(offset), unique_key, waits, recall

    def _send_back(self, send_backs: SendBacks, request: Request) -> None:
        """As Serve, of a message that a consumer sends back: store it for the level of its next try."""
        shared, stored = self._shared, self._schedule_topic
        try:
            turn = self._turn
            if turn.burst != shared.number:
                turn = self._turn_of_burst()
            if not turn.is_allowed:
                raise ValueError
            again = send_backs.read(request, len(self._delays_ms))
            waits = (shared.holds_replies or shared.holds_all) and shared.waits({})
            properties, pairs, level = again.properties.encode(), again.pairs, again.level
            if len(properties) > PROPERTIES_BYTES_MAX:
                raise ValueError
            hashes, _ = shared.hashes(stored, pairs.get("UNIQ_KEY", ""), pairs.get("KEYS"), pairs.get("TAGS"))
            stored_queue = self._stored_queue(stored, level)
        except UNREADABLE as error:
            raise FallBackToHandler from error
        due = level, shared.now_ms + self._delays_ms[level - 1], 0
        # The message keeps the host that it was sent from.
        consumer = shared.origin.born_host
        shared.origin.enter(again.born_host)
        try:
            queue_offset, offset = shared.append(
                stored, stored_queue, again.body, properties, hashes, due[1], again.flag, again.sys_flag, again.born_timestamp,
                again.tries,
            )  # fmt: skip
        finally:
            shared.origin.enter(consumer)
        shared.count_for(stored, again.group.topic, shared.log.end - offset)
        if level not in turn.told:
            self._tell(due, queue_offset)
        send_backs.answer(request, again, waits=waits)

    def _turn_of_burst(self) -> _Turn:
        """State of this burst, read once per burst."""
        if self._turn.burst != self._shared.number:
            hooks = self._hooks
            self._turn = _Turn(self._shared.number, hooks.takes_delayed(), hooks.timer_limits(), set())
        return self._turn

    def _due(self, turn: _Turn, delay: str, text: str) -> _Due:
        """Due time of a message with such a property. Raises ValueError for one that is not ordinary."""
        if not turn.is_allowed or not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX:
            raise ValueError
        now_ms, value = self._shared.now_ms, int(text)
        if delay == DELAY:
            if text[0] == "0" or not 0 < value <= min(LEVEL_MAX, len(self._delays_ms)):
                raise ValueError
            return value, now_ms + self._delays_ms[value - 1], 0
        if turn.limits is None:
            raise ValueError
        precision_ms, longest_ms = turn.limits
        if delay == TIMER_DELIVER_MS:
            deliver_ms = value
        else:
            deliver_ms = now_ms + (value * 1000 if delay == TIMER_DELAY_SEC else value)
        if not 0 < deliver_ms - now_ms <= longest_ms:
            raise ValueError
        return 0, 0, slot_time(deliver_ms, precision_ms)

    def _stored_queue(self, stored: FastTopic, level: int) -> FastQueue:
        """Looked up each time: the queue object goes when the topic's queues are deleted."""
        store, text = self._shared.store, str(max(0, level - 1))
        known = stored.queues.get(text)
        if known is None or store.queues.get(known.key) is not known.queue:
            queue: Any = store.queue(stored.name, int(text))
            if type(queue) is not ConsumeQueue:
                raise ValueError
            known = stored.queues[text] = FastQueue(queue, int(text))
        return known

    def _tell(self, due: _Due, queue_offset: int) -> None:
        """Once per burst suffices: all messages of a level in a burst are due at the same time. The message stays
        stored if the notification fails."""
        level, entry_code, _ = due
        self._turn.told.add(level)
        try:
            if level:
                self._hooks.level_appended(level - 1, queue_offset + 1, entry_code)
            else:
                self._hooks.timer_appended()
        except Exception:
            _LOG.exception("notifying the delivery failed after a message was stored")
