"""Maximum size of request bodies, by request code.

A frame has up to 16 MiB, and a JSON body costs a server up to a microsecond of its event loop per byte: a request that needs no
large body is refused before its body is parsed, also by the gate, which may need the body to find the requested resource.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from aerobee.errors import RemoteError
from aerobee.remoting.codes import RequestCode, ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply

KIB = 1024
MIB = 1024 * KIB
BODY_BYTES_MAX = 64 * KIB  # maximum body of requests that are not in this table
UNLIMITED = 2**31 - 1  # limited by the handler or by the frame size
BROKER_BODIES: Mapping[int, int] = {
    RequestCode.SEND_MESSAGE: UNLIMITED,  # maxMessageSize
    RequestCode.SEND_MESSAGE_V2: UNLIMITED,
    RequestCode.SEND_BATCH_MESSAGE: UNLIMITED,
    RequestCode.SEND_REPLY_MESSAGE: UNLIMITED,
    RequestCode.SEND_REPLY_MESSAGE_V2: UNLIMITED,
    RequestCode.UPDATE_BROKER_CONFIG: UNLIMITED,  # CONFIG_BYTES_MAX, 1 MiB
    RequestCode.LOCK_BATCH_MQ: MIB,
    RequestCode.UNLOCK_BATCH_MQ: MIB,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: MIB,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: MIB,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: MIB,
    RequestCode.BATCH_ACK_MESSAGE: MIB,
}
NAMESERVER_BODIES: Mapping[int, int] = {
    RequestCode.REGISTER_BROKER: UNLIMITED,  # a whole topic table, sent only by brokers
    RequestCode.UPDATE_NAMESRV_CONFIG: 256 * KIB,
}


@dataclass(frozen=True, slots=True)
class MovingLimit:
    """A limit from a setting, which may change at run time."""

    key: str
    value: Callable[[], int]


def limit_bodies(
    handlers: Mapping[int, Handler],
    limits: Mapping[int, int],
    moving: Mapping[int, MovingLimit] = MappingProxyType({}),
) -> dict[int, Handler]:
    """Return the handlers, each of which answers INVALID_PARAMETER to a body that is too large."""
    limited: dict[int, Handler] = {}
    for code, handler in handlers.items():
        limit = limits.get(code, BODY_BYTES_MAX)
        if code in moving:
            limited[code] = _limited(handler, moving[code])
        else:
            limited[code] = handler if limit == UNLIMITED else _limited(handler, _fixed(limit))
    return limited


def _fixed(limit: int) -> MovingLimit:
    return MovingLimit("", lambda: limit)


def _limited(handler: Handler, limit: MovingLimit) -> Handler:
    def handle(peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        if len(request.body) > limit.value():
            raise body_too_large(request, limit.value(), limit.key)
        return handler(peer, request)

    return handle


def body_too_large(request: RemotingCommand, limit: int, key: str = "") -> RemoteError:
    """The refusal of a large body; `key` is the setting of the limit."""
    named = f" ({key})" if key else ""
    return RemoteError(
        ResponseCode.INVALID_PARAMETER,
        f"{request_name(request.code)} has a body of {len(request.body)} bytes, at most {limit} are read{named}",
    )
