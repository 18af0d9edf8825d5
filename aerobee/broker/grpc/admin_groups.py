"""RPCs of the Admin service about consumer groups: subscriptions, members, lag, offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aerobee.broker.consumer.queue_lag import queue_position
from aerobee.broker.grpc.admin_calls import AdminCalls
from aerobee.broker.grpc.admin_forms import (
    MODELS,
    TOPICS_NAMED_MAX,
    client_info,
    filter_expression,
    named_topics,
    subscription_info,
    sum_lags,
    time_spans,
)
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.grpc.times import set_ms, timestamp_ms
from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.parts.parts import BrokerParts
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_queue, lite_topic_fault
from aerobee.message import RETRY_PREFIX
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.consumer_connection import ConsumerConnection
from aerobee.remoting.body.group_list import GroupList
from aerobee.remoting.body.topic_list import TopicList
from aerobee.remoting.codes import RequestCode
from aerobee.store.queue.queue_table import LMQ_QUEUE_ID

QUEUES_PER_TURN = 64  # whose store times are read before other requests are served


class AdminGroupRpcs:
    """Serves these RPCs."""

    def __init__(self, *, parts: BrokerParts, lite: LiteService, calls: AdminCalls) -> None:
        self._parts = parts
        self._lite = lite
        self._calls = calls

    # --- subscriptions

    async def list_subscriptions(
        self, context: RpcContext, request: pb.ListSubscriptionRequest
    ) -> pb.ListSubscriptionResponse:
        """The topics that a group consumes, or the groups that consume a topic. Raises RpcRefused, RemoteError."""
        found = []
        for group, connection, topics in await self._subscribed(context, request):
            for topic in topics:
                found.append(self._subscription(group, topic, connection))
        return pb.ListSubscriptionResponse(status=status(), subscriptions=found)

    async def describe_subscriptions(
        self, context: RpcContext, request: pb.DescribeSubscriptionRequest
    ) -> pb.DescribeSubscriptionResponse:
        """As list_subscriptions(), once for each connected client, with what that client subscribes."""
        found = []
        for group, connection, topics in await self._subscribed(context, request):
            members = self._parts.consumers.group(group)
            if members is None or connection is None:
                continue
            wanted = {
                channel.client_id: members.wanted.get(peer, {}) for peer, channel in members.channels.items()
            }
            for client in connection.connection_set:
                for topic in topics:
                    expression = wanted.get(client.client_id, {}).get(topic)
                    if expression is None:
                        continue
                    shown = self._subscription(group, topic, connection)
                    shown.expression.CopyFrom(filter_expression(expression))
                    found.append(
                        pb.ClientSubscriptionInfo(
                            client=client_info(client, MODELS[connection.message_model]), subscription=shown
                        )
                    )
        return pb.DescribeSubscriptionResponse(status=status(), client_subscriptions=found)

    async def delete_subscription(
        self, context: RpcContext, request: pb.DeleteSubscriptionRequest
    ) -> pb.DeleteSubscriptionResponse:
        """Forget the offsets of a group in a topic that no member of it subscribes any more. Raises RpcRefused."""
        topic, group = topic_name(request.topic), group_name(request.group)
        self._calls.may_change(context)
        code = RequestCode.AEROBEE_REMOVE_OFFSETS
        self._calls.check(context, code, {"topic": topic, "group": group})
        members = self._parts.consumers.group(group)
        if members is not None and any(topic in wanted for wanted in members.wanted.values()):
            text = f"clients of group {group} subscribe topic {topic}: stop them first"
            raise RpcRefused(pb.PRECONDITION_FAILED, text)
        await self._calls.ask(context, code, topic=topic, group=group)
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
            reply = await self._calls.ask(context, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic)
            groups = sorted(GroupList.decode(reply.body).group_list)
        else:
            raise RpcRefused(pb.BAD_REQUEST, "name a topic, a group, or both")
        found = []
        for group in groups:
            connection = await self._connection(context, group)
            reply = await self._calls.ask(context, RequestCode.QUERY_TOPICS_BY_CONSUMER, group=group)
            known = dict.fromkeys(TopicList.decode(reply.body).topic_list)
            if connection is not None:
                known |= dict.fromkeys(connection.subscription_table)
            topics = sorted(
                each for each in known if not each.startswith(RETRY_PREFIX) and topic in ("", each)
            )
            found.append((group, connection, topics[:TOPICS_NAMED_MAX]))
        return found

    def _subscription(
        self, group: str, topic: str, connection: ConsumerConnection | None
    ) -> pb.SubscriptionInfo:
        model = (
            pb.MESSAGE_MODEL_UNSPECIFIED
            if connection is None
            else self._model(group, connection.message_model)
        )
        return subscription_info(group, topic, connection, model)

    def _model(self, group: str, name: str) -> pb.MessageModel:
        return pb.LITE_SELECTIVE if self._lite.group(group) is not None else MODELS[name]

    # --- members

    async def list_connections(
        self, context: RpcContext, request: pb.ListConsumerConnectionRequest
    ) -> pb.ListConsumerConnectionResponse:
        """The connected clients of a group, of one topic or lite topic if the request names one; none is no error."""
        self._calls.may_read(context)
        group = group_name(request.group)
        connection = await self._connection(context, group)
        if connection is None:
            return pb.ListConsumerConnectionResponse(status=status())
        members = self._parts.consumers.group(group)
        topic = topic_name(request.topic) if request.HasField("topic") else ""
        clients = list(connection.connection_set)
        if topic and members is not None:
            subscribing = {
                channel.client_id
                for peer, channel in members.channels.items()
                if topic in members.wanted.get(peer, {})
            }
            clients = [each for each in clients if each.client_id in subscribing]
        if request.HasField("liteTopic"):
            lite = self._lite.group(group)
            lmq = "" if lite is None else lite_queue(lite.topic, request.liteTopic)
            subscribers = {} if lite is None else self._lite.subscriptions.of_group(group, lmq, lite.topic)
            ids = {each.client_id for each in subscribers}
            clients = [each for each in clients if each.client_id in ids]
        model = self._model(group, connection.message_model)
        shown = [client_info(each, model) for each in clients]
        return pb.ListConsumerConnectionResponse(status=status(), clients=shown)

    async def _connection(self, context: RpcContext, group: str) -> ConsumerConnection | None:
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        reply = await self._calls.ask_group(context, code, consumerGroup=group)
        return None if reply is None else ConsumerConnection.decode(reply.body)

    # --- lag and offsets

    async def accumulation(
        self, context: RpcContext, request: pb.DescribeGroupAccumulationRequest
    ) -> pb.DescribeGroupAccumulationResponse:
        """The lag of a group, by topic and of one lite topic. Raises RpcRefused, RemoteError."""
        self._calls.may_read(context)
        group = group_name(request.group)
        named = named_topics(request.topics)
        ext = {"consumerGroup": group, "topicList": ";".join(named)}
        self._calls.check(context, RequestCode.GET_CONSUME_STATS, ext)
        topics = named or self._parts.offsets.topics_of(group)[:TOPICS_NAMED_MAX]
        by_topic: dict[str, pb.GroupAccumulation] = {}
        for topic in topics:
            config = self._parts.topics.get(topic)
            if config is None or topic.startswith(RETRY_PREFIX):
                continue
            found = by_topic[topic] = pb.GroupAccumulation()
            for queue_id in range(config.read_queue_nums):
                self._add_lag(found, group, topic, queue_id)
                if queue_id % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                    await asyncio.sleep(0)
            await self._finish(context, group, topic, found)
        response = pb.DescribeGroupAccumulationResponse(
            status=status(), accumulation=sum_lags(by_topic.values())
        )
        for topic, found in by_topic.items():
            response.topic_accumulation[topic].CopyFrom(found)
        if request.HasField("lite_topic"):
            lag = self._lite_accumulation(group, request.lite_topic)
            response.lite_topic_accumulation[request.lite_topic].CopyFrom(lag)
        return response

    def _add_lag(self, found: pb.GroupAccumulation, group: str, topic: str, queue_id: int) -> None:
        """Add one queue. Without a committed offset everything that is stored is lag."""
        parts = self._parts
        position = queue_position(parts.store, parts.offsets, group, topic, queue_id)
        first = position.min_offset if position.first_unread is None else position.first_unread
        unsent = first if position.first_unsent is None else position.first_unsent
        found.inflight_messages += unsent - first
        found.ready_messages += position.max_offset - unsent
        if first > position.min_offset:
            last_ms = parts.store.store_time(topic, queue_id, first - 1)
            found.last_consume_timestamp = max(found.last_consume_timestamp, last_ms)

    async def _finish(self, context: RpcContext, group: str, topic: str, found: pb.GroupAccumulation) -> None:
        """Add the messages of POP that are with clients, which the committed offset has passed, and how late the group is."""
        config = self._parts.groups.get(group)
        if config is None or not config.consume_message_orderly:
            code = RequestCode.AEROBEE_LIST_POPS
            reply = await self._calls.ask(context, code, consumerGroup=group, topic=topic, countMax="1")
            popped = fastjson.loads_object(reply.body, "a list of pops")
            found.inflight_messages += json_fields.integer(popped, "total")
        found.accumulation = found.inflight_messages + found.ready_messages
        spans = await self._spans(context, group, topic)
        set_ms(found.deliver_delay_time, max((each.delay_time_ms for each in spans), default=0))

    def _lite_accumulation(self, group: str, lite_topic: str) -> pb.GroupAccumulation:
        lite = self._lite.group(group)
        if lite is None or lite_topic_fault(lite_topic):
            raise RpcRefused(
                pb.ILLEGAL_LITE_TOPIC, f"group {group} consumes no lite topic {lite_topic[:80]!r}"
            )
        parts, lmq = self._parts, lite_queue(lite.topic, lite_topic)
        found = pb.GroupAccumulation()
        self._add_lag(found, group, lmq, LMQ_QUEUE_ID)
        found.accumulation = found.inflight_messages + found.ready_messages
        if found.accumulation:
            first = parts.store.max_offset(lmq, LMQ_QUEUE_ID) - found.accumulation
            late_ms = parts.clock.now_ms() - parts.store.store_time(lmq, LMQ_QUEUE_ID, first)
            set_ms(found.deliver_delay_time, max(0, late_ms))
        return found

    async def reset_offset(
        self, context: RpcContext, request: pb.ResetGroupOffsetRequest
    ) -> pb.ResetGroupOffsetResponse:
        """Continue a group at the first message stored at or after a time. Raises RpcRefused, RemoteError."""
        self._calls.may_change(context)
        topic, group = topic_name(request.topic), group_name(request.group)
        if not request.HasField("reset_timestamp"):
            raise RpcRefused(pb.BAD_REQUEST, "the request has no reset_timestamp")
        time_ms = str(max(0, timestamp_ms(request.reset_timestamp)))
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        await self._calls.ask(context, code, topic=topic, group=group, timestamp=time_ms, isForce="true")
        return pb.ResetGroupOffsetResponse(status=status())

    async def time_spans(
        self, context: RpcContext, request: pb.QueryTimeSpanRequest
    ) -> pb.QueryTimeSpanResponse:
        """Store times of each queue's ends, and of the group's offset. Raises RpcRefused, RemoteError."""
        self._calls.may_read(context)
        group = group_name(request.group)
        found: list[pb.QueueTimeSpan] = []
        for topic in named_topics(request.topics):
            found += await self._spans(context, group, topic)
        return pb.QueryTimeSpanResponse(status=status(), time_spans=found)

    async def _spans(self, context: RpcContext, group: str, topic: str) -> list[pb.QueueTimeSpan]:
        code = RequestCode.QUERY_CONSUME_TIME_SPAN
        reply = await self._calls.ask(context, code, topic=topic, group=group)
        return time_spans(reply.body, self._parts.identity.broker_id)
