"""Requests 3001 to 3010 at a server without users: refuses them with RocketMQ's text and the settings that
enable them.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.errors import RemoteError
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply

CODES = (
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
)


class NoUsers:
    """Replaces AccessCalls at a server without users."""

    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        return dict.fromkeys(CODES, _refuse)


def _refuse(_peer: Peer, _request: RemotingCommand) -> Reply:
    raise RemoteError(
        ResponseCode.SYSTEM_ERROR, "The authentication is not enabled: authenticationEnabled=true turns it on"
    )
