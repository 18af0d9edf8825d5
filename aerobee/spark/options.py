"""The options of the source, validated. Core. docs/spark.md describes each option.

Option names are those of Spark's Kafka source where it has an equivalent. Spark passes option names in lower
case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from aerobee.client.base.config import ClientConfig
from aerobee.client.consumer.subscription import SQL_PREFIX, Subscription, subscribe
from aerobee.client.session.nameservers import parse_addresses
from aerobee.errors import ConfigError, UsageError
from aerobee.message import MessageQueue, check_group_name, check_topic_name
from aerobee.spark.offsets import EARLIEST, LATEST, Offsets, parse_assignment, parse_offsets
from aerobee.spark.ranges import TASKS_MAX

T = TypeVar("T")

# the group without the option `group`: one fixed name, because brokers never delete group names
READ_GROUP = "aerobee-spark-source"
PASS_THROUGH = "rocketmq."
DELAY_MS = 15 * 60 * 1000
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,12})\s*([a-z]*)\Z")
_STRATEGIES = ("error", "latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Begin or end of a range, from the options. The first field that is set counts, in the order of Spark's
    Kafka source.

    `timestamp_ms`: all queues. `by_timestamp`: ms of each queue. `offsets`: EARLIEST, LATEST, or an offset of each queue.
    """

    timestamp_ms: int | None = None
    by_timestamp: Offsets | None = None
    offsets: int | Offsets = EARLIEST


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a reader. Counts are in offsets; with a filter there are fewer messages."""

    nameservers: str
    topics: tuple[str, ...] = ()  # subscribe
    pattern: str = ""  # subscribePattern
    queues: tuple[MessageQueue, ...] = ()  # assign
    expression: str = "*"
    expression_type: str = "TAG"
    start: Edge = field(default_factory=Edge)
    end: Edge = field(default_factory=lambda: Edge(offsets=LATEST))
    at_no_message: str = "error"  # startingOffsetsByTimestampStrategy
    fail_on_data_loss: bool = True
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = DELAY_MS
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    group: str = READ_GROUP
    reports_progress: bool = False
    include_properties: bool = False
    pushes_filters: bool = False
    pull_count: int = 1024
    pulls_in_flight: int = 8
    batch_bytes: int = 8 * 1024 * 1024
    poll_timeout_ms: int = 30_000
    retry_count: int = 10  # times the interval: longer than a controller needs to elect a slave as master
    retry_interval_ms: int = 1000
    client: ClientConfig = field(default_factory=ClientConfig)

    def subscription(self, topic: str) -> Subscription:
        """The subscription of each pull of a topic. Raises UsageError for an expression without tags."""
        is_sql = self.expression_type != "TAG"
        return subscribe(topic, f"{SQL_PREFIX}{self.expression}" if is_sql else self.expression, 0)


class OptionReader:
    """Removes known options from Spark's dictionary, so that the remaining ones are unknown."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.left = {name.lower(): value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """The value without surrounding blanks; None without the option."""
        value = self.left.pop(name.lower(), None)
        return value.strip() if value is not None else None

    def take(self, name: str, read: Callable[[str, str], T], otherwise: T) -> T:
        """The result of `read(name, value)`; `otherwise` without the option."""
        value = self.text(name)
        return otherwise if value is None else read(name, value)


def whole_number(least: int, most: int = 2**62) -> Callable[[str, str], int]:
    """A reader of whole numbers from `least` to `most`."""

    def read(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            bound = f"from {least} to {most}" if most < 2**62 or number > most else f"from {least} on"
            raise ConfigError(f"option {name} is {value!r}: it must be a whole number {bound}")
        return number

    return read


def truth(name: str, value: str) -> bool:
    """ "true" or "false"."""
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"option {name} is {value!r}: it must be true or false")
    return value.lower() == "true"


def duration_ms(name: str, value: str) -> int:
    """ "15m", "30 s", "500ms"; a number alone counts milliseconds."""
    found = _DURATION.match(value.lower())
    unit = _UNITS_MS.get(found[2] or "ms") if found else None
    if found is None or unit is None:
        raise ConfigError(f"option {name} is {value!r}: write a number and ms, s, m, h or d, as 15m")
    return int(found[1]) * unit


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if value.lower() not in allowed:
            raise ConfigError(f"option {name} is {value!r}: it must be {' or '.join(allowed)}")
        return value.lower()

    return read


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check all options of a read. Raises ConfigError, naming the option and what to write instead."""
    reader = OptionReader(options)
    reader.text("path")  # the option that .load("...") sets; queues have no path
    nameservers = required_nameservers(reader)
    topics, pattern, queues = _wanted(reader)
    expression, expression_type = _expression(reader)
    start = _edge(reader, "starting", LATEST if streaming else EARLIEST)
    ends = [name for name in reader.left if name.startswith("ending")]
    if streaming and ends:
        raise ConfigError(f"option {ends[0]} is for spark.read: a stream has no end")
    end = _edge(reader, "ending", LATEST)
    if not streaming:
        _check_batch_edges(start, end)
    group, prefix = reader.text("group"), reader.text("groupIdPrefix")
    if group and prefix:
        raise ConfigError("options group and groupIdPrefix exclude each other")
    made = SourceOptions(
        nameservers=nameservers,
        topics=topics,
        pattern=pattern,
        queues=queues,
        expression=expression,
        expression_type=expression_type,
        start=start,
        end=end,
        at_no_message=reader.take("startingOffsetsByTimestampStrategy", _choice(*_STRATEGIES), "error"),
        fail_on_data_loss=reader.take("failOnDataLoss", truth, True),
        offsets_per_trigger_max=_optional(reader, "maxOffsetsPerTrigger"),
        offsets_per_trigger_min=_optional(reader, "minOffsetsPerTrigger"),
        trigger_delay_max_ms=reader.take("maxTriggerDelay", duration_ms, DELAY_MS),
        partitions_min=_optional(reader, "minPartitions", TASKS_MAX),
        records_per_partition_max=_optional(reader, "maxRecordsPerPartition"),
        group=_checked_group(group or (f"{prefix}-source" if prefix else READ_GROUP)),
        reports_progress=bool(group),
        include_properties=reader.take("includeProperties", truth, False),
        pushes_filters=reader.take("pushFilters", truth, False),
        pull_count=reader.take("pullBatchSize", whole_number(1, 1024), 1024),
        pulls_in_flight=reader.take("pullsInFlight", whole_number(1, 256), 8),
        batch_bytes=reader.take("batchBytes", whole_number(1024, 256 * 1024 * 1024), 8 * 1024 * 1024),
        poll_timeout_ms=reader.take("pollTimeoutMs", whole_number(1), 30_000),
        retry_count=reader.take("fetchOffset.numRetries", whole_number(0), 10),
        retry_interval_ms=reader.take("fetchOffset.retryIntervalMs", whole_number(0), 1000),
        client=pass_through(reader, ClientConfig),
    )
    most, least = made.offsets_per_trigger_max, made.offsets_per_trigger_min
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger is {least}, above maxOffsetsPerTrigger, which is {most}")
    refuse_unknown(reader)
    return made


def required_nameservers(reader: OptionReader) -> str:
    """The option `nameservers`. Raises ConfigError when it is missing or no list of addresses."""
    nameservers = reader.text("nameservers")
    if not nameservers:
        raise ConfigError('option nameservers is missing: .option("nameservers", "127.0.0.1:9876")')
    try:
        parse_addresses(nameservers)
    except UsageError as error:
        raise ConfigError(f"option nameservers: {error}") from error
    return nameservers


def refuse_unknown(reader: OptionReader) -> None:
    """Raise ConfigError for unknown options."""
    if reader.left:
        raise ConfigError(
            f"option {min(reader.left)} is not known; options are listed in docs/spark.md, those of the client begin with "
            f"{PASS_THROUGH}"
        )


def pass_through(reader: OptionReader, kind: type[T]) -> T:
    """A client configuration from the options `rocketmq.*`: field names in any case, with or without underscores.

    Raises ConfigError, also for two spellings of one field.
    """
    wanted: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        plain = each.name.replace("_", "")
        given = [name for name in reader.left if name.startswith(PASS_THROUGH) and _plain(name) == plain]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(sorted(given))} are one: give it once")
        for name in given:
            wanted[each.name] = _value(name, reader.left.pop(name), str(each.type))
    return kind(**wanted)


def _plain(name: str) -> str:
    return name[len(PASS_THROUGH) :].replace("_", "").replace(".", "").replace("-", "")


def _value(name: str, text: str, kind: str) -> Any:
    if kind == "bool":
        return truth(name, text)
    if kind == "int":
        return whole_number(-(2**62))(name, text)
    if kind == "float":
        try:
            return float(text)
        except ValueError as error:
            raise ConfigError(f"option {name} is {text!r}: it must be a number") from error
    if kind == "Compression":
        raise ConfigError(f"option {name} cannot be passed through: write compression")
    return text


def _optional(reader: OptionReader, name: str, most: int = 2**62) -> int | None:
    value = reader.text(name)
    return None if value is None else whole_number(1, most)(name, value)


def _checked_group(group: str) -> str:
    check_group_name(group)
    return group


def _wanted(reader: OptionReader) -> tuple[tuple[str, ...], str, tuple[MessageQueue, ...]]:
    """The value of subscribe, subscribePattern or assign, of which exactly one must be set."""
    subscribe, pattern, assign = (reader.text(name) for name in ("subscribe", "subscribePattern", "assign"))
    if sum(value is not None for value in (subscribe, pattern, assign)) != 1:
        raise ConfigError("give exactly one of the options subscribe, subscribePattern and assign")
    if assign is not None:
        return (), "", parse_assignment(assign)
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"option subscribePattern is {pattern!r}: {error}") from error
        return (), pattern, ()
    topics = tuple(dict.fromkeys(name.strip() for name in (subscribe or "").split(",") if name.strip()))
    if not topics:
        raise ConfigError("option subscribe names no topic")
    for topic in topics:
        check_topic_name(topic)
    return topics, "", ()


def _expression(reader: OptionReader) -> tuple[str, str]:
    tags, sql = reader.text("tags"), reader.text("sql")
    if tags is not None and sql is not None:
        raise ConfigError("options tags and sql exclude each other")
    if sql is not None:
        if not sql:
            raise ConfigError("option sql is empty: it must be a condition, as region = 'EU'")
        return sql, "SQL92"
    return tags or "*", "TAG"


def _edge(reader: OptionReader, word: str, otherwise: int) -> Edge:
    """The three options for the position `word` ("starting", "ending")."""
    by_timestamp = reader.text(f"{word}OffsetsByTimestamp")
    text = reader.text(f"{word}Offsets")
    offsets: int | Offsets = otherwise
    if text is not None:
        names = {"earliest": EARLIEST, "latest": LATEST}
        found = names.get(text.lower())
        offsets = parse_offsets(text, what=f"{word}Offsets") if found is None else found
    return Edge(
        timestamp_ms=reader.take(f"{word}Timestamp", whole_number(0), None),
        by_timestamp=None
        if by_timestamp is None
        else parse_offsets(by_timestamp, what=f"{word}OffsetsByTimestamp"),
        offsets=offsets,
    )


def _check_batch_edges(start: Edge, end: Edge) -> None:
    starts = start.offsets if isinstance(start.offsets, dict) else {None: start.offsets}
    ends = end.offsets if isinstance(end.offsets, dict) else {None: end.offsets}
    if LATEST in starts.values():
        raise ConfigError("startingOffsets latest (-1) is for streams: a batch from there on is empty")
    if EARLIEST in ends.values():
        raise ConfigError("endingOffsets earliest (-2) would end a batch before it begins")
