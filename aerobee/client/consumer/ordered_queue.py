"""State of one queue that is consumed in order: the next messages for the handler, and the effect of a handler's
result. Pure.

Follows ConsumeMessageOrderlyService and the ordered half of ProcessQueue (RocketMQ).

    NOTHING OUT --take()--> OUT --succeeded()--> NOTHING OUT
                            OUT --failed()-----> SUSPENDED --take() after a while--> OUT (the same messages)
                            OUT --failed()-----> GIVEN UP --succeeded()--> NOTHING OUT  (it is with the dead letters)
                                                 GIVEN UP --suspend()----> SUSPENDED    (it could not be put there)

Invariants: the handler receives messages in the order of their offsets, one batch at a time, and no later message
before this one succeeded or was dead-lettered. A message may be delivered several times.

By default RocketMQ blocks a queue forever at a message that always fails; here a message is by default given up after
`retry_count_max` tries or `block_max_s`.
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

    `block_max_s`: counted from its first failure, 0: no limit. `dead_letters` False: the message blocks until it
    succeeds.
    """

    batch_size: int = 1
    suspend_s: float = 1.0
    block_max_s: float = 0.0
    dead_letters: bool = True


class State(Enum):
    """State of the head of the queue."""

    NOTHING_OUT = "nothing out"
    OUT = "out"
    SUSPENDED = "suspended"
    GIVEN_UP = "given up"


class Event(Enum):
    """Event at the head of the queue."""

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
    """The pulled, unfinished messages of one queue."""

    def __init__(self, policy: OrderPolicy) -> None:
        self._policy = policy
        self._ready: deque[Entry] = deque()
        self._out: list[Entry] = []
        self._again_at = 0.0
        self._blocked_since: float | None = None
        self._tries = 0  # failed tries of the messages in progress
        self._singles = 0  # number of messages to deliver individually, to find the failing one
        self.state = State.NOTHING_OUT

    def put(self, process: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        """Add pulled messages, in the order of their offsets."""
        self._ready.extend((process, message) for message in messages)

    def take(self, now: float) -> list[ReceivedMessage]:
        """The messages to handle now; empty while others are in progress, while suspended, or without messages.

        Messages of a `process` that was dropped meanwhile (queue released, or offset reset) are left out.
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
        """Seconds until take() returns the suspended messages again, None when none are suspended."""
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

        `retry_count_max`: tries after the first one (GroupRetries.bound). `dead`: the handler raised Reject. `after_s`:
        the pause that the handler requested.
        """
        if len(self._out) > 1:
            # Which message of the batch failed is unknown: each is delivered alone before one is
            # dead-lettered.
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
        """Deliver the same messages again after a pause."""
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
        """Time of the head's first failure, None without a failure."""
        return self._blocked_since

    @property
    def has_work(self) -> bool:
        """True when take() may return messages now or later."""
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
