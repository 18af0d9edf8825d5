"""What a reader must know of an Avro schema before it decodes bytes of another party. Core; takes schemas as fastavro parses them.

fastavro's compiled reader follows a recursive schema on the C stack: some thousand nested records, in as many bytes, end the
process. An array whose items take no bytes, such as nulls, may claim any number of items in ten bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NAMED = ("record", "error", "enum", "fixed")
_EMPTY_AT_MOST = {"null"}


class AvroNames:
    """The named types of a schema."""

    def __init__(self, *schemas: Any) -> None:
        self._types: dict[str, Mapping[str, Any]] = {}
        for schema in schemas:
            for each in _parts(schema):
                if isinstance(each, Mapping) and each.get("type") in _NAMED:
                    self._types[str(each["name"])] = each

    def is_recursive(self, schema: Any, inside: frozenset[str] = frozenset()) -> bool:
        """Whether a value may contain another one of the same type."""
        if isinstance(schema, str):
            if schema in inside:
                return True
            named = self._types.get(schema)
            return named is not None and self.is_recursive(named, inside)
        if isinstance(schema, Mapping) and schema.get("type") in ("record", "error"):
            name = str(schema["name"])
            if name in inside:
                return True
            inside = inside | {name}
        return any(self.is_recursive(each, inside) for each in _children(schema))

    def has_empty_items(self, schema: Any) -> bool:
        """Whether an array has items that may take no bytes."""
        return any(
            isinstance(each, Mapping)
            and each.get("type") == "array"
            and self._may_be_empty(each["items"], frozenset())
            for each in _parts(schema)
        )

    def _may_be_empty(self, schema: Any, inside: frozenset[str]) -> bool:
        """Whether a value may take no bytes. A union takes one for its branch; a recursive record ends in one."""
        if isinstance(schema, str):
            named = self._types.get(schema)
            if named is None:
                return schema in _EMPTY_AT_MOST
            return schema not in inside and self._may_be_empty(named, inside | {schema})
        if isinstance(schema, Mapping):
            kind = schema["type"]
            if kind in ("record", "error"):
                return all(self._may_be_empty(each["type"], inside) for each in schema["fields"])
            if kind == "fixed":
                return int(schema["size"]) == 0
            return kind not in ("array", "map", "enum") and self._may_be_empty(kind, inside)
        return False


def _children(schema: Any) -> Iterator[Any]:
    if isinstance(schema, list):
        yield from schema
    elif isinstance(schema, Mapping):
        kind = schema.get("type")
        if kind in ("record", "error"):
            yield from (each["type"] for each in schema["fields"])
        elif kind == "array":
            yield schema["items"]
        elif kind == "map":
            yield schema["values"]
        elif not isinstance(kind, str):
            yield kind


def _parts(schema: Any) -> Iterator[Any]:
    yield schema
    for each in _children(schema):
        yield from _parts(each)
