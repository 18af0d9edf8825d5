"""`--format` of `aerobee consume`: write messages in a format that the user gives.

The format is kcat's: `%t` topic, `%p` queue id, `%o` offset, `%k` keys, `%s` body, `%S` body size in bytes, `%T` store time
(ms since the epoch), `%h` properties; in addition: `%b` broker, `%g` tag, `%i` message id, `%r` earlier deliveries,
`%{name}` one property; `%%` a percent sign; `\\n`, `\\t`, `\\0`, `\\\\`, `\\xHH`. Nothing is added.

Bodies are untrusted bytes: a terminal shows control characters as `\\x1b`, files and pipes get the bytes unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from aerobee.client import ReceivedMessage
from aerobee.errors import UsageError

Part = Callable[[ReceivedMessage], bytes]

_TOKEN = re.compile(r"%\{([^}]*)\}|%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([%\\])\Z", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "a": b"\a"}
_FIELDS: dict[str, Part] = {
    "t": lambda message: message.topic.encode(),
    "b": lambda message: message.queue.broker_name.encode(),
    "p": lambda message: b"%d" % message.queue.queue_id,
    "o": lambda message: b"%d" % message.queue_offset,
    "k": lambda message: " ".join(message.keys).encode(),
    "g": lambda message: (message.tag or "").encode(),
    "s": lambda message: message.body,
    "S": lambda message: b"%d" % len(message.body),
    "T": lambda message: b"%d" % message.store_timestamp,
    "i": lambda message: message.message_id.encode(),
    "r": lambda message: b"%d" % message.reconsume_times,
    "h": lambda message: ",".join(f"{name}={value}" for name, value in message.properties.items()).encode(),
}


def parse_format(text: str) -> Callable[[ReceivedMessage], bytes]:
    """Return the function that formats one message. Raises UsageError that names an unknown part."""
    parts: list[bytes | Part] = []
    end = 0
    for token in _TOKEN.finditer(text):
        parts.append(text[end : token.start()].encode(errors="surrogateescape"))
        parts.append(_part(token))
        end = token.end()
    parts.append(text[end:].encode(errors="surrogateescape"))
    pieces = [part for part in parts if part]

    def write(message: ReceivedMessage) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(message) for piece in pieces)

    return write


def _part(token: re.Match[str]) -> bytes | Part:
    name, field, code, escape, _ = token.groups()
    if name is not None:
        return lambda message: message.properties.get(name, "").encode()
    if field == "%":
        return b"%"
    if field is not None and field in _FIELDS:
        return _FIELDS[field]
    if code is not None:
        return bytes.fromhex(code)
    if escape is not None and escape in _ESCAPES:
        return _ESCAPES[escape]
    raise UsageError(
        f"--format: {token[0]!r} is unknown; known are "
        f"{' '.join('%' + each for each in _FIELDS)} %{{name}} %% and \\n \\t \\r \\0 \\a \\\\ \\xHH"
    )
