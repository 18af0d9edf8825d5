"""Requests to a controller that have to show a key (authenticationEnabled): that of innerClientAuthenticationCredentials.

Brokers and controllers sign with it already where it is set; so does `mqadmin` with the same pair in its tools.yml.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.errors import RemoteError
from aerobee.remoting.codes import ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.signature import ACCESS_KEY, Credentials, is_signed_with


def signed_only(handlers: Mapping[int, Handler], credentials: Credentials) -> dict[int, Handler]:
    """The same handlers for requests that are signed with this key; others get NO_PERMISSION."""
    return {code: _signed(handler, credentials) for code, handler in handlers.items()}


def _signed(handler: Handler, credentials: Credentials) -> Handler:
    def checked(peer: Peer, request: RemotingCommand) -> object:
        if request.field(ACCESS_KEY) != credentials.access_key or not is_signed_with(
            request, credentials.secret_key
        ):
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"{request_name(request.code)} is not signed with the key of this quorum: set innerClientAuthenticationCredentials "
                "alike at controllers and brokers, and give tools that key",
            )
        return handler(peer, request)

    return checked  # type: ignore[return-value]
