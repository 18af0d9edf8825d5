"""Dead-letter messages: list the groups that have any, read the messages, and redrive them.

A redrive sends a message to the group's retry topic, so that only the group that failed receives it, or to a given topic.
The message keeps its body, keys, tag, properties and id (UNIQ_KEY), so that an idempotent handler recognizes it. The
dead-letter message itself stays, because the log never changes. The progress of redrives is the offset that
TOOLS_CONSUMER has committed in the DLQ topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aerobee.client.admin.messages import MessageCalls
from aerobee.client.base.results import SendResult
from aerobee.client.base.topic_route import publish_queues, subscribe_queues
from aerobee.client.consumer.broker_calls import begin_offset, commit_offset, committed_offset, end_offset
from aerobee.client.consumer.dead_letter import DeadLetter, DeadLetterFilter
from aerobee.client.session.send_header import SendTemplate, decode_send_reply
from aerobee.client.session.session import INNER_PRODUCER_GROUP
from aerobee.client.session.stale_routes import is_not_stored
from aerobee.errors import AerobeeError, RouteError, TopicNotExist, UsageError
from aerobee.message import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SHARDING_KEY,
    TRANSACTION_MASK,
    MessageQueue,
    encode_properties,
    java_hash,
)
from aerobee.remoting.body.topic_list import TopicList
from aerobee.remoting.codes import RequestCode
from aerobee.system_names import TOOLS_GROUP


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """One queue of a group's DLQ topic. Messages from offset `redriven` on are not redriven yet."""

    group: str
    queue: MessageQueue
    begin: int
    end: int
    redriven: int

    @property
    def count(self) -> int:
        return self.end - self.begin

    @property
    def waiting(self) -> int:
        return self.end - self.redriven


@dataclass(frozen=True, slots=True)
class Redriven:
    """The result of one redrive. `result` is None after a dry run and after a failure."""

    dead_letter: DeadLetter
    target: str
    result: SendResult | None = None
    error: str = ""


class DeadLetterCalls(MessageCalls):
    """Reads and redrives dead-letter messages."""

    async def dead_letter_groups(self) -> tuple[str, ...]:
        """Groups that have a DLQ topic, sorted."""
        answer = await self._call_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        topics = TopicList.decode(answer.body).topic_list
        return tuple(sorted(topic[len(DLQ_PREFIX) :] for topic in topics if topic.startswith(DLQ_PREFIX)))

    async def dead_letter_queues(self, group: str) -> tuple[DeadLetterQueue, ...]:
        """The queues of a group's DLQ topic; empty if the group has none."""
        self._session.check_open()
        try:
            route = await self._session.routes.refresh(DLQ_PREFIX + group)
        except TopicNotExist:
            return ()
        queues = []
        for queue in subscribe_queues(route):
            begin, end, redriven = await asyncio.gather(
                begin_offset(self._session, queue),
                end_offset(self._session, queue),
                self._redriven_up_to(queue),
            )
            queues.append(DeadLetterQueue(group, queue, begin, end, min(max(begin, redriven), end)))
        return tuple(queues)

    async def dead_letters(
        self, group: str, wanted: DeadLetterFilter | None = None, *, only_waiting: bool = False
    ) -> AsyncIterator[DeadLetter]:
        """The stored dead-letter messages, the oldest of each queue first.

        `only_waiting`: only those that are not redriven yet.
        """
        for dlq in await self.dead_letter_queues(group):
            offset = dlq.redriven if only_waiting else dlq.begin
            while offset < dlq.end:
                messages, offset = await self.messages_from(dlq.queue, offset)
                for message in messages:
                    dead = DeadLetter(group, message)
                    if message.queue_offset < dlq.end and (wanted is None or wanted.matches(dead)):
                        yield dead

    async def redrive(self, dead: DeadLetter, *, to: str = "") -> Redriven:
        """Send one dead-letter message to a topic, or to the group's retry topic if `to` is empty.

        A failed send is in the result, so that it does not stop the redrive of other messages. Raises UsageError if the
        message does not name its original topic and `to` is empty.
        """
        if not to and not dead.topic:
            raise UsageError(
                f"dead-letter message {dead.message.offset_message_id} does not name its original topic: "
                "choose a target topic"
            )
        target = to or RETRY_PREFIX + dead.group
        try:
            return Redriven(dead, target, await self._send_again(dead, target))
        except AerobeeError as error:
            return Redriven(dead, target, error=str(error))

    async def commit_redriven(self, queue: MessageQueue, offset: int) -> None:
        """Record that the messages before `offset` are redriven."""
        await commit_offset(self._session, TOOLS_GROUP, queue, offset)

    async def _redriven_up_to(self, queue: MessageQueue) -> int:
        return await committed_offset(self._session, TOOLS_GROUP, queue) or 0

    async def _send_again(self, dead: DeadLetter, target: str) -> SendResult:
        try:
            return await self._send_once(dead, target)
        except AerobeeError as error:
            if not is_not_stored(error):
                raise
        await self._session.routes.refresh(target)
        return await self._send_once(dead, target)

    async def _send_once(self, dead: DeadLetter, target: str) -> SendResult:
        session, message = self._session, dead.message
        queues = publish_queues(await session.routes.get(target))
        if not queues:
            raise RouteError(target, f"topic {target} has no writable queue")
        properties = dead.redriven_properties()
        if target.startswith(RETRY_PREFIX):
            properties["RETRY_TOPIC"] = dead.topic
        message_group = properties.get(SHARDING_KEY)
        if message_group is None:
            queue = session.random.choice(queues)
        else:
            queue = queues[abs(java_hash(message_group)) % len(queues)]
        address = await session.broker_address(queue.broker_name, target)
        template = SendTemplate(
            group=INNER_PRODUCER_GROUP, queue=queue, default_topic="TBW102", default_queue_count=4
        )
        connection = await session.remoting.connect(address, timeout_s=self._timeout_s)
        opaque = connection.next_opaque()
        frame = template.frame(
            opaque=opaque,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag & ~TRANSACTION_MASK,
            born_timestamp_ms=session.clock.now_ms(),
            flag=message.flag,
            properties=encode_properties(properties),
            body=message.stored_body,
        )
        reply = await connection.call(frame, opaque, self._timeout_s, "SEND_MESSAGE_V2")
        return decode_send_reply(reply, queue, dead.message_id, address)
