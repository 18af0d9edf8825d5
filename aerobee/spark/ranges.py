"""Ranges of offsets, and their division into tasks. Core.

A queue's range is one task. `minPartitions` requires more tasks: large ranges are split in proportion.
`maxRecordsPerPartition` requires smaller tasks. Tasks of one queue stay in the order of its offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aerobee.errors import ConfigError
from aerobee.message import MessageQueue
from aerobee.spark.offsets import Offsets
from aerobee.words import plural

# A task costs Spark's driver a kilobyte and a millisecond: planning this number takes minutes, and more are a
# mistake.
TASKS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets of a queue from `begin` to before `end`."""

    queue: MessageQueue
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def ranges_between(begin: Mapping[MessageQueue, int], end: Offsets) -> list[QueueRange]:
    """The non-empty ranges, sorted by queue. A queue without a begin is skipped."""
    return [
        QueueRange(queue, begin[queue], end[queue])
        for queue in sorted(end)
        if queue in begin and begin[queue] < end[queue]
    ]


def split_ranges(
    ranges: Sequence[QueueRange], *, partitions_min: int | None = None, records_max: int | None = None
) -> list[QueueRange]:
    """The ranges of the tasks, in order. Together they are equal to the input.

    Raises ConfigError when `records_max` would make more than TASKS_MAX of them.
    """
    parts = list(ranges)
    if records_max is not None:
        count = sum(-(-each.size // records_max) for each in parts)
        if count > max(TASKS_MAX, len(parts)):
            size = sum(each.size for each in parts)
            raise ConfigError(
                f"maxRecordsPerPartition is {records_max}: {plural(size, 'offset')} would be {plural(count, 'task')}, and {TASKS_MAX} is the most. "
                f"Write {-(-size // TASKS_MAX)} or more, or read less at a time"
            )
        parts = [part for each in parts for part in _cut(each, -(-each.size // records_max))]
    if partitions_min is None or len(parts) >= partitions_min:
        return parts
    # Add the missing tasks, each to the range whose parts are largest.
    total = sum(part.size for part in parts)
    wanted = [max(1, round(part.size / total * partitions_min)) for part in parts]
    return [piece for part, count in zip(parts, wanted, strict=True) for piece in _cut(part, count)]


def _cut(part: QueueRange, count: int) -> list[QueueRange]:
    """`count` pieces whose sizes differ by one at most; none of them empty."""
    count = max(1, min(count, part.size))
    edges = [part.begin + part.size * number // count for number in range(count + 1)]
    return [replace(part, begin=begin, end=end) for begin, end in itertools.pairwise(edges)]
