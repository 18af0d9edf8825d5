"""Queries and changes that apply makes, each for one topic at one broker.

A topic that leaves a broker loses both permissions there: clients skip it. If the NameServers have
deleteTopicWithBrokerRegistration, apply deletes it too. Other NameServers keep the route to a topic that its
broker no longer has for ever, and every tool that calls all brokers of a route fails. There the topic stays
without permissions, and its messages expire as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from aerobee.client.base.config import MessageModel
from aerobee.client.consumer.broker_calls import begin_offset, commit_offset, committed_offset, end_offset
from aerobee.errors import (
    AerobeeError,
    RemoteError,
    SubscriptionGroupNotExist,
    TopicNotExist,
    TransportError,
    UsageError,
)
from aerobee.message import MessageQueue
from aerobee.placement.arrivals import ArrivalCalls
from aerobee.placement.model import Load
from aerobee.placement.steps import ABSENT, State
from aerobee.remoting import fastjson
from aerobee.remoting.body.pop_handle import retry_topic_v1, retry_topic_v2
from aerobee.remoting.body.route import TopicRouteData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import PERM_READ, PERM_WRITE, SINGLE_TAG, TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import boolean_text
from aerobee.remoting.protocol import MASTER_ID, ORDER_TOPIC_NAMESPACE, TYPE_ATTRIBUTE
from aerobee.system_names import is_hidden_group

CALLS_AT_ONCE = 32
UNSPECIFIED = "UNSPECIFIED"  # a message type


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a topic apart from its queues, the same at each broker. A broker that does not have the
    topic yet gets `attributes`, `filter_type` and `flags`; others keep theirs. `perm_others`: permission bits
    other than read and write (PERM_INHERIT).
    """

    order: bool
    message_type: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    filter_type: str = SINGLE_TAG
    flags: int = 0
    perm_others: int = 0


class PlacementAdmin(ArrivalCalls):
    """The calls that apply makes."""

    async def master_addresses(self) -> dict[str, str]:
        """Addresses of masters by broker name."""
        info = await self.cluster_info()
        return {
            name: data.broker_addrs[MASTER_ID]
            for name, data in info.broker_addr_table.items()
            if MASTER_ID in data.broker_addrs
        }

    async def states(
        self, topic: str, masters: Mapping[str, str], needed: Collection[str] | None = None
    ) -> tuple[dict[str, State], Settings | None, set[str]]:
        """The state of a topic at each broker, its settings (None if no broker has it), and the brokers that have a remnant without permissions.

        `needed`: brokers that must reply, None for all. An unreachable NameServer or broker is skipped unless
        the topic's route contains it, so that an unrelated broker does not block the plan.
        """
        gate = asyncio.Semaphore(CALLS_AT_ONCE)
        away: dict[str, TransportError] = {}

        async def ask(name: str) -> tuple[str, TopicConfig | None]:
            async with gate:
                try:
                    return name, await self._config_at(topic, masters[name])
                except TransportError as error:
                    if needed is None or name in needed:
                        raise
                    away[name] = error
                    return name, None

        found = dict(await asyncio.gather(*map(ask, masters)))
        if away:
            routed = await self._routed(topic)
            for name, error in away.items():
                if name in routed:
                    raise error
                del found[name]
        states = {name: ABSENT if config is None else _state(config) for name, config in found.items()}
        remnants = {name for name, config in found.items() if config is not None and states[name] == ABSENT}
        # A remnant's data may be outdated.
        known = [found[name] for name in sorted(found, key=lambda name: name in remnants)]
        config = next((config for config in known if config is not None), None)
        return states, None if config is None else _settings(config), remnants

    async def _routed(self, topic: str) -> set[str]:
        try:
            return {broker.broker_name for broker in (await self.topic_route(topic)).brokers}
        except TopicNotExist:
            return set()

    async def identity(self) -> list[str]:
        """Identity of this cluster: its brokers, including slaves, as sorted "cluster name@address"."""
        return sorted(f"{each.cluster} {each.broker_name}@{each.address}" for each in await self.brokers())

    async def state_at(self, topic: str, address: str) -> tuple[State, int]:
        """A topic's state at one broker, and its number of queue ids there, independent of permissions; (ABSENT, 0)
        without the topic."""
        config = await self._config_at(topic, address)
        if config is None:
            return ABSENT, 0
        return _state(config), max(config.read_queue_nums, config.write_queue_nums)

    async def _config_at(self, topic: str, address: str) -> TopicConfig | None:
        try:
            answer = await self._call(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"})
        except TopicNotExist:
            return None
        return TopicConfig.decode(answer.body)

    async def put_state(self, topic: str, address: str, state: State, settings: Settings) -> None:
        """Set the queues of a topic at a broker; ABSENT removes both permissions and leaves the queues."""
        perm = (PERM_READ if state.read else 0) | (PERM_WRITE if state.write else 0)
        own = await self._config_at(topic, address)
        if state != ABSENT:
            read, write = state.read, state.write or state.read
        elif own is not None:
            read, write = own.read_queue_nums, own.write_queue_nums
        else:
            return  # the broker does not have the topic
        perm |= settings.perm_others if own is None else _perm_others(own)
        attributes = dict(settings.attributes) if own is None else {}
        if settings.message_type != UNSPECIFIED:
            attributes[TYPE_ATTRIBUTE] = settings.message_type
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(read),
            "writeQueueNums": str(write),
            "perm": str(perm),
            "topicFilterType": settings.filter_type if own is None else own.topic_filter_type,
            "topicSysFlag": str(settings.flags if own is None else own.topic_sys_flag),
            "order": boolean_text(settings.order),
            "attributes": ",".join(f"+{key}={value}" for key, value in sorted(attributes.items())),
            "force": "false",
        }
        await self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def delete_at(self, topic: str, address: str) -> None:
        """Delete a topic with its messages at one broker."""
        await self._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    # offsets

    async def reading_groups(self, topic: str) -> tuple[str, ...]:
        """Groups of the topic whose offsets brokers keep, without system groups and broadcasting groups."""
        found = []
        for group in await self.topic_groups(topic):
            if is_hidden_group(group):
                continue
            try:
                model = (await self.consumer_connections(group)).message_model
            except (RemoteError, TransportError):
                model = ""  # no member is online, or the broker of its members is down: the offsets count
            if model != MessageModel.BROADCASTING.value:
                found.append(group)
        return tuple(found)

    async def seed(self, topic: str, broker: str, address: str, queue_ids: range) -> None:
        """Set the offset of every group to the begin of queues that are still empty.

        Without an offset a consumer may begin at a queue's end. Offsets beyond the end belong to a deleted
        topic. Groups that this broker does not know are created with their settings at another broker.
        """
        for group in await self.reading_groups(topic):
            for queue_id in queue_ids:
                queue = MessageQueue(topic, broker, queue_id)
                end = await end_offset(self._session, queue)
                committed = await committed_offset(self._session, group, queue)
                if committed is not None and committed <= end:
                    continue
                begin = await begin_offset(self._session, queue)
                try:
                    await commit_offset(self._session, group, queue, max(0, begin))
                except SubscriptionGroupNotExist:
                    await self._copy_group(group, address)
                    await commit_offset(self._session, group, queue, max(0, begin))

    async def _copy_group(self, group: str, address: str) -> None:
        config: SubscriptionGroupConfig | None = None
        for other in (await self.master_addresses()).values():
            with contextlib.suppress(TransportError):  # another broker may know the group
                config = (await self.group_table(other)).get(group)
            if config is not None:
                break
        if config is None:
            raise UsageError(f"group {group} has settings at no broker: `aerobee group create {group}`")
        body = fastjson.dumps(config.to_dict())
        await self._call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)

    async def ends(self, topic: str, broker: str, queue_ids: range) -> dict[int, int]:
        """End offset of each queue."""
        return {
            queue_id: await end_offset(self._session, MessageQueue(topic, broker, queue_id))
            for queue_id in queue_ids
        }

    async def unread(self, topic: str, broker: str, queue_ids: range, ignored: frozenset[str]) -> str:
        """A group with lag in these queues, and its lag; "" if no group has lag.

        A group without an offset has read nothing. `ignored`: groups that do not count.
        """
        ends = await self.ends(topic, broker, queue_ids)
        for group in await self.reading_groups(topic):
            if group in ignored:
                continue
            for queue_id, end in ends.items():
                queue = MessageQueue(topic, broker, queue_id)
                begin = await begin_offset(self._session, queue)
                if end <= max(0, begin):
                    continue
                committed = await committed_offset(self._session, group, queue)
                if committed is not None and committed > end:
                    committed = (
                        # the offset belongs to a deleted topic of this name: the group has read nothing of
                        # the new one
                        None
                    )
                left = end - max(committed or 0, begin)
                if left > 0:
                    return f"group {group} has {left} messages to read in {broker}:{queue_id}"
            invisible = await self.invisible_in(group, topic, broker, queue_ids)
            if invisible:
                return f"group {group} has not acknowledged {invisible} messages of {broker}"
        return ""

    async def waiting_again(self, topic: str, broker: str, address: str, ignored: frozenset[str]) -> str:
        """POP groups with pending redeliveries of a topic at one broker; "" when none has.

        They are in the retry topic of the group and the topic, which consumers read only at brokers of the
        topic, and which is deleted with it.
        """
        for group in await self.reading_groups(topic):
            if group in ignored:
                continue
            for retry in (retry_topic_v1(group, topic), retry_topic_v2(group, topic)):
                for queue_id in range((await self.state_at(retry, address))[1]):
                    queue = MessageQueue(retry, broker, queue_id)
                    begin = await begin_offset(self._session, queue)
                    end = await end_offset(self._session, queue)
                    left = end - max(await committed_offset(self._session, group, queue) or 0, begin)
                    if end > max(0, begin) and left > 0:
                        return f"group {group} gets {left} messages of {broker} again"
            # Last, so that messages that moved during the check are included.
            invisible = len(await self.invisible_messages(group, topic, broker=broker) or ())
            if invisible:
                return f"group {group} has not acknowledged {invisible} messages of {broker}"
        return ""

    # order configuration

    async def order_entry(self, topic: str) -> str | None:
        """The topic's order configuration, None without one."""
        return await self.order_config(topic)

    async def put_order(self, topic: str, text: str) -> None:
        """Set the topic's order configuration at every NameServer."""
        await self.kv_put(ORDER_TOPIC_NAMESPACE, topic, text)

    async def delete_order(self, topic: str) -> None:
        """Delete the topic's order configuration at every NameServer."""
        await self.kv_delete(ORDER_TOPIC_NAMESPACE, topic)

    async def routed_writes(self, topic: str) -> list[dict[str, int]]:
        """For each NameServer: broker -> number of writable queues in its route, without brokers that have none."""
        found: list[dict[str, int]] = []
        for address in self._session.nameservers.addresses:
            try:
                answer = await self._call(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            except TopicNotExist:
                found.append({})
                continue
            queues = TopicRouteData.decode(answer.body).queue_datas
            found.append(
                {each.broker_name: each.write_queue_nums for each in queues if each.perm & PERM_WRITE}
            )
        return found

    async def nameservers_without_order(self) -> list[str]:
        """NameServers whose routes do not contain order configurations."""
        return await self._nameservers_without("orderMessageEnable")

    async def nameservers_forget(self) -> bool:
        """Whether every NameServer drops the route to a topic that a broker no longer has."""
        return not await self._nameservers_without("deleteTopicWithBrokerRegistration")

    async def _nameservers_without(self, setting: str) -> list[str]:
        return [
            address
            for address in self._session.nameservers.addresses
            if (await self.nameserver_config(address)).get(setting, "false").lower() != "true"
        ]

    # figures

    async def counters(self, masters: Mapping[str, str]) -> dict[str, Load]:
        """Per broker the bytes written and delivered since its start, as `bytes_in` and `bytes_out`."""
        found = {}
        for name, address in masters.items():
            try:
                runtime = await self.broker_runtime(address)
                found[name] = Load(
                    bytes_in=float(runtime.get("commitLogMaxOffset", "0")),
                    bytes_out=float(runtime.get("msgGetTotalTodayNow", "0")),
                )
            except (AerobeeError, ValueError):
                continue  # an unreachable broker is not measured
        return found


def _state(config: TopicConfig) -> State:
    write = config.write_queue_nums if config.perm & PERM_WRITE else 0
    return State(config.read_queue_nums if config.perm & PERM_READ else 0, write)


def _perm_others(config: TopicConfig) -> int:
    return config.perm & ~(PERM_READ | PERM_WRITE)


def _settings(config: TopicConfig) -> Settings:
    return Settings(
        order=config.order,
        message_type=config.attributes.get(TYPE_ATTRIBUTE, UNSPECIFIED),
        attributes=dict(config.attributes),
        filter_type=config.topic_filter_type,
        flags=config.topic_sys_flag,
        perm_others=_perm_others(config),
    )
