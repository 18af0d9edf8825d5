"""Messages of Protocol Buffers: the body is one message of a generated class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerobee.client.serialize.serializer import Serialized, package
from aerobee.errors import UsageError


class Protobuf:
    """Messages of one generated class. Needs the extra protobuf."""

    def __init__(self, kind: Any) -> None:
        package("google.protobuf")
        if not hasattr(kind, "FromString"):
            raise UsageError(f"{kind!r} is no generated class of Protocol Buffers")
        self._kind = kind

    def serialize(self, value: Any) -> Serialized:
        """The message as bytes. Raises TypeError for another class, EncodeError for missing required fields."""
        if not isinstance(value, self._kind):
            raise TypeError(f"it is no {self._kind.__name__}")
        return Serialized(value.SerializeToString())

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Any:
        """A message of the class. Raises google.protobuf.message.DecodeError."""
        return self._kind.FromString(body)
