"""The queues that this client has locked at their brokers, and the expiry of each lock. Core.

Follows the lock bookkeeping of ProcessQueue and RebalanceImpl (RocketMQ). A broker keeps a lock for a time after its
last renewal (60 s; Aerobee's brokers for the requested time, see `lease_s`). A client trusts its lock for `lease_s`
after it *requested* it, which is earlier than the start of the lease at the broker: when the broker may give the queue
to another member, this client has stopped.
"""

from __future__ import annotations

from collections.abc import Iterable

from aerobee.message import MessageQueue

RENEWALS_PER_LEASE = 1.5  # a lease of 30 s is renewed every 20 s, as RocketMQ's clients do


class QueueLocks:
    """The locks of one member of a group. Times are monotonic seconds, given by the caller."""

    def __init__(self, *, lease_s: float) -> None:
        self.lease_s = lease_s
        self._ends: dict[MessageQueue, float] = {}  # when this client stops to trust its lock
        self._renewed: dict[MessageQueue, float] = {}

    @property
    def renew_interval_s(self) -> float:
        return self.lease_s / RENEWALS_PER_LEASE

    @property
    def held(self) -> list[MessageQueue]:
        """Queues that were granted and not removed; their lease may have expired."""
        return sorted(self._ends)

    def granted(self, queues: Iterable[MessageQueue], *, asked_at: float) -> None:
        """A broker granted locks that were requested at `asked_at`."""
        for queue in queues:
            end = asked_at + self.lease_s
            if end > self._ends.get(queue, end - 1.0):
                self._ends[queue] = end
                self._renewed[queue] = asked_at

    def forget(self, queue: MessageQueue) -> None:
        """The lock was released, refused or not renewed in time."""
        self._ends.pop(queue, None)
        self._renewed.pop(queue, None)

    def may_act(self, queue: MessageQueue, now: float) -> bool:
        """True while messages of the queue may be handed to a handler."""
        end = self._ends.get(queue)
        return end is not None and now < end

    def renewed_at(self, queue: MessageQueue) -> float | None:
        """Time of the last successful lock request."""
        return self._renewed.get(queue)

    def lapsed(self, now: float) -> list[MessageQueue]:
        """Queues whose lease has expired: another member may own them by now."""
        return sorted(queue for queue, end in self._ends.items() if now >= end)

    @property
    def next_end(self) -> float | None:
        """Time at which the first lease ends, None without a lease."""
        return min(self._ends.values(), default=None)
