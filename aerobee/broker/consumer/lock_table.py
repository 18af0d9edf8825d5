"""Locks of orderly groups, each held by the client that may consume a queue: RocketMQ's RebalanceLockManager with
durable holders.

    group -> (topic, broker name, queue id) -> (client id, held since, time of the last renewal, lease)

A lock is granted when the queue is free, when the lock there was not renewed for its lease, or when the same client
asks again, which renews it. The lease is 60 s. An Aerobee client states how long it trusts a lock; then the lease is
that time plus a margin, so that another client soon gets the queues of a dead one.

RocketMQ keeps its locks in memory only: after a restart the first requesting client gets the queue while the previous
holder still consumes it, and order is lost. Here the holders are in config/orderlyLocks.json:

    {"lockTable": {group: [{"topic", "brokerName", "queueId", "clientId", "leaseMillis", "since"}]}}

The file contains holders, not renewals: after loading each lock counts as renewed at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

from aerobee.broker.state.bounds import Bounds
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.message_queue import queue_to_dict

LOCK_EXPIRY_S = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime
PURGE_INTERVAL_S = 1.0  # pause between searches for expired locks in a full table
LAPSED_SHOWN_S = 60.0  # time after its expiry for which a lock still names its last holder
LEASE_MARGIN_S = 2.0  # margin for a handler that is cancelled when its client's lease ends


@dataclass(slots=True)
class _Lock:
    client_id: str
    since_ms: int  # wall clock, when this client got it
    renewed: float  # monotonic seconds
    expiry_s: float


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock as shown to operators. `age_ms` counts from the last renewal; the lock expires when it reaches
    `lease_ms`."""

    group: str
    queue: MessageQueue
    client_id: str
    since_ms: int
    age_ms: int
    lease_ms: int


class LockTable:
    """Orderly locks of all groups. Plain calls; the event loop that owns the broker is the only user."""

    def __init__(self, *, clock: Clock, bounds: Bounds | None = None) -> None:
        """`bounds` limit the number of locks; further locks are refused."""
        self._clock = clock
        self._bounds = bounds
        self._count = 0
        self._purge_at = 0.0  # monotonic seconds
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self.version = 0  # grows when a holder changes; the file contains only holders

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], *, lease_s: float = 0.0
    ) -> list[MessageQueue]:
        """Take or renew locks; return the queues that `client_id` now holds, in the requested order.

        `lease_s`: how long the client trusts the lock without a renewal, 0: not stated.
        """
        now = self._clock.monotonic()
        expiry_s = min(LOCK_EXPIRY_S, lease_s + LEASE_MARGIN_S) if lease_s > 0 else LOCK_EXPIRY_S
        locks = self._groups.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                if _expired(lock, now):
                    self.version += 1  # the file may have been written without it meanwhile
                lock.renewed, lock.expiry_s = now, expiry_s
            elif lock is None and not self._has_room():
                continue
            elif lock is None or _expired(lock, now):
                self._count += lock is None
                locks[queue] = _Lock(client_id, self._clock.now_ms(), now, expiry_s)
                self.version += 1
            else:
                continue
            granted.append(queue)
        if not locks:
            del self._groups[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release locks; locks of other clients stay."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
                self.version += 1
        if not locks:
            del self._groups[group]

    def _has_room(self) -> bool:
        """Whether one more lock is allowed, after removing expired ones."""
        if self._bounds is None or self._count < self._bounds.limit("orderlyLocksMax"):
            return True
        now = self._clock.monotonic()
        if now < self._purge_at:
            return False
        self._purge_at = now + PURGE_INTERVAL_S
        for locks in self._groups.values():
            self._forget_expired(locks, now)
        if self._count < self._bounds.limit("orderlyLocksMax"):
            return True
        self._bounds.reached("orderlyLocksMax", f"{self._count} queues are locked, no more can be")
        return False

    def _forget_expired(self, locks: dict[MessageQueue, _Lock], by: float) -> None:
        """Forget what had expired by a moment, monotonic seconds."""
        for queue in [queue for queue, lock in locks.items() if _expired(lock, by)]:
            del locks[queue]
            self._count -= 1

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

    def infos(self, group: str = "") -> list[LockInfo]:
        """The locks of one group, or of all, in order. A lock that expired within LAPSED_SHOWN_S says who was there last; older
        ones are forgotten."""
        now = self._clock.monotonic()
        wanted = sorted(self._groups) if not group else [group] if group in self._groups else []
        for name in wanted:
            self._forget_expired(self._groups[name], now - LAPSED_SHOWN_S)
            if not self._groups[name]:
                del self._groups[name]
        return [
            self._info(name, queue, now) for name in wanted for queue in sorted(self._groups.get(name, ()))
        ]

    def longest_held(self, count: int, topics: Container[str]) -> list[LockInfo]:
        """At most `count` locks on queues of these topics: those held longest by one client."""
        now = self._clock.monotonic()
        locks = (
            (lock.since_ms, name, queue)
            for name, locks in self._groups.items()
            for queue, lock in locks.items()
            if queue.topic in topics and not _expired(lock, now)
        )
        return [self._info(name, queue, now) for _, name, queue in nsmallest(count, locks)]

    @property
    def count(self) -> int:
        """Queues that are locked now."""
        now = self._clock.monotonic()
        return sum(not _expired(lock, now) for locks in self._groups.values() for lock in locks.values())

    def _info(self, group: str, queue: MessageQueue, now: float) -> LockInfo:
        lock = self._groups[group][queue]
        age_ms, lease_ms = round((now - lock.renewed) * 1000), round(lock.expiry_s * 1000)
        return LockInfo(group, queue, lock.client_id, lock.since_ms, age_ms, lease_ms)

    def remove_topic(self, topic: str) -> None:
        """Remove the locks on the queues of a deleted topic."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue in locks if queue.topic == topic]:
                del locks[queue]
                self._count -= 1
                self.version += 1
            if not locks:
                del self._groups[group]

    # --- the file

    def prepare_json(self) -> Callable[[], dict[str, Any]]:
        """Return a function that makes the file's content of the locks as they are now, for a thread."""
        groups = {group: dict(locks) for group, locks in self._groups.items()}
        now = self._clock.monotonic()
        return lambda: _table_json(groups, now)

    def to_json(self) -> dict[str, Any]:
        """The file's content: locks that have not expired."""
        return _table_json(self._groups, self._clock.monotonic())

    def clear(self) -> None:
        """Release every lock."""
        if self._groups:
            self._groups = {}
            self._count = 0
            self.version += 1

    def from_json(self, tree: Mapping[str, Any]) -> None:
        """Load a file's content. Raises MalformedFrame unless it is a lock table."""
        now = self._clock.monotonic()
        table = json_fields.mapping(tree, "lockTable")
        groups: dict[str, dict[MessageQueue, _Lock]] = {}
        for group, entries in table.items():
            if not isinstance(entries, list):
                raise MalformedFrame(f"the locks of group {group} are no list")
            locks = groups[str(group)] = {}
            for entry in entries:
                if not isinstance(entry, dict):
                    raise MalformedFrame(f"a lock of group {group} is no object")
                queue = MessageQueue(
                    json_fields.text(entry, "topic"),
                    json_fields.text(entry, "brokerName"),
                    json_fields.integer(entry, "queueId"),
                )
                expiry_s = min(LOCK_EXPIRY_S, max(0.0, json_fields.integer(entry, "leaseMillis") / 1000))
                locks[queue] = _Lock(
                    json_fields.text(entry, "clientId"), json_fields.integer(entry, "since"), now, expiry_s
                )
        self._groups = groups
        self._count = sum(map(len, groups.values()))


def _expired(lock: _Lock, now: float) -> bool:
    return now - lock.renewed > lock.expiry_s


def _table_json(groups: Mapping[str, Mapping[MessageQueue, _Lock]], now: float) -> dict[str, Any]:
    table = {
        group: [
            queue_to_dict(queue)
            | {
                "clientId": lock.client_id,
                "leaseMillis": round(lock.expiry_s * 1000),
                "since": lock.since_ms,
            }
            for queue, lock in sorted(locks.items())
            if not _expired(lock, now)
        ]
        for group, locks in sorted(groups.items())
    }
    return {"lockTable": {group: locks for group, locks in table.items() if locks}}
