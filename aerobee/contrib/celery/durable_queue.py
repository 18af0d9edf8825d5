"""One channel's share of a durable queue: a PopQueue of Kombu's envelopes, in the loop of its ClusterLink."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aerobee.contrib.celery.cluster_link import ClusterLink
from aerobee.contrib.celery.envelope import decode, due, encode, is_expired, priority_queue
from aerobee.contrib.celery.settings import Settings
from aerobee.contrib.delivery import Delivery, Verdict
from aerobee.contrib.pop_queue import PopQueue
from aerobee.errors import AerobeeError

log = logging.getLogger(__name__)


class DurableQueue(PopQueue):
    """Messages of `topic` for the group of the same name."""

    def __init__(
        self,
        link: ClusterLink,
        settings: Settings,
        topic: str,
        *,
        wanted: Callable[[], int],
        notify: Callable[[], None],
        level_count: int = 0,
    ) -> None:
        """`wanted` and `notify` as of PopQueue. `level_count`: number of priorities of the topic, 0 for none."""
        options = settings.options
        super().__init__(
            link.nameservers,
            topic,
            client=link.client,
            wanted=wanted,
            notify=notify,
            invisible_s=options.visibility_timeout,
            wait_s=options.wait_s,
            close_timeout_s=options.close_timeout,
        )
        self._link = link
        self._options = options
        self._level_count = level_count

    async def start(self) -> None:
        """As PopQueue.start(); the link closes the queue before itself."""
        await super().start()
        self._link.consumers.add(self)

    async def close(self) -> None:
        """As PopQueue.close()."""
        self._link.consumers.discard(self)
        await super().close()

    async def _accept(self, delivery: Delivery) -> bool:
        message = delivery.message
        try:
            delivery.envelope = envelope = decode(message.body)
        except AerobeeError as error:
            log.error("queue %s: %s becomes a dead letter: %s", self.topic, message, error)
            self.settle(delivery, Verdict.DEAD_LETTER, str(error))
            return False
        now_s = time.time()
        if is_expired(envelope, message.store_timestamp, round(now_s * 1000)):
            self.settle(delivery, Verdict.ACK)
            return False
        delayed = due(envelope, now_s, self._options.timer_max_s) if self._options.timers else None
        if delayed is not None and await self._send_on(delivery, delayed.at_s):
            self.settle(delivery, Verdict.ACK)
            return False
        return True

    async def _send_on(self, delivery: Delivery, at_s: float) -> bool:
        """The next step towards an ETA beyond the maximum delay. False: no broker took it, and the worker holds it."""
        queue_id = priority_queue(delivery.envelope, self._level_count) if self._level_count else None
        delivery.is_busy = True
        try:
            message = encode(delivery.envelope, self.topic)
            await self._link.send(message, queue_id=queue_id, deliver_at_s=at_s)
        except AerobeeError as error:
            log.warning(
                "queue %s: the worker waits for the ETA of %s: %s", self.topic, delivery.message, error
            )
            return False
        finally:
            delivery.is_busy = False
        return True
