"""Avro records by fastavro, without a container: the body is one datum of a schema that both sides know."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from aerobee.client.serialize.avro_schema import AvroNames
from aerobee.client.serialize.serializer import Serialized, package
from aerobee.errors import UsageError
from aerobee.words import plural

Schema = Mapping[str, Any] | list[Any] | str


class Avro:
    """Values of one schema. `written_by`: the schema of the producers where it differs from `schema`, which the values
    then get by Avro's rules of resolution. Needs the extra avro.
    """

    def __init__(self, schema: Schema, *, written_by: Schema | None = None) -> None:
        self._fastavro = package("fastavro")
        try:
            self._schema = self._fastavro.parse_schema(schema)
            self._written_by = self._schema if written_by is None else self._fastavro.parse_schema(written_by)
        except Exception as error:  # fastavro's own types, KeyError for an unknown name
            raise UsageError(f"the Avro schema is wrong: {error!r}") from error
        names = AvroNames(self._schema, self._written_by)
        if names.has_empty_items(self._written_by):
            raise UsageError(
                "the Avro schema has an array whose items take no bytes: a body could claim any number of them"
            )
        # The compiled reader follows nested values on the C stack, without a limit; this one ends with RecursionError.
        is_recursive = names.is_recursive(self._written_by)
        self._read = package("fastavro._read_py" if is_recursive else "fastavro").schemaless_reader

    def serialize(self, value: Any) -> Serialized:
        """The value by `schema`. Raises what fastavro raises for a value that the schema does not take."""
        out = io.BytesIO()
        self._fastavro.schemaless_writer(out, self._schema, value, strict=True)
        return Serialized(out.getvalue())

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Any:
        """The value. Raises what fastavro raises, RecursionError for values nested too deeply, and ValueError for bytes
        after the datum."""
        source = io.BytesIO(body)
        value = self._read(source, self._written_by, self._schema)
        if left := len(body) - source.tell():
            raise ValueError(f"the body has {plural(left, 'byte')} after the datum: another schema wrote it")
        return value
