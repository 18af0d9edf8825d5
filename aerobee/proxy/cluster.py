"""The cluster behind a proxy: routes, settings of topics and groups, and calls to brokers by name.

All is read from NameServers and brokers, and kept for SETTINGS_KEPT_S at most; a proxy that starts has it after its first calls.
Source: MetadataService, TopicRouteService (RocketMQ 5.5.0).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from random import Random
from typing import Generic, TypeVar

from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.lite.lite_group import lite_group
from aerobee.broker.send.message_type import NORMAL
from aerobee.client.base.config import ClientConfig
from aerobee.client.base.topic_route import TopicRoute
from aerobee.client.session.session import Session
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RemoteError, TopicNotExist
from aerobee.grpc.proto import messages as pb
from aerobee.network import Network
from aerobee.remoting.body.cluster_info import ClusterInfo
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import FAQ, MASTER_ID, TYPE_ATTRIBUTE

log = logging.getLogger(__name__)

T = TypeVar("T")

SETTINGS_KEPT_S = 20.0  # metadataThreadPoolQueue's cache: topicConfigCacheExpiredInSeconds
KEPT_NAMES_MAX = 10_000  # topics, and groups, whose settings are kept


class Kept(Generic[T]):
    """Values by name, each read again when it is older than SETTINGS_KEPT_S; the oldest are dropped beyond KEPT_NAMES_MAX."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def cached(self, name: str) -> T | None:
        """The value, however old."""
        found = self._values.get(name)
        return None if found is None else found[1]

    async def get(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """The value, read now if it is not there or too old. Raises what `read` raises."""
        now = self._clock.monotonic()
        found = self._values.get(name)
        if found is not None and now < found[0]:
            return found[1]
        value = await read()
        self._values[name] = (now + SETTINGS_KEPT_S, value)
        self._values.move_to_end(name)
        if len(self._values) > KEPT_NAMES_MAX:
            self._values.popitem(last=False)
        return value


class ProxyCluster:
    """One client session that serves all gRPC clients. Raises AerobeeError where the cluster does not answer."""

    def __init__(
        self,
        nameservers: str,
        *,
        config: ClientConfig,
        clock: Clock,
        network: Network,
        random: Random | None = None,
    ) -> None:
        self.session = Session(
            nameservers, config=config, clock=clock, network=network, random=random, id_suffix="proxy"
        )
        self.clock = clock
        self._topics: Kept[dict[str, str]] = Kept(clock)
        self._groups: Kept[SubscriptionGroupConfig] = Kept(clock)
        self._watched: OrderedDict[str, None] = OrderedDict()

    async def start(self) -> None:
        """Raises NoNameServer when no NameServer answers."""
        await self.session.start()
        await self.session.require_nameserver("TBW102")

    async def close(self) -> None:
        """Leave the cluster."""
        await self.session.close()

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route, refreshed every 30 s from now on. Raises RpcRefused (TOPIC_NOT_FOUND)."""
        routes = self.session.routes
        try:
            route = await routes.get(topic)
        except TopicNotExist as error:
            text = f"CODE: 17  DESC: No topic route info in name server for the topic: {topic}\n{FAQ}"
            raise RpcRefused(pb.TOPIC_NOT_FOUND, text) from error
        if topic not in self._watched:
            routes.watch((topic,))
            if len(self._watched) >= KEPT_NAMES_MAX:
                routes.unwatch(self._watched.popitem(last=False)[0])
        self._watched[topic] = None
        self._watched.move_to_end(topic)
        return route

    async def message_type(self, topic: str) -> str:
        """The topic's `message.type`; "UNSPECIFIED" for a topic that is not there."""
        try:
            route = await self.route(topic)
        except RpcRefused:
            return "UNSPECIFIED"

        async def read() -> dict[str, str]:
            broker = route.brokers[0].broker_name
            request = RemotingCommand(RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"})
            answer = await self.call(broker, topic, request)
            return dict(TopicConfig.decode(answer.body).attributes)

        return (await self._topics.get(topic, read)).get(TYPE_ATTRIBUTE, NORMAL)

    async def group(self, name: str) -> SubscriptionGroupConfig:
        """The group's settings at one broker; the default ones where no broker has the group."""

        async def read() -> SubscriptionGroupConfig:
            request = RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name})
            try:
                address = await self._any_master()
                answer = await self.session.invoke(address, request)
                return SubscriptionGroupConfig.decode(answer.body)
            except RemoteError as error:
                log.info("settings of group %s: %s", name, error)
                return SubscriptionGroupConfig(name)

        return await self._groups.get(name, read)

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The settings of a group that group() has read."""
        return self._groups.cached(name)

    async def is_lite(self, group: str) -> bool:
        """Whether the group consumes lite topics."""
        return lite_group(await self.group(group)) is not None

    async def call(
        self, broker_name: str, topic: str, request: RemotingCommand, *, timeout_s: float | None = None
    ) -> RemotingCommand:
        """The answer of a broker of the topic. Raises RemoteError for a refusal, TransportError, RouteError."""
        return await self.session.invoke_broker(broker_name, topic, request, timeout_s=timeout_s)

    async def _any_master(self) -> str:
        for broker in self.session.routes.brokers():
            if MASTER_ID in broker.broker_addrs:
                return broker.broker_addrs[MASTER_ID]
        answer = await self.session.invoke_nameserver(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        for data in ClusterInfo.decode(answer.body).broker_addr_table.values():
            if MASTER_ID in data.broker_addrs:
                return data.broker_addrs[MASTER_ID]
        raise AerobeeError("no master is registered at the NameServers")
