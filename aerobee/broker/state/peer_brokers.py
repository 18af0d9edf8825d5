"""Calls to other brokers by broker name, for logical queues with parts at those brokers.

Addresses come from the nameservers' cluster info (106), are kept for 30 s, and are requested again after a failure.
Source: BrokerOuterAPI.getRpcClient and ClientMetadata (RocketMQ).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from aerobee.broker.state.config import LiveConfig
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RemoteError, TransportError
from aerobee.remoting.body.cluster_info import ClusterInfo
from aerobee.remoting.body.queue_mapping import logical_queues
from aerobee.remoting.body.route import TopicRouteData
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand

log = logging.getLogger(__name__)

KEPT_S = 30.0
ASK_TIMEOUT_S = 3.0


class PeerBrokers:
    """Sends requests to the masters of other broker names."""

    def __init__(
        self,
        *,
        client: RemotingClient,
        nameservers: Callable[[], Sequence[str]],
        live: LiveConfig,
        clock: Clock,
    ) -> None:
        self._client = client
        self._nameservers = nameservers
        self._live = live
        self._clock = clock
        self._masters: dict[str, str] = {}
        self._asked_at: float | None = None

    async def invoke(self, broker_name: str, request: RemotingCommand) -> RemotingCommand:
        """Return the answer, whatever its code. Raises RemoteError (SYSTEM_ERROR) when none came within forwardTimeout."""
        address = await self._address_of(broker_name)
        if address is None:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"a part of this queue lies at broker {broker_name}, and no nameserver knows its master now",
            )
        try:
            return await self._client.invoke(
                address, request, timeout_s=self._live.value.forward_timeout / 1000
            )
        except TransportError as error:
            self._asked_at = None
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"a part of this queue lies at broker {broker_name}, which does not answer: {error}",
            ) from error

    async def leaders(self, topic: str) -> dict[int, str]:
        """Leader of each logical queue of a static topic, from the first NameServer that knows it; {} without one."""
        request = RemotingCommand(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        )
        for nameserver in self._nameservers():
            try:
                answer = await self._client.invoke(nameserver, request, timeout_s=ASK_TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    infos = TopicRouteData.decode(answer.body).queue_mappings()
                    queues = logical_queues(topic, infos)
                    return {queue.queue_id: leader for queue, leader in queues.items()}
            except AerobeeError as error:
                log.warning("nameserver %s does not tell who leads %s: %s", nameserver, topic, error)
        return {}

    async def _address_of(self, broker_name: str) -> str | None:
        now = self._clock.monotonic()
        if self._asked_at is None or now - self._asked_at > KEPT_S or broker_name not in self._masters:
            await self._ask()
        return self._masters.get(broker_name)

    async def _ask(self) -> None:
        request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        for nameserver in self._nameservers():
            try:
                answer = await self._client.invoke(nameserver, request, timeout_s=ASK_TIMEOUT_S)
                if answer.code != ResponseCode.SUCCESS:
                    continue
                table = ClusterInfo.decode(answer.body).broker_addr_table
            except AerobeeError as error:
                log.warning("nameserver %s does not tell where the brokers are: %s", nameserver, error)
                continue
            self._masters = {
                name: address
                for name, data in table.items()
                if (address := data.address_of_master()) is not None
            }
            self._asked_at = self._clock.monotonic()
            return
