"""Visibility of queue entries to consumers: when the record is complete, or with a visibility bound, when it is
confirmed.

With sync flush a consumer sees nothing that a power loss could take back, in controller mode nothing that another master might
not have. The native fast path moves `readable_max` itself where no record is withheld and no consumer waits at a queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aerobee.clock import Clock
from aerobee.store.files.listeners import Listeners
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.queue.queue_table import AnyQueue, QueueTable


class Visibility:
    """Visibility of one store's queue entries. Belongs to the event loop's thread."""

    def __init__(self, log: CommitLog, queues: QueueTable, *, clock: Clock, holds: bool) -> None:
        """`holds`: consumers see a record when show_safe() says so."""
        self.holds = holds
        # Called with each new message: (topic, queue id, new readable end, tags code).
        self._clock = clock
        self.arrivals = self._new_listeners()
        self._arrivals_of: dict[str, Listeners[str, int, int, int]] = {}  # by topic
        self._log = log
        self._queues = queues
        # With a bound, records that consumers may not see yet: end in the log, queue, next offset, tags code.
        self._unseen: deque[tuple[int, AnyQueue, int, int]] = deque()

    def _new_listeners(self) -> Listeners[str, int, int, int]:
        return Listeners("a listener of new messages", self._clock)

    def on_arrival(self, callback: Callable[[str, int, int, int], None], topic: str = "") -> None:
        """Call back with (topic, queue id, new readable end, tags code) for each message that becomes visible from now
        on; `topic` restricts the calls to that topic, at no cost for the others.
        """
        if topic:
            self._arrivals_of.setdefault(topic, self._new_listeners()).add(callback)
        else:
            self.arrivals.add(callback)

    def show(self, queue: AnyQueue, next_offset: int, tags_code: int) -> None:
        """Let consumers see the queue's messages below `next_offset`: now, or when they are safe."""
        if self.holds:
            self._unseen.append((self._log.end, queue, next_offset, tags_code))
            return
        queue.readable_max = next_offset
        self._tell(queue.topic, queue.queue_id, next_offset, tags_code)

    def _tell(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        self.arrivals.tell(topic, queue_id, next_offset, tags_code)
        if (listeners := self._arrivals_of.get(topic)) is not None:
            listeners.tell(topic, queue_id, next_offset, tags_code)

    def replaced(self, old: AnyQueue, new: AnyQueue | None) -> None:
        """Queue `new` replaces `old` and has its messages. None: the topic was deleted, and consumers no longer see the
        messages.
        """
        if not self._unseen:
            return
        kept = (each for each in self._unseen if each[1] is not old or new is not None)
        self._unseen = deque(
            each if new is None or each[1] is not old else (each[0], new, *each[2:]) for each in kept
        )

    def hold_back(self, bound: int) -> None:
        """Set the bound: consumers see only records that end at or before `bound`, even if more were visible before.

        A queue's entries behind it are shown together. Walks the entries behind the bound.
        """
        unseen: list[tuple[int, AnyQueue, int, int]] = []
        for queue in self._queues.queues.values():
            offset, last = queue.max_offset, None
            if bound <= self._log.min_offset and offset > queue.min_offset:
                offset, last = queue.min_offset, queue.entry(offset - 1)
            while offset > queue.min_offset:
                entry = queue.entry(offset - 1)
                if entry is not None:
                    if self._end_of(entry) <= bound:
                        break
                    last = last or entry
                offset -= 1
            queue.readable_max = offset
            if last is not None:
                unseen.append((self._end_of(last), queue, queue.max_offset, last[2]))
        self._unseen = deque(sorted(unseen, key=lambda each: each[0]))

    def _end_of(self, entry: tuple[int, int, int]) -> int:
        """End of an entry's record in the log. No record ends after the log: such an entry is damaged, and it must be
        visible to be repaired at its reading."""
        return min(entry[0] + entry[1], self._log.end)

    def show_safe(self, bound: int) -> None:
        """Raise the bound: records that end at or before `bound` become visible. Never raises."""
        unseen, tell = self._unseen, self._tell
        while unseen and unseen[0][0] <= bound:
            _, queue, next_offset, tags_code = unseen.popleft()
            if next_offset > queue.readable_max:
                queue.readable_max = next_offset
            tell(queue.topic, queue.queue_id, next_offset, tags_code)
