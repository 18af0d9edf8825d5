"""Spark: a source and a sink of streams and batches, dead letters as a table, the lag job. Needs the extra `spark`.

    import aerobee.spark

    aerobee.spark.register(spark)
    spark.readStream.format("rocketmq").option("nameservers", "127.0.0.1:9876").option("subscribe", "orders").load()

Names are loaded when they are first used: the cores below this package need neither pyspark nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from aerobee.errors import UsageError

_HOMES = {
    "register": "aerobee.spark.registration",
    "RocketMQSource": "aerobee.spark.source",
    "dead_letters": "aerobee.spark.dead_letters",
}
__all__ = ["RocketMQSource", "dead_letters", "register"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module aerobee.spark has no attribute {name!r}")
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("pyspark", "pyarrow"):
            raise UsageError(
                f"aerobee.spark.{name} needs {error.name}: pip install 'aerobee[spark]'"
            ) from error
        raise
