"""Acquires and releases the queues of an ordered consumer so that no two members own a queue at the same time.

Follows RebalancePushImpl for ordered consumers (RocketMQ), with these steps in this order:

    to take:     lock the queue at its broker, then ask for the committed offset, then pull
    to release:  stop pulling, let the handler end, commit and wait for it, unlock
    when lost:   cancel the handler, forget what is cached, commit nothing; the next round takes it again

RocketMQ's client waits 500 ms for a handler and tries again in the next round; here a release waits for its handler in
the background, and keeps the lock meanwhile. It waits for the commit because the broker must have it before another member
gets the lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping

from aerobee.client.consumer.consumption import Handler
from aerobee.client.consumer.give_back import GivesBack
from aerobee.client.consumer.group_retries import GroupRetries
from aerobee.client.consumer.ordered_consumption import OrderedConsumption
from aerobee.client.consumer.ordered_queue import OrderPolicy
from aerobee.client.consumer.queue_locking import QueueLocking
from aerobee.client.consumer.queue_pull import QueuePull
from aerobee.client.session.session import Session
from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue

log = logging.getLogger(__name__)

Save = Callable[[Mapping[MessageQueue, int]], Awaitable[None]]


class OrderedOwnership:
    """The queues of one ordered consumer. With broadcasting there are no locks: every member owns every queue."""

    def __init__(
        self,
        session: Session,
        group: str,
        handler: Handler,
        *,
        policy: OrderPolicy,
        concurrency: int,
        gives_back: GivesBack,
        retries: GroupRetries,
        pulls: MutableMapping[MessageQueue, QueuePull],
        save: Save,
        rebalance: Callable[[], None],
        broadcasting: bool,
        lease_s: float,
        local_retry_s: float,
    ) -> None:
        """`pulls` contains the owned queues: this class removes released and lost ones."""
        self._session = session
        self._group = group
        self._pulls = pulls
        self._save = save
        self._rebalance = rebalance
        self._releasing: set[MessageQueue] = set()
        self.locking: QueueLocking | None = None
        if not broadcasting:
            self.locking = QueueLocking(session, group, lease_s=lease_s, lost=self._lost)
        self.consumption = OrderedConsumption(
            session,
            handler,
            gives_back=gives_back,
            retries=retries,
            policy=policy,
            concurrency=concurrency,
            may_act=self._may_act,
            broadcasting=broadcasting,
            local_retry_s=local_retry_s,
        )

    def _may_act(self, queue: MessageQueue) -> bool:
        return self.locking is None or self.locking.may_act(queue)

    def locked_at_ms(self, queue: MessageQueue) -> int:
        """When the lock of a queue was last renewed, ms since the epoch; 0 without a lock."""
        at = None if self.locking is None else self.locking.locks.renewed_at(queue)
        clock = self._session.clock
        return 0 if at is None else clock.now_ms() - round((clock.monotonic() - at) * 1000)

    async def keep_locks(self) -> None:
        """Renew locks periodically, until cancelled."""
        if self.locking is not None:
            await self.locking.keep()

    async def take(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Lock queues that this member does not own yet; return those that it may start to consume."""
        wanted = set(queues) - self._releasing
        if self.locking is None or not wanted:
            return wanted
        return await self.locking.take(wanted)

    async def may_begin(self, queue: MessageQueue, start_offset: int | None) -> bool:
        """False when the lock expired meanwhile, or the start offset is unknown: the lock is then released."""
        if self.locking is None or (start_offset is not None and self.locking.may_act(queue)):
            return True
        await self.locking.give_back([queue])
        return False

    def is_releasing(self, queues: Collection[MessageQueue]) -> bool:
        return not self._releasing.isdisjoint(queues)

    def release(self, queues: Collection[MessageQueue]) -> None:
        """Release queues orderly in the background, then wake the rebalancer."""
        for queue in sorted(set(queues) - self._releasing):
            log.info("group %s releases %s", self._group, queue)
            self._releasing.add(queue)
            self._session.tasks.spawn(self._release_and_tell(queue), f"consumer-release-{queue.queue_id}")

    async def _release_and_tell(self, queue: MessageQueue) -> None:
        try:
            await self._release(queue)
        finally:
            self._releasing.discard(queue)
            self._rebalance()

    async def _release(self, queue: MessageQueue) -> None:
        pull = self._pulls[queue]
        await pull.halt()
        await self.consumption.finish(queue)
        if self._pulls.get(queue) is not pull:
            return  # the lock was lost while the handler ended
        offset = pull.process.commit_offset
        pull.stop()
        try:
            await self._save({queue: offset})
        except AerobeeError as error:
            log.warning("offset %d of %s is not committed, its next owner receives some messages again: %s",
                        offset, queue, error)  # fmt: skip
        if self.locking is not None:
            await self.locking.give_back([queue])
        if self._pulls.get(queue) is pull:
            del self._pulls[queue]

    def _lost(self, queue: MessageQueue, reason: str) -> None:
        pull = self._pulls.pop(queue, None)
        if pull is not None:
            pull.stop()
        self.consumption.revoke(queue)
        self._rebalance()

    async def close(self) -> None:
        """Commit and unlock every queue. The consumption has stopped."""
        await asyncio.gather(*(pull.halt() for pull in self._pulls.values()))
        offsets = {queue: pull.process.commit_offset for queue, pull in self._pulls.items()}
        try:
            await self._save(offsets)
        except AerobeeError as error:
            log.warning("offsets are not committed, the next owners receive some messages again: %s", error)
        if self.locking is not None:
            # A handler that ignores its cancellation keeps its queue: the lock expires by itself.
            await self.locking.end(kept=self.consumption.working)
