"""A broker's records by their physical offset, as bytes: the same at every replica of a log."""

from __future__ import annotations

from aerobee.client.base.config import ClientConfig
from aerobee.client.session.session import client_tls
from aerobee.clock import SystemClock
from aerobee.host_port import split_address
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand


class StoredRecords:
    """Reads records of one broker, Aerobee's or RocketMQ's. Belongs to one event loop; close() it after use."""

    def __init__(self, address: str, config: ClientConfig) -> None:
        """`address` is "host:port". Raises UsageError, ConfigError."""
        split_address(address)
        self.address = address
        self._timeout_s = config.request_timeout_s
        self._remoting = RemotingClient(
            clock=SystemClock(),
            network=AsyncioNetwork(),
            tls=client_tls(config),
            credentials=config.credentials,
        )

    async def record_at(self, physical_offset: int) -> bytes | None:
        """The record at this physical offset, None when the broker has none. Raises TransportError, RemoteError."""
        request = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID.value, {"offset": str(physical_offset)})
        answer = await self._remoting.invoke(self.address, request, timeout_s=self._timeout_s)
        if answer.code == ResponseCode.SYSTEM_ERROR:  # the protocol's only form of "not found"
            return None
        checked(answer, address=self.address, request=RequestCode.VIEW_MESSAGE_BY_ID.name)
        return bytes(answer.body) or None

    async def close(self) -> None:
        """Close the connection."""
        await self._remoting.close()
