"""NOTIFY_MIN_BROKER_ID_CHANGE: notifies the members of an acting-master group of their lowest broker id.

A oneway call to the brokers' listen ports, over connections that the NameServer opens. No task waits for it.
A broker that misses it reads the lowest id from its group, which it requests every second. Source:
RouteInfoManager (RocketMQ).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from aerobee.errors import TransportError
from aerobee.nameserver.config import LiveNameServerConfig
from aerobee.nameserver.route_table import MinBrokerChange
from aerobee.ordered_set import OrderedSet
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand

log = logging.getLogger("aerobee.nameserver")
NOTICE_TIMEOUT_S = 0.3
# Concurrent notifications; further ones are dropped, because brokers also request their group themselves.
NOTICE_COUNT_MAX = 1_000


class MinBrokerNotices:
    """Sends notices when `notifyMinBrokerIdChanged` is on; owns the sending tasks."""

    def __init__(self, *, client: RemotingClient, config: LiveNameServerConfig) -> None:
        self._client = client
        self._config = config
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()

    def send(self, changes: Iterable[MinBrokerChange]) -> None:
        """Start sending, without waiting."""
        if not self._config.value.notify_min_broker_id_changed:
            return
        for change in changes:
            for address in change.recipients:
                if len(self._tasks) >= NOTICE_COUNT_MAX:
                    log.warning("notice of broker %s to %s dropped, too many", change.min_broker_id, address)
                    continue
                task = asyncio.create_task(self._send(address, change), name=f"min-broker-notice-{address}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel pending notices."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, address: str, change: MinBrokerChange) -> None:
        request = RemotingCommand(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice_fields(change))
        try:
            await self._client.invoke_oneway(address, request, timeout_s=NOTICE_TIMEOUT_S)
        except TransportError as error:
            log.warning("broker at %s was not told about the smallest broker id: %s", address, error)


def notice_fields(change: MinBrokerChange) -> dict[str, str]:
    """The fields of the call; unknown values are omitted."""
    fields = {"minBrokerId": str(change.min_broker_id), "minBrokerAddr": change.min_broker_address}
    if change.offline_address is not None:
        fields["offlineBrokerAddr"] = change.offline_address
    if change.ha_address is not None:
        fields["haBrokerAddr"] = change.ha_address
    return fields
