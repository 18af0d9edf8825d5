"""Cuts the bytes of a call into messages. Core. Layout, source the gRPC protocol over HTTP/2:

uint8 compressed | uint32 length, big-endian | message
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

from aerobee.grpc.status import CallError, GrpcStatus

_HEAD = struct.Struct(">BI")
_WINDOW_BITS: Mapping[str, int] = {"gzip": 31, "deflate": 15}
COMPRESSED = _WINDOW_BITS.keys()  # values of grpc-encoding whose messages may be compressed
ACCEPTED_ENCODINGS = "identity,gzip,deflate"


def frame_message(data: bytes) -> bytes:
    """The bytes of one message of a call, not compressed."""
    return _HEAD.pack(0, len(data)) + data


def message_of_whole(data: bytes, bytes_max: int) -> bytes | None:
    """The message of bytes that are exactly one, not compressed and not too large; None for any others."""
    size = len(data) - _HEAD.size
    if not 0 <= size <= bytes_max or _HEAD.unpack_from(data) != (0, size):
        return None
    return data[_HEAD.size :]


class MessageReader:
    """Collects bytes and returns whole messages.

    The length is checked before any byte is kept; a compressed message is inflated up to the same bound. After a CallError the
    reader is not used again.
    """

    __slots__ = ("_buffer", "_encoding", "_length", "_message_bytes_max")

    def __init__(self, message_bytes_max: int, encoding: str = "identity") -> None:
        """`encoding` is the header grpc-encoding."""
        self._message_bytes_max = message_bytes_max
        self._encoding = encoding
        self._buffer = bytearray()
        self._length = -1  # size of the message being received, with its head; -1: unknown yet

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait for the rest of their message."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; return the messages that they complete. Raises CallError."""
        self._buffer += data
        found: list[bytes] = []
        while True:
            if self._length < 0:
                if len(self._buffer) < _HEAD.size:
                    return found
                self._length = _HEAD.size + self._check_length()
            if len(self._buffer) < self._length:
                return found
            message = bytes(memoryview(self._buffer)[_HEAD.size : self._length])
            is_compressed = self._buffer[0] == 1
            del self._buffer[: self._length]
            self._length = -1
            found.append(
                inflate(message, self._encoding, self._message_bytes_max) if is_compressed else message
            )

    def check_ended(self) -> None:
        """Raise CallError when the peer has ended the call in the middle of a message."""
        if self._buffer:
            raise CallError(GrpcStatus.INTERNAL, "the request ends in the middle of a message")

    def _check_length(self) -> int:
        compressed, length = _HEAD.unpack_from(self._buffer)
        if compressed > 1:
            raise CallError(
                GrpcStatus.INTERNAL, f"the compressed flag of a message is {compressed}, not 0 or 1"
            )
        if compressed and self._encoding not in _WINDOW_BITS:
            raise CallError(
                GrpcStatus.UNIMPLEMENTED,
                f"grpc-encoding {self._encoding[:32]!r} is not supported: {ACCEPTED_ENCODINGS} are",
            )
        if length > self._message_bytes_max:
            raise _too_large(length, self._message_bytes_max)
        return int(length)


def inflate(data: bytes, encoding: str, bytes_max: int) -> bytes:
    """The message that was compressed as `encoding`, gzip or deflate, says. Raises CallError for one of more than `bytes_max` bytes."""
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        message = inflater.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise CallError(GrpcStatus.INTERNAL, f"a compressed message is no {encoding}: {error}") from error
    if len(message) > bytes_max:
        raise _too_large(len(message), bytes_max)
    if not inflater.eof:
        raise CallError(GrpcStatus.INTERNAL, "a compressed message is not complete")
    return message


def _too_large(length: int, bytes_max: int) -> CallError:
    return CallError(
        GrpcStatus.RESOURCE_EXHAUSTED,
        f"a request message has {length} bytes, at most {bytes_max} are allowed",
    )
