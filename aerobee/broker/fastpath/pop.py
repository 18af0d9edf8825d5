"""Bursts of POP's requests with JSON headers: POP_MESSAGE (200050) and ACK_MESSAGE (200051).

Unlike a frame handler of a backend these need their peer: a pop belongs to its consumer and may wait, and an
acknowledgement is answered when the records of the whole event loop iteration are written. So FastPath passes their
reads here, with the connection. Requests that are not ordinary are left to the handlers before any change: no request
is refused here.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from aerobee.broker.fastpath.request import REPLY_BYTES_MAX, UNREADABLE, FallBackToHandler
from aerobee.broker.fastpath.seam import GuardSettings
from aerobee.errors import FrameTooLarge
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import VERSION
from aerobee.remoting.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, PREFIX
from aerobee.remoting.peer import Peer
from aerobee.store.message_store import MessageStore

if TYPE_CHECKING:
    from aerobee.broker.fastpath.guard import Guard

# Start of these requests' headers, as written by clients that sort the field names.
POP_START = b'{"code":200'
_HEADER = itemgetter("code", "flag", "opaque", "extFields")
_POP, _ACK = RequestCode.POP_MESSAGE.value, RequestCode.ACK_MESSAGE.value
_DONE = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'


class PopHooks(Protocol):
    """Serves one request, given its header fields. `opaque` is the request's number, for its reply.

    Returns the encoded reply, b"" when it is sent later. Raises FallBackToHandler without any change; any other
    exception is a fault, and the peer is disconnected.
    """

    def pop(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes: ...

    def ack(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes: ...


class PopRecords(Protocol):
    """Encodes and appends, in one call, the records that pop/revive_log.py writes to the timer's topic; and pops.

    A protocol because its one implementation is native.
    """

    def append(
        self,
        queue: object,
        now_ms: int,
        born_ms: int,
        points: Sequence[tuple[object, int]],
        acks: Sequence[tuple[object, int, int]],
        *,
        is_sync: bool,
    ) -> tuple[list[int], int, int] | None:
        """Write check points (CheckPoint, revive queue id), then acknowledgements (Acks, revive queue id, revive time, ms).

        `now_ms` is the store's time, `born_ms` the broker's. Returns the records' physical offsets, the end of the last
        one, and when the first is due, ms. None: nothing is written, the caller does it.
        """
        ...

    def plan(
        self,
        *,
        topic: str,
        group: str,
        broker_name: str,
        queue_id: int,
        queue_count: int,
        count_max: int,
        invisible_ms: int,
        retries: Sequence[tuple[str, str, int]],
        tag_codes: frozenset[int] | None,
    ) -> Any:
        """The common part of equal pops, for take(). `queue_id` -1: any of the `queue_count` queues. `retries`: PopWant.retries."""
        ...

    def take(
        self,
        plan: Any,
        queue: object,
        offsets: dict[tuple[str, str], dict[int, int]],
        now_ms: int,
        pop_time: int,
        opaque: int,
        revive_queue_id: int,
        start: int,
        retry_first: bool,
        highest_first: bool,
        *,
        is_sync: bool,
    ) -> NativelyTaken | None:
        """Read what a pop gets, write its check points to `queue`, and encode its reply.

        `now_ms` is the store's time, `pop_time` the broker's; `offsets` are the groups' offsets by (topic, group) and queue id, which
        the caller moves afterwards. None: nothing is written and nothing has changed, PopEngine.take() does it; also when there
        are no messages.
        """
        ...


# (topic, r, queue id, offsets, next offset, bytes): messages of one queue.
NativeShare = tuple[str, str, int, tuple[int, ...], int, int]
# The reply; the shares; the physical offsets of the check points, in the order of the shares; the end of the last one; when the first
# is due, ms; how many messages remain in the queues that were read.
NativelyTaken = tuple[bytes, list[NativeShare], list[int], int, int, int]


class MakePopRecords(Protocol):
    """Creates a backend's writer. `codes` are the hashes of the tags ck, ack and bAck; both hosts are packed IPv4."""

    def __call__(
        self,
        *,
        store: MessageStore,
        store_host: bytes,
        host: bytes,
        waiting: Container[tuple[str, int]],
        timer_topic: TopicConfig,
        revive_topic: str,
        codes: tuple[int, int, int],
    ) -> PopRecords: ...


class PopBursts:
    """Cuts reads into requests, and passes each to its hook."""

    def __init__(self, hooks: PopHooks, guard: GuardSettings | None = None) -> None:
        self._serve = {_POP: hooks.pop, _ACK: hooks.ack}
        self._guard: Guard | None = None
        if guard is not None:
            from aerobee.broker.fastpath.guard import Guard  # it loads OpenSSL's hashes

            self._guard = Guard(guard)

    def forget_grants(self) -> None:
        """As Backend.forget_grants."""
        if self._guard is not None:
            self._guard.forget()

    def burst(self, peer: Peer, data: bytes | bytearray, position: int, host: str | None = None) -> int:
        """Serve the ordinary requests in `data` from `position` on; return the position of the first one that was not
        served. `host`: as Backend.burst.
        """
        guard = self._guard
        at, size, written = position, len(data), 0
        replies: list[bytes] = []
        unpack, serve_of = PREFIX.unpack_from, self._serve.get
        try:
            while size - at >= PREFIX.size and written < REPLY_BYTES_MAX:
                length, header_length = unpack(data, at)
                end = at + 4 + length
                # Neither request has a body, and the upper byte of the header length is the header type.
                if end > size or length != header_length + 4 or length > HEADER_BYTES_MAX:
                    break
                try:
                    code, flag, opaque, fields = _HEADER(orjson.loads(data[at + 8 : end]))
                    if flag or type(opaque) is not int or not -0x80000000 <= opaque <= 0x7FFFFFFF:
                        break
                    serve = serve_of(code)
                    if serve is None or (guard is not None and not guard.admits(code, fields, b"", host)):
                        break
                except UNREADABLE:
                    break
                try:
                    reply = serve(peer, opaque, fields)
                except FallBackToHandler:
                    break
                at = end
                if reply:
                    replies.append(reply)
                    written += len(reply)
        finally:
            # Requests that were served before a fault are answered.
            if replies:
                peer.write(b"".join(replies))
        return at


def empty_reply(opaque: int) -> bytes:
    """The reply SUCCESS without fields, as encode_frame writes it."""
    header = f'{{"code":0,"flag":1,"language":"PYTHON","opaque":{opaque}{_DONE}'.encode()
    return PREFIX.pack(len(header) + 4, len(header)) + header


def found_reply(opaque: int, fields: str, body: bytes) -> bytes:
    """The reply FOUND with a body; `fields` are the members of extFields as JSON. Raises FrameTooLarge."""
    header = (
        f'{{"code":0,"extFields":{{{fields}}},"flag":1,"language":"PYTHON","opaque":{opaque},"remark":"FOUND"{_DONE}'
    ).encode()
    length = 4 + len(header) + len(body)
    if length + 4 > FRAME_BYTES_MAX:
        raise FrameTooLarge(
            f"a pop has found {len(body)} bytes, peers accept frames of at most {FRAME_BYTES_MAX}"
        )
    return b"".join((PREFIX.pack(length, len(header)), header, body))
