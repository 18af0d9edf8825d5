"""JSON by orjson: dicts, lists, text, numbers, dataclasses, datetimes, UUIDs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from aerobee.client.serialize.serializer import Serialized


class Json:
    """Any JSON value. `default`: makes a JSON value of other types, as for orjson.dumps."""

    def __init__(self, default: Callable[[Any], Any] | None = None) -> None:
        self._default = default

    def serialize(self, value: Any) -> Serialized:
        """The value as UTF-8. Raises orjson.JSONEncodeError."""
        return Serialized(orjson.dumps(value, self._default))

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Any:
        """Dicts, lists, text, numbers, booleans, None. Raises orjson.JSONDecodeError."""
        return orjson.loads(body)
