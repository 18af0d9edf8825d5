"""What the RPCs of the Admin service share: the permission, and requests to the handlers of remoting's administration.

Every call needs a permission on the cluster, Get to read and Update to change, besides those of its counterpart of remoting.
Without access control no call is served, unless adminOpen is set.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.requests import BrokerRequests
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.errors import RemoteError
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand

OFFLINE = frozenset({ResponseCode.CONSUMER_NOT_ONLINE})


class AdminCalls:
    """Makes requests for an administrator."""

    def __init__(self, requests: BrokerRequests, access: RpcAccess) -> None:
        self._requests = requests
        self._access = access

    def may_read(self, context: RpcContext) -> None:
        """Raises RpcRefused (UNAUTHORIZED) unless the caller may read from the cluster."""
        self._access.check_admin(
            context.peer, context.metadata, RemotingCommand(RequestCode.GET_BROKER_CONFIG, {})
        )

    def may_change(self, context: RpcContext) -> None:
        """Raises RpcRefused (UNAUTHORIZED) unless the caller may change the cluster."""
        self._access.check_admin(
            context.peer, context.metadata, RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {})
        )

    def check(self, context: RpcContext, code: RequestCode, ext: Mapping[str, str]) -> None:
        """Raises RpcRefused unless the caller may make this request of remoting."""
        self._access.check(context.peer, context.metadata, RemotingCommand(code, dict(ext)))

    async def ask(self, context: RpcContext, code: RequestCode, **ext: str) -> RemotingCommand:
        """The reply of code SUCCESS. Raises RemoteError, RpcRefused."""
        return await self._requests.ask(context, code, ext)

    async def ask_group(self, context: RpcContext, code: RequestCode, **ext: str) -> RemotingCommand | None:
        """As ask(); None for a group that is not connected."""
        try:
            return await self._requests.ask(context, code, ext)
        except RemoteError as error:
            if error.code in OFFLINE:
                return None
            raise
