"""Shared base of the admin calls: the session, and the brokers that a call is sent to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

from aerobee.client.base.results import BrokerInfo
from aerobee.client.session.nameservers import NOT_A_NAMESERVER
from aerobee.client.session.session import Session
from aerobee.errors import NoBroker, NoNameServer, RequestNotSupported, UsageError
from aerobee.remoting.body.cluster_info import ClusterInfo
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import MASTER_ID

T = TypeVar("T")


class AdminCalls:
    """Base of the classes of calls that Admin combines."""

    _session: Session
    _timeout_s: float

    @property
    def nameserver_addresses(self) -> tuple[str, ...]:
        """host:port of every NameServer of this client's configuration; NameServers never communicate with each
        other."""
        return tuple(self._session.nameservers.addresses)

    async def _call(
        self, address: str, code: RequestCode, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Call one broker; returns the answer of code 0, raises RemoteError otherwise."""
        self._session.check_open()
        command = RemotingCommand(code.value, ext, body)
        return await self._session.invoke(address, command, timeout_s=self._timeout_s)

    async def _call_nameserver(self, code: RequestCode, ext: dict[str, str] | None = None) -> RemotingCommand:
        self._session.check_open()
        return await self._session.invoke_nameserver(RemotingCommand(code.value, ext))

    async def _call_each_nameserver(
        self, code: RequestCode, ext: dict[str, str] | None = None
    ) -> list[RemotingCommand]:
        """Call every NameServer, because they do not replicate to each other. Raises the first failure, and
        NoNameServer for a peer that is not a NameServer."""
        self._session.check_open()

        async def ask(address: str) -> RemotingCommand:
            try:
                return await self._session.invoke(
                    address, RemotingCommand(code.value, ext), timeout_s=self._timeout_s
                )
            except RequestNotSupported as error:
                reason = f"{address}: {NOT_A_NAMESERVER}"
                raise NoNameServer(
                    reason, address=address, request=code.name, elapsed_s=0.0, reason=reason
                ) from error

        return await self._all(ask(address) for address in self._session.nameservers.addresses)

    async def cluster_info(self) -> ClusterInfo:
        """All clusters, broker names and addresses that a nameserver knows."""
        answer = await self._call_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(answer.body)

    async def cluster_info_at(self, nameserver: str) -> ClusterInfo:
        """As cluster_info(), as one NameServer knows it: NameServers do not replicate to each other."""
        answer = await self._call(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(answer.body)

    async def brokers(self, cluster: str | None = None) -> tuple[BrokerInfo, ...]:
        """Every broker address, slaves too, sorted by cluster, name and id."""
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise UsageError(f"cluster {cluster!r} is not known to the nameserver; known clusters: {known}")
        found = [
            BrokerInfo(cluster=name, broker_name=broker_name, broker_id=broker_id, address=address)
            for name, broker_names in info.cluster_addr_table.items()
            if cluster in (None, name)
            for broker_name in broker_names
            if broker_name in info.broker_addr_table
            for broker_id, address in info.broker_addr_table[broker_name].broker_addrs.items()
        ]
        return tuple(sorted(found, key=lambda item: (item.cluster, item.broker_name, item.broker_id)))

    async def _masters(self, cluster: str | None, broker: str | None) -> list[str]:
        """Addresses of masters: of one broker (a name or an address), of one cluster, or all."""
        if broker is not None and ":" in broker:
            return [broker]
        masters = [
            info.address
            for info in await self.brokers(cluster)
            if info.broker_id == MASTER_ID and broker in (None, info.broker_name)
        ]
        if not masters and broker is not None:
            raise UsageError(f"the nameserver knows no master named {broker!r}")
        if not masters:
            raise NoBroker("no broker is registered at the NameServer")
        return masters

    async def _topic_addresses(self, topic: str) -> list[tuple[str, str]]:
        """(broker name, address) of each broker of a topic, the master's address where there is one."""
        self._session.check_open()
        route = await self._session.routes.refresh(topic)
        return [
            (broker.broker_name, broker.broker_addrs[min(broker.broker_addrs)])
            for broker in route.brokers
            if broker.broker_addrs
        ]

    @staticmethod
    async def _all(calls: Iterable[Any]) -> list[Any]:
        return list(await asyncio.gather(*calls))
