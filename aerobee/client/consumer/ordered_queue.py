"""One queue that is consumed in order: what is handed out next, and what follows from how that ended. Pure.

Follows ConsumeMessageOrderlyService and the ordered half of ProcessQueue (RocketMQ).

    NOTHING OUT --take()--> OUT --succeeded()--> NOTHING OUT
                            OUT --failed()-----> SUSPENDED --take() after a while--> OUT (the same messages)
                            OUT --failed()-----> GIVEN UP --succeeded()--> NOTHING OUT  (it is with the dead letters)
                                                 GIVEN UP --suspend()----> SUSPENDED    (it could not be put there)

What always holds: messages are handed out in the order of their offsets, one batch at a time, and nothing behind a message
is handed out before it succeeded or became a dead letter. A message may be handed out several times.

RocketMQ blocks a queue for ever at a message that always fails, unless told otherwise; here a message is given up
after `retry_count_max` tries or `block_max_s`, unless told otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from aerobee.client.base.received import ReceivedMessage, tried_again
from aerobee.client.consumer.process_queue import ProcessQueue
from aerobee.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPolicy:
    """How long a failing message may block its queue.

    `block_max_s`: from its first failure on, 0: any time. `dead_letters` False: it blocks until it succeeds.
    """

    batch_size: int = 1
    suspend_s: float = 1.0
    block_max_s: float = 0.0
    dead_letters: bool = True


class State(Enum):
    """Where the head of the queue is."""

    NOTHING_OUT = "nothing out"
    OUT = "out"
    SUSPENDED = "suspended"
    GIVEN_UP = "given up"


class Event(Enum):
    """What happens to the head of the queue."""

    TAKE = "take"
    SUCCEED = "succeed"
    SUSPEND = "suspend"
    GIVE_UP = "give up"
    DROP = "drop"


NEXT: dict[tuple[State, Event], State] = {
    (State.NOTHING_OUT, Event.TAKE): State.OUT,
    (State.SUSPENDED, Event.TAKE): State.OUT,
    (State.SUSPENDED, Event.DROP): State.NOTHING_OUT,
    (State.OUT, Event.SUCCEED): State.NOTHING_OUT,
    (State.OUT, Event.SUSPEND): State.SUSPENDED,
    (State.OUT, Event.GIVE_UP): State.GIVEN_UP,
    (State.GIVEN_UP, Event.SUCCEED): State.NOTHING_OUT,
    (State.GIVEN_UP, Event.SUSPEND): State.SUSPENDED,
}

Entry = tuple[ProcessQueue, ReceivedMessage]


class OrderedQueue:
    """The messages of one queue between their arrival and their end."""

    def __init__(self, policy: OrderPolicy) -> None:
        self._policy = policy
        self._ready: deque[Entry] = deque()
        self._out: list[Entry] = []
        self._again_at = 0.0
        self._blocked_since: float | None = None
        self._tries = 0  # failed tries of the messages in progress
        self._singles = 0  # number of messages to deliver one by one, to find the one that fails
        self.state = State.NOTHING_OUT

    def put(self, process: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        """Add messages that were pulled, in the order of their offsets."""
        self._ready.extend((process, message) for message in messages)

    def take(self, now: float) -> list[ReceivedMessage]:
        """The messages to handle now; empty while others are in progress, while suspended, or without messages.

        Messages of a `process` that was dropped meanwhile (the queue was given away, or its offset moved) are left out.
        """
        if self.state is State.SUSPENDED:
            self._out = [entry for entry in self._out if not entry[0].dropped]
            if self._out:
                if now < self._again_at:
                    return []
                self._step(Event.TAKE)
                return [message for _, message in self._out]
            self._step(Event.DROP)
            self._forget_failures()
        if self.state is not State.NOTHING_OUT:
            return []
        ready, limit = self._ready, self._policy.batch_size
        if self._singles:
            limit = 1
        while ready and len(self._out) < limit:
            entry = ready.popleft()
            if not entry[0].dropped and (not self._out or entry[0] is self._out[0][0]):
                self._out.append(entry)
        if not self._out:
            return []
        self._singles = max(0, self._singles - 1)
        self._step(Event.TAKE)
        return [message for _, message in self._out]

    def wait_s(self, now: float) -> float | None:
        """Seconds until take() gives the suspended messages again, None when nothing is suspended."""
        return max(0.0, self._again_at - now) if self.state is State.SUSPENDED else None

    def succeeded(self) -> None:
        """The messages in progress were handled or dead-lettered: their offsets count as finished."""
        self._step(Event.SUCCEED)
        for process, message in self._out:
            if not process.dropped:
                process.finish(message.queue_offset)
        self._out.clear()
        self._forget_failures()

    def failed(
        self, now: float, *, retry_count_max: int, after_s: float | None = None, dead: bool = False
    ) -> bool:
        """The messages in progress failed. True: dead-letter them, then call succeeded() or suspend(); False: wait.

        `retry_count_max`: tries after the first one (GroupRetries.bound). `dead`: the handler asks for the dead letters itself. `after_s`: it asks for that pause.
        """
        if len(self._out) > 1:
            # It is unknown which message failed: each is tried alone before one is dead-lettered.
            self._singles = len(self._out) - 1
            self._ready.extendleft(reversed(self._out[1:]))
            del self._out[1:]
            self.suspend(now, after_s)
            return False
        self._tries += 1
        if self._blocked_since is None:
            self._blocked_since = now
        if dead or self._is_hopeless(now, retry_count_max):
            self._step(Event.GIVE_UP)
            return True
        self.suspend(now, after_s)
        return False

    def suspend(self, now: float, after_s: float | None = None) -> None:
        """Hand the same messages out again after a pause."""
        self._step(Event.SUSPEND)
        for _, message in self._out:
            tried_again(message)
        self._again_at = now + (self._policy.suspend_s if after_s is None else after_s)

    @property
    def tries(self) -> int:
        """Number of failed tries of the messages in progress."""
        return self._tries

    @property
    def blocked_since(self) -> float | None:
        """When the head failed first, None when it did not."""
        return self._blocked_since

    @property
    def has_work(self) -> bool:
        """True when take() may give something now or later."""
        return bool(self._ready) or self.state is not State.NOTHING_OUT

    def _is_hopeless(self, now: float, retry_count_max: int) -> bool:
        policy = self._policy
        if not policy.dead_letters:
            return False
        blocked_s = now - (self._blocked_since if self._blocked_since is not None else now)
        return self._tries > retry_count_max or 0 < policy.block_max_s <= blocked_s

    def _forget_failures(self) -> None:
        self._blocked_since = None
        self._tries = 0

    def _step(self, event: Event) -> None:
        state = NEXT.get((self.state, event))
        if state is None:
            raise UsageError(f"an ordered queue with its head {self.state.value} cannot {event.value}")
        self.state = state
