"""POP at an acting master, which cannot write check points: deliveries are recorded in memory only.

The group's offset follows the acknowledgements in the order of the pops, as with the merge buffer, so that a crash or
the end of the role causes redeliveries but no loss. A message that is not acknowledged in time goes to the group's
retry topic at another broker (enableRemoteEscape). If that fails, the queue is redelivered from this message on,
including acknowledged messages after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.broker.acting.escape_bridge import EscapeBridge, Escaping
from aerobee.broker.pop.check_point import CheckPoint
from aerobee.broker.pop.engine import PopEngine
from aerobee.broker.pop.merge_buffer import BufferActions, MergeBuffer
from aerobee.broker.pop.retry import retry_message, retry_topic_of
from aerobee.clock import Clock, Timer
from aerobee.errors import AerobeeError, MalformedRecord
from aerobee.message import decode_properties, decode_record
from aerobee.store.log.stored_message import GetStatus
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)
SCAN_S = 0.2
POINTS_MAX = 200_000


class ActingBuffer(MergeBuffer):
    """Check points that are never written."""

    def add(self, point: CheckPoint, revive_queue_id: int, next_offset: int, now_ms: int) -> bool:
        """As MergeBuffer.add, whatever the invisible time."""
        return len(self) < POINTS_MAX and self.keep(point, revive_queue_id, next_offset, now_ms)

    def scan(self, now_ms: int, *, everything: bool = False) -> BufferActions:
        """Return no actions: an acting master writes nothing."""
        return BufferActions()

    def expired(self, now_ms: int) -> list[CheckPoint]:
        """Expired check points that are not completely acknowledged."""
        return [each for each in self.points() if each.revive_time <= now_ms and not each.is_acked]


class ActingPops:
    """Between begin() and end() POP is served from memory. Belongs to the event loop."""

    def __init__(
        self,
        *,
        engine: PopEngine,
        store: MessageStore,
        bridge: EscapeBridge,
        may_escape: Callable[[], bool],
        uses_retry_v2: Callable[[], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        wake: Callable[[str, str], None],
        clock: Clock,
        host: bytes,
        inner_group: str,
    ) -> None:
        """`wake` is called with (topic, group) when messages can be popped again."""
        self._engine = engine
        self._store = store
        self._bridge = bridge
        self._may_escape = may_escape
        self._uses_retry_v2 = uses_retry_v2
        self._spawn = spawn
        self._wake = wake
        self._clock = clock
        self._host = host
        self._inner_group = inner_group
        self._before: MergeBuffer | None = None
        self._buffer: ActingBuffer | None = None
        self._timer: Timer | None = None
        self._leaving: set[int] = set()  # ids of check points whose messages are being sent

    def begin(self) -> None:
        """This broker starts to act as master."""
        if self._buffer is None:
            self._before, self._buffer = self._engine.buffer, ActingBuffer()
            self._engine.use_buffer(self._buffer)
            self._timer = self._clock.call_later(SCAN_S, self._scan)

    def end(self) -> None:
        """This slave stops acting: the master redelivers unacknowledged messages."""
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._engine.scan_buffer(self._clock.now_ms())
        self._engine.use_buffer(self._before)
        for point in buffer.points():
            self._engine.in_flight.revived(point.key)

    def _scan(self) -> None:
        buffer = self._buffer
        if buffer is None:
            return
        self._timer = self._clock.call_later(SCAN_S, self._scan)
        for point in buffer.expired(self._clock.now_ms()):
            if id(point) in self._leaving:
                continue
            if self._may_escape():
                self._leaving.add(id(point))
                self._spawn(self._escape(buffer, point))
            else:
                self._again(buffer, point)
        self._engine.scan_buffer(
            self._clock.now_ms()
        )  # nothing is written: offsets follow the acknowledgements

    def _again(self, buffer: ActingBuffer, point: CheckPoint) -> None:
        """Redeliver the queue from this check point on."""
        for dropped in buffer.drop_from(point):
            self._engine.in_flight.revived(dropped.key)
        self._wake(point.topic, point.group)

    async def _escape(self, buffer: ActingBuffer, point: CheckPoint) -> None:
        """Send the unacknowledged messages of a check point to their retry topic at another broker."""
        try:
            topic = retry_topic_of(point, v2=self._uses_retry_v2())
            for offset in point.unacked:
                message = self._copy(point, offset, topic)
                if message is not None:
                    await self._bridge.send(message)
                point.ack(offset)
            self._engine.in_flight.revived(point.key)
        except AerobeeError as error:
            log.warning("messages of %s are redelivered by this broker: %s", point.topic, error)
            if self._buffer is buffer:
                self._again(buffer, point)
        finally:
            self._leaving.discard(id(point))

    def _copy(self, point: CheckPoint, offset: int, topic: str) -> Escaping | None:
        result = self._store.get_messages(point.topic, point.queue_id, offset, count_max=1)
        if result.status is not GetStatus.FOUND:
            return None
        try:
            record = decode_record(result.body, check_crc=False)
        except MalformedRecord as error:
            log.error("message %d of %s queue %d is broken: %s", offset, point.topic, point.queue_id, error)
            return None
        copy = retry_message(point, record, topic=topic, queue_id=0, host=self._host)
        text = bytes(copy.properties).decode(errors="surrogateescape")
        return Escaping(
            topic=topic,
            queue_id=0,
            body=bytes(copy.body),
            properties=decode_properties(text),
            group=self._inner_group,
            flag=copy.flag,
            sys_flag=copy.sys_flag,
            born_timestamp=copy.born_timestamp,
            reconsume_times=copy.reconsume_times,
        )
