"""Clients come, stay and go: HEART_BEAT 34, UNREGISTER_CLIENT 35, GET_CONSUMER_LIST_BY_GROUP 38, CHECK_CLIENT_CONFIG 46.

Source: ClientManageProcessor, ConsumerManageProcessor (RocketMQ). A heartbeat makes, in this order: the group's settings
(if they may be made), the topic %RETRY%group, registered at the nameservers, the group's membership and subscriptions,
the notice to the other members, the reply. So a client that has its reply finds itself in the consumer list and its
retry topic in the route.

Heartbeat V2: a client sends its subscriptions once with a fingerprint of them, later only the fingerprint
(`withoutSub`). IS_SUB_CHANGE=true asks it to send everything again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aerobee.broker.config import REFUSE, LiveConfig
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.broker.producer_registry import ProducerRegistry
from aerobee.broker.topic_table import TopicTable
from aerobee.errors import AerobeeError, MalformedFrame
from aerobee.message import RETRY_PREFIX
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData
from aerobee.remoting.body.subscription import TYPE_TAG, SubscriptionData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import SYS_FLAG_UNIT_SUBSCRIPTION, TopicConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.peer import Handler, Peer, Reply

log = logging.getLogger(__name__)

REGISTRATION_WAIT_S = (
    1.0  # clients give a heartbeat 3 s; a nameserver that is down must not cost them the broker
)
GROUPS_PER_CLIENT_MAX = 10_000  # of one heartbeat; a process has a handful

Registered = Callable[[], Awaitable[None]]


class HeartbeatCalls:
    """Answers 34, 35, 38 and 46."""

    def __init__(
        self,
        *,
        consumers: ConsumerRegistry,
        producers: ProducerRegistry,
        groups: GroupTable,
        topics: TopicTable,
        live: LiveConfig,
        expressions: Expressions,
        registered: Registered | None = None,
    ) -> None:
        """`registered` waits until the nameservers know the newest topics."""
        self._consumers = consumers
        self._producers = producers
        self._groups = groups
        self._topics = topics
        self._live = live
        self._expressions = expressions
        self._registered = registered

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
        }

    def heartbeat(self, peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        """34. A plain call, but for the first heartbeat of a group, which waits for the disk and the nameservers."""
        data = HeartbeatData.decode(request.body)
        if not data.client_id:
            raise MalformedFrame("a heartbeat has no clientID")
        if len(data.consumer_data_set) + len(data.producer_data_set) > GROUPS_PER_CLIENT_MAX:
            raise MalformedFrame(f"a heartbeat names more than {GROUPS_PER_CLIENT_MAX} groups")
        configs = self._groups.find_or_create_all(consumer.group_name for consumer in data.consumer_data_set)
        accepted = []
        for consumer in data.consumer_data_set:
            if consumer.group_name in configs:
                accepted.append(consumer)
            else:
                log.warning(
                    "group %r of client %s is unknown and may not be made",
                    consumer.group_name,
                    data.client_id,
                )
        retry_topics = [
            self._retry_topic(consumer, configs[consumer.group_name])
            for consumer in accepted
            if configs[consumer.group_name].retry_queue_nums > 0
            and self._topics.get(RETRY_PREFIX + consumer.group_name) is None
        ]
        if retry_topics:
            return self._join_with_topics(peer, request, data, accepted, retry_topics)
        return self._join(peer, request, data, accepted)

    @staticmethod
    def _retry_topic(consumer: ConsumerData, config: SubscriptionGroupConfig) -> TopicConfig:
        return TopicConfig(
            RETRY_PREFIX + consumer.group_name,
            config.retry_queue_nums,
            config.retry_queue_nums,
            topic_sys_flag=SYS_FLAG_UNIT_SUBSCRIPTION if consumer.unit_mode else 0,
        )

    async def _join_with_topics(
        self,
        peer: Peer,
        request: RemotingCommand,
        data: HeartbeatData,
        accepted: list[ConsumerData],
        retry_topics: list[TopicConfig],
    ) -> RemotingCommand | None:
        """Join when the retry topics are made and the nameservers know them, or had time for it."""
        await self._topics.put_beside(retry_topics, must_save=False)
        if self._registered is not None:
            try:
                async with asyncio.timeout(REGISTRATION_WAIT_S):
                    await self._registered()
            except (TimeoutError, AerobeeError) as error:
                log.warning("retry topics of client %s are not registered yet: %r", data.client_id, error)
        if not peer.is_open:
            return None
        return self._join(peer, request, data, accepted)

    def _join(
        self,
        peer: Peer,
        request: RemotingCommand,
        data: HeartbeatData,
        accepted: list[ConsumerData],
    ) -> RemotingCommand:
        """Register every group of the client and answer. A group that is refused does not keep out the others."""
        version_2 = data.heartbeat_fingerprint != 0
        subscriptions_wanted = not version_2
        code: int = ResponseCode.SUCCESS
        remark: str | None = None
        for consumer in accepted:
            if self._live.value.subscription_conflict_policy == REFUSE:
                conflict = self._consumers.refuse(
                    consumer, peer, data.client_id, with_subscriptions=not data.without_sub
                )
                if conflict is not None:
                    code, remark = ResponseCode.NO_PERMISSION, str(conflict)
                    subscriptions_wanted = True
                    continue
            fault = self._fault_of(consumer)
            if fault is not None:
                remark = fault  # as RocketMQ no refusal: 46 was one, and so are the pulls
            if data.without_sub and self._consumers.group(consumer.group_name) is None:
                subscriptions_wanted = True
            self._consumers.register(
                consumer,
                peer,
                data.client_id,
                language=request.language,
                version=request.version,
                with_subscriptions=not data.without_sub,
            )
            if version_2 and self._consumers.fingerprint_changed(
                consumer.group_name, data.heartbeat_fingerprint
            ):
                subscriptions_wanted = True
        for producer in data.producer_data_set:
            self._producers.register(
                producer.group_name,
                peer,
                data.client_id,
                language=request.language,
                version=request.version,
            )
        ext = {
            "IS_SUPPORT_HEART_BEAT_V2": boolean_text(True),
            "IS_SUB_CHANGE": boolean_text(subscriptions_wanted),
        }
        return request.reply(code, remark=remark, ext=ext)

    def _fault_of(self, consumer: ConsumerData) -> str | None:
        """What is wrong with the first SQL92 expression that does not parse. Its member joins; its pulls are refused."""
        if not self._live.value.enable_property_filter:
            return None
        for subscription in consumer.subscription_data_set:
            if not subscription.is_tag_filter:
                try:
                    self._expressions.get(subscription.sub_string)
                except FilterSyntaxError as error:
                    log.warning("group %s on topic %s: %s", consumer.group_name, subscription.topic, error)
                    return f"subscription of group {consumer.group_name} to {subscription.topic}: {error}"
        return None

    def unregister(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """35: leave a producer group, a consumer group or both. C++ sends empty names for what it does not mean."""
        request.text("clientID")
        if producer_group := request.field("producerGroup"):
            self._producers.unregister(producer_group, peer)
        if consumer_group := request.field("consumerGroup"):
            self._consumers.unregister(consumer_group, peer)
        return request.reply(ext={})

    def consumer_list(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """38: ids of the members that this broker knows. Code 1 without any: the client keeps its queues then."""
        name = request.text("consumerGroup")
        group = self._consumers.group(name)
        client_ids = group.client_ids() if group is not None else []
        if not client_ids:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {name}", ext={}
            )
        return request.reply(ext={}, body=fastjson.dumps({"consumerIdList": client_ids}))

    def check_client(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """46: whether a consumer's subscription can be served; asked for expressions other than tags."""
        fields = fastjson.loads_object(request.body, "CheckClientRequestBody")
        subscription = SubscriptionData.from_dict(json_fields.mapping(fields, "subscriptionData"))
        if subscription.expression_type == TYPE_TAG:
            return request.reply()
        if not self._live.value.enable_property_filter:
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"The broker does not support consumer to filter message by {subscription.expression_type}; "
                "set enablePropertyFilter=true in its configuration",
            )
        try:
            self._expressions.get(subscription.sub_string)
        except FilterSyntaxError as error:
            return request.reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        return request.reply()
