"""The format "rocketmq" for Spark: `spark.read`, `spark.readStream`, `df.write`, `df.writeStream`. docs/spark.md.

The driver plans here; executors run read_range(). Readers are pickled, so they open nothing before their
first use. Spark's checkpoint stores the offsets, in the form of offsets.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from aerobee.message import MessageQueue
from aerobee.spark.admission import Admission, limited
from aerobee.spark.boundaries import Bounds, begin_offsets, end_offsets, wanted_times
from aerobee.spark.cluster_view import ClusterView
from aerobee.spark.data_loss import Loss, losses, report, resume_at
from aerobee.spark.offsets import Offsets, to_table
from aerobee.spark.options import SourceOptions, parse_source_options
from aerobee.spark.pushdown import Pushed, push_all
from aerobee.spark.range_reader import ReadPlan, read_range
from aerobee.spark.ranges import QueueRange, ranges_between, split_ranges
from aerobee.spark.row_schema import BatchMaker, checked_columns, schema_text
from aerobee.spark.sink import BatchWriter, StreamWriter, check_write
from aerobee.spark.sink_options import parse_sink_options
from aerobee.spark.stream_offsets import begin_of, initial_table, next_table, offsets_of

log = logging.getLogger(__name__)

NAME = "rocketmq"


class RocketMQSource(DataSource):
    """Registered by aerobee.spark.register(spark)."""

    @classmethod
    def name(cls) -> str:
        """The name for format(...)."""
        return NAME

    def schema(self) -> str:
        """All columns; `properties` with includeProperties=true. A read with .schema(...) may name fewer, and costs less."""
        wanted = str(self.options.get("includeProperties", "false")).lower() == "true"
        return schema_text(include_properties=wanted)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises ConfigError for options and columns that cannot be."""
        options = parse_source_options(dict(self.options), streaming=False)
        kind = FilteringBatchReader if options.pushes_filters else BatchReader
        return kind(options, _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises ConfigError for options and columns that cannot be."""
        options = parse_source_options(dict(self.options), streaming=True)
        return StreamReader(options, _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Raises ConfigError for options and columns that cannot be."""
        options = parse_sink_options(dict(self.options))
        check_write(schema, options, overwrite=overwrite)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Raises ConfigError for options and columns that cannot be."""
        options = parse_sink_options(dict(self.options))
        check_write(schema, options, overwrite=overwrite)
        return StreamWriter(options)


def _columns(schema: StructType) -> tuple[str, ...]:
    return checked_columns([(each.name, each.dataType.simpleString()) for each in schema.fields])


@dataclass
class RangePartition(InputPartition):
    """One task. `tags`: pushed down."""

    wanted: QueueRange
    tags: frozenset[str] | None = None

    def __init__(self, wanted: QueueRange, tags: frozenset[str] | None = None) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.tags = tags


def _read(options: SourceOptions, columns: tuple[str, ...], partition: Any) -> Iterator[Any]:
    """The record batches of a task. Spark passes an instance of its base class for a read without a range."""
    if not isinstance(partition, RangePartition):
        return
    maker = BatchMaker(partition.wanted.queue, columns)
    for laid_out in read_range(ReadPlan(options, columns, partition.tags), partition.wanted):
        yield maker.make(laid_out)


class BatchReader(DataSourceReader):
    """spark.read: the offsets are fixed when Spark plans."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """The ranges of all queues that may hold a row. Raises DataLost, UsageError, TransportError."""
        options, pushed = self._options, self._pushed
        with ClusterView(options) as view:
            if pushed.tags is not None and not pushed.tags:
                return []
            queues = [queue for queue in view.queues() if pushed.wants(queue)]
            bounds = view.bounds(queues)
            found = view.offsets_at(wanted_times(queues, options.start))
            begin = begin_offsets(bounds, options.start, found, at_no_message=options.at_no_message)
            end = end_offsets(bounds, options.end, view.offsets_at(wanted_times(queues, options.end)))
            begin, end = self._narrowed(view, bounds, begin, end)
        wanted = {queue: begin[queue] for queue in begin if begin[queue] < end[queue]}
        report(losses(wanted, bounds) + _beyond(wanted, end, bounds), fail=options.fail_on_data_loss)
        begin = {queue: resume_at(offset, bounds[queue]) for queue, offset in begin.items()}
        end = {queue: min(offset, bounds[queue].end) for queue, offset in end.items()}
        parts = split_ranges(
            ranges_between(begin, end),
            partitions_min=options.partitions_min,
            records_max=options.records_per_partition_max,
        )
        return [RangePartition(part, pushed.tags) for part in parts]

    def _narrowed(
        self, view: ClusterView, bounds: Mapping[MessageQueue, Bounds], begin: Offsets, end: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Ranges restricted by the pushed-down conditions."""
        pushed = self._pushed
        if pushed.time_min_ms is not None:
            earliest = view.offsets_at(dict.fromkeys(bounds, max(0, pushed.time_min_ms)))
            begin = {queue: max(begin[queue], earliest[queue]) for queue in begin}
        if pushed.time_max_ms is not None:
            behind = view.offsets_at(dict.fromkeys(bounds, max(0, pushed.time_max_ms + 1)))
            end = {queue: min(end[queue], behind[queue]) for queue in end}
        cut = {queue: pushed.offsets_within(begin[queue], end[queue]) for queue in begin}
        return {queue: each[0] for queue, each in cut.items()}, {
            queue: each[1] for queue, each in cut.items()
        }

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task, as record batches."""
        return _read(self._options, self._columns, partition)


def _beyond(begin: Offsets, end: Offsets, bounds: Mapping[MessageQueue, Bounds]) -> list[Loss]:
    """Requested end offsets that the queues do not reach."""
    ends = {queue: end[queue] for queue in begin if begin[queue] <= bounds[queue].end}
    return [
        loss
        for loss in losses(ends, dict(bounds))
        if loss.end == end[loss.queue] and loss.begin == bounds[loss.queue].end
    ]


class FilteringBatchReader(BatchReader):
    """A BatchReader to which Spark passes conditions (spark.sql.python.filterPushdown.enabled)."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Add conditions; returns the ones that Spark must apply itself."""
        has_expression = self._options.expression != "*"
        self._pushed, left = push_all(filters, may_filter_tags=not has_expression)
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """spark.readStream. The driver has one object per query; executors get copies that only read."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._view: ClusterView | None = None
        self._admission: Admission | None = None
        self._last: Offsets | None = None  # with Trigger.AvailableNow: end offsets of the query
        self._bounds: dict[MessageQueue, Bounds] = {}
        self._reported: Offsets = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None, "_admission": None, "_bounds": {}}

    def initialOffset(self) -> dict[str, Any]:
        """Start offsets of a new query. Raises UsageError, TransportError."""
        options, view = self._options, self._cluster()
        queues = view.queues()
        bounds = view.bounds(queues)
        found = view.offsets_at(wanted_times(queues, options.start))
        begin = begin_offsets(bounds, options.start, found, at_no_message=options.at_no_message)
        return initial_table(begin)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark passes to latestOffset: the options' limit. A minimum applies in addition to a
        maximum.
        """
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """End offsets of the next batch: `start` if there are no messages, or too few.

        New queues begin at their first offset; queues of an unregistered broker keep their offset. Raises
        DataLost.
        """
        begin = offsets_of(start)
        # Spark requests a batch when the previous one is done. It calls commit() afterwards, and never after the last one.
        self._report_progress(begin)
        ends = self._ends(begin)
        begin = {queue: self._begin(queue, begin) for queue in ends}
        waiting = sum(max(0, ends[queue] - begin[queue]) for queue in ends)
        least = limit.min_rows if isinstance(limit, ReadMinRows) else None
        if isinstance(limit, ReadMaxRows):
            least = self._options.offsets_per_trigger_min
        if self._admission is None:
            self._admission = Admission(count_min=None, delay_max_ms=self._options.trigger_delay_max_ms)
        if self._last is None and self._admission.waits(waiting, time.monotonic(), count_min=least):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limited(begin, ends, limit.max_rows)
        return next_table(start, ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The queues' ranges at the last request, for the query's status."""
        return to_table({queue: has.end for queue, has in self._bounds.items()}) if self._bounds else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the end offsets of the query: it does not read messages stored from now on."""
        view = self._cluster()
        # Messages of a checkpoint may be lost by now; for a new query initialOffset() checks that they exist.
        self._last = {queue: has.end for queue, has in view.queue_bounds(None).items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch; planning the same batch again gives the same tasks. Raises DataLost."""
        options = self._options
        begin, ends = begin_of(start, end), offsets_of(end)
        # A new queue is read from 0: the read detects messages that it has lost since.
        first = {queue: begin.get(queue, 0) for queue in ends}
        first = {queue: 0 if offset > ends[queue] else offset for queue, offset in first.items()}
        known = {
            queue: self._bounds[queue].begin for queue in ends if queue in self._bounds and queue not in begin
        }
        for queue, least in known.items():
            if least > 0:
                report(losses({queue: 0}, {queue: self._bounds[queue]}), fail=options.fail_on_data_loss)
                first[queue] = min(least, ends[queue])
        parts = split_ranges(
            ranges_between(first, ends),
            partitions_min=options.partitions_min,
            records_max=options.records_per_partition_max,
        )
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task, as record batches."""
        return _read(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets of `group`, if it is set: for the console and lag metrics; the query does not use them."""
        self._report_progress(offsets_of(end))

    def _report_progress(self, done: Offsets) -> None:
        if self._options.reports_progress and done != self._reported:
            self._cluster().commit(
                {queue: at for queue, at in done.items() if self._reported.get(queue) != at}
            )
            self._reported = dict(done)

    def stop(self) -> None:
        """Leave the cluster."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def _cluster(self) -> ClusterView:
        if self._view is None:
            self._view = ClusterView(self._options)
        return self._view

    def _ends(self, start: Offsets) -> Offsets:
        """The end offset of each queue now; for unregistered brokers the previous one. Raises DataLost for
        lost messages.
        """
        options, view = self._options, self._cluster()
        self._bounds = bounds = view.queue_bounds({queue.topic for queue in start})
        # Offsets reported by a slave only prove no loss: the next master may have the messages.
        found = losses(start, {queue: has for queue, has in bounds.items() if has.is_masters})
        missing = [queue for queue in start if queue not in bounds]
        for queue in missing:
            cause = view.missing_cause(queue)
            if cause:
                found.append(Loss(queue, start[queue], start[queue], cause))
            else:
                log.warning(
                    "broker %s is not there: %s waits at offset %d", queue.broker_name, queue, start[queue]
                )
        report(found, fail=options.fail_on_data_loss)
        ends = {queue: has.end for queue, has in bounds.items()}
        if self._last is not None:
            ends = {queue: min(ends[queue], self._last.get(queue, start.get(queue, 0))) for queue in ends}
        ends = {
            queue: end
            if end > start.get(queue, 0)
            or (bounds[queue].is_masters and start.get(queue, 0) > bounds[queue].end)
            else start.get(queue, 0)
            for queue, end in ends.items()
        }
        return ends | {queue: start[queue] for queue in missing}

    def _begin(self, queue: MessageQueue, begin: Offsets) -> int:
        has = self._bounds.get(queue)
        offset = begin.get(queue, 0)
        return offset if has is None else resume_at(offset, has)
