"""aerobee.spark.register: makes the format "rocketmq" known to a session."""

from __future__ import annotations

from typing import Any

from aerobee.spark.source import RocketMQSource

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: Any, *, push_filters: bool = False) -> None:
    """Make spark.read, readStream, write and writeStream know the format "rocketmq". Call it once a session;
    a second call has no effect.

    `push_filters` enables Spark's setting that passes conditions to Python sources
    (spark.sql.python.filterPushdown.enabled). Reads with the option pushFilters=true need it; it affects all
    Python sources of the session. Off by default: Spark (4.2, 4.3) caches one plan of a Python source per
    DataFrame, including conditions. A DataFrame that is used with two conditions, or with and without one,
    returns rows of the wrong one.
    """
    if push_filters:
        spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(RocketMQSource)
