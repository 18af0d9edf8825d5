"""Registered brokers of a NameServer, for a process that only waits for its cluster: no session, no heartbeat.

Loading Admin, with a session below it, takes as long as half a broker, and `aerobee up` needs no other call.
"""

from __future__ import annotations

from random import Random
from types import TracebackType

from aerobee.client.session.nameservers import Nameservers, parse_addresses
from aerobee.clock import SystemClock
from aerobee.errors import remote_error
from aerobee.network import AsyncioNetwork
from aerobee.remoting.body.cluster_info import ClusterInfo
from aerobee.remoting.body.route import TopicRouteData
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.signature import Credentials

TIMEOUT_S = 3.0  # of one request, as ClientConfig.request_timeout_s


class RegisteredBrokers:
    """Queries the NameServers `addresses` ("host:port;…") without TLS. Use it in `async with`."""

    def __init__(self, addresses: str, credentials: Credentials | None = None) -> None:
        self._remoting = RemotingClient(
            clock=SystemClock(), network=AsyncioNetwork(), credentials=credentials
        )
        self._nameservers = Nameservers(parse_addresses(addresses), remoting=self._remoting, random=Random())

    async def __aenter__(self) -> RegisteredBrokers:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._remoting.close()

    async def ids(self) -> dict[str, list[int]]:
        """Broker name -> registered broker ids, the master's 0 first. Raises as Nameservers.invoke, RemoteError."""
        info = ClusterInfo.decode(await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO))
        return {name: sorted(data.broker_addrs) for name, data in info.broker_addr_table.items()}

    async def route(self, topic: str) -> TopicRouteData:
        """Brokers and queues of a topic. Raises as ids(), and TopicNotExist while no broker has registered it."""
        return TopicRouteData.decode(await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))

    async def _ask(self, code: RequestCode, ext: dict[str, str] | None = None) -> bytes:
        address, answer = await self._nameservers.invoke(
            RemotingCommand(code.value, ext), timeout_s=TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            raise remote_error(answer.code, answer.remark, address=address, request=code.name)
        return answer.body
