"""Begin and end of a read in each queue: the options, limited to the queues' actual ranges. Core.

The order is that of Kafka's source: timestamp for all, timestamps by queue, offsets. The caller looks up
times at the brokers first:

    for queue, ms in wanted_times(queues, edge).items(): found[queue] = (the first offset stored at `ms` or after)
    begin = begin_offsets(bounds, edge, found, at_no_message="error")
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from aerobee.errors import ConfigError, UsageError
from aerobee.message import MessageQueue
from aerobee.spark.offsets import EARLIEST, LATEST, Offsets, named
from aerobee.spark.options import Edge


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offset range of a queue: `begin` <= offset < `end`.

    `is_masters`: the master reported the range. A slave, which replies while there is no master, may have
    fewer messages.
    """

    begin: int
    end: int
    is_masters: bool = True


BoundsOf = Mapping[MessageQueue, Bounds]


def wanted_times(queues: Collection[MessageQueue], edge: Edge) -> dict[MessageQueue, int]:
    """Queue -> time (ms since the epoch) whose offset is needed. Raises ConfigError when the option lacks a
    queue, or names another one.
    """
    if edge.timestamp_ms is not None:
        return dict.fromkeys(queues, edge.timestamp_ms)
    if edge.by_timestamp is None:
        return {}
    _check_same_queues(queues, edge.by_timestamp, "OffsetsByTimestamp")
    return {queue: edge.by_timestamp[queue] for queue in queues}


def begin_offsets(bounds: BoundsOf, edge: Edge, found: Offsets, *, at_no_message: str) -> Offsets:
    """The first offset to read of each queue.

    `found`: the first offset stored at or after the requested time, or the queue's end without such a
    message; `at_no_message` selects an error or the end for that case. Offsets of the option stay unchanged
    even if the queue has deleted them: the read detects lost messages. Raises ConfigError, UsageError for a
    time without a message.
    """
    if found:
        nothing = [queue for queue in bounds if found[queue] >= bounds[queue].end]
        if nothing and at_no_message == "error":
            raise UsageError(
                f"no message was stored at or after the starting time in {named(nothing)}: choose an earlier time, or "
                "startingOffsetsByTimestampStrategy=latest to begin there at the end"
            )
        return {queue: min(found[queue], bounds[queue].end) for queue in bounds}
    return _given(bounds, edge, "startingOffsets")


def end_offsets(bounds: BoundsOf, edge: Edge, found: Offsets) -> Offsets:
    """The end offset (exclusive) of each queue; for a time beyond the last message the queue's end."""
    if found:
        return {queue: min(found[queue], bounds[queue].end) for queue in bounds}
    return _given(bounds, edge, "endingOffsets")


def _given(bounds: BoundsOf, edge: Edge, what: str) -> Offsets:
    if isinstance(edge.offsets, dict):
        _check_same_queues(bounds, edge.offsets, what)
    offsets = {}
    for queue, has in bounds.items():
        value = edge.offsets[queue] if isinstance(edge.offsets, dict) else edge.offsets
        offsets[queue] = has.begin if value == EARLIEST else has.end if value == LATEST else value
    return offsets


def _check_same_queues(queues: Collection[MessageQueue], given: Offsets, what: str) -> None:
    missing, unknown = set(queues) - set(given), set(given) - set(queues)
    if missing:
        raise ConfigError(
            f"{what} says nothing of {named(missing)}: name every queue, -2 is earliest, -1 latest"
        )
    if unknown:
        raise ConfigError(f"{what} names {named(unknown)}, which is not among the queues that are read")
