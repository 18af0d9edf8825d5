"""The binary header, serialize type ROCKETMQ. Source: RocketMQSerializable. Big-endian:

    int16 code | uint8 language | int16 version | int32 opaque | int32 flag
    | int32 remark_length, remark | int32 ext_length, entries
    entry = int16 name_length, name | int32 value_length, value

Empty text and absent text are the same: an empty remark is None, an entry with an empty value is not written. The code
has 16 bits, so the codes of pop (200050 …) do not fit and need JSON headers.
"""

from __future__ import annotations

import struct

from aerobee.errors import MalformedFrame, UsageError
from aerobee.remoting.codes import request_name
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.json_header import FIELDS_MAX, LANGUAGE_NAMES

_FIXED = struct.Struct(">hBhiii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_OTHER = 7
_BINARY = SerializeType.ROCKETMQ.value
CODE_MAX = 0x7FFF
NAME_BYTES_MAX = 0x7FFF


def encode_binary_header(command: RemotingCommand) -> bytes:
    """Return the header's bytes. Raises UsageError for a command that this layout cannot represent."""
    if not -CODE_MAX - 1 <= command.code <= CODE_MAX:
        raise UsageError(f"{request_name(command.code)} does not fit a binary header: use JSON headers")
    remark = (command.remark or "").encode("utf-8", "replace")
    pieces: list[bytes] = []
    for name, value in (command.ext or {}).items():
        name_bytes = name.encode("utf-8", "replace")
        value_bytes = value.encode("utf-8", "replace")
        if not name_bytes or not value_bytes:
            continue
        if len(name_bytes) > NAME_BYTES_MAX:
            raise UsageError(
                f"the name of a header field has {len(name_bytes)} bytes, at most {NAME_BYTES_MAX}"
            )
        pieces += (
            _INT16.pack(len(name_bytes)),
            name_bytes,
            _INT32.pack(len(value_bytes)),
            value_bytes,
        )
    entries = b"".join(pieces)
    fixed = _FIXED.pack(
        command.code,
        command.language & 0xFF,
        (command.version & 0xFFFF ^ 0x8000) - 0x8000,  # its lower 16 bits, signed, as Java writes a short
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((fixed, remark, _INT32.pack(len(entries)), entries))


def decode_binary_header(header: bytes | bytearray | memoryview, body: bytes) -> RemotingCommand:
    """Build the command. Raises MalformedFrame."""
    data = bytes(header)
    if len(data) < _FIXED.size + _INT32.size:
        raise MalformedFrame(f"a binary header has {len(data)} bytes, at least 21 are needed")
    code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(data)
    remark, at = _text(data, _FIXED.size, remark_length, "remark")
    if at + _INT32.size > len(data):
        raise MalformedFrame("a binary header ends before the length of its fields")
    (ext_length,) = _INT32.unpack_from(data, at)
    at += _INT32.size
    end = at + ext_length
    if ext_length < 0 or end > len(data):
        raise MalformedFrame(
            f"the fields of a binary header claim {ext_length} bytes, {len(data) - at} are there"
        )
    ext: dict[str, str] | None = {} if ext_length else None
    while ext is not None and at < end:
        if at + _INT16.size > end:
            raise MalformedFrame("a binary header ends inside the length of a name")
        (length,) = _INT16.unpack_from(data, at)
        name, at = _text(data, at + _INT16.size, length, "name", end)
        if at + _INT32.size > end:
            raise MalformedFrame("a binary header ends inside the length of a value")
        (length,) = _INT32.unpack_from(data, at)
        value, at = _text(data, at + _INT32.size, length, "value", end)
        if name and value:
            ext[name] = value
            if len(ext) > FIELDS_MAX:
                raise MalformedFrame(f"a binary header has more than {FIELDS_MAX} fields")
    return RemotingCommand(
        code,
        ext,
        body,
        remark or None,
        opaque,
        flag,
        version,
        language if language in LANGUAGE_NAMES else _OTHER,
        _BINARY,
    )


def _text(data: bytes, at: int, length: int, what: str, end: int | None = None) -> tuple[str, int]:
    """Return a text and the position behind it."""
    limit = len(data) if end is None else end
    if length < 0 or at + length > limit:
        raise MalformedFrame(f"a {what} in a binary header claims {length} bytes, {limit - at} are there")
    return data[at : at + length].decode("utf-8", "replace"), at + length
