"""Admin calls that find stored messages: by id, by key, by offset."""

from __future__ import annotations

import asyncio

from aerobee.client.admin.base import AdminCalls
from aerobee.client.base.received import ReceivedMessage, decode_messages, decode_stored_messages
from aerobee.client.consumer.broker_calls import offset_for_time
from aerobee.client.consumer.subscription import Subscription, subscribe
from aerobee.errors import AerobeeError, QueryNotFound, RemoteError, UsageError, remote_error
from aerobee.host_port import join_address
from aerobee.message import MessageQueue, parse_offset_message_id
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.system_names import TOOLS_GROUP

HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
TIME_MAX_MS = (1 << 63) - 1
THREE_DAYS_MS = 3 * 24 * 3600 * 1000
UNIQUE_KEY_COUNT_MAX = 32
QUERY_TIMEOUT_FACTOR = 4  # searching the index reads many records
PULL_COUNT = 32  # messages of one pull; brokers return no more
_WITHOUT_MESSAGES = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class MessageCalls(AdminCalls):
    """Queries for stored messages."""

    async def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """A message by its offset message id or its unique key. Raises QueryNotFound when no broker has it.

        An offset message id contains the broker's address; a unique key (Java: msgId) requires the topic.
        """
        try:
            (host, port), offset = parse_offset_message_id(message_id)
        except UsageError:
            if topic is None and set(message_id) - HEX_DIGITS:
                raise UsageError(
                    f"{message_id!r} is not a message id of 32 hex digits or more; if a client chose this id, name its topic as well (--topic)"
                ) from None
            host, port, offset = "", 0, 0
        if host and await self._is_broker(address := join_address(host, port)):
            try:
                return await self.message_at_physical_offset(address, offset, topic)
            except RemoteError:
                if topic is None:
                    raise
        if topic is None:
            raise UsageError(
                f"{message_id} names no broker of this cluster: it is an id that a client gave, so name its topic (--topic)"
            )
        found = await self.messages_by_unique_key(topic, message_id)
        if not found:
            raise QueryNotFound(
                ResponseCode.QUERY_NOT_FOUND.value,
                f"no message of topic {topic} has the id {message_id} (the last three days are searched)",
                request="QUERY_MESSAGE",
            )
        return found[0]

    async def _is_broker(self, address: str) -> bool:
        return any(info.address == address for info in await self.brokers())

    async def message_at_physical_offset(
        self, address: str, physical_offset: int, topic: str | None = None
    ) -> ReceivedMessage:
        """The message at a physical offset of a broker's log."""
        fields = {"offset": str(physical_offset)}
        if topic is not None:
            fields["topic"] = topic
        answer = await self._call(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        messages = decode_stored_messages(answer.body, await self._name_of(address))
        if not messages:
            raise QueryNotFound(
                ResponseCode.QUERY_NOT_FOUND.value, f"no message at offset {physical_offset}", address=address
            )
        return messages[0]

    async def _name_of(self, address: str) -> str:
        return next((info.broker_name for info in await self.brokers() if info.address == address), "")

    async def messages_by_unique_key(
        self, topic: str, unique_key: str, *, begin_ms: int | None = None, end_ms: int = TIME_MAX_MS
    ) -> tuple[ReceivedMessage, ...]:
        """Messages with this unique key: more than one when a producer retried the send."""
        if begin_ms is None:
            begin_ms = self._session.clock.now_ms() - THREE_DAYS_MS
        found = await self._query(topic, unique_key, UNIQUE_KEY_COUNT_MAX, begin_ms, end_ms, unique=True)
        return tuple(message for message in found if message.message_id == unique_key)

    async def messages_by_key(
        self, topic: str, key: str, *, count_max: int = 64, begin_ms: int = 0, end_ms: int = TIME_MAX_MS
    ) -> tuple[ReceivedMessage, ...]:
        """Messages with this key, in the order in which they were stored."""
        found = await self._query(topic, key, count_max, begin_ms, end_ms, unique=False)
        return tuple(message for message in found if key in message.keys and message.topic == topic)[
            :count_max
        ]

    async def _query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> list[ReceivedMessage]:
        """Query every broker of a topic; fails only when no broker answered."""
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "indexType": "U" if unique else "K",
            "_UNIQUE_KEY_QUERY": "true" if unique else "false",
        }

        async def ask(broker_name: str, address: str) -> list[ReceivedMessage]:
            try:
                answer = await self._call(address, RequestCode.QUERY_MESSAGE, dict(fields))
            except QueryNotFound:
                return []
            return decode_stored_messages(answer.body, broker_name)

        outcomes = await asyncio.gather(
            *(ask(name, address) for name, address in await self._topic_addresses(topic)),
            return_exceptions=True,
        )
        found: list[ReceivedMessage] = []
        failures: list[BaseException] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                failures.append(outcome)
            else:
                found.extend(outcome)
        for failure in failures:
            if not isinstance(failure, AerobeeError) or len(failures) == len(outcomes):
                raise failure
        return sorted(found, key=lambda message: (message.store_timestamp, message.physical_offset))

    async def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """The message at an offset of a queue. Raises QueryNotFound when there is none."""
        answer = await self._pull(queue, offset, 1, _all_of(queue.topic))
        messages = _decoded(answer, queue)
        if messages and messages[0].queue_offset == offset:
            return messages[0]
        raise QueryNotFound(
            ResponseCode.QUERY_NOT_FOUND.value,
            f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name} has no message at offset {offset} "
            f"(it holds {answer.field('minOffset')} up to before {answer.field('maxOffset')})",
            request="PULL_MESSAGE",
        )

    async def messages_from(
        self, queue: MessageQueue, offset: int, *, expression: str = "*"
    ) -> tuple[list[ReceivedMessage], int]:
        """Messages of a queue from `offset` on that match the expression, at most PULL_COUNT, and the offset at which to continue.

        `expression` is "*", "TagA || TagB" or Sql("price > 5"), which the broker evaluates. No offset is committed. The list may be
        empty before the end of the queue; the offset to continue is always larger than `offset`. Raises RemoteError when the broker
        refuses the expression.
        """
        subscription = (
            _all_of(queue.topic)
            if expression == "*"
            else subscribe(queue.topic, expression, self._session.clock.now_ms())
        )
        answer = await self._pull(queue, offset, PULL_COUNT, subscription)
        found = [each for each in _decoded(answer, queue) if subscription.wants(each.tag)]
        return found, max(offset + 1, answer.integer("nextBeginOffset"))

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The first offset of a queue that was stored at or after a time, in ms since the epoch."""
        self._session.check_open()
        return await offset_for_time(self._session, queue, time_ms)

    async def _pull(
        self, queue: MessageQueue, offset: int, count: int, subscription: Subscription
    ) -> RemotingCommand:
        """The reply to a pull that neither waits nor commits. Raises RemoteError."""
        self._session.check_open()
        address = await self._session.queue_address(queue)
        fields = {
            "consumerGroup": TOOLS_GROUP,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": "4",  # sysFlag: the request contains the subscription, no long polling
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": subscription.expression,
            "subVersion": str(subscription.version),
            "expressionType": subscription.expression_type,
            "bname": queue.broker_name,
        }
        command = RemotingCommand(RequestCode.PULL_MESSAGE.value, fields)
        answer = await self._session.remoting.invoke(address, command, timeout_s=self._timeout_s)
        if answer.code != ResponseCode.SUCCESS and answer.code not in _WITHOUT_MESSAGES:
            raise remote_error(answer.code, answer.remark, address=address, request="PULL_MESSAGE")
        return answer


def _all_of(topic: str) -> Subscription:
    """A subscription to all messages. Names of DLQ topics may be longer than a user's topic may have."""
    return Subscription(topic, "*", frozenset(), 0)


def _decoded(answer: RemotingCommand, queue: MessageQueue) -> list[ReceivedMessage]:
    if answer.code != ResponseCode.SUCCESS:
        return []
    messages = decode_messages(answer.body, queue)
    delta = answer.integer("offsetDelta", 0)  # of a logical queue's part
    for message in messages:
        message.queue_offset += delta
    return messages
