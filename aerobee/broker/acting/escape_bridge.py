"""Sends messages to the master of another broker name, as a producer would: an acting slave cannot store them itself
(EscapeBridge of RocketMQ).

Messages go to the brokers of the topic's route in round robin, and keep their queue id where such a queue exists. A
message for a retry topic that exists at no other broker goes to any other master of the cluster, because every broker
creates retry topics by itself.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from aerobee.broker.state.config import PERM_WRITE
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RemoteError, RouteError
from aerobee.message import RETRY_PREFIX, encode_properties
from aerobee.remoting.body.cluster_info import ClusterInfo
from aerobee.remoting.body.route import TopicRouteData
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import MASTER_ID

log = logging.getLogger(__name__)
SEND_TIMEOUT_S = 3.0
ASK_TIMEOUT_S = 3.0
KEPT_S = 10.0  # how long a route is used
ROUTES_MAX = 10_000
# These codes mean that the message is stored; a late flush or replication does not cause a retry.
STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)


class Escaping(NamedTuple):
    """A message to send to another broker. `properties` lacks those that would delay it again; `queue_id` is the
    preferred queue.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str]
    group: str
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    reconsume_times: int = 0


class _Target(NamedTuple):
    broker_name: str
    address: str
    queue_count: int


class EscapeBridge:
    """Sends messages to masters of other broker names. Belongs to the event loop."""

    def __init__(
        self,
        *,
        client: RemotingClient,
        nameservers: Callable[[], Sequence[str]],
        identity: BrokerIdentity,
        clock: Clock,
    ) -> None:
        self._client = client
        self._nameservers = nameservers
        self._identity = identity
        self._clock = clock
        self._routes: dict[str, tuple[float, tuple[_Target, ...]]] = {}
        self._turns = itertools.count()

    async def send(self, message: Escaping) -> str:
        """Store the message at another broker; return that broker's name. Raises RouteError, RemoteError, TransportError."""
        targets = await self._targets(message.topic)
        turn = next(self._turns)
        target = targets[turn % len(targets)]
        properties = {**message.properties, "WAIT": "false"}
        request = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            {
                "a": message.group,
                "b": message.topic,
                "c": "TBW102",
                "d": "4",
                "e": str(message.queue_id % target.queue_count),
                "f": str(message.sys_flag),
                "g": str(message.born_timestamp),
                "h": str(message.flag),
                "i": encode_properties(properties),
                "j": str(message.reconsume_times),
                "k": "false",
                "m": "false",
                "n": target.broker_name,
            },
            message.body,
        )
        try:
            reply = await self._client.invoke(target.address, request, timeout_s=SEND_TIMEOUT_S)
        except AerobeeError:
            self._routes.pop(message.topic, None)
            raise
        if reply.code not in STORED:
            self._routes.pop(message.topic, None)
            raise RemoteError(reply.code, f"broker {target.broker_name} refused it: {reply.remark or ''}")
        return target.broker_name

    async def _targets(self, topic: str) -> tuple[_Target, ...]:
        now = self._clock.monotonic()
        known = self._routes.get(topic)
        if known is not None and now - known[0] < KEPT_S:
            return known[1]
        found = await self._ask_route(topic)
        if not found and topic.startswith(RETRY_PREFIX):
            found = await self._ask_cluster()
        if not found:
            raise RouteError(f"{topic}: no other broker of the cluster accepts messages for it")
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = now, found
        return found

    async def _ask_route(self, topic: str) -> tuple[_Target, ...]:
        request = RemotingCommand(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        )
        reply = await self._ask(request)
        if reply is None or reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return ()
        route = TopicRouteData.decode(
            checked(reply, address="a nameserver", request="GET_ROUTEINFO_BY_TOPIC").body
        )
        queues = {
            each.broker_name: each.write_queue_nums
            for each in route.queue_datas
            if each.perm & PERM_WRITE and each.write_queue_nums > 0
        }
        return tuple(
            _Target(each.broker_name, address, queues[each.broker_name])
            for each in route.broker_datas
            if each.broker_name != self._identity.name
            and each.broker_name in queues
            and (address := each.broker_addrs.get(MASTER_ID))
        )

    async def _ask_cluster(self) -> tuple[_Target, ...]:
        reply = await self._ask(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return ()
        return tuple(
            _Target(name, address, 1)
            for name, data in ClusterInfo.decode(reply.body).broker_addr_table.items()
            if name != self._identity.name
            and data.cluster == self._identity.cluster
            and (address := data.address_of_master())
        )

    async def _ask(self, request: RemotingCommand) -> RemotingCommand | None:
        """The reply of the first NameServer that answers; None when none does."""
        for nameserver in self._nameservers():
            try:
                return await self._client.invoke(nameserver, request, timeout_s=ASK_TIMEOUT_S)
            except AerobeeError as error:
                log.warning("nameserver %s does not answer: %s", nameserver, error)
        return None
