"""The JSON header: decodes the dialects of all clients, and encodes what all of them read.

Source: RemotingCommand and RemotingSerializable (RocketMQ). Keys in alphabetical order, as fastjson writes them:

    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"remark":"…",
     "serializeTypeCurrentRPC":"JSON","version":513}

Values of extFields are always written as text: C++ drops others and Go refuses them. On reading they may be numbers
or booleans (C++), and become text here.
"""

from __future__ import annotations

from typing import Any

import orjson

from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.codes import LanguageCode
from aerobee.remoting.command import FALSE_TEXT, TRUE_TEXT, RemotingCommand, SerializeType

LANGUAGE_NAMES: dict[int, str] = {code.value: code.name for code in LanguageCode}
LANGUAGE_NUMBERS: dict[object, int] = {code.name: code.value for code in LanguageCode}
_OTHER = LanguageCode.OTHER.value
_JSON = SerializeType.JSON.value
_ONLY_TEXT = frozenset((str,))
FIELDS_MAX = 1_024  # of extFields; the longest request of RocketMQ 5.5.0 has 25
# Maximum size of a header that remains no JSON after mend_text(): Python parses it, up to a microsecond a
# byte, for any connected peer.
DIALECT_BYTES_MAX = 8 * 1024


def encode_json_header(command: RemotingCommand) -> bytes:
    """Return the header's bytes. Text that is not UTF-8 (lone surrogates) is written with replacements."""
    fields: dict[str, Any] = {"code": command.code}
    if command.ext is not None:
        fields["extFields"] = command.ext
    fields["flag"] = command.flag
    fields["language"] = LANGUAGE_NAMES.get(command.language, "OTHER")
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    try:
        return orjson.dumps(fields)
    except TypeError:
        return fastjson.dumps(fields)


def decode_json_header(header: bytes | bytearray | memoryview, body: bytes) -> RemotingCommand:
    """Build the command. Raises MalformedFrame."""
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError:
        fields = _loads_mended(bytes(header))
    if type(fields) is not dict:
        raise MalformedFrame("a JSON header is not an object")
    ext = fields.get("extFields")
    if ext is not None:
        if type(ext) is not dict:
            raise MalformedFrame("extFields of a JSON header is not an object")
        if len(ext) > FIELDS_MAX:
            raise MalformedFrame(f"a JSON header has {len(ext)} fields, at most {FIELDS_MAX} are read")
        if not _ONLY_TEXT.issuperset(map(type, ext.values())):
            ext = {name: _as_text(value) for name, value in ext.items() if value is not None}
    remark = fields.get("remark")
    if remark is not None and type(remark) is not str:
        remark = _as_text(remark)
    language = fields.get("language")
    return RemotingCommand(
        _int32(fields, "code"),
        ext,
        body,
        remark,
        _int32(fields, "opaque"),
        _int32(fields, "flag"),
        _int32(fields, "version"),
        LANGUAGE_NUMBERS.get(language, _OTHER) if type(language) is str else _language(language),
        _JSON,
    )


def _loads_mended(header: bytes) -> Any:
    """A header that orjson refuses: mostly text that is not UTF-8, or with control characters, of C++ and Go."""
    try:
        return orjson.loads(fastjson.mend_text(header))
    except orjson.JSONDecodeError:
        return fastjson.loads(header, DIALECT_BYTES_MAX)


def _int32(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if type(value) is int and -0x80000000 <= value <= 0x7FFFFFFF:
        return value
    if isinstance(value, str) and len(value) <= 11 and value.isascii() and value.removeprefix("-").isdigit():
        return _int32({name: int(value)}, name)
    raise MalformedFrame(f"{name} of a JSON header is {str(value)[:40]!r}, must be a 32-bit integer")


def _language(value: object) -> int:
    """Read an ordinal; unknown values become OTHER."""
    return value if type(value) is int and value in LANGUAGE_NAMES else _OTHER


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return TRUE_TEXT if value else FALSE_TEXT
    if isinstance(value, int):
        return str(value)
    if fastjson.is_nested_deeper(value):
        raise MalformedFrame(f"a field of a JSON header is nested deeper than {fastjson.DEPTH_MAX}")
    return fastjson.dumps(value).decode()
