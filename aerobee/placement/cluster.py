"""What apply asks of a cluster and changes in it, a topic at a broker at a time.

A topic that goes from a broker is made neither readable nor writable there: clients pass over it. It is deleted too where nameservers have
deleteTopicWithBrokerRegistration. The others keep a route to a topic that its broker no longer has, for ever, and every tool that asks all
brokers of a route fails; there the topic stays as it is, without permissions, and its messages go when they are too old, as all do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from aerobee.client.config import MessageModel
from aerobee.client.consumer.broker_calls import begin_offset, commit_offset, committed_offset, end_offset
from aerobee.client.results import TopicInfo
from aerobee.errors import (
    AerobeeError,
    RemoteError,
    SubscriptionGroupNotExist,
    TopicNotExist,
    UsageError,
)
from aerobee.message import MessageQueue
from aerobee.placement.arrivals import ArrivalCalls
from aerobee.placement.model import Load
from aerobee.placement.steps import ABSENT, State
from aerobee.remoting import fastjson
from aerobee.remoting.body.route import MASTER_ID, TopicRouteData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import PERM_READ, PERM_WRITE, SINGLE_TAG
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import boolean_text

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
SYSTEM_GROUPS = ("CID_RMQ_SYS_", "TOOLS_", "SELF_TEST", "__MONITOR", "CID_ONS")
CALLS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Settings:
    """What a topic is, beside its queues: the same at each broker."""

    order: bool
    message_type: str


class PlacementAdmin(ArrivalCalls):
    """The calls of apply."""

    async def master_addresses(self) -> dict[str, str]:
        """The address of each broker's master, by broker name."""
        info = await self.cluster_info()
        return {
            name: data.broker_addrs[MASTER_ID]
            for name, data in info.broker_addr_table.items()
            if MASTER_ID in data.broker_addrs
        }

    async def states(
        self, topic: str, masters: Mapping[str, str]
    ) -> tuple[dict[str, State], Settings | None, set[str]]:
        """What each broker has of a topic, what the topic is (None when nobody has it), and who has a remnant without permissions."""
        gate = asyncio.Semaphore(CALLS_AT_ONCE)

        async def ask(name: str) -> tuple[str, TopicInfo | None]:
            async with gate:
                try:
                    return name, await self.topic_config_at(topic, masters[name])
                except TopicNotExist:
                    return name, None

        found = dict(await asyncio.gather(*map(ask, masters)))
        states = {name: ABSENT if info is None else _state(info) for name, info in found.items()}
        info = next((info for info in found.values() if info is not None), None)
        remnants = {name for name, info in found.items() if info is not None and states[name] == ABSENT}
        return states, None if info is None else Settings(info.order, info.message_type), remnants

    async def state_at(self, topic: str, address: str) -> tuple[State, int]:
        """What one broker has of a topic, and how many queue ids exist there, whatever may be done with them; (ABSENT, 0) without it."""
        try:
            info = await self.topic_config_at(topic, address)
        except TopicNotExist:
            return ABSENT, 0
        return _state(info), max(info.read_queue_count, info.write_queue_count)

    async def put_state(self, topic: str, address: str, state: State, settings: Settings) -> None:
        """Give a broker so many queues of a topic; ABSENT takes every permission and leaves the queues."""
        perm = (PERM_READ if state.read else 0) | (PERM_WRITE if state.write else 0)
        if state == ABSENT:
            info = await self.topic_config_at(topic, address)
            read, write = info.read_queue_count, info.write_queue_count
        else:
            read, write = state.read, state.write or state.read
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(read),
            "writeQueueNums": str(write),
            "perm": str(perm),
            "topicFilterType": SINGLE_TAG,
            "topicSysFlag": "0",
            "order": boolean_text(settings.order),
            "attributes": ""
            if settings.message_type == "UNSPECIFIED"
            else f"+message.type={settings.message_type}",
            "force": "false",
        }
        await self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def delete_at(self, topic: str, address: str) -> None:
        """Delete a topic with its messages at one broker."""
        await self._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    # offsets

    async def reading_groups(self, topic: str) -> tuple[str, ...]:
        """Groups whose offsets brokers keep: those of brokers' own and those that consume by broadcasting left out."""
        found = []
        for group in await self.topic_groups(topic):
            if group.startswith(SYSTEM_GROUPS):
                continue
            try:
                model = (await self.consumer_connections(group)).message_model
            except RemoteError:
                model = ""  # nobody of it is online: its offsets count
            if model != MessageModel.BROADCASTING.value:
                found.append(group)
        return tuple(found)

    async def seed(self, topic: str, broker: str, address: str, queue_ids: range) -> None:
        """Let every group of a topic begin with the first message of queues that nobody has written to yet.

        A consumer that finds a queue without an offset may begin at its end. Offsets beyond the end are of a topic that was deleted.
        Makes groups that this broker does not know with the settings that another one has.
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
                    await commit_offset(self._session, group, queue, max(0, begin), oneway=False)
                except SubscriptionGroupNotExist:
                    await self._copy_group(group, address)
                    await commit_offset(self._session, group, queue, max(0, begin), oneway=False)

    async def _copy_group(self, group: str, address: str) -> None:
        config: SubscriptionGroupConfig | None = None
        for other in (await self.master_addresses()).values():
            config = (await self._group_configs(other)).get(group)
            if config is not None:
                break
        if config is None:
            raise UsageError(f"group {group} has settings at no broker: `aerobee group create {group}`")
        body = fastjson.dumps(config.to_dict())
        await self._call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)

    async def ends(self, topic: str, broker: str, queue_ids: range) -> dict[int, int]:
        """Where each queue ends."""
        return {
            queue_id: await end_offset(self._session, MessageQueue(topic, broker, queue_id))
            for queue_id in queue_ids
        }

    async def unread(self, topic: str, broker: str, queue_ids: range, ignored: frozenset[str]) -> str:
        """Which group has not read these queues to their end, and how much is left; "" when all have.

        A group without an offset has read nothing. `ignored`: groups that nobody waits for.
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
                left = end - max(committed or 0, begin)
                if left > 0:
                    return f"group {group} has {left} messages to read in {broker}:{queue_id}"
            invisible = await self.invisible_in(group, topic, broker, queue_ids)
            if invisible:
                return f"group {group} has not acknowledged {invisible} messages of {broker}"
        return ""

    # order configuration

    async def order_entry(self, topic: str) -> str | None:
        """The topic's order configuration, None without one."""
        return await self.order_config(topic)

    async def put_order(self, topic: str, text: str) -> None:
        """Set it at every nameserver."""
        await self.kv_put(ORDER_NAMESPACE, topic, text)

    async def delete_order(self, topic: str) -> None:
        """Take it from every nameserver."""
        await self.kv_delete(ORDER_NAMESPACE, topic)

    async def routed_writes(self, topic: str) -> list[dict[str, int]]:
        """Of each nameserver, how many queues its route has to write at each broker that has some."""
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
        """Nameservers whose routes do not carry order configurations."""
        return await self._nameservers_without("orderMessageEnable")

    async def nameservers_forget(self) -> bool:
        """True when every nameserver drops the route to a topic that a broker no longer has."""
        return not await self._nameservers_without("deleteTopicWithBrokerRegistration")

    async def _nameservers_without(self, setting: str) -> list[str]:
        return [
            address
            for address in self._session.nameservers.addresses
            if (await self.nameserver_config(address)).get(setting, "false").lower() != "true"
        ]

    # figures

    async def counters(self, masters: Mapping[str, str]) -> dict[str, Load]:
        """Of each broker the bytes written and the messages handed out since it began, as `bytes_in` and `bytes_out`."""
        found = {}
        for name, address in masters.items():
            try:
                runtime = await self.broker_runtime(address)
                found[name] = Load(
                    bytes_in=float(runtime.get("commitLogMaxOffset", "0")),
                    bytes_out=float(runtime.get("msgGetTotalTodayNow", "0")),
                )
            except (AerobeeError, ValueError):
                continue  # a broker that cannot be asked now is not measured
        return found


def _state(info: TopicInfo) -> State:
    if not info.perm & PERM_READ:
        return State(0, info.write_queue_count if info.perm & PERM_WRITE else 0)
    return State(info.read_queue_count, info.write_queue_count if info.perm & PERM_WRITE else 0)
