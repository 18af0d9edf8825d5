"""The rows of the source: Spark's types, Arrow's types, and record batches from laid-out columns.

key string            KEYS: the keys, a blank between two; null without
value binary          the body, decompressed
topic string          where it was read; a retry or dead-letter topic is itself
tags string           the tag; null without
broker string, queue_id int, queue_offset bigint
born_ts timestamp     when its producer made it; store_ts timestamp: when its broker stored it; milliseconds
msg_id string         the producer's id, or the offset message id when it gave none
reconsume_times int   how often it was handed out before
properties map<string, string>   with includeProperties=true
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from aerobee.errors import ConfigError
from aerobee.message import MessageQueue
from aerobee.spark.rows import LAID_OUT, LaidOut

SPARK_TYPES = {
    "key": "string",
    "value": "binary",
    "topic": "string",
    "tags": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "born_ts": "timestamp",
    "store_ts": "timestamp",
    "msg_id": "string",
    "reconsume_times": "int",
    "properties": "map<string,string>",
}
_TIME = pa.timestamp("us", tz="UTC")
_ARROW_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": _TIME,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def schema_text(*, include_properties: bool) -> str:
    """The schema as Spark's DDL."""
    return ", ".join(
        f"{name} {kind}" for name, kind in SPARK_TYPES.items() if name != "properties" or include_properties
    )


def checked_columns(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The wanted columns of (name, Spark's simple type). Raises ConfigError for one that the source does not have."""
    for name, kind in fields:
        if SPARK_TYPES.get(name) != kind:
            known = (
                f"it is {SPARK_TYPES[name]}" if name in SPARK_TYPES else f"there are {', '.join(SPARK_TYPES)}"
            )
            raise ConfigError(f"schema: column {name} {kind}: {known}")
    return tuple(name for name, _ in fields)


class BatchMaker:
    """Makes record batches of one queue's rows."""

    def __init__(self, queue: MessageQueue, columns: Sequence[str]) -> None:
        self._columns = columns
        self._schema = pa.schema([(name, _ARROW_TYPES[SPARK_TYPES[name]]) for name in columns])
        self._constant = {
            "topic": pa.scalar(queue.topic),
            "broker": pa.scalar(queue.broker_name),
            "queue_id": pa.scalar(queue.queue_id, pa.int32()),
        }

    def make(self, laid_out: LaidOut) -> Any:
        """A pyarrow.RecordBatch over the buffers, which are not copied."""
        count = laid_out.count
        arrays = []
        for name, kind in zip(self._columns, self._schema.types, strict=True):
            if name in self._constant:
                arrays.append(pa.repeat(self._constant[name], count))
            elif name == "properties":
                offsets, names, values = laid_out.columns[name]
                pair_count = len(names[0]) // 4 - 1
                pairs = pa.StructArray.from_arrays(
                    [_variable(pa.string(), pair_count, names), _variable(pa.string(), pair_count, values)],
                    fields=[kind.key_field, kind.item_field],
                )
                arrays.append(
                    pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets)], children=[pairs])
                )
            elif name in LAID_OUT[:4]:
                arrays.append(_variable(kind, count, laid_out.columns[name]))
            else:
                arrays.append(
                    pa.Array.from_buffers(kind, count, [None, pa.py_buffer(laid_out.columns[name])])
                )
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _variable(kind: Any, count: int, column: tuple[bytes, bytes, bytes | None]) -> Any:
    offsets, data, validity = column
    buffers = [
        None if validity is None else pa.py_buffer(validity),
        pa.py_buffer(offsets),
        pa.py_buffer(data),
    ]
    return pa.Array.from_buffers(kind, count, buffers)
