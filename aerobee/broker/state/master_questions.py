"""Requests of a slave to its master."""

from __future__ import annotations

import logging
from typing import NamedTuple

from aerobee.errors import AerobeeError
from aerobee.remoting.body.kv_table import KVTable
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode, request_name
from aerobee.remoting.command import RemotingCommand

log = logging.getLogger(__name__)
TIMEOUT_S = 3.0
TABLE_TIMEOUT_S = 10.0


class LogBounds(NamedTuple):
    """Begin and end of a master's log, physical offsets."""

    begin: int
    end: int


class MasterQuestions:
    """Client of masters, Aerobee's and RocketMQ's."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    def connection_to(self, address: str) -> object | None:
        """The connection to that broker; another object after it was lost. None while there is no connection."""
        return self._client.connection_to(address)

    async def ask(self, address: str, request: RemotingCommand) -> RemotingCommand:
        """A request that the broker at `address` answers. Raises RemoteError and what a connection raises."""
        reply = await self._client.invoke(address, request, timeout_s=TABLE_TIMEOUT_S)
        return checked(reply, address=address, request=request_name(request.code))

    async def log_bounds(self, address: str) -> LogBounds | None:
        """Begin and end of the log of the broker at `address` (28); None when it does not return them."""
        try:
            request = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
            reply = await self._client.invoke(address, request, timeout_s=TIMEOUT_S)
            table = KVTable.decode(
                checked(reply, address=address, request="GET_BROKER_RUNTIME_INFO").body
            ).table
            begin, end = table.get("commitLogMinOffset", ""), table.get("commitLogMaxOffset", "")
        except AerobeeError as error:
            log.info("the master at %s does not return the begin of its log: %s", address, error)
            return None
        if not (begin.isdecimal() and end.isdecimal() and len(begin) < 20 and len(end) < 20):
            return None
        return LogBounds(int(begin), int(end)) if int(begin) <= int(end) else None
