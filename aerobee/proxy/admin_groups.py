"""RPCs of the Admin service about consumer groups, at a proxy: of the whole cluster, and of the proxy's own clients.

A client of gRPC is a member of its group here alone; brokers know the group's clients of remoting. Both are shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from aerobee.broker.grpc.admin_calls import AdminCalls
from aerobee.broker.grpc.admin_forms import (
    MODELS,
    TOPICS_NAMED_MAX,
    client_info,
    filter_expression,
    named_topics,
    spelled,
    subscription_info,
    sum_lags,
    time_spans,
)
from aerobee.broker.grpc.client import GrpcClient
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.grpc.times import set_ms, timestamp_ms
from aerobee.broker.lite.lite_group import lite_group
from aerobee.caller import GRPC
from aerobee.errors import TopicNotExist
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_topic_fault
from aerobee.message import RETRY_PREFIX
from aerobee.proxy.admin_brokers import AdminBrokers
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.lite import broker_client_id
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.connection_info import ConnectionInfo
from aerobee.remoting.body.consume_stats import ConsumeStats
from aerobee.remoting.body.consumer_connection import ConsumerConnection
from aerobee.remoting.body.group_list import GroupList
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.body.topic_list import TopicList
from aerobee.remoting.codes import RequestCode
from aerobee.system_names import LMQ_PREFIX

GROUPS_SHOWN_MAX = 1_000  # of one topic
CLIENTS_SHOWN_MAX = 10_000


class ProxyAdminGroups:
    """Serves these RPCs."""

    def __init__(
        self, cluster: ProxyCluster, brokers: AdminBrokers, clients: ClientTable, calls: AdminCalls
    ) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._clients = clients
        self._calls = calls

    # --- subscriptions

    async def list_subscriptions(
        self, context: RpcContext, request: pb.ListSubscriptionRequest
    ) -> pb.ListSubscriptionResponse:
        """The topics that a group consumes, or the groups that consume a topic. Raises RpcRefused, AerobeeError."""
        found = []
        for group, connection, topics in await self._subscribed(context, request):
            model = await self._model(group, connection)
            found += [subscription_info(group, topic, connection, model) for topic in topics]
        return pb.ListSubscriptionResponse(status=status(), subscriptions=found)

    async def describe_subscriptions(
        self, context: RpcContext, request: pb.DescribeSubscriptionRequest
    ) -> pb.DescribeSubscriptionResponse:
        """As list_subscriptions(), once for each connected client. Brokers do not say what a single client of remoting subscribes: it is
        shown with its group's expression, unless it is one of a pair that differ.
        """
        found: list[pb.ClientSubscriptionInfo] = []
        for group, connection, topics in await self._subscribed(context, request):
            if connection is None:
                continue
            model = await self._model(group, connection)
            for client in connection.connection_set:
                for topic in topics:
                    expression = self._wanted(group, client.client_id, topic, connection)
                    if expression is None or len(found) >= CLIENTS_SHOWN_MAX:
                        continue
                    shown = subscription_info(group, topic, connection, model)
                    shown.expression.CopyFrom(filter_expression(expression))
                    info = client_info(client, model)
                    found.append(pb.ClientSubscriptionInfo(client=info, subscription=shown))
        return pb.DescribeSubscriptionResponse(status=status(), client_subscriptions=found)

    def _wanted(self, group: str, client_id: str, topic: str, connection: ConsumerConnection) -> str | None:
        """The expression of one client; None when it does not subscribe the topic."""
        for client, subscriptions in self.members(group):
            if client.client_id == client_id:
                data = subscriptions.get(topic)
                return None if data is None else spelled(data)
        for pair in connection.subscription_conflicts:
            if pair["topic"] == topic and client_id in (pair["clientId"], pair["otherClientId"]):
                return pair["expression" if client_id == pair["clientId"] else "otherExpression"]
        data = connection.subscription_table.get(topic)
        return None if data is None else spelled(data)

    async def delete_subscription(
        self, context: RpcContext, request: pb.DeleteSubscriptionRequest
    ) -> pb.DeleteSubscriptionResponse:
        """Remove the offsets of a group in a topic that no member of it subscribes, at every broker of the topic.

        Raises RpcRefused, also for brokers of RocketMQ, which have no such request.
        """
        topic, group = topic_name(request.topic), group_name(request.group)
        self._calls.may_change(context)
        code = RequestCode.AEROBEE_REMOVE_OFFSETS
        self._calls.check(context, code, {"topic": topic, "group": group})
        connection = await self.connection(group)
        if connection is not None and topic in connection.subscription_table:
            text = f"clients of group {group} subscribe topic {topic}: stop them first"
            raise RpcRefused(pb.PRECONDITION_FAILED, text)
        found = await self._brokers.where_served(topic, code, topic=topic, group=group)
        lacking = [name for name, answer in found.items() if answer is None]
        if lacking:
            text = f"brokers {', '.join(lacking)} of RocketMQ cannot remove the offsets of one topic"
            raise RpcRefused(pb.NOT_IMPLEMENTED, text)
        return pb.DeleteSubscriptionResponse(status=status())

    async def _subscribed(
        self, context: RpcContext, request: pb.ListSubscriptionRequest | pb.DescribeSubscriptionRequest
    ) -> list[tuple[str, ConsumerConnection | None, list[str]]]:
        """(group, its members, the topics in question)."""
        self._calls.may_read(context)
        topic = topic_name(request.topic) if request.HasField("topic") else ""
        if request.HasField("group"):
            groups: Iterable[str] = [group_name(request.group)]
        elif topic:
            groups = await self._groups_of(context, topic)
        else:
            raise RpcRefused(pb.BAD_REQUEST, "name a topic, a group, or both")
        found = []
        for group in groups:
            self._calls.check(context, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
            connection = await self.connection(group)
            known = dict.fromkeys(await self._topics_of(group))
            if connection is not None:
                known |= dict.fromkeys(connection.subscription_table)
            topics = sorted(
                each for each in known if not each.startswith(RETRY_PREFIX) and topic in ("", each)
            )
            found.append((group, connection, topics[:TOPICS_NAMED_MAX]))
        return found

    async def _groups_of(self, context: RpcContext, topic: str) -> list[str]:
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        self._calls.check(context, code, {"topic": topic})
        groups: set[str] = set()
        for answer in (await self._brokers.at_topic(topic, code, topic=topic)).values():
            groups.update(GroupList.decode(answer.body).group_list)
        for client in self._clients.all():
            for consumer in client.heartbeat.consumer_data_set if client.heartbeat else ():
                if any(each.topic == topic for each in consumer.subscription_data_set):
                    groups.add(consumer.group_name)
        return sorted(groups)[:GROUPS_SHOWN_MAX]

    async def _topics_of(self, group: str) -> set[str]:
        """The topics of which brokers have offsets of a group, without those of its retries and of lite topics."""
        code, topics = RequestCode.QUERY_TOPICS_BY_CONSUMER, set[str]()
        for answer in await self._brokers.at_group(group, code, group=group):
            topics.update(TopicList.decode(answer.body).topic_list)
        return {topic for topic in topics if not topic.startswith((RETRY_PREFIX, LMQ_PREFIX))}

    # --- members

    async def list_connections(
        self, context: RpcContext, request: pb.ListConsumerConnectionRequest
    ) -> pb.ListConsumerConnectionResponse:
        """The connected clients of a group, of one topic or lite topic if the request names one; none is no error."""
        self._calls.may_read(context)
        group = group_name(request.group)
        self._calls.check(context, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        connection = await self.connection(group)
        if connection is None:
            return pb.ListConsumerConnectionResponse(status=status())
        clients = list(connection.connection_set)
        if request.HasField("topic"):
            topic = topic_name(request.topic)
            clients = [
                each for each in clients if self._wanted(group, each.client_id, topic, connection) is not None
            ]
        if request.HasField("liteTopic"):
            subscribers = await self._lite_subscribers(group, request.liteTopic)
            clients = [each for each in clients if each.client_id in subscribers or "*" in subscribers]
        model = await self._model(group, connection)
        shown = [client_info(each, model) for each in clients[:CLIENTS_SHOWN_MAX]]
        return pb.ListConsumerConnectionResponse(status=status(), clients=shown)

    async def _lite_subscribers(self, group: str, lite_topic: str) -> set[str]:
        """The ids of the clients that subscribe a lite topic; "*" for a group that subscribes all."""
        lite = lite_group(await self._cluster.group(group))
        if lite is None:
            return set()
        code = RequestCode.GET_LITE_TOPIC_INFO
        answers = await self._brokers.at_topic(lite.topic, code, parentTopic=lite.topic, liteTopic=lite_topic)
        own = {
            broker_client_id((each.client_id, each.principal)): each.client_id
            for each, _ in self.members(group)
        }
        found = {
            json_fields.text(each, "clientId")
            for answer in answers.values()
            for each in json_fields.objects(
                fastjson.loads_trusted(answer.body, "a lite topic's subscribers"), "subscriber"
            )
            if json_fields.text(each, "group") == group
        }
        return {own.get(each, each) for each in found}

    def members(self, group: str) -> Iterator[tuple[GrpcClient, dict[str, SubscriptionData]]]:
        """The proxy's own clients of a group, and what each subscribes."""
        for client in self._clients.all():
            for consumer in client.heartbeat.consumer_data_set if client.heartbeat else ():
                if consumer.group_name == group:
                    yield client, {each.topic: each for each in consumer.subscription_data_set}

    async def connection(self, group: str) -> ConsumerConnection | None:
        """The members that brokers know, and the proxy's own; None for a group without any. Raises AerobeeError."""
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        clients: dict[str, ConnectionInfo] = {}
        table: dict[str, SubscriptionData] = {}
        conflicts: tuple[dict[str, str], ...] = ()
        model = ""
        for answer in await self._brokers.at_group(group, code, consumerGroup=group):
            known = ConsumerConnection.decode(answer.body)
            clients |= {each.client_id: each for each in known.connection_set}
            table |= known.subscription_table
            conflicts = conflicts or known.subscription_conflicts
            model = model or known.message_model
        for client, subscriptions in self.members(group):
            language = client.language
            clients[client.client_id] = ConnectionInfo(client.client_id, client.address, language, 0, GRPC)
            table |= subscriptions
        if not clients:
            return None
        found = ConsumerConnection(tuple(clients.values()), table, subscription_conflicts=conflicts)
        return (
            found
            if not model
            else ConsumerConnection(
                found.connection_set, table, message_model=model, subscription_conflicts=conflicts
            )
        )

    async def _model(self, group: str, connection: ConsumerConnection | None) -> pb.MessageModel:
        if connection is None:
            return pb.MESSAGE_MODEL_UNSPECIFIED
        is_lite = await self._cluster.is_lite(group)
        return pb.LITE_SELECTIVE if is_lite else MODELS[connection.message_model]

    # --- lag and offsets

    async def accumulation(
        self, context: RpcContext, request: pb.DescribeGroupAccumulationRequest
    ) -> pb.DescribeGroupAccumulationResponse:
        """The lag of a group over all brokers, by topic and of one lite topic. Raises RpcRefused, AerobeeError."""
        self._calls.may_read(context)
        group, named = group_name(request.group), named_topics(request.topics)
        ext = {"consumerGroup": group, "topicList": ";".join(named)}
        self._calls.check(context, RequestCode.GET_CONSUME_STATS, ext)
        topics = named or sorted(await self._topics_of(group))[:TOPICS_NAMED_MAX]
        by_topic: dict[str, pb.GroupAccumulation] = {}
        for topic in topics:
            try:
                by_topic[topic] = await self._lag(group, topic)
            except TopicNotExist:
                if named:
                    raise
        response = pb.DescribeGroupAccumulationResponse(
            status=status(), accumulation=sum_lags(by_topic.values())
        )
        for topic, found in by_topic.items():
            response.topic_accumulation[topic].CopyFrom(found)
        if request.HasField("lite_topic"):
            lag = await self._lite_lag(group, request.lite_topic)
            response.lite_topic_accumulation[request.lite_topic].CopyFrom(lag)
        return response

    async def _lag(self, group: str, topic: str) -> pb.GroupAccumulation:
        brokers, found = self._brokers, pb.GroupAccumulation()
        code = RequestCode.GET_CONSUME_STATS
        for answer in (await brokers.at_topic(topic, code, consumerGroup=group, topic=topic)).values():
            for offsets in ConsumeStats.decode(answer.body).offset_table.values():
                first = max(0, offsets.consumer_offset)
                unsent = min(max(first, offsets.pull_offset), max(first, offsets.broker_offset))
                found.inflight_messages += unsent - first
                found.ready_messages += max(0, offsets.broker_offset - unsent)
                found.last_consume_timestamp = max(found.last_consume_timestamp, offsets.last_timestamp)
        config = await self._cluster.group(group)
        if not config.consume_message_orderly:
            # Brokers of RocketMQ do not say which messages of POP are with clients.
            pops = RequestCode.AEROBEE_LIST_POPS
            for pop in (
                await brokers.where_served(topic, pops, consumerGroup=group, topic=topic, countMax="1")
            ).values():
                if pop is not None:
                    found.inflight_messages += json_fields.integer(
                        fastjson.loads_object(pop.body, "a list of pops"), "total"
                    )
        found.accumulation = found.inflight_messages + found.ready_messages
        spans = await self._spans(group, topic)
        set_ms(found.deliver_delay_time, max((each.delay_time_ms for each in spans), default=0))
        return found

    async def _lite_lag(self, group: str, lite_topic: str) -> pb.GroupAccumulation:
        lite = lite_group(await self._cluster.group(group))
        if lite is None or lite_topic_fault(lite_topic):
            text = f"group {group} consumes no lite topic {lite_topic[:80]!r}"
            raise RpcRefused(pb.ILLEGAL_LITE_TOPIC, text)
        code, found = RequestCode.GET_LITE_GROUP_INFO, pb.GroupAccumulation()
        oldest_ms, now_ms = [], self._cluster.clock.now_ms()
        answers = await self._brokers.at_topic(lite.topic, code, group=group, liteTopic=lite_topic, topK="0")
        for answer in answers.values():
            fields = fastjson.loads_trusted(answer.body, "the lag of a lite topic")
            lag = json_fields.integer(fields, "totalLagCount")
            if lag > 0:
                found.ready_messages += lag
                oldest_ms.append(json_fields.integer(fields, "earliestUnconsumedTimestamp"))
        found.accumulation = found.ready_messages
        known = [each for each in oldest_ms if each > 0]
        set_ms(found.deliver_delay_time, max(0, now_ms - min(known)) if known else 0)
        return found

    async def reset_offset(
        self, context: RpcContext, request: pb.ResetGroupOffsetRequest
    ) -> pb.ResetGroupOffsetResponse:
        """Continue a group at the first message stored at or after a time, at every broker of the topic. Raises RpcRefused, AerobeeError."""
        self._calls.may_change(context)
        topic, group = topic_name(request.topic), group_name(request.group)
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        self._calls.check(context, code, {"topic": topic, "group": group})
        if not request.HasField("reset_timestamp"):
            raise RpcRefused(pb.BAD_REQUEST, "the request has no reset_timestamp")
        time_ms = str(max(0, timestamp_ms(request.reset_timestamp)))
        await self._brokers.at_topic(topic, code, topic=topic, group=group, timestamp=time_ms, isForce="true")
        return pb.ResetGroupOffsetResponse(status=status())

    async def time_spans(
        self, context: RpcContext, request: pb.QueryTimeSpanRequest
    ) -> pb.QueryTimeSpanResponse:
        """Store times of each queue's ends, and of the group's offset. Raises RpcRefused, AerobeeError."""
        self._calls.may_read(context)
        group, found = group_name(request.group), list[pb.QueueTimeSpan]()
        topics = named_topics(request.topics)
        for topic in topics:
            self._calls.check(context, RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": topic, "group": group})
        for topic in topics:
            found += await self._spans(group, topic)
            await asyncio.sleep(0)
        return pb.QueryTimeSpanResponse(status=status(), time_spans=found)

    async def _spans(self, group: str, topic: str) -> list[pb.QueueTimeSpan]:
        answers = await self._brokers.at_topic(
            topic, RequestCode.QUERY_CONSUME_TIME_SPAN, topic=topic, group=group
        )
        return [span for answer in answers.values() for span in time_spans(answer.body, 0)]
