"""Heartbeats and membership of clients: HEART_BEAT 34, UNREGISTER_CLIENT 35, GET_CONSUMER_LIST_BY_GROUP 38,
CHECK_CLIENT_CONFIG 46.

Source: ClientManageProcessor, ConsumerManageProcessor (RocketMQ). A heartbeat has these effects, in this order: it
creates the group's settings (if allowed), creates the topic %RETRY%group and registers it at the NameServers, updates
membership and subscriptions, and notifies the other members; then the reply is sent. So a client with a reply finds
itself in the consumer list and its retry topic in the route.

Heartbeat V2: a client sends its subscriptions once with a fingerprint of them, later only the fingerprint
(`withoutSub`). IS_SUB_CHANGE=true asks it to send everything again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.filter.expressions import EXPRESSIONS_MAX, Expressions
from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.broker.state.bounds import Bounds
from aerobee.broker.state.config import REFUSE, LiveConfig
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.broker.state.topic_table import TopicTable
from aerobee.errors import AerobeeError, MalformedFrame, RemoteError
from aerobee.message import GROUP_CHARS_MAX, LEGAL_NAME, RETRY_TOPIC_BYTES_MAX
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData, ProducerData
from aerobee.remoting.body.subscription import TYPE_TAG, SubscriptionData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.wire_name import check_wire_name
from aerobee.system_names import SYSTEM_GROUP_PREFIX

log = logging.getLogger(__name__)

REGISTRATION_WAIT_S = (
    1.0  # clients wait 3 s for a heartbeat's reply; a NameServer that is down must not make it time out
)
GROUPS_PER_TURN = 50  # groups of one heartbeat before other requests are served
FILTER_CHARS_PER_TURN = 2_048  # of SQL92 expressions that are not compiled yet: some 5 ms
COMPILE_ROUNDS_MAX = 3  # other clients may evict expressions from the table meanwhile
CLIENT_ID_CHARS_MAX = 1_024
TOPIC_CHARS_MAX = 512  # longer than any: %RETRY%, a group and a topic

Registered = Callable[[], Awaitable[None]]


class _Joining:
    """Totals of the groups of one heartbeat."""

    def __init__(self, data: HeartbeatData, principal: str) -> None:
        """`principal`: the user that signed the heartbeat; the peer's next request may be of another user."""
        self.data = data
        self.principal = principal
        self.code: int = ResponseCode.SUCCESS
        self.remark: str | None = None
        self.subscriptions_wanted = data.heartbeat_fingerprint == 0

    def reply(self, request: RemotingCommand) -> RemotingCommand:
        ext = {
            "IS_SUPPORT_HEART_BEAT_V2": boolean_text(True),
            "IS_SUB_CHANGE": boolean_text(self.subscriptions_wanted),
        }
        return request.reply(self.code, remark=self.remark, ext=ext)


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
        bounds: Bounds,
        registered: Registered | None = None,
    ) -> None:
        """`registered` waits until the nameservers know the newest topics."""
        self._consumers = consumers
        self._producers = producers
        self._groups = groups
        self._topics = topics
        self._live = live
        self._expressions = expressions
        self._bounds = bounds
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
        self._check(peer, data)
        groups = self._groups.find_or_create_all(consumer.group_name for consumer in data.consumer_data_set)
        configs = {
            name: config for name, config in groups.items() if not name.startswith(SYSTEM_GROUP_PREFIX)
        }
        accepted = [consumer for consumer in data.consumer_data_set if consumer.group_name in configs]
        if len(accepted) < len(data.consumer_data_set):
            unknown = [each.group_name for each in data.consumer_data_set if each.group_name not in configs]
            log.warning(
                "%d groups of client %s are unknown and may not be made, the first is %r",
                len(unknown),
                data.client_id,
                unknown[0][:GROUP_CHARS_MAX],
            )
        joining = _Joining(data, peer.principal)
        retry_topics = [
            wanted
            for consumer in accepted
            if (wanted := self._retry_topic(consumer, configs[consumer.group_name])) is not None
        ]
        if retry_topics:
            return self._join_with_topics(peer, request, joining, accepted, retry_topics)
        if len(accepted) + len(data.producer_data_set) > GROUPS_PER_TURN or self._compiles_much(accepted):
            return self._join_in_turns(peer, request, joining, accepted)
        self._join(joining, peer, request, accepted, data.producer_data_set)
        return joining.reply(request)

    def _check(self, peer: Peer, data: HeartbeatData) -> None:
        """Refuse a heartbeat that asks for more than a client may have. Raises MalformedFrame, RemoteError."""
        check_wire_name(data.client_id, "clientID of a heartbeat", CLIENT_ID_CHARS_MAX)
        bounds, client = self._bounds, f"client {data.client_id[:80]}"
        consumers = {consumer.group_name for consumer in data.consumer_data_set}
        producers = {producer.group_name for producer in data.producer_data_set}
        for name in producers:
            if not LEGAL_NAME.match(name) or len(name) > RETRY_TOPIC_BYTES_MAX:
                raise MalformedFrame(f"{client} names producer group {name[:80]!r}, which cannot be one")
        known_consumers, known_producers = self._consumers.groups_of(peer), self._producers.groups_of(peer)
        count = len(consumers | known_consumers) + len(producers | known_producers)
        bounds.require("clientGroupsMax", count, f"groups of {client}", peer.address)
        for consumer in data.consumer_data_set:
            for subscription in consumer.subscription_data_set:
                check_wire_name(subscription.topic, f"a topic that {client} subscribes to", TOPIC_CHARS_MAX)
            bounds.require(
                "groupSubscriptionsMax",
                len(consumer.subscription_data_set),
                f"subscriptions of {client} in group {consumer.group_name[:80]}",
                peer.address,
            )
        for registry, new in (
            (self._consumers, consumers - known_consumers),
            (self._producers, producers - known_producers),
        ):
            if new:
                total = registry.member_count + len(new)
                bounds.require("clientMembersMax", total, "members of all groups", peer.address)
                for name in new:
                    size = registry.size_of(name) + 1
                    bounds.require("groupMembersMax", size, f"members of group {name[:80]}", peer.address)

    def _retry_topic(self, consumer: ConsumerData, config: SubscriptionGroupConfig) -> TopicConfig | None:
        """The required config of %RETRY%group; None when it exists with the queues of the group's settings."""
        if config.retry_queue_nums <= 0:
            return None
        wanted = self._topics.retry_topic(
            consumer.group_name, config.retry_queue_nums, unit=consumer.unit_mode
        )
        return None if self._topics.topics.get(wanted.topic_name) is wanted else wanted

    async def _join_with_topics(
        self,
        peer: Peer,
        request: RemotingCommand,
        joining: _Joining,
        accepted: list[ConsumerData],
        retry_topics: list[TopicConfig],
    ) -> RemotingCommand | None:
        """Join after the retry topics are created and the NameServers know them, or had time for it."""
        await self._topics.put_async(retry_topics, must_save=False)
        if self._registered is not None:
            try:
                async with asyncio.timeout(REGISTRATION_WAIT_S):
                    await self._registered()
            except (TimeoutError, AerobeeError) as error:
                client_id = joining.data.client_id
                log.warning("retry topics of client %s are not registered yet: %r", client_id, error)
        return await self._join_in_turns(peer, request, joining, accepted)

    async def _join_in_turns(
        self, peer: Peer, request: RemotingCommand, joining: _Joining, accepted: list[ConsumerData]
    ) -> RemotingCommand | None:
        """As _join(), yielding after GROUPS_PER_TURN groups, or FILTER_CHARS_PER_TURN of filters. None when the client
        has disconnected."""
        producers = joining.data.producer_data_set
        compiles = self._compiles_much(accepted)
        step = 1 if compiles else GROUPS_PER_TURN
        for at in range(0, max(len(accepted), len(producers), 1), step):
            stop = at + step
            if compiles:
                await self._compile_in_turns(accepted[at:stop])
            if not peer.is_open:
                return None
            self._join(joining, peer, request, accepted[at:stop], producers[at:stop])
            if stop < max(len(accepted), len(producers)):
                await asyncio.sleep(0)
        return joining.reply(request)

    def _filters(self, consumers: Sequence[ConsumerData]) -> set[str]:
        """The SQL92 expressions of subscriptions."""
        if not self._live.value.enable_property_filter:
            return set()
        return {
            subscription.sub_string
            for consumer in consumers
            for subscription in consumer.subscription_data_set
            if not subscription.is_tag_filter
        }

    def _compiles_much(self, consumers: Sequence[ConsumerData]) -> bool:
        """Whether their expressions that are not compiled yet exceed the work of one slice."""
        new = (text for text in self._filters(consumers) if not self._expressions.knows(text))
        return sum(map(len, new)) > FILTER_CHARS_PER_TURN

    async def _compile_in_turns(self, consumers: Sequence[ConsumerData]) -> None:
        """Compile new expressions in advance, so that joining does not; errors are reported at the join. Raises
        RemoteError."""
        texts = self._filters(consumers)
        if len(texts) > EXPRESSIONS_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"group {consumers[0].group_name} subscribes with {len(texts)} different SQL92 expressions, at most "
                f"{EXPRESSIONS_MAX} are kept: use fewer in one group",
            )
        for _ in range(COMPILE_ROUNDS_MAX):
            new = [text for text in texts if not self._expressions.knows(text)]
            if not new:
                return
            chars = 0
            for text in new:
                chars += len(text)
                if chars > FILTER_CHARS_PER_TURN:
                    await asyncio.sleep(0)
                    chars = len(text)
                with suppress(FilterSyntaxError):
                    self._expressions.get(text)
        if not all(map(self._expressions.knows, texts)):
            raise RemoteError(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD] too many other SQL92 expressions are compiled at the moment: try again later",
            )

    def _join(
        self,
        joining: _Joining,
        peer: Peer,
        request: RemotingCommand,
        accepted: Sequence[ConsumerData],
        producers: Sequence[ProducerData],
    ) -> None:
        """Register groups of the client. A refused group does not prevent the others."""
        data = joining.data
        for consumer in accepted:
            if self._live.value.subscription_conflict_policy == REFUSE:
                conflict = self._consumers.refuse(
                    consumer, peer, data.client_id, with_subscriptions=not data.without_sub
                )
                if conflict is not None:
                    joining.code, joining.remark = ResponseCode.NO_PERMISSION, str(conflict)
                    joining.subscriptions_wanted = True
                    continue
            fault = self._fault_of(consumer)
            if fault is not None:
                joining.remark = fault  # as in RocketMQ not refused here: 46 refuses it, and so do pulls
            if data.without_sub and self._consumers.group(consumer.group_name) is None:
                joining.subscriptions_wanted = True
            self._consumers.register(
                consumer,
                peer,
                data.client_id,
                language=request.language,
                version=request.version,
                with_subscriptions=not data.without_sub,
            )
            if data.heartbeat_fingerprint != 0 and self._consumers.fingerprint_changed(
                consumer.group_name, data.heartbeat_fingerprint
            ):
                joining.subscriptions_wanted = True
        for producer in producers:
            self._producers.register(
                producer.group_name,
                peer,
                data.client_id,
                language=request.language,
                version=request.version,
                principal=joining.principal,
            )

    def _fault_of(self, consumer: ConsumerData) -> str | None:
        """The error of the first invalid SQL92 expression. Its member joins; its pulls are refused."""
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
        """35: leave a producer group, a consumer group or both. C++ sends empty names for groups that it does not
        leave."""
        request.text("clientID")
        if producer_group := request.field("producerGroup"):
            self._producers.unregister(producer_group, peer)
        if consumer_group := request.field("consumerGroup"):
            self._consumers.unregister(consumer_group, peer)
        return request.reply(ext={})

    def consumer_list(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """38: ids of the members that this broker knows. Code 1 without any: the client keeps its queues then."""
        name = request.text("consumerGroup")
        client_ids = self._consumers.member_ids(name, peer)
        if not client_ids:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {name}", ext={}
            )
        return request.reply(ext={}, body=fastjson.dumps({"consumerIdList": client_ids}))

    def check_client(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """46: whether a consumer's subscription can be served; clients send it for expressions other than tags."""
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
