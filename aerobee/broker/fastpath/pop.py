"""Bursts of POP's requests with JSON headers: ACK_MESSAGE (200051).

Unlike a family of a backend these ask who their peer is: an acknowledgement is answered when the records of the whole
pass of the event loop are written. So FastPath gives their reads here, with the connection.
What is not quite ordinary is left for the handlers, before anything has changed: no request is refused here.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import Any, Protocol

import orjson

from aerobee.broker.fastpath.request import UNREADABLE, NotOrdinary
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import VERSION
from aerobee.remoting.peer import Peer

POP_START = (
    b'{"code":200'  # how the headers of these requests begin, as everybody writes them who sorts the names
)
REPLY_BYTES_MAX = 1 << 20  # a burst that answered more ends there, for the peer must take it first
_WORDS = struct.Struct(">II")  # length of the frame behind this word, serialize type << 24 | header length
_HEADER = itemgetter("code", "flag", "opaque", "extFields")
_ACK = RequestCode.ACK_MESSAGE.value
_DONE = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'


class PopHooks(Protocol):
    """What serves one request, by its fields as they stand in the header. `opaque` is the request's number, for its reply.

    Returns the encoded reply, b"" when it leaves later or there is none. Raises NotOrdinary, or one of UNREADABLE,
    and has changed nothing then; any other exception is a fault, and the peer is disconnected.
    """

    def ack(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes: ...


class PopBursts:
    """Cuts reads into requests, and gives each to its hook."""

    def __init__(self, hooks: PopHooks) -> None:
        self._serve = {_ACK: hooks.ack}

    def burst(self, peer: Peer, data: bytes | bytearray, position: int) -> int:
        """Serve what is ordinary in `data` from `position` on; return the first position that was not served."""
        at, size, written = position, len(data), 0
        replies: list[bytes] = []
        unpack, serve_of = _WORDS.unpack_from, self._serve.get
        try:
            while size - at >= _WORDS.size and written < REPLY_BYTES_MAX:
                length, header_length = unpack(data, at)
                end = at + 4 + length
                # Neither has a body, and a header of another type has its number in the upper byte.
                if end > size or length != header_length + 4:
                    break
                try:
                    code, flag, opaque, fields = _HEADER(orjson.loads(data[at + 8 : end]))
                    if flag or type(opaque) is not int or not -0x80000000 <= opaque <= 0x7FFFFFFF:
                        break
                    serve = serve_of(code)
                    if serve is None:
                        break
                    reply = serve(peer, opaque, fields)
                except (NotOrdinary, *UNREADABLE):
                    break
                at = end
                if reply:
                    replies.append(reply)
                    written += len(reply)
        finally:
            # What was served before a fault has its answer.
            if replies:
                peer.write(b"".join(replies))
        return at


def empty_reply(opaque: int) -> bytes:
    """The reply that says yes and nothing else, as encode_frame writes it."""
    header = f'{{"code":0,"flag":1,"language":"PYTHON","opaque":{opaque}{_DONE}'.encode()
    return _WORDS.pack(len(header) + 4, len(header)) + header
