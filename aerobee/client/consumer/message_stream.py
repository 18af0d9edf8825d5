"""Buffer of messages for `async for message in consumer`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from aerobee.client.base.arrival import Arrival
from aerobee.client.base.observer import ConsumeEnded, ConsumeObserver, begin_consume
from aerobee.client.base.received import ReceivedMessage, attach, read_value
from aerobee.client.base.verdict import GiveBack, RetryLater, give_back_after
from aerobee.client.consumer.give_back import GivesBack
from aerobee.client.consumer.process_queue import ProcessQueue
from aerobee.client.consumer.queue_pull import QueuePull
from aerobee.client.serialize.serializer import Deserializer, deserialized
from aerobee.client.session.session import Session
from aerobee.errors import BodyUnreadable, MessageDamaged


class MessageStream:
    """Buffered messages for `async for`. One message at a time is in progress; taking the next one acknowledges it."""

    def __init__(
        self,
        gives_back: GivesBack,
        session: Session,
        group: str,
        observers: Sequence[ConsumeObserver] = (),
        deserializer: Deserializer | None = None,
    ) -> None:
        self._gives_back = gives_back
        self._session = session
        self._ready: deque[tuple[QueuePull, ProcessQueue, ReceivedMessage]] = deque()
        self._out: dict[int, tuple[QueuePull, ProcessQueue, ReceivedMessage]] = {}
        self._arrived = Arrival()
        self._group = group
        self._observers = observers
        self._deserializer = deserializer
        self._ends: dict[int, ConsumeEnded] = {}
        self.closed = False

    def deliver(self, pull: QueuePull, messages: list[ReceivedMessage]) -> None:
        process = pull.process
        self._ready.extend((pull, process, message) for message in messages)
        self._arrived.fire()

    def close(self) -> None:
        self.closed = True
        self._ready.clear()
        self._arrived.fire()

    async def next(self) -> ReceivedMessage | None:
        """The next message, None when the consumer is closed."""
        while not self.closed:
            while self._ready:
                pull, process, message = self._ready.popleft()
                if process.dropped:
                    continue
                self._out[id(message)] = (pull, process, message)
                attach(message, self)
                if self._deserializer is not None and not self._has_value(message, self._deserializer):
                    continue
                if self._observers:
                    self._ends[id(message)] = begin_consume(self._observers, self._group, [message])
                return message
            await self._arrived.wait()
        return None

    def _has_value(self, message: ReceivedMessage, deserializer: Deserializer) -> bool:
        """Read the value of a message in progress; False, and to the dead letters, when its body cannot be read."""
        try:
            read_value(message, partial(deserialized, deserializer))
        except (BodyUnreadable, MessageDamaged) as error:
            self.settle(message, give_back_after(error))
            return False
        return True

    def settle(self, message: ReceivedMessage, verdict: GiveBack | None) -> None:
        """The verdict on a message in progress; a second one has no effect."""
        entry = self._out.pop(id(message), None)
        if entry is None:
            return
        ended = self._ends.pop(id(message), None)
        if ended is not None:
            ended(None if verdict is None else RetryLater(verdict.reason))
        pull, process, _ = entry
        if verdict is None:
            if self._session.meter is not None:
                self._session.meter.consumed(message.topic, 1)
            process.finish(message.queue_offset)
            pull.last_consume_ms = self._session.clock.now_ms()
            pull.space_freed()
        elif not process.dropped:
            self._session.tasks.spawn(self._give_back(pull, process, message, verdict), "consumer-send-back")

    async def _give_back(
        self, pull: QueuePull, process: ProcessQueue, message: ReceivedMessage, verdict: GiveBack
    ) -> None:
        if await self._gives_back.give_back(message, verdict):
            process.finish(message.queue_offset)
            pull.space_freed()
        elif not process.dropped:
            self._session.clock.call_later(1.0, self.deliver, pull, [message])
