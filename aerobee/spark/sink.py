"""df.write and df.writeStream: Arrow batches in, messages out. docs/spark.md states the guarantees.

At least once: a task that Spark runs again sends its rows again. With dedup=true each row has a key, and a
broker with a window (dedupWindowMillis) stores a key once. Messages of a failed batch stay stored.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as compute
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from aerobee.client.sync import SyncAdmin
from aerobee.errors import ConfigError
from aerobee.spark.entry_codec import LaidOutBatch, TopicRows
from aerobee.spark.row_sender import RowSender, Sent
from aerobee.spark.sink_options import SinkOptions, check_columns
from aerobee.spark.sink_rows import outgoing_rows

log = logging.getLogger(__name__)

QUERY_ID, BATCH_ID = (
    "sql.streaming.queryId",
    "streaming.sql.batchId",
)  # local properties that Spark gives its tasks

# rows that are converted to messages at a time: many live objects cost the garbage collector more than their
# creation
ROWS_AT_ONCE = 1024


class TaskSent(WriterCommitMessage):
    """Result of a task for the driver."""

    def __init__(self, sent: Sent) -> None:
        self.row_count = sent.row_count
        self.duplicate_count = sent.duplicate_count


def check_write(schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
    """Raise ConfigError for columns that cannot be sent, and for dedup=true at brokers without a
    deduplication window.
    """
    check_columns([(each.name, each.dataType.simpleString()) for each in schema.fields], options)
    if overwrite:
        raise ConfigError('a topic is never overwritten: use .mode("append")')
    if options.dedup:
        with SyncAdmin(options.nameservers, client=options.client) as admin:
            _check_windows(admin)


def _check_windows(admin: Any) -> None:
    for info in admin.brokers():
        if info.broker_id == 0 and int(admin.broker_config(info.address).get("dedupWindowMillis", "0")) <= 0:
            raise ConfigError(
                f"dedup=true: broker {info.broker_name} at {info.address} remembers no keys: set its dedupWindowMillis to "
                "longer than a re-run may come later (RocketMQ's own brokers have no such window)"
            )


class _Writing:
    """Task code of both writers."""

    _options: SinkOptions
    _scope: str

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send all rows; returns when brokers have stored them. Raises SinkError with row and cause."""
        return asyncio.run(self._write(iterator))

    async def _write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        options = self._options
        prefix = self._dedup_prefix() if options.dedup else None
        number = 0
        async with RowSender(options) as sender:
            for batch in iterator:
                for part in by_topic(batch, number, options.topic):
                    await self._send(sender, part, prefix)
                number += batch.num_rows
            return TaskSent(await sender.finish())

    async def _send(self, sender: RowSender, part: TopicRows, prefix: str | None) -> None:
        """Send rows laid out by native code if eligible, else as messages, some at a time."""
        if prefix is None and sender.layout.takes(part):
            for rows in sender.layout.lay_out(part):
                if isinstance(rows, LaidOutBatch):
                    await sender.add_laid_out(rows)
                else:
                    await self._send_messages(sender, part, rows.begin, rows.end, None)
            return
        count = part.batch.num_rows
        for begin in range(0, count, ROWS_AT_ONCE):
            await self._send_messages(sender, part, begin, min(begin + ROWS_AT_ONCE, count), prefix)

    async def _send_messages(
        self, sender: RowSender, part: TopicRows, begin: int, end: int, prefix: str | None
    ) -> None:
        rows = part.batch.slice(begin, end - begin)
        columns = {name: rows.column(name).to_pylist() for name in rows.schema.names}
        numbers = part.numbers[begin:end]
        await sender.add(outgoing_rows(columns, numbers, topic=self._options.topic, dedup_prefix=prefix))

    def _dedup_prefix(self) -> str:
        """(query id, batch id, partition) of this task; a repeated task has the same values."""
        context = TaskContext.get()
        if context is None:
            raise ConfigError("the sink runs in Spark's tasks only")
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        scope = self._options.dedup_scope or query or self._scope
        return f"{scope}/{batch or '-'}/{context.partitionId()}"


class BatchWriter(_Writing, DataSourceArrowWriter):
    """df.write. `scope` identifies this write in the dedup keys, so that repeated tasks produce equal keys."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._scope = uuid.uuid4().hex

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is stored already."""
        log_sent(messages, "the write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sent messages stay."""
        log_aborted(messages, "the write")


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """df.writeStream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._scope = uuid.uuid4().hex

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is stored already."""
        log_sent(messages, f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Sent messages stay."""
        log_aborted(messages, f"batch {batchId}")


def log_sent(messages: list[WriterCommitMessage | None], what: str) -> None:
    """Log the number of sent rows, and how many of them were duplicates."""
    done = [message for message in messages if isinstance(message, TaskSent)]
    rows, known = sum(each.row_count for each in done), sum(each.duplicate_count for each in done)
    log.info("%s: %d rows are stored, %d of them were before", what, rows, known)


def log_aborted(messages: list[WriterCommitMessage | None], what: str) -> None:
    """Log that rows were sent although the write failed."""
    rows = sum(message.row_count for message in messages if isinstance(message, TaskSent))
    log.warning("%s failed; %d rows of its finished tasks are stored and stay", what, rows)


TOPICS_MAX = 64  # maximum number of topics of a record batch that is split


def by_topic(batch: Any, first: int, topic: str) -> list[TopicRows]:
    """Split a record batch by topic, from the options or from the column. `first`: number of its first row.

    Rows of a topic stay in their order. Rows without a topic, or with more than TOPICS_MAX topics, are not split.
    """
    numbers = range(first, first + batch.num_rows)
    if topic:
        return [TopicRows(topic, batch, numbers)]
    column = batch.column("topic")
    topics = compute.unique(column).to_pylist()
    if len(topics) > TOPICS_MAX or None in topics:
        return [TopicRows("", batch, numbers)]
    if len(topics) == 1:
        return [TopicRows(topics[0], batch, numbers)]
    parts = []
    for each in topics:
        chosen = compute.indices_nonzero(compute.equal(column, each))
        parts.append(TopicRows(each, batch.take(chosen), [first + row for row in chosen.to_pylist()]))
    return parts
