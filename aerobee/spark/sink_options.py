"""The options of the sink, validated. Core. docs/spark.md describes each option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aerobee.client.base.config import ClientConfig, ProducerConfig
from aerobee.errors import ConfigError
from aerobee.message import check_group_name, check_topic_name
from aerobee.spark.options import (
    OptionReader,
    duration_ms,
    pass_through,
    refuse_unknown,
    required_nameservers,
    truth,
    whole_number,
)

SINK_GROUP = "aerobee-spark-sink"
COLUMN_TYPES = {
    "topic": ("string",),
    "key": ("string",),
    "value": ("binary", "string"),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "deliver_at": ("timestamp",),
    "message_group": ("string",),
    "dedup_key": ("string",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of a writer. `topic`: topic of every row, overriding its column. `dedup_scope`: see docs/spark.md."""

    nameservers: str
    topic: str = ""
    group: str = SINK_GROUP
    dedup: bool = False
    dedup_scope: str = ""
    in_flight_max: int = 256
    send_timeout_ms: int = 60_000
    client: ClientConfig = field(default_factory=ClientConfig)
    producer: ProducerConfig = field(default_factory=ProducerConfig)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check all options of a write. Raises ConfigError, naming the option and what to write instead."""
    reader = OptionReader(options)
    for spark_own in ("path", "checkpointLocation", "queryName"):
        reader.text(spark_own)
    nameservers = required_nameservers(reader)
    topic, group = reader.text("topic") or "", reader.text("group") or SINK_GROUP
    if topic:
        check_topic_name(topic)
    check_group_name(group)
    made = SinkOptions(
        nameservers=nameservers,
        topic=topic,
        group=group,
        dedup=reader.take("dedup", truth, False),
        dedup_scope=reader.text("dedupScope") or "",
        in_flight_max=reader.take("maxInFlight", whole_number(1, 10_000), 256),
        send_timeout_ms=reader.take("sendTimeout", duration_ms, 60_000),
        client=pass_through(reader, ClientConfig),
        producer=pass_through(reader, ProducerConfig),
    )
    if made.dedup_scope and not made.dedup:
        raise ConfigError("option dedupScope has no effect without dedup=true")
    refuse_unknown(reader)
    return made


def check_columns(fields: Sequence[tuple[str, str]], options: SinkOptions) -> None:
    """Raise ConfigError unless rows of these (name, Spark's simple type) can be sent."""
    names = {name for name, _ in fields}
    for name, kind in fields:
        allowed = COLUMN_TYPES.get(name)
        if allowed is None:
            raise ConfigError(f"the sink has no column {name}: there are {', '.join(COLUMN_TYPES)}")
        if kind not in allowed:
            raise ConfigError(f"column {name} is {kind}: it must be {' or '.join(allowed)}; cast it")
    if "value" not in names:
        raise ConfigError(
            'the sink needs a column value, a binary or a string: .selectExpr("to_json(struct(*)) AS value")'
        )
    if "topic" not in names and not options.topic:
        raise ConfigError("no topic: set the option topic, or give a column topic")
