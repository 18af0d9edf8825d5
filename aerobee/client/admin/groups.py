"""Admin calls on consumer and producer groups: settings, members, progress, offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aerobee.client.admin.upkeep import UpkeepCalls
from aerobee.client.base.results import (
    ClientConnection,
    ConsumerProgress,
    DirectConsumption,
    GroupConnections,
    GroupInfo,
    QueueProgress,
    SubscriptionConflict,
    SubscriptionInfo,
)
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.client.consumer.broker_calls import commit_offset, end_offset, offset_for_time
from aerobee.errors import (
    AerobeeError,
    ConsumerNotOnline,
    RemoteError,
    RouteError,
    TopicNotExist,
    TransportError,
    UsageError,
)
from aerobee.message import RETRY_PREFIX, MessageQueue, check_group_name
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.connection_info import ConnectionInfo
from aerobee.remoting.body.consume_stats import ConsumeStats
from aerobee.remoting.body.consumer_connection import ConsumerConnection
from aerobee.remoting.body.consumer_running_info import ConsumerRunningInfo
from aerobee.remoting.body.producer_connection import ProducerConnection
from aerobee.remoting.body.reset_offset import ResetOffsetBody
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import boolean_text

LATEST_MS = -1


class GroupCalls(UpkeepCalls):
    """Create, list, watch and reset groups."""

    async def create_group(
        self,
        group: str,
        *,
        retry_count_max: int = 16,
        consume_enabled: bool = True,
        broadcast_enabled: bool = True,
        orderly: bool = False,
        retry_queue_count: int = 1,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> tuple[str, ...]:
        """Create a consumer group, or change it where it exists; returns the addresses of the brokers. `attributes` e.g.
        {"lite.bind.topic": "sessions"}; those not named stay."""
        check_group_name(group)
        config = SubscriptionGroupConfig(
            group,
            consume_enable=consume_enabled,
            consume_broadcast_enable=broadcast_enabled,
            consume_message_orderly=orderly,
            retry_queue_nums=retry_queue_count,
            retry_max_times=retry_count_max,
            attributes={f"+{name}": value for name, value in (attributes or {}).items()},
        )
        masters = await self._masters(cluster, broker)
        body = fastjson.dumps(config.to_dict())
        await self._all(
            self._call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
            for address in masters
        )
        return tuple(masters)

    async def delete_group(self, group: str, *, clean_offsets: bool = False) -> tuple[str, ...]:
        """Delete a group's settings at all masters, with `clean_offsets` also its committed offsets."""
        check_group_name(group)
        fields = {"groupName": group, "cleanOffset": boolean_text(clean_offsets)}
        masters = await self._masters(None, None)
        await self._all(
            self._call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, dict(fields)) for address in masters
        )
        return tuple(masters)

    async def groups(self, cluster: str | None = None) -> tuple[GroupInfo, ...]:
        """All groups with settings, of every master, sorted by name."""
        found = []
        for address in await self._masters(cluster, None):
            for config in (await self.group_table(address)).values():
                found.append(
                    GroupInfo(
                        name=config.group_name,
                        broker_address=address,
                        consume_enabled=config.consume_enable,
                        broadcast_enabled=config.consume_broadcast_enable,
                        orderly=config.consume_message_orderly,
                        retry_queue_count=config.retry_queue_nums,
                        retry_count_max=config.retry_max_times,
                    )
                )
        return tuple(sorted(found, key=lambda item: (item.name, item.broker_address)))

    async def consumer_connections(self, group: str) -> GroupConnections:
        """The online members and their subscriptions, from the first broker that knows any.

        Raises ConsumerNotOnline when every broker knows no member, TransportError when a broker did not answer and
        the others know no member.
        """
        failure: AerobeeError | None = None
        for address in await self._group_addresses(group):
            try:
                answer = await self._call(
                    address, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
                )
            except TransportError as error:
                failure = error
                continue
            except ConsumerNotOnline as error:
                failure = failure or error
                continue
            data = ConsumerConnection.decode(answer.body)
            return GroupConnections(
                group=group,
                consume_type=data.consume_type,
                message_model=data.message_model,
                consume_from=data.consume_from_where,
                connections=_connections(data.connection_set),
                subscriptions=tuple(
                    SubscriptionInfo(
                        topic=topic,
                        expression=item.sub_string,
                        expression_type=item.expression_type,
                        version=item.sub_version,
                    )
                    for topic, item in sorted(data.subscription_table.items())
                ),
                conflicts=tuple(
                    SubscriptionConflict(
                        topic=json_fields.text(item, "topic"),
                        client_id=json_fields.text(item, "clientId"),
                        expression=json_fields.text(item, "expression"),
                        other_client_id=json_fields.text(item, "otherClientId"),
                        other_expression=json_fields.text(item, "otherExpression"),
                    )
                    for item in data.subscription_conflicts
                ),
            )
        raise failure or RouteError(RETRY_PREFIX + group, f"no broker is known that has group {group!r}")

    async def producer_connections(self, group: str, topic: str) -> tuple[ClientConnection, ...]:
        """The producers of a group that are online, as the brokers of a topic see them."""
        found: dict[str, ClientConnection] = {}
        failure: AerobeeError | None = None
        for _, address in await self._topic_addresses(topic):
            try:
                answer = await self._call(
                    address, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group}
                )
            except RemoteError as error:
                failure = error
                continue
            for connection in _connections(ProducerConnection.decode(answer.body).connection_set):
                found[connection.client_id] = connection
        if not found and failure is not None:
            raise failure
        return tuple(found[client_id] for client_id in sorted(found))

    async def consumer_progress(self, group: str, topic: str | None = None) -> ConsumerProgress:
        """The group's progress in each queue for which it has offsets, of one topic or of all."""
        fields = {"consumerGroup": group} if topic is None else {"consumerGroup": group, "topic": topic}
        found: dict[MessageQueue, QueueProgress] = {}
        tps = 0.0
        try:
            online = await self.consumer_connections(group)
        except RemoteError:
            online = None  # no member is online
        owners = await self._owners(online) if online is not None else {}
        no_owner = ("", -1, 0)
        for address in await self._group_addresses(group):
            answer = await self._call(address, RequestCode.GET_CONSUME_STATS, dict(fields))
            stats = ConsumeStats.decode(answer.body)
            tps += stats.consume_tps
            for queue, offsets in stats.offset_table.items():
                found[queue] = QueueProgress(
                    queue=queue,
                    broker_offset=offsets.broker_offset,
                    consumer_offset=offsets.consumer_offset,
                    pull_offset=offsets.pull_offset,
                    last_timestamp_ms=offsets.last_timestamp,
                    client_id=owners.get(queue, no_owner)[0],
                    member_offset=owners.get(queue, no_owner)[1],
                    member_worked_ms=owners.get(queue, no_owner)[2],
                    wanted=offsets.wanted,
                )
        return ConsumerProgress(
            group=group,
            queues=tuple(found[queue] for queue in sorted(found)),
            consume_tps=tps,
            members=tuple(sorted({item.client_id for item in online.connections})) if online else (),
            conflicts=online.conflicts if online else (),
        )

    async def _owners(self, members: GroupConnections) -> dict[MessageQueue, tuple[str, int, int]]:
        """The owner of each queue, its position and its last activity, as far as members report them."""

        async def owned_by(client_id: str) -> dict[MessageQueue, tuple[str, int, int]]:
            try:
                info = await self.running_info(members.group, client_id)
            except AerobeeError:
                return {}  # a client of another language may not answer; its queues stay without an owner
            return {
                queue: (client_id, process.commit_offset, process.last_consume_timestamp)
                for queue, process in info.mq_table.items()
            }

        owners: dict[MessageQueue, tuple[str, int, int]] = {}
        for part in await asyncio.gather(*(owned_by(item.client_id) for item in members.connections)):
            owners.update(part)
        return owners

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """The state that one member reports: queues, cached messages, settings."""
        failure: AerobeeError | None = None
        for address in await self._group_addresses(group):
            try:
                answer = await self._call(
                    address,
                    RequestCode.GET_CONSUMER_RUNNING_INFO,
                    {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"},
                )
                return ConsumerRunningInfo.decode(answer.body)
            except RemoteError as error:
                failure = error
        raise failure or RouteError(RETRY_PREFIX + group, f"no broker is known that has group {group!r}")

    async def consume_directly(
        self, group: str, client_id: str, topic: str, offset_message_id: str
    ) -> DirectConsumption:
        """Let one member consume one message now, independently of the queues that it owns."""
        fields = {
            "consumerGroup": group,
            "clientId": client_id,
            "msgId": offset_message_id,
            "topic": topic,
        }
        failure: AerobeeError | None = None
        for _, address in await self._topic_addresses(topic):
            try:
                answer = await self._call(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, dict(fields))
            except RemoteError as error:
                failure = error
                continue
            result: Any = fastjson.loads_trusted(answer.body, "the result of a direct consumption")
            return DirectConsumption(
                result=str(result.get("consumeResult", "")),
                remark=str(result.get("remark", "")),
                spent_ms=json_fields.integer(result, "spentTimeMills"),
            )
        raise failure or RouteError(topic)

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        timestamp_ms: int | None = None,
        offset: int | None = None,
        queue_id: int | None = None,
        broker: str | None = None,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        """Set a group's offsets of a topic and return the new ones.

        To the messages stored at `timestamp_ms` (-1: to the end), or, for one queue id, to `offset`. Members that are
        online continue there with their next pull, which may be pending for up to 20 s. `broker`: this broker's queues only.
        `force` false: never move an offset forward.
        """
        if (timestamp_ms is None) == (offset is None):
            raise UsageError("specify either timestamp_ms (-1: to the end) or offset")
        if offset is not None and queue_id is None:
            raise UsageError("an offset is for one queue: give queue_id too")
        time_ms = LATEST_MS if timestamp_ms is None else timestamp_ms
        fields = {
            "group": group,
            "topic": topic,
            "timestamp": str(time_ms),
            "isForce": boolean_text(force),
            "queueId": str(-1 if queue_id is None else queue_id),
            "offset": str(-1 if offset is None else offset),
        }
        found: dict[MessageQueue, int] = {}
        for broker_name, address in await self._topic_addresses(topic):
            if broker not in (None, broker_name):
                continue
            try:
                answer = await self._call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, dict(fields))
                found.update(ResetOffsetBody.decode(answer.body).offset_table)
            except ConsumerNotOnline:
                # A broker before 5.0 resets only members that are online; with none, offsets are simply set.
                found.update(await self._set_offsets(group, topic, broker_name, time_ms, offset, queue_id))
        return dict(sorted(found.items()))

    async def _set_offsets(
        self,
        group: str,
        topic: str,
        broker_name: str,
        time_ms: int,
        offset: int | None,
        queue_id: int | None,
    ) -> Mapping[MessageQueue, int]:
        route = await self._session.routes.get(topic)
        found: dict[MessageQueue, int] = {}
        for queue in subscribe_queues(route):
            if queue.broker_name != broker_name or queue_id not in (None, queue.queue_id):
                continue
            if offset is not None:
                target = offset
            elif time_ms == LATEST_MS:
                target = await end_offset(self._session, queue)
            else:
                target = await offset_for_time(self._session, queue, time_ms)
            await commit_offset(self._session, group, queue, target)
            found[queue] = target
        return found

    async def _group_addresses(self, group: str) -> list[str]:
        """Brokers that know a group: those of its retry topic, else all masters."""
        try:
            return [address for _, address in await self._topic_addresses(RETRY_PREFIX + group)]
        except TopicNotExist:
            return await self._masters(None, None)


def _connections(infos: tuple[ConnectionInfo, ...]) -> tuple[ClientConnection, ...]:
    return tuple(
        ClientConnection(
            client_id=info.client_id,
            address=info.client_addr,
            language=info.language,
            version=info.version,
            protocol=info.protocol,
        )
        for info in sorted(infos, key=lambda item: item.client_id)
    )
