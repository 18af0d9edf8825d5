"""Which client of a group may consume a queue in order: RocketMQ's RebalanceLockManager.

    group -> (topic, broker name, queue id) -> (client id, time of the last renewal)

A lock is granted when the queue is free, when the lock there has not been renewed for 60 s, or when the same client
asks again, which renews it. Clients renew each 20 s. The table lives in memory only: after a restart of the broker
whoever asks first gets the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aerobee.clock import Clock
from aerobee.message import MessageQueue

LOCK_EXPIRY_S = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime
LOCKS_PER_GROUP_MAX = 100_000  # a peer cannot make the table grow without end; further queues are refused


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: float  # monotonic seconds


class LockTable:
    """Orderly locks of all groups. Plain calls; the event loop that owns the broker is the only user."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Take or renew locks; return the queues that `client_id` now holds, in the order asked for."""
        now = self._clock.monotonic()
        locks = self._groups.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                if len(locks) >= LOCKS_PER_GROUP_MAX:
                    continue
                locks[queue] = _Lock(client_id, now)
            elif lock.client_id == client_id or _expired(lock, now):
                lock.client_id, lock.renewed = client_id, now
            else:
                continue
            granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those that another client holds stay."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            del self._groups[group]

    def holds_any(self, group: str) -> bool:
        """True while any client of the group holds a lock that has not expired."""
        locks = self._groups.get(group)
        if not locks:
            return False
        now = self._clock.monotonic()
        return any(not _expired(lock, now) for lock in locks.values())

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds a queue, or None when it is free or its lock has expired."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or _expired(lock, self._clock.monotonic()) else lock.client_id

    def remove_topic(self, topic: str) -> None:
        """Forget the locks on the queues of a topic that is deleted."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue in locks if queue.topic == topic]:
                del locks[queue]
            if not locks:
                del self._groups[group]


def _expired(lock: _Lock, now: float) -> bool:
    return now - lock.renewed > LOCK_EXPIRY_S
