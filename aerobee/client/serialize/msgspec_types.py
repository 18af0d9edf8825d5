"""Types of msgspec (structs, dataclasses, typed dicts, unions) as JSON or MessagePack, checked when read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from aerobee.client.serialize.serializer import Serialized, package
from aerobee.errors import UsageError

Form = Literal["json", "msgpack"]


class Msgspec:
    """Values of one type. `form`: "json" or "msgpack". Needs the extra msgspec."""

    def __init__(self, kind: Any, *, form: Form = "json") -> None:
        if form not in ("json", "msgpack"):
            raise UsageError(f"form is {form!r}: it must be json or msgpack")
        package("msgspec")
        module = package("msgspec.json") if form == "json" else package("msgspec.msgpack")
        self._encode = module.Encoder().encode
        self._decode = module.Decoder(kind).decode

    def serialize(self, value: Any) -> Serialized:
        """The value as bytes. Raises TypeError for a type that msgspec does not know."""
        return Serialized(self._encode(value))

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Any:
        """A value of the type. Raises msgspec.ValidationError and msgspec.DecodeError."""
        return self._decode(body)
