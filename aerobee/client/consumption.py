"""Hands messages to a handler and sees to what becomes of them.

Follows ConsumeMessageConcurrentlyService. A message is finished when the handler returned, or when a broker has
taken it back for another delivery. Until then its offset holds back the committed one, so nothing is lost when this
process dies; what was handled and not committed is then delivered again.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aerobee.client.broker_calls import send_back
from aerobee.client.process_queue import ProcessQueue
from aerobee.client.publish_route import publish_queues
from aerobee.client.queue_pull import QueuePull
from aerobee.client.received import ReceivedMessage
from aerobee.client.send_header import SendTemplate, decode_send_reply
from aerobee.client.session import INNER_PRODUCER_GROUP, Session
from aerobee.client.verdict import RetryLater
from aerobee.client.worker_pool import WorkerPool
from aerobee.errors import AerobeeError, RouteError
from aerobee.message import RETRY_PREFIX, encode_properties

log = logging.getLogger(__name__)

Handler = Callable[[Any], Any]
# One handler call: the queue, its bookkeeping at that time, the messages.
Work = tuple[QueuePull, ProcessQueue, list[ReceivedMessage]]

RETRY_LEVEL_FIRST = 3  # delay level of the first retry: 10 s
RETRY_COUNT_DEFAULT = 16


class Consumption:
    """Calls one handler for all queues of one consumer."""

    def __init__(
        self,
        session: Session,
        group: str,
        handler: Handler,
        *,
        concurrency: int,
        batch_size: int,
        broadcasting: bool,
        retry_count_max: int,
        local_retry_s: float,
    ) -> None:
        self._session = session
        self._group = group
        self._handler = handler
        self._batch_size = batch_size
        self._broadcasting = broadcasting
        self._retry_count_max = retry_count_max
        self._local_retry_s = local_retry_s
        self._pool: WorkerPool[Work] = WorkerPool(session.tasks, self._run, concurrency=concurrency)
        self.consumed_count = 0
        self.failed_count = 0

    def deliver(self, pull: QueuePull, messages: list[ReceivedMessage]) -> None:
        """Put messages in line."""
        process, size = pull.process, self._batch_size
        if size == 1:
            self._pool.submit([(pull, process, [message]) for message in messages])
        else:
            self._pool.submit(
                [(pull, process, messages[at : at + size]) for at in range(0, len(messages), size)]
            )

    async def stop(self, timeout_s: float) -> None:
        """Start no more handler calls, wait for those that run."""
        if not await self._pool.stop(timeout_s):
            log.warning(
                "%d handler calls of group %s still run after %.1f s: their messages are delivered again",
                self._pool.busy,
                self._group,
                timeout_s,
            )

    async def _run(self, work: Work) -> None:
        pull, process, messages = work
        if process.dropped:
            return
        try:
            returned = self._handler(messages[0] if self._batch_size == 1 else messages)
            if returned is not None and inspect.isawaitable(returned):
                await returned
        except RetryLater as verdict:
            log.info("group %s retries %s later: %s", self._group, messages[0], verdict)
            await self._failed(work, verdict.delay_level)
            return
        except Exception:
            # The outermost edge of the user's code: whatever it raises means "not consumed".
            log.exception("handler of group %s failed for %s", self._group, messages)
            await self._failed(work, 0)
            return
        self.consumed_count += len(messages)
        for message in messages:
            process.finish(message.queue_offset)
        pull.last_consume_ms = self._session.clock.now_ms()
        pull.room_made()

    async def _failed(self, work: Work, delay_level: int) -> None:
        pull, process, messages = work
        self.failed_count += len(messages)
        if process.dropped:
            return  # its next owner gets the messages again
        remaining = []
        for message in messages:
            if self._broadcasting:
                log.warning("broadcast message %s is given up: nobody delivers it again", message)
            elif not await self.give_back(message, delay_level):
                remaining.append(message)
                continue
            process.finish(message.queue_offset)
        pull.room_made()
        if remaining:
            self._session.clock.call_later(
                self._local_retry_s, self._pool.submit, [(pull, process, remaining)]
            )

    async def give_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Let a broker deliver a message again; True when one has taken it."""
        try:
            await send_back(
                self._session,
                self._group,
                message,
                delay_level=delay_level,
                retry_count_max=self._retry_count_max,
            )
            return True
        except AerobeeError as error:
            log.warning("%s is not taken back (%s), sending it to the retry topic", message, error)
        try:
            await self._send_to_retry_topic(message)
            return True
        except AerobeeError as error:
            log.warning(
                "%s cannot be sent to the retry topic either (%s); handing it over again in %.1f s",
                message,
                error,
                self._local_retry_s,
            )
        return False

    async def _send_to_retry_topic(self, message: ReceivedMessage) -> None:
        """The way round a broker that does not take its message back: a new message for the retry topic."""
        topic = RETRY_PREFIX + self._group
        session = self._session
        route = await session.routes.get(topic)
        queues = publish_queues(route)
        if not queues:
            raise RouteError(topic, f"retry topic {topic} has no queue that can be written")
        queue = session.random.choice(queues)
        retry_count_max = self._retry_count_max if self._retry_count_max >= 0 else RETRY_COUNT_DEFAULT
        properties = {
            **message.properties,
            "RETRY_TOPIC": message.topic,
            "ORIGIN_MESSAGE_ID": message.properties.get("ORIGIN_MESSAGE_ID") or message.message_id,
            "RECONSUME_TIME": str(message.reconsume_times + 1),
            "MAX_RECONSUME_TIMES": str(retry_count_max),
            "DELAY": str(RETRY_LEVEL_FIRST + message.reconsume_times),
        }
        address = await session.broker_address(queue.broker_name, topic)
        template = SendTemplate(
            group=INNER_PRODUCER_GROUP,
            queue=queue,
            default_topic="TBW102",
            default_queue_count=4,
            reconsume_times=message.reconsume_times + 1,
            reconsume_times_max=retry_count_max,
        )
        timeout_s = session.config.request_timeout_s
        connection = await session.remoting.connect(address, timeout_s=timeout_s)
        opaque = connection.next_opaque()
        frame = template.frame(
            opaque=opaque,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag,
            born_timestamp_ms=session.clock.now_ms(),
            flag=message.flag,
            properties=encode_properties(properties),
            body=message.stored_body,
        )
        reply = await connection.call(frame, opaque, timeout_s, "SEND_MESSAGE_V2")
        decode_send_reply(reply, queue, message.message_id, address)

    async def consume_directly(self, message: ReceivedMessage) -> None:
        """Run the handler for one message outside of any queue. Raises what the handler raises."""
        returned: Awaitable[None] | None = self._handler(message if self._batch_size == 1 else [message])
        if returned is not None and inspect.isawaitable(returned):
            await returned
