"""Offsets of a stream in its checkpoint: the table of offsets.py, with the begin of the first micro-batch. Core.

    {"orders": {"broker-a:0": 23}, "@begin": {"orders": {"broker-a:0": 7}}}

Spark stores the end of each micro-batch, and uses the end of the previous micro-batch as the begin of the
next. The first micro-batch has no predecessor: if a query is killed during it, Spark calls initialOffset()
again, and "latest" (after a deletion also "earliest") is then another offset. So the end of the first
non-empty micro-batch contains its begin; until then "@new" marks that nothing was read.
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
    """The offsets of a begin or an end. Raises ConfigError for a value that this source does not write into a
    checkpoint.
    """
    plain = {name: queues for name, queues in table.items() if name not in (BEGIN, NEW)}
    return from_table(plain, what=CHECKPOINT)


def next_table(start: dict[str, Any], ends: Offsets) -> dict[str, Any]:
    """The end of a micro-batch that begins at `start`; `start` itself when there is nothing to read."""
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
