"""Models and other types of pydantic as JSON, validated when read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerobee.client.serialize.serializer import Serialized, package


class Pydantic:
    """Values of one type: a model, or what a TypeAdapter takes. Needs the extra pydantic."""

    def __init__(self, kind: Any) -> None:
        self._adapter = package("pydantic").TypeAdapter(kind)

    def serialize(self, value: Any) -> Serialized:
        """The value as JSON. Raises pydantic.ValidationError for a value of another type."""
        return Serialized(self._adapter.dump_json(self._adapter.validate_python(value)))

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Any:
        """A validated value of the type. Raises pydantic.ValidationError."""
        return self._adapter.validate_json(body)
