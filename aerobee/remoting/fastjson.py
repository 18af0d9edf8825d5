"""JSON as RocketMQ's fastjson writes it, which is often not JSON.

Two things differ: integer keys are bare, `{0:"10.0.0.1:10911"}`, and an object may be a key,
`{{"brokerName":"b","queueId":0,"topic":"t"}:123}`. loads() reads both (and standard JSON, through orjson first),
dumps() writes both. Source: fastjson 1.2.83 and fastjson2 2.0.59 as RocketMQ uses them.

Keys of a mapping that loads() returns are always text: a bare integer as its digits, an object as its own compact
JSON text, which queue_of_key() in body/message_queue.py reads back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue

DEPTH_MAX = 64  # maximum nesting (known peers nest up to 8); bounds the recursion of the reader
# Of what is not standard JSON, unless the caller says that it trusts the writer: all known clients write standard JSON in requests.
REQUEST_DIALECT_BYTES_MAX = 32 * 1024
TRUSTED_BYTES_MAX = 16 * 1024 * 1024  # of answers and files; no body is longer than a frame

_BLANKS = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?![0-9])(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_PLAIN_TEXT = re.compile(r'[^"\\]*')
_BARE_KEY = re.compile(r"-?[0-9]{1,19}(?=[ \t\r\n]*:)|[A-Za-z_$][A-Za-z0-9_$]*(?=[ \t\r\n]*:)")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "'": "'"}
_WORDS = {"true": True, "false": False, "null": None}
_DUMP_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS
_ESCAPED_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x20) if chr(code) not in "\t\n\r"}
_LINE_BEGIN = re.compile(
    rb'^( +)(?:("(?:[^"\\]|\\.)*"): )?', re.MULTILINE
)  # of orjson's lines: two blanks a level, a key


def loads(data: bytes | bytearray | memoryview, dialect_bytes_max: int = REQUEST_DIALECT_BYTES_MAX) -> Any:
    """Parse one value. Raises MalformedFrame for anything that is neither JSON nor fastjson's dialect of it.

    Above `dialect_bytes_max` standard JSON only: the dialect is read in Python, about a microsecond for each byte.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass  # not standard JSON: bare keys, control characters, lone surrogates, or broken
    if len(data) > dialect_bytes_max:
        raise MalformedFrame(
            f"{len(data)} bytes that are not standard JSON, at most {dialect_bytes_max} are read"
        )
    return _Reader(bytes(data).decode("utf-8", "replace")).document()


def loads_object(
    data: bytes | bytearray | memoryview, what: str, dialect_bytes_max: int = REQUEST_DIALECT_BYTES_MAX
) -> dict[str, Any]:
    """Parse an object as loads() does; `what` names it in the error. Raises MalformedFrame."""
    value = loads(data, dialect_bytes_max)
    if not isinstance(value, dict):
        raise MalformedFrame(f"{what} is not a JSON object: {bytes(data[:80])!r}")
    return value


def loads_trusted(data: bytes | bytearray | memoryview, what: str) -> dict[str, Any]:
    """As loads_object(), for answers of servers and for files: the dialect may be as long as a frame."""
    return loads_object(data, what, TRUSTED_BYTES_MAX)


def mend_text(data: bytes) -> str:
    """Replace invalid UTF-8, as loads() does, and escape control characters except those that JSON allows
    between tokens. Runs at the speed of C; a text whose only faults were these becomes standard JSON.
    """
    return data.decode("utf-8", "replace").translate(_ESCAPED_CONTROLS)


def is_nested_deeper(value: object, depth_max: int = DEPTH_MAX) -> bool:
    """Whether lists and mappings are nested deeper than so many: orjson reads 1,024, and dumps() is recursive."""
    level = _containers((value,))
    for _ in range(depth_max):
        level = [
            item
            for each in level
            for item in _containers(each.values() if isinstance(each, Mapping) else each)
        ]
        if not level:
            return False
    return True


def _containers(values: Iterable[object]) -> list[Mapping[Any, Any] | list[Any]]:
    return [value for value in values if isinstance(value, Mapping | list)]


def dumps(value: Any) -> bytes:
    """Write compactly; keys may be text, integers (written bare) or MessageQueues (written as objects).

    Keys keep the mapping's order. Raises TypeError for values that JSON has no form for.
    """
    try:
        return orjson.dumps(value, option=_DUMP_OPTIONS)
    except TypeError:
        pass  # a key that is not text, or text that is not UTF-8
    return _dumps_by_hand(value)


def dumps_pretty(value: Any) -> bytes:
    """Write with line breaks and tabs, as RocketMQ's configuration files are written."""
    try:
        text = orjson.dumps(value, option=_DUMP_OPTIONS | orjson.OPT_INDENT_2)
    except TypeError:
        return _dumps_indented(value, "\n").encode()
    return _LINE_BEGIN.sub(_with_tabs, text)


def _with_tabs(found: re.Match[bytes]) -> bytes:
    blanks, key = found.groups()
    tabs = b"\t" * (len(blanks) // 2)
    return tabs if key is None else b"%b%b:" % (tabs, key)


def _dumps_by_hand(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return b"{" + b",".join(_key(key) + b":" + dumps(item) for key, item in value.items()) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(dumps, value)) + b"]"
    if isinstance(value, str):
        return orjson.dumps(value.encode("utf-8", "replace").decode())
    if isinstance(value, MessageQueue):
        return _key(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _key(key: object) -> bytes:
    if isinstance(key, str):
        return dumps(key)
    if isinstance(key, int):
        return b"%d" % key
    if isinstance(key, MessageQueue):
        return dumps({"brokerName": key.broker_name, "queueId": key.queue_id, "topic": key.topic})
    raise TypeError(f"{type(key).__name__} cannot be a key of a map")


def _dumps_indented(value: Any, line_break: str) -> str:
    deeper = line_break + "\t"
    if isinstance(value, Mapping) and value:
        items = (f"{_key(key).decode()}:{_dumps_indented(item, deeper)}" for key, item in value.items())
        return "{" + deeper + ("," + deeper).join(items) + line_break + "}"
    if isinstance(value, list | tuple) and value:
        return (
            "[" + deeper + ("," + deeper).join(_dumps_indented(v, deeper) for v in value) + line_break + "]"
        )
    return dumps(value).decode()


class _Reader:
    """A recursive reader of the dialect. Used only where orjson refused, so it is plain rather than fast."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._in_key = False

    def document(self) -> Any:
        value = self._value(0)
        self._skip_blanks()
        if self._at != len(self._text):
            raise self._error("something follows the value")
        return value

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"nested deeper than {DEPTH_MAX}")
        self._skip_blanks()
        first = self._text[self._at : self._at + 1]
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first == '"':
            return self._string()
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            raise self._error("no value")
        self._at = match.end()
        return float(match[0]) if match[1] or match[2] else int(match[0])

    def _object(self, depth: int) -> dict[str, Any]:
        self._at += 1
        found: dict[str, Any] = {}
        if self._take("}"):
            return found
        while True:
            key = self._object_key(depth)
            if not self._take(":"):
                raise self._error("no colon after a key")
            found[key] = self._value(depth + 1)
            if self._take("}"):
                return found
            if not self._take(","):
                raise self._error("neither comma nor closing brace")

    def _object_key(self, depth: int) -> str:
        self._skip_blanks()
        first = self._text[self._at : self._at + 1]
        if first == '"':
            return self._string()
        if first == "{":
            # As text it is escaped: a key inside a key would be twice as long at each level.
            if self._in_key:
                raise self._error("an object as a key inside a key")
            self._in_key = True
            key = dumps(self._value(depth + 1)).decode()
            self._in_key = False
            return key
        match = _BARE_KEY.match(self._text, self._at)
        if match is None:
            raise self._error("no key")
        self._at = match.end()
        return match[0]

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        if self._take("]"):
            return found
        while True:
            found.append(self._value(depth + 1))
            if self._take("]"):
                return found
            if not self._take(","):
                raise self._error("neither comma nor closing bracket")

    def _string(self) -> str:
        self._at += 1
        pieces: list[str] = []
        while True:
            plain = _PLAIN_TEXT.match(self._text, self._at)
            if plain is not None:
                pieces.append(plain[0])
                self._at = plain.end()
            quote = self._text[self._at : self._at + 1]
            if quote == '"':
                self._at += 1
                # Pairs of surrogates join, single ones become U+FFFD: every text can be encoded again.
                return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if not quote:
                raise self._error("a text does not end")
            pieces.append(self._escape())

    def _escape(self) -> str:
        escape = self._text[self._at + 1 : self._at + 2]
        if escape == "u":
            digits = self._text[self._at + 2 : self._at + 6]
            if not _HEX4.fullmatch(digits):
                raise self._error("a broken \\u escape")
            self._at += 6
            return chr(int(digits, 16))
        if escape not in _ESCAPES or not escape:
            raise self._error("an unknown escape")
        self._at += 2
        return _ESCAPES[escape]

    def _take(self, token: str) -> bool:
        self._skip_blanks()
        if self._text.startswith(token, self._at):
            self._at += 1
            return True
        return False

    def _skip_blanks(self) -> None:
        match = _BLANKS.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _error(self, what: str) -> MalformedFrame:
        near = self._text[self._at : self._at + 20]
        return MalformedFrame(f"not JSON, {what} at character {self._at}, near {near!r}")
