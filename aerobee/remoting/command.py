"""One request or response of the remoting protocol, whichever header type carried it.

Source: RemotingCommand (RocketMQ). `ext` holds what RocketMQ calls the custom header, flattened to text; None means
that the header had no `extFields` key, {} that it had an empty object: Java peers tell these apart when they write.
An empty body and an absent one are the same on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from aerobee.errors import MalformedFrame
from aerobee.remoting.codes import LanguageCode, request_name

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
REMARK_CHARS_MAX = 8_192  # of a response
VERSION = 513  # MQVersion ordinal of 5.5.0, the release whose behaviour Aerobee implements
TRUE_TEXT = "true"
FALSE_TEXT = "false"


class SerializeType(IntEnum):
    """Type of the header; the first byte of the frame's second word."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class RemotingCommand:
    """A request (flag bit 0 clear) or a response (set).

    `opaque` is the correlation id: a response repeats its request's; Connection.invoke assigns it to
    requests. `language` is a LanguageCode number, `version` the sender's MQVersion ordinal.
    """

    code: int
    ext: dict[str, str] | None = None
    body: bytes = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    version: int = VERSION
    language: int = LanguageCode.PYTHON.value
    serialize_type: int = SerializeType.JSON.value

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no reply, not even an error."""
        return self.flag & FLAG_ONEWAY != 0

    def reply(
        self,
        code: int = 0,
        *,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Return the response to this request: same opaque, header in the type of the request. A remark that quotes a
        long request is cut at REMARK_CHARS_MAX."""
        if remark is not None and len(remark) > REMARK_CHARS_MAX:
            remark = f"{remark[:REMARK_CHARS_MAX]}… ({len(remark)} characters)"
        return RemotingCommand(
            code, ext, body, remark, self.opaque, FLAG_RESPONSE, serialize_type=self.serialize_type
        )

    # Typed reads of ext. A missing or invalid field raises MalformedFrame, whose text names the field; raised
    # inside a handler it becomes a reply with code 1, as RocketMQ's RemotingCommandException does.

    def field(self, name: str) -> str | None:
        """Return the text of a field, None when it is absent."""
        return None if self.ext is None else self.ext.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """Return the text of a field. Raises MalformedFrame when it is absent and has no default."""
        value = None if self.ext is None else self.ext.get(name)
        if value is not None:
            return value
        if default is not None:
            return default
        raise MalformedFrame(f"the custom header field <{name}> of {self._name()} is missing")

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a field as a 64-bit integer; an empty text counts as absent. Raises MalformedFrame."""
        value = None if self.ext is None else self.ext.get(name)
        if not value:
            if default is not None:
                return default
            raise MalformedFrame(f"the custom header field <{name}> of {self._name()} is missing")
        if len(value) < 19 and value.isdigit() and value.isascii():  # nearly all: in range without a check
            return int(value)
        # int() alone would take "1_000", " 1" and digits of other scripts, and run long on a long text.
        if len(value) <= 20 and value.isascii() and value.removeprefix("-").isdigit():
            number = int(value)
            if -(1 << 63) <= number < 1 << 63:
                return number
        raise MalformedFrame(
            f"the custom header field <{name}> of {self._name()} is {value[:40]!r}, not a 64-bit integer"
        )

    def int32(self, name: str, default: int | None = None) -> int:
        """As integer(), for a field that RocketMQ reads or stores in 32 bits."""
        value = None if self.ext is None else self.ext.get(name)
        if value and len(value) < 10 and value.isdigit() and value.isascii():
            return int(value)
        number = self.integer(name, default)
        if -(1 << 31) <= number < 1 << 31:
            return number
        raise MalformedFrame(
            f"the custom header field <{name}> of {self._name()} is {number}, not a 32-bit integer"
        )

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """Return a field as a boolean, "true" and "1" (C++) being true. Raises MalformedFrame when absent."""
        value = None if self.ext is None else self.ext.get(name)
        if not value:
            if default is not None:
                return default
            raise MalformedFrame(f"the custom header field <{name}> of {self._name()} is missing")
        return value == "1" or value.lower() == TRUE_TEXT

    def _name(self) -> str:
        return f"response {self.code}" if self.is_response else request_name(self.code)


def boolean_text(value: bool) -> str:
    """Return the text of a boolean in ext fields."""
    return TRUE_TEXT if value else FALSE_TEXT
