"""RPCs that the broker's handlers serve as requests of remoting: made here, guarded and answered like any other.

Checks, counts, audit and deferred answers are those of remoting, whichever protocol a client speaks.
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
    """Serves requests by the broker's dispatch."""

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
