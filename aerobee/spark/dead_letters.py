"""The dead-letter messages of a group as a DataFrame, with original topic and reason.

aerobee.spark.dead_letters(spark, "billing", nameservers="127.0.0.1:9876").where("reason = 'rejected'").show()
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from aerobee.message import (
    DEAD_LETTER_REASON,
    DELIVERY_TRIES,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    DLQ_PREFIX,
    LAST_ERROR,
    RETRY_PREFIX,
    check_group_name,
)


def dead_letters(spark: Any, group: str, *, nameservers: str, **options: str) -> Any:
    """A batch DataFrame of %DLQ%group, with `options` of the source.

    In addition to the source's columns: origin_topic string (null if unknown), origin_msg_id string, reason string
    and error string (null for messages of RocketMQ's brokers), tries int, died_ts timestamp. Raises AnalysisException when the
    group has no DLQ topic.
    """
    check_group_name(group)
    reader = spark.read.format("rocketmq").options(**options)
    dead_letters = reader.options(
        nameservers=nameservers, subscribe=DLQ_PREFIX + group, includeProperties="true"
    ).load()
    told = dead_letters["properties"]
    topic = F.coalesce(told[DLQ_ORIGIN_TOPIC], told["RETRY_TOPIC"])
    is_own = topic.startswith(RETRY_PREFIX) | topic.startswith(DLQ_PREFIX)
    tries = F.expr(f"try_cast(properties['{DELIVERY_TRIES}'] AS int)")
    return dead_letters.select(
        "*",
        F.when(~is_own, topic).alias("origin_topic"),
        F.coalesce(told[DLQ_ORIGIN_MESSAGE_ID], dead_letters["msg_id"]).alias("origin_msg_id"),
        told[DEAD_LETTER_REASON].alias("reason"),
        told[LAST_ERROR].alias("error"),
        F.coalesce(tries, dead_letters["reconsume_times"]).alias("tries"),
        dead_letters["store_ts"].alias("died_ts"),
    )
