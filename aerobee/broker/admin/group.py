"""Groups and their members: 200, 201, 203, 204, 207, 225, 314, 328, 343, 345, 352, 353.

Source: AdminBrokerProcessor (RocketMQ). Invalid settings are answered with INVALID_PARAMETER and a remark that states
the allowed values; the other codes are those that RocketMQ's tools depend on.
"""

from __future__ import annotations

import dataclasses
import logging
from itertools import islice

from aerobee.broker.admin.creation_times import CreationTimes
from aerobee.broker.admin.sliced_json import dump_sliced
from aerobee.broker.admin.topic import page_of
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable, check_client_group
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.state.attributes import GROUP_ATTRIBUTES, apply_changes
from aerobee.broker.state.background import shield
from aerobee.broker.state.producer_registry import ClientChannel, ProducerRegistry
from aerobee.broker.state.topic_table import TopicTable
from aerobee.caller import REMOTING
from aerobee.clock import Clock
from aerobee.errors import UsageError
from aerobee.message import check_group_name, check_topic_name
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_list import TopicList
from aerobee.remoting.codes import LanguageCode, RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.system_names import is_system_group

log = logging.getLogger(__name__)

FORBIDDEN_MAX = 20_000  # maximum number of settings set by requests; each change writes them all
GROUPS_PER_REQUEST_MAX = 1_000


class AdminGroupCalls:
    """Answers 200, 201, 203, 204, 207, 225, 314, 328, 343, 345, 352 and 353."""

    def __init__(
        self,
        *,
        groups: GroupTable,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        consumers: ConsumerRegistry,
        producers: ProducerRegistry,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._stats = stats
        self._times = CreationTimes(
            stats.registry,
            "consumer_group_create_execution_time",
            "Duration of requests that create or change groups, ms",
            clock,
        )

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._times.measured(
                self.update, lambda _: False
            ),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._times.measured(
                self.update_list, lambda _: False
            ),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_configs,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.config,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_offsets,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbidden,
        }

    # --- settings

    async def update(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """200: create a group or change it."""
        try:
            config = self._checked(SubscriptionGroupConfig.decode(request.body))
            await self._groups.put_async((config,))
        except UsageError as error:
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
        log.info("group %s was set by %s", config.group_name, peer.address)
        return request.reply()

    async def update_list(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """225: the same for a list of groups; all are applied or none."""
        fields = fastjson.loads_object(
            request.body, "SubscriptionGroupList", fastjson.REQUEST_DIALECT_BYTES_MAX
        )
        wanted = [
            SubscriptionGroupConfig.from_dict(item) for item in json_fields.objects(fields, "groupConfigList")
        ]
        if not 0 < len(wanted) <= GROUPS_PER_REQUEST_MAX:
            return request.reply(
                ResponseCode.INVALID_PARAMETER,
                remark=f"groupConfigList has {len(wanted)} groups, must have 1 to {GROUPS_PER_REQUEST_MAX}",
            )
        try:
            await self._groups.put_async([self._checked(config) for config in wanted])
        except UsageError as error:
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
        return request.reply()

    def _checked(self, wanted: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Apply the attribute changes ({"+key": value}) that the config carries. Raises UsageError."""
        stored = self._groups.get(wanted.group_name)
        attributes = apply_changes(
            stored.attributes if stored is not None else {},
            wanted.attributes,
            GROUP_ATTRIBUTES,
            creating=stored is None,
        )
        return dataclasses.replace(wanted, attributes=attributes)

    async def delete(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """207: delete a group, with `cleanOffset` also its offsets. Deleting an unknown group succeeds."""
        group = request.text("groupName", "")
        if not group.strip():
            return request.reply(ResponseCode.INVALID_PARAMETER, remark="The specified group is blank.")
        if is_system_group(group):
            return request.reply(
                ResponseCode.INVALID_PARAMETER, remark=f"group {group} belongs to the broker itself and stays"
            )
        await shield(self._delete(group, cleans_offsets=request.boolean("cleanOffset", False)))
        log.info("group %s was deleted by %s", group, peer.address)
        return request.reply()

    async def _delete(self, group: str, *, cleans_offsets: bool) -> None:
        await self._groups.delete_async(group)
        if cleans_offsets:
            self._offsets.remove_group(group)
        self._stats.remove_group(group)

    def config(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """352: one group's settings; creates an unknown group where autoCreateSubscriptionGroup allows it."""
        group = request.text("group")
        config = self._groups.find_or_create(group)
        if config is None:
            return request.reply(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"No group in this broker. group: {group}"
            )
        return request.reply(body=config.encode())

    async def all_configs(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """201: the group table, or a page of it with `maxGroupNum`. See 21 in admin/topic.py."""
        groups, version = self._groups.groups, self._groups.data_version
        start, count = page_of(request, "groupSeq", "maxGroupNum", version, len(groups))
        body = await dump_sliced(
            {"dataVersion": version.to_dict(), "forbiddenTable": self._groups.forbidden},
            "subscriptionGroupTable",
            ((name, config.to_dict()) for name, config in islice(groups.items(), start, start + count)),
            {},
        )
        return request.reply(ext={"totalGroupNum": str(len(groups))}, body=body)

    async def forbidden(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """353: return, or with `readable` change, whether a group may read a topic."""
        group, topic = request.text("group"), request.text("topic")
        if request.field("readable"):
            check_client_group(group)
            try:
                check_group_name(group)
                check_topic_name(topic)
            except UsageError as error:
                return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
            if sum(map(len, self._groups.forbidden.values())) >= FORBIDDEN_MAX:
                return request.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"{FORBIDDEN_MAX} pairs of group and topic are forbidden already",
                )
            await self._groups.set_readable_async(group, topic, request.boolean("readable"))
        body = {"group": group, "readable": self._groups.is_readable(group, topic), "topic": topic}
        return request.reply(body=fastjson.dumps(body))

    # --- members

    def consumer_connections(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """203: a group's members and subscriptions; CONSUMER_NOT_ONLINE for a group without members."""
        name = request.text("consumerGroup")
        group = self._consumers.group(name)
        if group is None:
            return request.reply(
                ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online"
            )
        body: dict[str, object] = {
            "connectionSet": [_connection_dict(channel) for channel in group.channels.values()],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: item.to_dict() for topic, item in group.subscriptions.items()},
        }
        if conflicts := group.conflicts:  # an Aerobee-specific field; RocketMQ's tools ignore it
            body["subscriptionConflicts"] = [conflict.to_dict() for conflict in conflicts]
        if group.ids.shared:
            body["sharedClientIds"] = [group.ids.shared_id(each).to_dict() for each in group.ids.shared]
        return request.reply(body=fastjson.dumps(body))

    def producer_connections(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """204: a producer group's members."""
        name = request.text("producerGroup")
        members = self._producers.members(name)
        if not members:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
        body = {"connectionSet": [_connection_dict(channel) for channel in members]}
        return request.reply(body=fastjson.dumps(body))

    def all_producers(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """328: all producers by group."""
        data = {
            group: [
                {
                    "clientId": channel.client_id,
                    "language": _language_name(channel.language),
                    "lastUpdateTimestamp": channel.seen_ms,
                    "remoteIP": "/" + channel.peer.address,
                    "version": channel.version,
                    **_protocol(channel),
                }
                for channel in members
            ]
            for group, members in self._producers.groups().items()
        }
        return request.reply(body=fastjson.dumps({"data": data}))

    # --- subscriptions and offsets of groups

    def topics_of_group(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """343: topics for which a group has offsets."""
        return request.reply(body=TopicList(tuple(self._offsets.topics_of(request.text("group")))).encode())

    def subscription(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """345: the subscription of a connected group to a topic."""
        group, topic = request.text("group"), request.text("topic", "")
        found = self._consumers.subscription(group, topic)
        body = json_fields.without_none(
            {
                "group": group,
                "subscriptionData": found.to_dict() if found is not None else None,
                "topic": topic,
            }
        )
        return request.reply(body=fastjson.dumps(body))

    def clone_offsets(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """314: copy the offsets of one group to another, in one topic or in all topics with offsets."""
        source, target = request.text("srcGroup"), request.text("destGroup")
        check_client_group(target)
        if self._groups.find_or_create(target) is None:
            return request.reply(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"Group {target} not exist!"
            )
        named = request.field("topic")
        online = None if request.boolean("offline", False) else self._consumers.group(source)
        for topic in [named] if named else self._offsets.topics_of(source):
            # Offsets of a topic to which the connected group no longer subscribes are outdated.
            if self._topics.get(topic) is None or (online and online.subscription(topic) is None):
                log.warning(
                    "offsets of %s on %s are not cloned: topic or subscription is gone", source, topic
                )
                continue
            self._offsets.clone(source, target, topic)
        return request.reply()


def _connection_dict(channel: ClientChannel) -> dict[str, object]:
    return {
        "clientAddr": channel.peer.address,
        "clientId": channel.client_id,
        "language": _language_name(channel.language),
        "version": channel.version,
        **_protocol(channel),
    }


def _protocol(channel: ClientChannel) -> dict[str, object]:
    # Aerobee-specific: of remoting's clients the answer is RocketMQ's.
    return {} if channel.peer.protocol == REMOTING else {"protocol": channel.peer.protocol}


def _language_name(code: int) -> str:
    try:
        return LanguageCode(code).name
    except ValueError:
        return LanguageCode.OTHER.name
