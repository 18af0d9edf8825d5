"""Live brokers of a broker name: sends a heartbeat to every NameServer every second and reads the group's members
(BrokerController.sendHeartbeat and syncBrokerMemberGroup of RocketMQ).

With compatibleWithOldNameSrv, the default, the heartbeat is QUERY_DATA_VERSION (322) oneway, and the members come from
a route (105) of rmq_sys_SYNC_BROKER_MEMBER_NAME, which every NameServer of 4.x and 5.x supports; else BROKER_HEARTBEAT
(904) and GET_BROKER_MEMBER_GROUP (901).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aerobee.broker.membership.registration import Registration
from aerobee.broker.state.config import LiveConfig
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.remoting.body.broker_member_group import BrokerMemberGroup
from aerobee.remoting.body.route import TopicRouteData
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.system_names import SYSTEM_PREFIX

log = logging.getLogger(__name__)
TIMEOUT_S = 1.0


class GroupWatch:
    """Tracks the live brokers of this broker name, in one task. Belongs to the event loop."""

    def __init__(
        self,
        *,
        client: RemotingClient,
        registration: Registration,
        live: LiveConfig,
        clock: Clock,
        on_group: Callable[[dict[int, str]], None],
    ) -> None:
        """`on_group` is called with broker id -> address, never empty, for each reply of a NameServer."""
        self._client = client
        self._registration = registration
        self._live = live
        self._clock = clock
        self._on_group = on_group

    async def run(self) -> None:
        """Until cancelled; idle while enableSlaveActingMaster is off."""
        while True:
            config = self._live.value
            await self._clock.sleep(
                min(config.broker_heartbeat_interval, config.sync_broker_member_group_period) / 1000
            )
            if not config.enable_slave_acting_master:
                continue
            try:
                await asyncio.gather(*(self._beat(each) for each in config.nameservers))
                await self.look()
            except Exception:
                # The task's outermost edge: without its heartbeats the nameservers would forget this broker.
                log.exception("watching the group of this broker failed; continuing")

    async def look(self) -> None:
        """Query once, and pass on the members."""
        group = await self.group()
        if group:
            self._on_group(group)

    async def group(self) -> dict[int, str]:
        """Broker id -> address of this broker name, from the first NameServer that answers; {} when none does."""
        identity = self._registration.identity
        is_compatible = self._live.value.compatible_with_old_name_srv
        if is_compatible:
            topic = f"{SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{identity.name}"
            request = RemotingCommand(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
            )
        else:
            request = RemotingCommand(
                RequestCode.GET_BROKER_MEMBER_GROUP,
                {"clusterName": identity.cluster, "brokerName": identity.name},
            )
        for nameserver in self._live.value.nameservers:
            try:
                reply = await self._client.invoke(nameserver, request, timeout_s=TIMEOUT_S)
                if reply.code != ResponseCode.SUCCESS:
                    continue  # this NameServer knows no broker of the name yet
                if not is_compatible:
                    return BrokerMemberGroup.decode(reply.body).broker_addrs
                datas = TopicRouteData.decode(reply.body).broker_datas
            except AerobeeError as error:
                log.debug("NameServer %s does not return the group: %s", nameserver, error)
                continue
            found = [each.broker_addrs for each in datas if each.broker_name == identity.name]
            if found:
                return found[0]
        return {}

    async def _beat(self, nameserver: str) -> None:
        registration = self._registration
        if self._live.value.compatible_with_old_name_srv:
            request = RemotingCommand(
                RequestCode.QUERY_DATA_VERSION,
                registration.identity_fields(),
                registration.topics.data_version.encode(),
            )
        else:
            request = RemotingCommand(RequestCode.BROKER_HEARTBEAT, registration.identity_fields())
        try:
            await self._client.invoke_oneway(nameserver, request, timeout_s=TIMEOUT_S)
        except AerobeeError as error:
            log.debug("the heartbeat to NameServer %s failed: %s", nameserver, error)
