"""Admin calls behind `aerobee why`: all stored copies of a message, queue locks, invisible messages, subscription
conflicts.

A call returns None when no broker supports the request (RocketMQ's brokers do not know Aerobee-specific requests). An
empty list means that brokers answered and have no entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aerobee.client.admin.messages import TIME_MAX_MS, MessageCalls
from aerobee.client.base.received import ReceivedMessage, decode_stored_messages
from aerobee.errors import AerobeeError, ConsumerNotOnline, QueryNotFound, RequestNotSupported
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.codes import RequestCode

COPIES_MAX = 32  # maximum number of rows requested from one broker
INVISIBLE_MAX = 1_000


@dataclass(slots=True, frozen=True, kw_only=True)
class QueueLock:
    """A queue that one member of an orderly group has locked.

    `since_ms` is when the member took the lock, `age_ms` the time since it renewed the lock; the lock expires when
    `age_ms` reaches `lease_ms`.
    """

    queue: MessageQueue
    client_id: str
    since_ms: int
    age_ms: int
    lease_ms: int


@dataclass(slots=True, frozen=True, kw_only=True)
class InvisibleMessage:
    """A message that POP delivered: invisible to other members of the group until `visible_at_ms`."""

    queue: MessageQueue
    offset: int
    popped_ms: int
    visible_at_ms: int
    client_id: str
    ordered: bool


@dataclass(slots=True, frozen=True, kw_only=True)
class SubscriptionDifference:
    """Two members of one group with different subscriptions to a topic."""

    topic: str
    client_id: str
    expression: str
    other_client_id: str
    other_expression: str


@dataclass(slots=True, frozen=True, kw_only=True)
class SharedClientId:
    """Several clients of one group with the same client id, as a broker sees them. The client at the first of
    `addresses` owns the id's queues."""

    client_id: str
    addresses: tuple[str, ...]


class ExplainCalls(MessageCalls):
    """Facts about one group and one message."""

    async def copies(self, topics: Sequence[str], unique_key: str) -> tuple[ReceivedMessage, ...]:
        """Every record of these topics, system topics included, with this unique key, oldest first.

        `topic` and `queue` of a record name the queue that stores it. Brokers that do not answer are skipped; the
        call fails only when no broker answers.
        """
        masters = {info.address: info.broker_name for info in await self.brokers() if info.broker_id == 0}

        async def ask(address: str, topic: str) -> list[ReceivedMessage]:
            fields = {
                "topic": topic,
                "key": unique_key,
                "maxNum": str(COPIES_MAX),
                "beginTimestamp": "0",
                "endTimestamp": str(TIME_MAX_MS),
                "indexType": "U",
                "_UNIQUE_KEY_QUERY": "true",
            }
            try:
                answer = await self._call(address, RequestCode.QUERY_MESSAGE, fields)
            except QueryNotFound:
                return []
            found = decode_stored_messages(answer.body, masters[address])
            return [each for each in found if each.message_id == unique_key and each.queue.topic == topic]

        outcomes = await asyncio.gather(
            *(ask(address, topic) for address in masters for topic in topics), return_exceptions=True
        )
        found: list[ReceivedMessage] = []
        failures: list[BaseException] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                failures.append(outcome)
            else:
                found += outcome
        for failure in failures:
            if not isinstance(failure, AerobeeError) or len(failures) == len(outcomes):
                raise failure
        return tuple(sorted(found, key=lambda message: (message.store_timestamp, message.physical_offset)))

    async def queue_locks(self, group: str) -> tuple[QueueLock, ...] | None:
        """The queue locks of an orderly group; None when no broker supports the request."""
        rows = await self._rows(RequestCode.AEROBEE_LIST_LOCKS, {"consumerGroup": group}, "locks")
        if rows is None:
            return None
        return tuple(
            QueueLock(
                queue=MessageQueue(
                    json_fields.text(row, "topic"),
                    json_fields.text(row, "brokerName"),
                    json_fields.integer(row, "queueId"),
                ),
                client_id=json_fields.text(row, "clientId"),
                since_ms=json_fields.integer(row, "since"),
                age_ms=json_fields.integer(row, "ageMillis"),
                lease_ms=json_fields.integer(row, "leaseMillis"),
            )
            for _, row in rows
        )

    async def invisible_messages(
        self, group: str, topic: str | None = None, *, broker: str | None = None
    ) -> tuple[InvisibleMessage, ...] | None:
        """Messages delivered by POP and not acknowledged yet, at most 1,000; None when no broker reports them.

        `broker`: request them from this broker only.
        """
        ext = {"consumerGroup": group, "countMax": str(INVISIBLE_MAX)}
        if topic is not None:
            ext["topic"] = topic
        rows = await self._rows(RequestCode.AEROBEE_LIST_POPS, ext, "entries", broker)
        if rows is None:
            return None
        return tuple(
            InvisibleMessage(
                queue=MessageQueue(
                    json_fields.text(row, "topic"), broker_name, json_fields.integer(row, "queueId")
                ),
                offset=json_fields.integer(row, "offset"),
                popped_ms=json_fields.integer(row, "popTime"),
                visible_at_ms=json_fields.integer(row, "visibleAt"),
                client_id=json_fields.text(row, "clientId") or json_fields.text(row, "consumer"),
                ordered=json_fields.boolean(row, "ordered"),
            )
            for broker_name, row in rows
        )

    async def subscription_differences(self, group: str) -> tuple[SubscriptionDifference, ...]:
        """Members with different subscriptions, as reported by Aerobee's brokers; RocketMQ's do not report them."""
        found: dict[tuple[str, str, str], SubscriptionDifference] = {}
        for fields in await self._members_of(group):
            for row in json_fields.objects(fields, "subscriptionConflicts"):
                item = SubscriptionDifference(
                    topic=json_fields.text(row, "topic"),
                    client_id=json_fields.text(row, "clientId"),
                    expression=json_fields.text(row, "expression"),
                    other_client_id=json_fields.text(row, "otherClientId"),
                    other_expression=json_fields.text(row, "otherExpression"),
                )
                found[item.topic, item.client_id, item.other_client_id] = item
        return tuple(found.values())

    async def shared_client_ids(self, group: str) -> tuple[SharedClientId, ...]:
        """Client ids that several connected members share, as reported by Aerobee's brokers; RocketMQ's do not report
        them."""
        found: dict[str, SharedClientId] = {}
        for fields in await self._members_of(group):
            for row in json_fields.objects(fields, "sharedClientIds"):
                addresses = json_fields.texts(row, "addresses")
                client_id = json_fields.text(row, "clientId")
                found.setdefault(client_id, SharedClientId(client_id=client_id, addresses=addresses))
        return tuple(found.values())

    async def _members_of(self, group: str) -> list[json_fields.Fields]:
        """The reply to GET_CONSUMER_CONNECTION_LIST of each master that knows members of the group."""
        found: list[json_fields.Fields] = []
        for address in [info.address for info in await self.brokers() if info.broker_id == 0]:
            try:
                answer = await self._call(
                    address, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
                )
            except ConsumerNotOnline:
                continue
            found.append(fastjson.loads_trusted(answer.body, "ConsumerConnection"))
        return found

    async def _rows(
        self, code: RequestCode, ext: dict[str, str], name: str, broker: str | None = None
    ) -> list[tuple[str, dict[str, Any]]] | None:
        """The rows of a list that each master returns; None when no master supports the request.

        The error of a master that refuses is raised, because its rows are unknown: a plan must not treat them as "none".
        """
        rows: list[tuple[str, dict[str, Any]]] = []
        known = False
        for info in await self.brokers():
            if info.broker_id != 0 or broker not in (None, info.broker_name):
                continue
            try:
                answer = await self._call(info.address, code, dict(ext))
            except RequestNotSupported:
                continue
            known = True
            fields = fastjson.loads_trusted(answer.body, code.name)
            rows += [(info.broker_name, dict(row)) for row in json_fields.objects(fields, name)]
        return rows if known else None
