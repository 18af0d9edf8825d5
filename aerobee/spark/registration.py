"""aerobee.spark.register: makes the format "rocketmq" known to a session."""

from __future__ import annotations

from typing import Any

from aerobee.spark.source import RocketMQSource

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: Any, *, push_filters: bool = True) -> None:
    """Make spark.read, readStream, write and writeStream know the format "rocketmq".

    `push_filters` turns on Spark's setting by which Python sources see conditions (spark.sql.python.filterPushdown.enabled);
    other Python sources of the session see theirs too, then. Without it, reads need the option pushFilters=false. Once a
    session; again does no harm.
    """
    if push_filters:
        spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(RocketMQSource)
