"""Converts RPCs to remoting requests for the broker's handlers, with the same access control and replies.

Checks, counters, audit and deferred replies are therefore those of remoting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.rpc import LANGUAGE, RpcContext
from aerobee.errors import RemoteError
from aerobee.remoting.codes import LanguageCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer


def language_of(metadata: Mapping[str, str]) -> int:
    """Number of the client's language; OTHER for one that remoting does not know."""
    return LanguageCode.__members__.get(metadata.get(LANGUAGE, ""), LanguageCode.OTHER).value


class BrokerRequests:
    """Sends requests through the broker's dispatch."""

    def __init__(self, handlers: Mapping[int, Handler], access: RpcAccess) -> None:
        self._handlers = handlers
        self._access = access

    async def ask(
        self, context: RpcContext, code: int, ext: dict[str, str], body: bytes = b"", peer: Peer | None = None
    ) -> RemotingCommand:
        """The reply of code SUCCESS. Raises RemoteError for any other, RpcRefused for a user who may not. `peer`: whose request it is, if not the call's."""
        reply = await self.reply(context, code, ext, body, peer)
        if reply.code != ResponseCode.SUCCESS:
            raise RemoteError(reply.code, reply.remark or "")
        return reply

    async def reply(
        self, context: RpcContext, code: int, ext: dict[str, str], body: bytes = b"", peer: Peer | None = None
    ) -> RemotingCommand:
        """The reply, whatever its code. Raises RemoteError, RpcRefused."""
        request = RemotingCommand(code, ext, body, language=language_of(context.metadata))
        sender = peer or context.peer
        self._access.check(sender, context.metadata, request)
        found = self._handlers[code](sender, request)
        if asyncio.iscoroutine(found):
            found = await found
        if isinstance(found, RemotingCommand):
            return found
        return await context.peer.reply()
