"""aerobee.spark.register: makes the format "rocketmq" known to a session."""

from __future__ import annotations

from typing import Any

from aerobee.spark.source import RocketMQSource

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: Any, *, push_filters: bool = False) -> None:
    """Make spark.read, readStream, write and writeStream know the format "rocketmq". Once a session; again does no harm.

    `push_filters` turns on Spark's setting by which Python sources see conditions (spark.sql.python.filterPushdown.enabled),
    which reads with the option pushFilters=true need; other Python sources of the session see theirs too, then. Off
    by default: Spark (4.2, 4.3) keeps one plan of a Python source for a DataFrame, conditions included, so that a
    DataFrame that is used with two conditions, or with one and without, returns rows of the wrong one.
    """
    if push_filters:
        spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(RocketMQSource)
