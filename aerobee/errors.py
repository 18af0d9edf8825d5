"""Every failure that Aerobee raises, in one tree.

Callers decide by type and by the two flags, never by message text:

    retriable     the same call, unchanged, may succeed later
    route_stale   refresh the route at a NameServer before retrying

A text states what failed, where (address, file, queue) and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class AerobeeError(Exception):
    """Base of everything Aerobee raises on purpose."""

    retriable: bool = False
    """The same call, unchanged, may succeed later."""
    route_stale: ClassVar[bool] = False
    """Query the route at a NameServer again before a retry."""

    @property
    def plain(self) -> str:
        """The text for operators, without the protocol's names of requests and codes."""
        return str(self)


class UsageError(AerobeeError):
    """Invalid use by the caller: an illegal name, a closed client, a wrong argument."""


class ConfigError(UsageError):
    """A configuration value cannot be used; the text names file, key, value and reason."""


class WireError(AerobeeError):
    """A peer's bytes break the protocol: its connection is closed."""


class FrameTooLarge(WireError):
    """A length word announces more bytes than the frame limit; nothing was allocated for it."""


class MalformedFrame(WireError):
    """A frame's header or body does not match its layout."""


class MalformedRecord(WireError):
    """Bytes that are not valid commit log records."""


class MessageDamaged(MalformedRecord):
    """A message's body does not match its CRC or does not decompress: it was damaged on a disk, in transit, or by its producer."""


class BodyUnreadable(MalformedRecord):
    """A message's body is not what the consumer's deserializer reads."""


class TransportError(AerobeeError):
    """A request got no answer. `address` is "ip:port", `request` names the request, `elapsed_s` seconds.

    `reason` is what was wrong with that address, without naming it or the request: "Connection refused".
    """

    retriable = True
    route_stale = True

    def __init__(
        self, text: str, *, address: str = "", request: str = "", elapsed_s: float = 0.0, reason: str = ""
    ) -> None:
        super().__init__(text)
        self.address = address
        self.request = request
        self.elapsed_s = elapsed_s
        self.reason = reason

    @property
    def plain(self) -> str:
        """As AerobeeError.plain."""
        return f"{self.address}: {self.reason}" if self.reason else str(self)


class ConnectFailed(TransportError):
    """No connection could be opened."""


class NoNameServer(ConnectFailed):
    """None of the NameServers answered; `reason` has the error of each address."""

    @property
    def plain(self) -> str:
        """As AerobeeError.plain."""
        return f"no NameServer answers at {self.reason}"


class ConnectionLost(TransportError):
    """The connection closed while the request was pending; whether it took effect is unknown."""


class RequestTimeout(TransportError):
    """No reply arrived in time; whether the request took effect is unknown."""


class NoReply(RequestTimeout):
    """A request message was stored, but no consumer's reply arrived in time."""


class RemoteError(AerobeeError):
    """A peer refused a request. `code` is the wire's response code, `remark` the peer's text.

    A handler raises it to send it as the reply, with `ext` as its fields.
    """

    def __init__(
        self,
        code: int,
        remark: str | None,
        *,
        address: str = "",
        request: str = "",
        opaque: int = 0,
        ext: dict[str, str] | None = None,
    ) -> None:
        self.code = code
        self.ext = ext
        self.remark = remark or ""
        self.address = address
        self.request = request
        self.opaque = opaque
        what = f"{request or 'request'} at {address}" if address else (request or "request")
        super().__init__(f"{what} was answered with code {code}: {self.remark or 'no reason given'}")

    @property
    def plain(self) -> str:
        """As AerobeeError.plain. Contains the code if the peer sent no remark."""
        return f"{self.address or 'the peer'} answered: {self.remark or f'code {self.code}, no reason given'}"


class RemoteSystemError(RemoteError):
    """SYSTEM_ERROR 1: the handler at the peer failed."""

    retriable = True


class SystemBusy(RemoteError):
    """SYSTEM_BUSY 2: the peer sheds load; the remark carries the reason and the measured wait."""

    retriable = True


class RequestNotSupported(RemoteError):
    """REQUEST_CODE_NOT_SUPPORTED 3."""


class MessageIllegal(RemoteError):
    """MESSAGE_ILLEGAL 13: too large, bad properties, or not allowed for this topic."""


class ServiceNotAvailable(RemoteError):
    """SERVICE_NOT_AVAILABLE 14: the store accepts no messages now (shutdown, disk full, failure, no longer master)."""

    retriable = True
    route_stale = True


class NoPermission(RemoteError):
    """NO_PERMISSION 16: a permission bit, an access rule, or a disabled feature."""


class TopicNotExist(RemoteError):
    """TOPIC_NOT_EXIST 17."""

    route_stale = True


class NotLeaderForQueue(RemoteError):
    """NOT_LEADER_FOR_QUEUE 501: the broker no longer leads this queue of a static topic: the route is stale."""

    retriable = True
    route_stale = True


class QueryNotFound(RemoteError):
    """QUERY_NOT_FOUND 22: the requested offset, key or value does not exist."""


class SubscriptionParseFailed(RemoteError):
    """The broker cannot parse the filter expression."""


class SubscriptionGroupNotExist(RemoteError):
    """SUBSCRIPTION_GROUP_NOT_EXIST 26."""


class InvalidParameter(RemoteError):
    """INVALID_PARAMETER 29."""


class ConsumerNotOnline(RemoteError):
    """CONSUMER_NOT_ONLINE 206."""


class GoAway(RemoteError):
    """GO_AWAY 1500: the peer is shutting down; repeat the request over a new connection."""

    retriable = True
    route_stale = True


class RouteError(AerobeeError):
    """No broker is known for the topic."""

    retriable = True
    route_stale = True

    def __init__(self, topic: str, text: str = "") -> None:
        self.topic = topic
        super().__init__(text or f"no broker is known for topic {topic!r}")


class NotWritable(RouteError):
    """The topic is known, but none of its queues is writable now."""


class NoMaster(NotWritable):
    """The topic is known, and no broker that has it has a master now: one is being elected, or is being started again."""


class NoBroker(AerobeeError):
    """No suitable broker is registered at the NameServer."""

    retriable = True


class SendFailed(AerobeeError):
    """Every try of a send failed before its deadline.

    `attempts` lists the broker and the failure of each try, oldest first: all of them up to 16, the first eight and the
    last eight of more. `retriable` is True when at least one try failed for a reason that passes. `may_be_stored` is True
    when a broker may have stored the message (no reply, an internal error, a reply that is less than SEND_OK): the same
    send once more can store it twice. False: no broker has it.
    """

    def __init__(
        self,
        text: str,
        attempts: tuple[tuple[str, BaseException], ...] = (),
        *,
        retriable: bool | None = None,
        may_be_stored: bool = False,
    ) -> None:
        super().__init__(text)
        self.attempts = attempts
        self.may_be_stored = may_be_stored
        if retriable is None:
            retriable = any(isinstance(cause, AerobeeError) and cause.retriable for _, cause in attempts)
        self.retriable = retriable

    @property
    def plain(self) -> str:
        """As AerobeeError.plain."""
        text = str(self)
        for _, failure in self.attempts:
            if isinstance(failure, AerobeeError):
                text = text.replace(str(failure), failure.plain)
        return text


class StoreError(AerobeeError):
    """The store on disk refuses a call or is damaged. `path` names the file, `offset` the byte in it, if known."""

    def __init__(self, text: str, *, path: str = "", offset: int = -1) -> None:
        super().__init__(text)
        self.path = path
        self.offset = offset


class StoreFull(StoreError):
    """The disk is full; nothing was written. Retention frees space, then the same call succeeds."""

    retriable = True


class NewerVersion(StoreError):
    """A newer version wrote this, and this one cannot read it: upgrade the process. Nothing was skipped."""


class StoreNotWritable(StoreError):
    """The store accepts no messages: it is closing, a slave's, fenced, or a sync to disk failed."""

    retriable = True


class StoreLocked(StoreError):
    """Another process has the store directory open."""


class RecordInvalid(StoreError):
    """A record to append is malformed; nothing was written."""


class QuorumError(AerobeeError):
    """The controllers cannot execute a request to this member."""


class NotLeader(QuorumError):
    """Another member leads, or none does now. `leader` is its id, "" when none is known."""

    retriable = True

    def __init__(self, text: str, *, leader: str = "") -> None:
        super().__init__(text)
        self.leader = leader


class QuorumBusy(QuorumError):
    """Too many entries wait for a majority, or a leadership transfer is in progress."""

    retriable = True


class MembershipRefused(QuorumError):
    """A membership change that is unsafe or invalid now."""


# Response code -> class. An unknown code is a plain RemoteError. Source: ResponseCode (RocketMQ).
REMOTE_ERRORS: dict[int, type[RemoteError]] = {
    1: RemoteSystemError,
    2: SystemBusy,
    3: RequestNotSupported,
    13: MessageIllegal,
    14: ServiceNotAvailable,
    16: NoPermission,
    17: TopicNotExist,
    22: QueryNotFound,
    23: SubscriptionParseFailed,
    26: SubscriptionGroupNotExist,
    29: InvalidParameter,
    206: ConsumerNotOnline,
    501: NotLeaderForQueue,
    1500: GoAway,
}


def remote_error(
    code: int, remark: str | None, *, address: str = "", request: str = "", opaque: int = 0
) -> RemoteError:
    """Return the exception for a response code other than success."""
    kind = REMOTE_ERRORS.get(code, RemoteError)
    return kind(code, remark, address=address, request=request, opaque=opaque)
