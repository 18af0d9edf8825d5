"""The NameServers of a client, tried one after the other until one answers.

They have the same table and never communicate, so the client may use any of them. It starts with the one that answered
last, and works as long as one is up. Source: NettyRemotingClient.getAndCreateNameserverChannel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random

from aerobee.client.base.checks import check_addresses
from aerobee.errors import NoNameServer, TransportError, UsageError
from aerobee.host_port import split_address
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand

log = logging.getLogger(__name__)

TRY_S_MIN = 0.3  # minimum time-out of one NameServer before the client tries the next one
# Requests that NameServers of every version support: a peer that does not support them is another server,
# usually a broker.
BASIC_REQUESTS = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
    }
)
NOT_A_NAMESERVER = (
    "the server at this address is not a NameServer: use a NameServer's address, not a broker's"
)


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Split "host:port;host:port" (commas work too) and check each part. Raises UsageError."""
    check_addresses(addresses)
    parts = addresses.replace(",", ";").split(";") if isinstance(addresses, str) else list(addresses)
    parts = [part.strip().removeprefix("http://") for part in parts if part.strip()]
    if not parts:
        raise UsageError("no nameserver is given; write HOST:PORT, for example 127.0.0.1:9876")
    for part in parts:
        split_address(part)
    return tuple(dict.fromkeys(parts))


class Nameservers:
    """Sends requests to one NameServer, and to the next one when that one does not answer."""

    def __init__(self, addresses: Sequence[str], *, remoting: RemotingClient, random: Random) -> None:
        self.addresses = tuple(addresses)
        self._remoting = remoting
        self._current = random.randrange(len(self.addresses))

    async def invoke(self, command: RemotingCommand, *, timeout_s: float) -> tuple[str, RemotingCommand]:
        """Return (address, answer) of the first nameserver that answers, whatever the code.

        Raises NoNameServer, which lists each address with its error, when none does.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        failures: list[str] = []
        reasons: list[str] = []
        last: TransportError | None = None
        count = len(self.addresses)
        for turn in range(count):
            index = (self._current + turn) % count
            address = self.addresses[index]
            remaining = timeout_s - (loop.time() - began)
            try_s = max(remaining / (count - turn), TRY_S_MIN)
            try:
                answer = await self._remoting.invoke(address, command, timeout_s=try_s)
            except TransportError as error:
                failures.append(f"{address}: {error}")
                reasons.append(f"{address}: {error.reason or error}")
                last = error
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and command.code in BASIC_REQUESTS:
                failures.append(f"{address}: {NOT_A_NAMESERVER}")
                reasons.append(f"{address}: {NOT_A_NAMESERVER}")
                continue
            if turn:
                log.info("nameserver %s does not answer, using %s", self.addresses[self._current], address)
                self._current = index
            return address, answer
        elapsed_s = loop.time() - began
        name = request_name(command.code)
        raise NoNameServer(
            f"no NameServer answered {name} within {elapsed_s:.1f} s ({'; '.join(failures)}): "
            "check the addresses and that a NameServer runs there",
            address=";".join(self.addresses),
            request=name,
            elapsed_s=elapsed_s,
            reason="; ".join(reasons),
        ) from last
