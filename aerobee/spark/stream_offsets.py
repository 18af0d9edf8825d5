"""Offsets of a stream as its checkpoint has them: the table of offsets.py, with the begin of the first micro-batch. Core.

    {"orders": {"broker-a:0": 23}, "@begin": {"orders": {"broker-a:0": 7}}}

Spark keeps where a micro-batch ends, and takes the end of the one before for its begin. The first has none before: a
query that was killed in it calls initialOffset() again, when "latest" is another offset, and "earliest" too after an
expiration. So the end of the first non-empty micro-batch contains its begin; until then "@new" marks that nothing was
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerobee.errors import ConfigError
from aerobee.spark.offsets import Offsets, from_table, to_table

CHECKPOINT = "the checkpoint"
BEGIN = "@begin"  # no topic's name contains @
NEW = "@new"


def initial_table(offsets: Offsets) -> dict[str, Any]:
    """Start offsets of a new query."""
    return {**to_table(offsets), NEW: {}}


def offsets_of(table: Mapping[str, Any]) -> Offsets:
    """The offsets of a begin or an end. Raises ConfigError for what no checkpoint of this source holds."""
    plain = {name: queues for name, queues in table.items() if name not in (BEGIN, NEW)}
    return from_table(plain, what=CHECKPOINT)


def next_table(start: dict[str, Any], ends: Offsets) -> dict[str, Any]:
    """The end of a micro-batch that begins at `start`: that very table when there is nothing to read."""
    if offsets_of(start) == ends:
        return start
    table: dict[str, Any] = dict(to_table(ends))
    if NEW in start:
        table[BEGIN] = {name: queues for name, queues in start.items() if name != NEW}
    return table


def begin_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> Offsets:
    """The begin of the micro-batch that ends at `end`, also if `start` was recreated after a failure. Raises ConfigError."""
    if NEW in end:
        return offsets_of(end)
    if BEGIN not in end:
        return offsets_of(start)
    begin = end[BEGIN]
    if not isinstance(begin, Mapping):
        raise ConfigError(f"{CHECKPOINT}: {BEGIN} is {begin!r:.100}, not an object by topic")
    return offsets_of(begin)
