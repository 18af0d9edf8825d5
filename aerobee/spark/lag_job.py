"""The lag job: writes samples of a cluster to a history, and evaluates the history for every queue of every group.

    aerobee spark lag --nameservers 127.0.0.1:9876 --history /data/lag --rounds 5 --every 30
    spark-submit -c spark.submit.deployMode=client $(python -c 'import aerobee.spark.lag_job as m; print(m.__file__)') --nameservers ...

The history is a table of SAMPLE_FIELDS in any format that Spark appends to and reads by path (Parquet, Delta) or by
options (JDBC). evaluation() is a plain DataFrame of it: aerobee/spark/lag_rows.py evaluates each queue's samples of the
last windows together, in tasks; the driver receives nothing that grows with the history.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from aerobee.client.base.config import ClientConfig
from aerobee.clock import MS_PER_HOUR
from aerobee.errors import ConfigError
from aerobee.message import MessageQueue
from aerobee.monitoring.lag_state import SEVERITY, WINDOW_MS
from aerobee.spark.lag_metrics import GROUPS_MAX as METRIC_GROUPS_MAX
from aerobee.spark.lag_metrics import metrics_text
from aerobee.spark.lag_page import COLUMNS, GROUPS_MAX, Span, page
from aerobee.spark.lag_rows import LAG_FIELDS, as_row, evaluate
from aerobee.spark.lag_sampler import sample_cluster
from aerobee.spark.registration import register

log = logging.getLogger(__name__)

SAMPLE_SCHEMA = (
    "at_ms bigint, cluster string, `group` string, topic string, broker string, queue_id int, committed bigint, "
    "min_offset bigint, max_offset bigint, filtered_lag bigint, oldest_ms bigint, retention_ms bigint, "
    "is_attended boolean, subscriptions_differ boolean, error string, lock_held_ms bigint"
)
LAG_SCHEMA = (
    "at_ms bigint, cluster string, `group` string, topic string, broker string, queue_id int, kind string, state string, "
    "reason string, lag bigint, filtered_lag bigint, lag_ms bigint, consume_rate double, produce_rate double, "
    "drain_s double, retention_s double"
)
KEYS = ("group", "topic", "broker", "queue_id")
BUCKETS = 256  # number of calls that evaluate all queues: Spark spends milliseconds on each call
WINDOWS_READ = 3  # samples older than this number of windows are ignored
KNOWN_MS = 24 * 3_600_000  # time without a sample after which a queue is dropped
ROWS_SHOWN = 40
FILE_COLUMNS = 1_000  # of a report that is not printed to a terminal
_ARROW = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64()}
_LAG_ARROW = pa.schema(
    [(name.strip("`"), _ARROW[kind]) for name, kind in (each.split() for each in LAG_SCHEMA.split(", "))]
)


@dataclass(frozen=True, slots=True)
class History:
    """Store of the samples. `options` for formats without a path, as url and dbtable of jdbc."""

    format: str
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)
    schema: str = SAMPLE_SCHEMA

    def append(self, spark: Any, rows: Sequence[dict[str, Any]]) -> None:
        """Append the samples of one round."""
        frame = spark.createDataFrame([tuple(row.values()) for row in rows], self.schema).coalesce(1)
        writer = frame.write.format(self.format).options(**self.options).mode("append")
        writer.save(self.path) if self.path else writer.save()

    def read(self, spark: Any) -> Any:
        """A DataFrame of all samples, not read yet."""
        reader = spark.read.format(self.format).options(**self.options)
        if self.format in ("parquet", "json", "orc"):
            reader = reader.schema(self.schema)
        return reader.load(self.path) if self.path else reader.load()


def forget(history: History, before_ms: int) -> int:
    """Delete older samples from a Parquet history on this machine; return the number of deleted files. Raises
    ConfigError.

    Each sample is a separate file (append()), so a file is as old as its sample. Two jobs may share a history; a reader of a file that
    is being deleted fails.
    """
    count = 0
    for path in Path(history.path).glob("part-*.parquet"):
        try:
            if path.stat().st_mtime_ns // 1_000_000 >= before_ms:
                continue
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            path.unlink()
        except FileNotFoundError:
            continue  # another job has deleted the file
        except OSError as error:
            raise ConfigError(
                f"old samples in {history.path} (--keep) cannot be deleted: {error.strerror}"
            ) from error
        count += 1
    return count


def evaluation(history: Any, now_ms: int, *, window_ms: int = WINDOW_MS) -> Any:
    """A DataFrame of LAG_SCHEMA: one row for each queue of each group that was sampled in the last windows."""
    recent = history.where((F.col("at_ms") > now_ms - WINDOWS_READ * window_ms) & (F.col("at_ms") <= now_ms))

    def judged(samples: pa.Table) -> pa.Table:
        queues: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in samples.drop_columns(["bucket"]).to_pylist():
            queues.setdefault(tuple(row[key] for key in KEYS), []).append(row)
        results = (evaluate(rows, window_ms=window_ms) for rows in queues.values())
        return pa.Table.from_pylist([as_row(each) for each in results if each], schema=_LAG_ARROW)

    buckets = recent.withColumn("bucket", F.pmod(F.xxhash64(*KEYS), F.lit(BUCKETS)))
    return buckets.groupBy("bucket").applyInArrow(judged, LAG_SCHEMA)


def known_queues(history: Any, now_ms: int) -> list[tuple[str, MessageQueue]]:
    """The (group, queue) pairs that were sampled lately: as many as one sample has rows."""
    rows = history.where(F.col("at_ms") > now_ms - KNOWN_MS).select(*KEYS).distinct()
    return [
        (row["group"], MessageQueue(row["topic"], row["broker"], row["queue_id"]))
        for row in rows.toLocalIterator()
    ]


def look(spark: Any, nameservers: str, history: History, *, client: ClientConfig | None = None) -> int:
    """Append one sample of all queues to the history; returns its time in ms."""
    now_ms = time.time_ns() // 1_000_000
    try:
        known = known_queues(history.read(spark), now_ms)
    except AnalysisException:
        known = []  # the history does not exist yet
    samples = sample_cluster(nameservers, known=known, client=client)
    if samples:
        history.append(spark, [as_row(each) for each in samples])
        return samples[0].at_ms
    log.warning("no group of the cluster consumes anything")
    return now_ms


def groups_of(result: Any) -> Any:
    """One row for each group: its worst state, lag, retry and dead letters. UNKNOWN queues add no lag, and are counted
    separately."""
    rank = F.array_position(F.array(*(F.lit(state.value) for state in SEVERITY)), F.col("state"))
    is_unknown = F.col("state") == "UNKNOWN"

    def total(kind: str) -> Any:
        return F.sum(F.when(F.col("kind") == kind, F.col("lag")))

    def total_or_none_yet(kind: str) -> Any:
        """0 while the group has no such topic; null while a queue of it is UNKNOWN and no other is known."""
        return F.when(
            F.count_if(is_unknown & (F.col("kind") == kind)) == 0, F.coalesce(total(kind), F.lit(0))
        ).otherwise(total(kind))

    return result.groupBy("cluster", "group").agg(
        F.min_by("state", rank).alias("state"),
        F.min_by("reason", rank).alias("reason"),
        total("topic").alias("lag"),
        total_or_none_yet("retry").alias("retry"),
        total_or_none_yet("dead").alias("dead"),
        F.max("lag_ms").alias("lag_ms"),
        F.sum("consume_rate").alias("consume_rate"),
        F.sum("produce_rate").alias("produce_rate"),
        F.max("drain_s").alias("drain_s"),
        F.min("retention_s").alias("retention_s"),
        F.count_if(is_unknown).alias("unknown_queues"),
    )


def send_alerts(result: Any, nameservers: str, topic: str) -> None:
    """Send one JSON message for each queue that is not OK; its key is the group."""
    rows = result.where("state <> 'OK'").select(
        F.col("group").alias("key"),
        F.col("state").alias("tags"),
        F.to_json(F.struct(*LAG_FIELDS)).alias("value"),
    )
    rows.write.format("rocketmq").options(nameservers=nameservers, topic=topic).mode("append").save()


def report(result: Any, console: Console) -> None:
    """A table of the worst groups, at most ROWS_SHOWN."""
    table = Table(box=None, header_style="bold")
    columns = (
        "group",
        "state",
        "lag",
        "retry",
        "dead",
        "oldest s",
        "in/s",
        "out/s",
        "drain s",
        "lost in s",
        "reason",
    )
    for name in columns:
        table.add_column(name)
    groups = groups_of(result)
    rank = F.array_position(F.array(*(F.lit(state.value) for state in SEVERITY)), F.col("state"))
    for row in groups.orderBy(rank, F.desc("lag")).limit(ROWS_SHOWN).toLocalIterator():
        age_s = None if row["lag_ms"] is None else row["lag_ms"] / 1000
        numbers = (row["lag"], row["retry"], row["dead"], age_s, row["produce_rate"], row["consume_rate"])
        texts = [_number(each) for each in (*numbers, row["drain_s"], row["retention_s"])]
        table.add_row(row["group"], row["state"], *texts, row["reason"])
    console.print(table)


def write_page(
    result: Any, history: Any, path: str, now_ms: int, *, hours: float, zone: tzinfo = UTC
) -> None:
    """The worst groups and their lag over the last hours as an HTML page. Raises ConfigError when it cannot be written.

    The driver receives at most GROUPS_MAX x COLUMNS values of the history.
    """
    groups = groups_of(result)
    rank = F.array_position(F.array(*(F.lit(state.value) for state in SEVERITY)), F.col("state"))
    rows = [row.asDict() for row in groups.orderBy(rank, F.desc("lag")).limit(GROUPS_MAX).toLocalIterator()]
    group_count = groups.count()
    rows += [{"group": "", "state": "", "reason": ""}] * (group_count - len(rows))  # counted, not shown
    span = Span(now_ms - round(hours * MS_PER_HOUR), now_ms, zone)
    lags: dict[str, dict[int, int]] = {}
    for point in _lags_over(history, span, [row["group"] for row in rows[:GROUPS_MAX]]).toLocalIterator():
        lags.setdefault(point["group"], {})[point["column"]] = point["lag"]
    try:
        Path(path).write_text(page(rows, lags, span), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--page {path} cannot be written: {error.strerror}") from error


def write_metrics(result: Any, path: str, now_ms: int) -> None:
    """Write the worst groups for Prometheus; the file is replaced atomically. Raises ConfigError when it
    cannot be written.
    """
    rank = F.array_position(F.array(*(F.lit(state.value) for state in SEVERITY)), F.col("state"))
    ordered = groups_of(result).orderBy(rank, F.desc("lag")).limit(METRIC_GROUPS_MAX)
    text = metrics_text([row.asDict() for row in ordered.toLocalIterator()], now_ms)
    target = Path(path)
    unfinished = target.with_name(target.name + ".unfinished")  # the collector reads *.prom
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        raise ConfigError(f"--metrics {path} cannot be written: {error.strerror}") from error


def _lags_over(history: Any, span: Span, groups: list[str]) -> Any:
    """The highest lag of each group in each column of a page; dead-letter messages are not lag, and unknown values add nothing."""
    waiting = F.greatest(F.lit(0), F.col("max_offset") - F.greatest(F.col("committed"), F.col("min_offset")))
    known = history.where(
        (F.col("at_ms") > span.begin_ms)
        & (F.col("at_ms") <= span.end_ms)
        & F.col("group").isin(groups)
        & F.col("committed").isNotNull()
        & (F.col("error") == "")
    )
    looks = known.dropDuplicates(["at_ms", *KEYS]).groupBy("group", "at_ms").agg(F.sum(waiting).alias("lag"))
    column = F.least(
        F.lit(COLUMNS - 1), F.floor((F.col("at_ms") - F.lit(span.begin_ms)) / F.lit(span.column_ms))
    ).cast("int")
    return looks.groupBy("group", column.alias("column")).agg(F.max("lag").alias("lag"))


def table_console() -> Console:
    """Where reports are printed: in a file or a pipe a table has the width that it needs, not that of a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=FILE_COLUMNS, soft_wrap=True)


def zone_of(name: str) -> tzinfo:
    """The time zone of a page. Raises ConfigError."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise ConfigError(f"--page-zone {name!r} is not a time zone, such as UTC or Europe/Berlin") from error


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns an exit code."""
    args = _parser().parse_args(arguments)
    if args.format in ("parquet", "delta", "json", "orc") and not args.history:
        raise ConfigError(f"--history is missing: a directory for {args.format}")
    if args.keep and (args.format != "parquet" or ":" in args.history):
        raise ConfigError(
            f"--keep {args.keep:g}: only samples of --format parquet in a directory of this machine can be deleted"
        )
    read_s = WINDOWS_READ * args.window
    if 0 < args.keep * 3600 < read_s:
        raise ConfigError(
            f"--keep {args.keep:g} is {args.keep * 3600:g} s: a state is judged by the last {read_s:g} s (--window {args.window:g})"
        )
    options = dict(each.partition("=")[::2] for each in args.option)
    history = History(args.format, args.history, options)
    spark = SparkSession.builder.appName("aerobee-lag").getOrCreate()
    register(spark)
    zone = zone_of(args.page_zone)
    console = table_console()
    for number in range(args.rounds) if args.rounds else count():
        if number:
            time.sleep(args.every)
        at_ms = look(spark, args.nameservers, history)
        if args.keep:
            forget(history, at_ms - round(args.keep * MS_PER_HOUR))
        try:
            samples = history.read(spark)
        except AnalysisException as error:
            if args.rounds:
                raise ConfigError(f"there is no history yet, and nothing to sample: {error}") from error
            samples = spark.createDataFrame([], history.schema)
        result = evaluation(samples, at_ms, window_ms=round(args.window * 1000)).cache()
        report(result, console)
        if args.page:
            write_page(result, samples, args.page, at_ms, hours=args.page_hours, zone=zone)
        if args.metrics:
            write_metrics(result, args.metrics, at_ms)
        if args.alerts:
            send_alerts(result, args.nameservers, args.alerts)
        result.unpersist()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aerobee spark lag", description="Lag of every group, with history, by Spark."
    )
    parser.add_argument("--nameservers", required=True, help="host:port, separated by ;")
    parser.add_argument("--history", default="", help="directory of the samples")
    parser.add_argument("--format", default="parquet", help="parquet, delta, jdbc, ...")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the format; repeatable"
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="number of samples, each with a report; 0: until it is stopped"
    )
    parser.add_argument(
        "--keep", type=float, default=0.0, help="hours after which samples are deleted; 0: never"
    )
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two samples")
    parser.add_argument(
        "--window", type=float, default=WINDOW_MS / 1000, help="seconds of history that a state is judged by"
    )
    parser.add_argument(
        "--page", default="", help="file of an HTML page: table, heat map and chart of the worst groups"
    )
    parser.add_argument("--page-hours", type=float, default=6.0, help="time range of the page, in hours")
    parser.add_argument("--page-zone", default="UTC", help="time zone of the page, such as Europe/Berlin")
    parser.add_argument(
        "--metrics", default="", help="a file for Prometheus, by node_exporter's textfile collector"
    )
    parser.add_argument("--alerts", default="", help="topic for a message about each queue that is not OK")
    return parser


if __name__ == "__main__":
    sys.exit(main())
