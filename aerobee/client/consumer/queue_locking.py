"""Takes, renews and releases the locks of an ordered consumer at their brokers. I/O layer of QueueLocks.

Follows RebalanceImpl.lock, lockAll and unlock (RocketMQ): LOCK_BATCH_MQ 41, UNLOCK_BATCH_MQ 42, renewed at two thirds
of the lease. A lock that a broker refuses to renew, or that could not be renewed before its lease expired, is lost:
`lost` is called, and no message of that queue is handled or committed any more, because another member may own the
queue.

A broker gets one request at a time: an unlock waits for the reply to a pending lock request. Otherwise that
reply would mark a released queue as locked, and the client would renew the lock. A request without an answer
may have locked its queues all the same: end() unlocks them, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from aerobee.client.consumer.broker_calls import lock_queues, unlock_queues
from aerobee.client.consumer.queue_locks import QueueLocks
from aerobee.client.session.session import Session
from aerobee.clock import Timer
from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue

log = logging.getLogger(__name__)


class QueueLocking:
    """The locks of one member of a group."""

    def __init__(
        self, session: Session, group: str, *, lease_s: float, lost: Callable[[MessageQueue, str], None]
    ) -> None:
        """`lost` receives the queue and the reason; it is called once per loss and must not block."""
        self._session = session
        self._group = group
        self._lost = lost
        self._timer: Timer | None = None
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by broker name
        self._unanswered: set[MessageQueue] = set()  # requested, and perhaps locked
        self._is_ending = False
        self.locks = QueueLocks(lease_s=lease_s)

    def may_act(self, queue: MessageQueue) -> bool:
        """True while this member may deliver messages of the queue to the handler."""
        return self.locks.may_act(queue, self._session.clock.monotonic())

    async def take(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues; return those that were granted. A broker that does not answer grants none."""
        granted: set[MessageQueue] = set()
        for taken in await asyncio.gather(*(self._ask(*part) for part in self._by_broker(queues))):
            granted.update(taken or ())
        return granted

    async def keep(self) -> None:
        """Renew the held locks periodically, until cancelled."""
        clock = self._session.clock
        while True:
            await clock.sleep(self.locks.renew_interval_s)
            await asyncio.gather(*(self._renew(*part) for part in self._by_broker(self.locks.held)))

    async def give_back(self, queues: Collection[MessageQueue]) -> None:
        """Unlock queues, one-way. An unreachable broker keeps them locked until the lease expires."""
        for broker_name, part in self._by_broker(queues):
            async with self._turns[broker_name]:
                await self._unlock(broker_name, part)
        self._arm()

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        self._unanswered.difference_update(queues)
        for queue in queues:
            self.locks.forget(queue)
        try:
            address = await self._session.broker_address(broker_name, queues[0].topic)
            await unlock_queues(self._session, self._group, address, queues)
        except AerobeeError as error:
            self._session.peers.trouble(log, error, "locks of %s are not released: %s", queues, error)

    async def end(self, kept: Collection[MessageQueue] = ()) -> None:
        """Lock and renew nothing any more, and give back every queue but `kept`, whose leases expire."""
        self._is_ending = True
        self._cancel_timer()
        for turn in list(self._turns.values()):
            async with turn:
                pass  # the request under way has its answer
        await self.give_back({*self.locks.held, *self._unanswered}.difference(kept))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _by_broker(self, queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
        parts: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in sorted(queues):
            parts[self._session.routes.leader_of(queue)].append(queue)
        return sorted(parts.items())

    async def _ask(self, broker_name: str, queues: list[MessageQueue]) -> frozenset[MessageQueue] | None:
        """The queues that a broker granted, None when it did not answer."""
        async with self._turns[broker_name]:
            if self._is_ending:
                return None
            granted, asked_at = await self._request(broker_name, queues)
            return None if granted is None else self._note(granted, asked_at)

    async def _request(
        self, broker_name: str, queues: list[MessageQueue]
    ) -> tuple[frozenset[MessageQueue] | None, float]:
        """What the broker granted, None without an answer, and when it was requested, monotonic seconds."""
        clock = self._session.clock
        asked_at = clock.monotonic()
        self._unanswered.update(queues)
        try:
            address = await self._session.broker_address(broker_name, queues[0].topic)
            granted = await lock_queues(
                self._session, self._group, address, queues, lease_s=self.locks.lease_s
            )
        except AerobeeError as error:
            self._session.peers.trouble(
                log, error, "locks of %d queues at broker %s: %s", len(queues), broker_name, error
            )
            return None, asked_at
        self._unanswered.difference_update(queues)
        return granted.intersection(queues), asked_at

    def _note(self, granted: frozenset[MessageQueue], asked_at: float) -> frozenset[MessageQueue] | None:
        if self._session.clock.monotonic() - asked_at >= self.locks.lease_s:
            return None  # granted, but requested so long ago that the lease has expired
        self.locks.granted(granted, asked_at=asked_at)
        self._arm()
        return granted

    async def _renew(self, broker_name: str, queues: list[MessageQueue]) -> None:
        async with self._turns[broker_name]:
            # Some may have been given back while this waited for its turn.
            queues = [queue for queue in queues if self.locks.renewed_at(queue) is not None]
            if self._is_ending or not queues:
                return
            granted, asked_at = await self._request(broker_name, queues)
            if granted is not None:
                # Lost while the answer was under way: its messages are no longer handled here.
                lost = sorted(queue for queue in granted if self.locks.renewed_at(queue) is None)
                if lost:
                    await self._unlock(broker_name, lost)
                granted = self._note(granted.difference(lost), asked_at)
        if granted is None:
            return  # the loop ends at the latest with the lease
        for queue in queues:
            if queue not in granted and self.locks.renewed_at(queue) is not None:
                self._lose(queue, "its broker granted it to another member")

    def _arm(self) -> None:
        """Set a timer for the end of the first lease."""
        self._cancel_timer()
        end = self.locks.next_end
        if end is not None and not self._is_ending:
            clock = self._session.clock
            self._timer = clock.call_later(max(0.0, end - clock.monotonic()), self._check)

    def _check(self) -> None:
        for queue in self.locks.lapsed(self._session.clock.monotonic()):
            self._lose(queue, f"its lock was not renewed for {self.locks.lease_s:.0f} s")
        self._arm()

    def _lose(self, queue: MessageQueue, reason: str) -> None:
        self.locks.forget(queue)
        log.warning("group %s lost %s: %s", self._group, queue, reason)
        self._lost(queue, reason)
