"""Frames: decodes a byte stream into commands, and encodes commands as bytes. No I/O.

Big-endian layout, source RemotingCommand.encode and NettyDecoder (RocketMQ):

    int32 length | uint8 serialize_type | uint24 header_length | header | body

`length` counts every byte after itself. The limit holds for the whole frame, length word included.
"""

from __future__ import annotations

import struct

from aerobee.errors import FrameTooLarge, MalformedFrame
from aerobee.remoting.binary_header import decode_binary_header, encode_binary_header
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.json_header import decode_json_header, encode_json_header

FRAME_BYTES_MAX = 16 * 1024 * 1024  # com.rocketmq.remoting.frameMaxLength of Java peers
# Of a request. Properties of 32,767 bytes, the longest that RocketMQ stores, have six times as many as JSON escapes. The header is
# parsed before a signature is verified, so its length bounds what an unauthenticated peer can make a server parse.
HEADER_BYTES_MAX = 256 * 1024
# Of an answer, which only clients read: a batch's names each message by 33 characters.
ANSWER_HEADER_BYTES_MAX = 8 * 1024 * 1024
LENGTH_BYTES = 4
PREFIX_BYTES = 8
PREFIX = struct.Struct(">II")  # length of the frame behind this word; serialize type << 24 | header length
_LENGTH = struct.Struct(">I")
_JSON = SerializeType.JSON.value
_BINARY = SerializeType.ROCKETMQ.value
_EMPTY = b""


class FrameDecoder:
    """Cut a byte stream into frames. After a WireError the decoder is not reused.

    `buffer` from `position` on holds the bytes that are not used yet; the burst hook of a connection reads them there
    and moves `position`. A read that finds nothing buffered becomes the buffer itself, without a copy.
    """

    __slots__ = ("_frame_bytes_max", "_header_bytes_max", "buffer", "passed", "position")

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self.buffer: bytes | bytearray = _EMPTY
        self.position = 0
        self.passed = 0  # grows whenever bytes of whole frames are dropped: see beginning()

    @property
    def unused(self) -> int:
        """Number of buffered bytes."""
        return len(self.buffer) - self.position

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        if self.position == len(self.buffer):
            self.buffer = data
        elif type(self.buffer) is bytearray:
            self.passed += self.position > 0
            del self.buffer[: self.position]
            self.buffer += data
        else:
            # A frame is cut in two: from here until it is whole, bytes are appended in place.
            self.passed += self.position > 0
            buffer = bytearray(memoryview(self.buffer)[self.position :])
            buffer += data
            self.buffer = buffer
        self.position = 0

    def drop_used(self) -> None:
        """Drop the buffer: all bytes are used."""
        self.buffer, self.position = _EMPTY, 0
        self.passed += 1

    def beginning(self) -> tuple[int, int] | None:
        """A token of the incomplete frame, None without one. While it is equal, no frame was completed."""
        return (self.passed, self.position) if self.position < len(self.buffer) else None

    def announced_bytes(self) -> int:
        """Stated length of the incomplete frame; 0 before its length has come."""
        if self.unused < LENGTH_BYTES:
            return 0
        (length,) = _LENGTH.unpack_from(self.buffer, self.position)
        return int(length) + LENGTH_BYTES

    def next_frame(self) -> RemotingCommand | None:
        """Return the next whole frame, or None when more bytes are needed.

        Raises FrameTooLarge as soon as the frame's or the header's length is known, MalformedFrame for a bad header.
        """
        buffer, start = self.buffer, self.position
        available = len(buffer) - start
        if available < LENGTH_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(buffer, start)
        end = start + LENGTH_BYTES + length
        if length + LENGTH_BYTES > self._frame_bytes_max:
            raise FrameTooLarge(
                _too_large(bytes(buffer[start : start + LENGTH_BYTES]), self._frame_bytes_max)
            )
        if length < LENGTH_BYTES:
            raise MalformedFrame(f"a frame announces {length} bytes, its header's length alone has 4")
        if end > len(buffer):
            if available >= PREFIX_BYTES:
                self._check_header(buffer, start)
            return None
        self._check_header(buffer, start)
        command = _decode(buffer, start, end)
        if end == len(buffer):
            self.buffer, self.position = _EMPTY, 0
        else:
            self.position = end
        return command

    def _check_header(self, buffer: bytes | bytearray, start: int) -> None:
        (word,) = _LENGTH.unpack_from(buffer, start + LENGTH_BYTES)
        if (header_length := word & 0xFFFFFF) > self._header_bytes_max:
            raise FrameTooLarge(
                f"a header announces {header_length} bytes, at most {self._header_bytes_max} are accepted"
            )


def _too_large(first: bytes, frame_bytes_max: int) -> str:
    """The error for a too large frame. It recognizes TLS and text protocols by the first bytes."""
    if first.isascii() and first.decode("ascii").isprintable():
        return f"it begins with {first.decode()!r}, not with a frame of RocketMQ's remoting protocol"
    if first[:2] in (b"\x15\x03", b"\x16\x03"):  # an alert or a handshake of any TLS version
        return "it speaks TLS, and this connection does not"
    length = int.from_bytes(first, "big", signed=True)
    if length < 0:
        return f"a frame announces a length of {length} bytes, which no frame has"
    return f"a frame announces {length + LENGTH_BYTES} bytes, at most {frame_bytes_max} are accepted"


def encode_frame(command: RemotingCommand) -> bytes:
    """Return the whole frame, header in the command's serialize type.

    Raises UsageError when a binary header cannot represent the command, FrameTooLarge beyond the frame limit.
    """
    if command.serialize_type == _BINARY:
        header = encode_binary_header(command)
    else:
        header = encode_json_header(command)
    body = command.body
    length = LENGTH_BYTES + len(header) + len(body)
    if length + LENGTH_BYTES > FRAME_BYTES_MAX or len(header) > 0xFFFFFF:
        raise FrameTooLarge(
            f"a frame of {length + LENGTH_BYTES} bytes was to be sent, peers accept at most {FRAME_BYTES_MAX}"
        )
    prefix = PREFIX.pack(length, command.serialize_type << 24 | len(header))
    return b"".join((prefix, header, body)) if body else prefix + header


def decode_frame(frame: bytes) -> RemotingCommand:
    """Decode exactly one frame, length word included. Raises WireError."""
    decoder = FrameDecoder()
    decoder.feed(frame)
    command = decoder.next_frame()
    if command is None or decoder.unused:
        raise MalformedFrame(f"{len(frame)} bytes are not exactly one frame")
    return command


def _decode(buffer: bytes | bytearray, start: int, end: int) -> RemotingCommand:
    (word,) = _LENGTH.unpack_from(buffer, start + LENGTH_BYTES)
    serialize_type, header_length = word >> 24, word & 0xFFFFFF
    body_start = start + PREFIX_BYTES + header_length
    if body_start > end:
        raise MalformedFrame(
            f"a header claims {header_length} bytes, its frame has {end - start - PREFIX_BYTES}"
        )
    if type(buffer) is bytes:
        header: bytes | bytearray = buffer[start + PREFIX_BYTES : body_start]
        body = buffer[body_start:end]
    else:
        # bytes() of a bytearray slice would copy twice; the view is gone before the buffer grows again.
        with memoryview(buffer) as view:
            header = bytes(view[start + PREFIX_BYTES : body_start])
            body = bytes(view[body_start:end])
    if serialize_type == _JSON:
        return decode_json_header(header, body)
    if serialize_type == _BINARY:
        return decode_binary_header(header, body)
    raise MalformedFrame(f"serialize type {serialize_type} is unknown, 0 (JSON) and 1 (ROCKETMQ) are known")
