"""dramatiq's consumer of a queue: an iterator over its messages, and what becomes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from dramatiq import Consumer, MessageProxy

from aerobee.contrib.delivery import Delivery, Verdict
from aerobee.contrib.dramatiq.actor_queue import ActorQueue
from aerobee.contrib.dramatiq.link import Link
from aerobee.contrib.wakeup import Wakeup


class Delivered(MessageProxy):
    """A message with the delivery that it came in."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery.envelope)
        self.delivery = delivery


class AerobeeConsumer(Consumer):
    """The one consumer of a queue in a process. A worker that pauses closes it and opens it again.

    close() returns the messages that dramatiq has not taken; what its threads process stays theirs, and may still be
    acknowledged. end() is for good.
    """

    def __init__(
        self, link: Link, make: Callable[[Callable[[], int], Callable[[], None]], ActorQueue]
    ) -> None:
        """`make`: creates the queue for the functions `wanted` and `notify` of a PopQueue."""
        self._link = link
        self._wakeup = Wakeup()
        self._prefetch = 1
        self._timeout_s = 0.0
        self._taken: set[Delivery] = set()
        self._queue = make(self._wanted, self._wakeup.notify)
        self.finished_count = 0
        link.call(self._queue.start())

    def open(self, prefetch: int, timeout_ms: int) -> None:
        """Receive at most `prefetch` messages that are not acknowledged; __next__() waits `timeout_ms`."""
        self._prefetch, self._timeout_s = prefetch, timeout_ms / 1000
        self._link.call(self._queue.receive())

    def _wanted(self) -> int:
        return self._prefetch - len(self._taken) - self._queue.ready_count

    def __next__(self) -> Delivered | None:
        """The next message, None when there is none within the timeout."""
        end = time.monotonic() + self._timeout_s
        while True:
            seen = self._wakeup.count
            delivery = self._queue.take()
            if delivery is not None:
                self._taken.add(delivery)
                return Delivered(delivery)
            if not self._wakeup.wait(seen, max(0.0, end - time.monotonic())):
                return None

    def ack(self, message: Delivered) -> None:
        """Acknowledge in the background, again until a broker accepts it."""
        self._settle(message, Verdict.ACK)
        self.finished_count += 1

    def nack(self, message: Delivered) -> None:
        """Make the message a dead letter of the group."""
        error = message._exception
        self._settle(message, Verdict.DEAD_LETTER, "rejected" if error is None else f"{error!r}")
        self.finished_count += 1

    def requeue(self, messages: Iterable[Delivered]) -> None:
        """Return messages to the queue; that counts as no try."""
        for message in messages:
            self._settle(message, Verdict.RETURN)

    def _settle(self, message: Delivered, verdict: Verdict, reason: str = "") -> None:
        self._taken.discard(message.delivery)
        self._link.call_soon(self._settle_in_loop, message.delivery, verdict, reason)

    def _settle_in_loop(self, delivery: Delivery, verdict: Verdict, reason: str) -> None:
        self._queue.settle(delivery, verdict, reason)
        self._queue.space_freed()

    def close(self) -> None:
        """Receive no more."""
        if self._link.is_open:
            self._link.call(self._queue.pause())

    def purge(self) -> int:
        """Acknowledge every message that is ready; returns how many."""
        return self._link.call(self._queue.purge(1 << 62))

    def end(self) -> None:
        """Return what is not acknowledged, and wait until the brokers know it."""
        self._link.call(self._queue.close())
