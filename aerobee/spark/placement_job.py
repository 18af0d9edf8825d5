"""The placement job: writes samples of the load of queues to a history, and creates a plan from the history.

    aerobee spark placement --history /data/load --sample 60 --every 60 --plan plan.json
    spark-submit $(python -c 'import aerobee.spark.placement_job as m; print(m.__file__)') --nameservers 127.0.0.1:9876 ...

The plan is based on the busiest hour of the week of the whole cluster: rates() takes each queue's mean at
that hour over all weeks of the history, and growth() how a topic's last week compares with the one before.
Both aggregate in two steps, by hour and by queue, without a join; the driver receives one row per queue. It
needs at least two samples an hour: rates are differences within an hour.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from aerobee.client.sync import LoopThread
from aerobee.clock import MS_PER_HOUR
from aerobee.errors import ConfigError, UsageError
from aerobee.placement.load_rows import LOAD_FIELDS, LoadSample, QueueRate, model_of, read_capacities
from aerobee.placement.load_sampler import LoadSampler
from aerobee.placement.model import Model
from aerobee.placement.plan import Plan, make_plan
from aerobee.spark.lag_job import History, table_console, zone_of
from aerobee.spark.placement_page import placement_page

LOAD_SCHEMA = (
    "at_ms bigint, broker string, zone string, topic string, queue_id int, `end` bigint, size double, bytes_out double, "
    "`groups` int, members string, is_ordered boolean, is_sharded boolean, pinned string, disk_total double, retention_ms bigint"
)
KEYS = ("broker", "topic", "queue_id")
HOURS_PER_WEEK = 168
HOURS_KNOWN_MIN = 100  # of a week, for growth
GROWTH_MAX = 3.0
DAYS_PER_WEEK = 7


def hourly(history: Any) -> Any:
    """Messages per second by queue and hour (in a broker's row: bytes of its log), with the means of size and bytes out."""
    return (
        history.withColumn("hour", F.floor(F.col("at_ms") / MS_PER_HOUR))
        .groupBy(*KEYS, "hour")
        .agg(
            F.min("at_ms").alias("begin_ms"),
            F.max("at_ms").alias("end_ms"),
            F.min_by("end", "at_ms").alias("first"),
            F.max_by("end", "at_ms").alias("last"),
            F.avg("size").alias("size"),
            F.avg("bytes_out").alias("bytes_out"),
        )
        .where("end_ms > begin_ms")
        # A queue whose end decreased was recreated: its rate in that hour is unknown, and counts as 0.
        .withColumn("messages", F.expr("greatest(0, last - first) * 1000.0 / (end_ms - begin_ms)"))
    )


def busiest_slot(hours: Any) -> int | None:
    """The hour of the week, 0 to 167, in which all brokers together write most; None without any. At most 168 rows are sorted."""
    slots = (
        hours.where("topic = ''")
        .groupBy((F.col("hour") % HOURS_PER_WEEK).alias("slot"), "hour")
        .agg(F.sum("messages").alias("bytes"))
        .groupBy("slot")
        .agg(F.avg("bytes").alias("bytes"))
        .orderBy(F.desc("bytes"), "slot")
        .limit(1)
    )
    rows = slots.collect()
    return int(rows[0]["slot"]) if rows else None


def rates(hours: Any, slot: int) -> Any:
    """A row for each queue: its means at that hour of the week, or over all hours if it has no samples of that hour."""
    is_slot = F.col("hour") % HOURS_PER_WEEK == slot

    def at_slot(name: str) -> Any:
        return F.coalesce(F.avg(F.when(is_slot, F.col(name))), F.avg(name)).alias(name)

    return hours.groupBy(*KEYS).agg(at_slot("messages"), at_slot("size"), at_slot("bytes_out"))


def growth(hours: Any, newest_hour: int, days: float) -> Any:
    """`topic`, `factor`: its expected load in this number of days divided by its present load, for topics
    with two whole weeks of samples.
    """
    is_last = F.col("hour") > newest_hour - HOURS_PER_WEEK
    is_before = ~is_last & (F.col("hour") > newest_hour - 2 * HOURS_PER_WEEK)
    by_hour = hours.where("topic <> ''").groupBy("topic", "hour").agg(F.sum("messages").alias("messages"))
    weeks = by_hour.groupBy("topic").agg(
        F.avg(F.when(is_last, F.col("messages"))).alias("now"),
        F.avg(F.when(is_before, F.col("messages"))).alias("before"),
        F.count_if(is_last).alias("hours_now"),
        F.count_if(is_before).alias("hours_before"),
    )
    factor = F.least(F.lit(GROWTH_MAX), F.pow(F.col("now") / F.col("before"), F.lit(days / DAYS_PER_WEEK)))
    known = f"hours_now >= {HOURS_KNOWN_MIN} and hours_before >= {HOURS_KNOWN_MIN} and before > 0"
    return weeks.where(known).select("topic", factor.alias("factor"))


def load_model(
    history: Any, *, capacities: dict[str, dict[str, object]], ordered: Sequence[str], days: float
) -> tuple[Model, int]:
    """The model, and the time of the newest sample in ms since the epoch. Raises UsageError when the history
    has too few samples.
    """
    newest_ms = history.agg(F.max("at_ms")).collect()[0][0]
    if newest_ms is None:
        raise UsageError("the history is empty: take samples of the cluster with --sample")
    newest = [
        LoadSample(**{name: row[name] for name in LOAD_FIELDS})
        for row in history.where(F.col("at_ms") == newest_ms).select(*LOAD_FIELDS).toLocalIterator()
    ]
    hours = hourly(history)
    slot = busiest_slot(hours)
    if slot is None:
        raise UsageError("the history has no two samples within one hour: take them with --sample 2")
    known = {tuple(row[key] for key in KEYS): row for row in rates(hours, slot).toLocalIterator()}
    factors = {}
    if days > 0:
        rows = growth(hours, newest_ms // MS_PER_HOUR, days).toLocalIterator()
        factors = {row["topic"]: float(row["factor"]) for row in rows}
    found = []
    for sample in newest:
        row = known.get((sample.broker, sample.topic, sample.queue_id))
        found.append(
            QueueRate(
                newest=sample,
                messages=float(row["messages"]) if row else 0.0,
                size=row["size"] if row else sample.size,
                bytes_out=row["bytes_out"] if row else sample.bytes_out,
            )
        )
    return model_of(found, capacities=capacities, ordered=ordered, growth=factors), newest_ms


def take_samples(spark: Any, nameservers: str, history: History, count: int, every_s: float) -> None:
    """Write this number of samples of the cluster to the history."""

    async def look() -> list[LoadSample]:
        async with LoadSampler(nameservers) as sampler:
            return await sampler.sample()

    for number in range(count):
        if number:
            time.sleep(every_s)
        thread = LoopThread("aerobee-load")
        try:
            rows = thread.call(look())
        finally:
            thread.stop()
        history.append(spark, [asdict(row) for row in rows])


def report(plan: Plan, console: Console) -> None:
    """The forecast and the warnings."""
    table = Table(box=None, header_style="bold")
    for name in ("imbalance of", "now", "then"):
        table.add_column(name)
    for name, value in plan.before.imbalance.items():
        table.add_row(name, f"{value:.2f}", f"{plan.after.imbalance[name]:.2f}")
    console.print(table)
    count = len(plan.changes)
    console.print(f"{count} {'topic changes' if count == 1 else 'topics change'}", highlight=False)
    for warning in plan.warnings:
        console.print(warning, style="yellow", highlight=False, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns an exit code."""
    args = _parser().parse_args(arguments)
    zone = zone_of(args.page_zone)
    options = dict(each.partition("=")[::2] for each in args.option)
    history = History(args.format, args.history, options, LOAD_SCHEMA)
    capacities = {}
    if args.brokers:
        try:
            capacities = read_capacities(orjson.loads(Path(args.brokers).read_bytes()))
        except (OSError, orjson.JSONDecodeError) as error:
            raise ConfigError(f"--brokers {args.brokers}: {error}") from error
    spark = SparkSession.builder.appName("aerobee-placement").getOrCreate()
    take_samples(spark, args.nameservers, history, args.sample, args.every)
    try:
        model, newest_ms = load_model(
            history.read(spark), capacities=capacities, ordered=args.ordered, days=args.horizon
        )
    except AnalysisException as error:
        raise ConfigError(
            f"there is no history at {args.history}: take samples of the cluster with --sample"
        ) from error
    plan = make_plan(model, newest_ms, move_ordered=args.move_ordered)
    Path(args.plan).write_bytes(plan.encode())
    report(plan, table_console())
    if args.page:
        try:
            Path(args.page).write_text(placement_page(plan, zone), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--page {args.page} cannot be written: {error.strerror}") from error
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aerobee spark placement", description="Plan which broker should have which queues, by Spark."
    )
    parser.add_argument("--nameservers", required=True, help="host:port, separated by ;")
    parser.add_argument("--history", required=True, help="directory, or a table's name, of the samples")
    parser.add_argument("--plan", required=True, help="file of the plan")
    parser.add_argument("--format", default="parquet", help="parquet, delta, jdbc, ...")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the format; repeatable"
    )
    parser.add_argument("--sample", type=int, default=0, help="number of samples to take before planning")
    parser.add_argument("--page", default="", help="file of an HTML page: loads before and after, changes")
    parser.add_argument("--page-zone", default="UTC", help="time zone of the page, such as Europe/Berlin")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two samples")
    parser.add_argument("--brokers", default="", help="JSON file: zone and capacities of brokers")
    parser.add_argument("--ordered", action="append", default=[], help="topic in which order is promised")
    parser.add_argument(
        "--move-ordered", action="store_true", help="include topics whose message keys choose the queue"
    )
    parser.add_argument(
        "--horizon", type=float, default=0.0, help="plan for the load expected in this number of days"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
