"""A broker's numbers as families of /metrics: RocketMQ's names where they mean the same, `aerobee_…` for the rest.

Every number of the registry (metrics.py) is shown: those in ROCKETMQ_NAMES under the name and labels that RocketMQ gives them,
any other as aerobee_<name>. What the registry has not, sizes, lag, connections, is read here from whoever holds it.

Source: DefaultStoreMetricsManager, BrokerMetricsManager, BrokerMetricsConstant (RocketMQ).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from aerobee.broker.config import parse_labels
from aerobee.broker.consumer.group_table import is_system_group
from aerobee.broker.exporter.lag_sampler import Lag, LagSampler
from aerobee.broker.metrics import Kind, Labels, Latency, Metric, Value
from aerobee.broker.parts import BrokerParts
from aerobee.broker.producer_registry import ClientChannel
from aerobee.broker.send.message_type import NORMAL, TYPE_ATTRIBUTE
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX
from aerobee.monitoring.exposition import COUNTER, GAUGE, HISTOGRAM, Family, Histogram, joined, label_text
from aerobee.remoting.json_header import LANGUAGE_NAMES

# Our name -> RocketMQ's.
ROCKETMQ_NAMES = {
    "messages_in": "rocketmq_messages_in_total",
    "bytes_in": "rocketmq_throughput_in_total",
    "messages_out": "rocketmq_messages_out_total",
    "bytes_out": "rocketmq_throughput_out_total",
    "half_messages": "rocketmq_half_messages",
    "timing_messages": "rocketmq_timing_messages",
    "timer_enqueue_lag": "rocketmq_timer_enqueue_lag",
    "timer_dequeue_latency": "rocketmq_timer_dequeue_latency",
}
OTHER = "other"  # the topic under which everything beyond metricsTopicsMax is summed
_STORAGE = label_text({"storage_type": "local", "storage_medium": "disk"})
_KINDS = {Kind.COUNTER: COUNTER, Kind.GAUGE: GAUGE, Kind.LATENCY: HISTOGRAM}
_ENDINGS = {Kind.COUNTER: "_total", Kind.GAUGE: "", Kind.LATENCY: "_seconds"}
# Doublings from 7.6 us to 32 s: where buckets of Latency end too.
_ENDS_S = tuple(2.0**exponent for exponent in range(-17, 6))

_Samples = Iterator[tuple[str, float | Histogram]]


def broker_families(parts: BrokerParts, lags: LagSampler) -> Iterator[Family]:
    """All families, each read when its turn comes: numbers of the last are a little later than those of the first."""
    config, identity = parts.live.value, parts.identity
    common = label_text(
        {
            "cluster": identity.cluster,
            "node_type": "broker",
            "node_id": identity.name,
            "broker_id": str(identity.broker_id),
            **parse_labels(config.metrics_label),
        }
    )
    yield from _broker(parts, common)
    yield from _storage(parts, common)
    yield from _connections(parts, common)
    for metric in parts.stats.registry.metrics():
        name = ROCKETMQ_NAMES.get(metric.name) or f"aerobee_{metric.name}{_ENDINGS[metric.kind]}"
        samples = _samples(parts, metric, common, config.metrics_topics_max)
        yield Family(name, _KINDS[metric.kind], metric.meaning, samples)
    yield from _lag(parts, lags, common)


def _broker(parts: BrokerParts, common: str) -> Iterator[Family]:
    role, overload = parts.role, parts.overload
    for name, meaning, value in (
        (
            "rocketmq_broker_permission",
            "2: may be written, 4: read, 6: both",
            parts.live.value.broker_permission,
        ),
        ("rocketmq_topic_number", "Topics of this broker", len(parts.topics.topics)),
        ("rocketmq_consumer_group_number", "Groups of this broker", len(parts.groups.groups)),
        ("aerobee_writable", "1: the store takes messages", int(parts.store.is_writable)),
        ("aerobee_role_epoch", "In which the role began", role.epoch),
        ("aerobee_loop_wait_seconds", "How late the event loop runs now", overload.wait_ms / 1000),
    ):
        yield Family(name, GAUGE, meaning, ((common, value),))
    label = joined(common, label_text({"role": role.role.value}))
    yield Family("aerobee_role", GAUGE, "1, with the role as a label", ((label, 1),))
    refused = ((common, overload.refused_count),)
    yield Family("aerobee_overload_refused_total", COUNTER, "Sends refused because of overload", refused)


def _storage(parts: BrokerParts, common: str) -> Iterator[Family]:
    store, labels = parts.store, joined(common, _STORAGE)
    log_ratio, queue_ratio = store.disk_ratios()
    for name, meaning, value in (
        ("rocketmq_storage_size", "Bytes of the log", store.max_physical_offset - store.min_physical_offset),
        ("rocketmq_storage_flush_behind_bytes", "Stored, not on the disk yet", store.unflushed_bytes),
        ("rocketmq_storage_dispatch_behind_bytes", "0: queues are written with the record", 0),
        ("aerobee_disk_used_ratio", "0 to 1, of the file system with the log", log_ratio),
        ("aerobee_queue_disk_used_ratio", "0 to 1, of the file system with the queues", queue_ratio),
    ):
        yield Family(name, GAUGE, meaning, ((labels, value),))
    oldest_ms = store.earliest_store_time()
    if oldest_ms > 0:
        age_ms = max(0, parts.clock.now_ms() - oldest_ms)
        name = "rocketmq_storage_message_reserve_time"
        yield Family(name, GAUGE, "Age of the oldest message, ms", ((labels, age_ms),))


def _connections(parts: BrokerParts, common: str) -> Iterator[Family]:
    producers: Counter[str] = Counter()
    for members in list(parts.producers.groups().values()):
        producers.update(label_text(_client(channel)) for channel in members)
    yield Family("rocketmq_producer_connections", GAUGE, "Connected producers", _counts(producers, common))
    consumers: Counter[str] = Counter()
    for group in parts.consumers.groups():
        named = {
            "consumer_group": group.name,
            "consume_mode": "pull" if group.consume_type == "CONSUME_ACTIVELY" else "push",
            "is_system": _boolean(is_system_group(group.name)),
        }
        consumers.update(
            label_text({**named, **_client(channel)}) for channel in list(group.channels.values())
        )
    yield Family("rocketmq_consumer_connections", GAUGE, "Connected consumers", _counts(consumers, common))


def _counts(counts: Mapping[str, int], common: str) -> _Samples:
    for labels, count in counts.items():
        yield joined(common, labels), count


def _client(channel: ClientChannel) -> dict[str, str]:
    language = LANGUAGE_NAMES.get(channel.language, "OTHER").lower()
    return {"language": language, "version": str(channel.version), "protocol_type": "remoting"}


def _samples(parts: BrokerParts, metric: Metric, common: str, topics_max: int) -> _Samples:
    values = _bounded(metric, topics_max) if "topic" in metric.labels else metric.read()
    for labels, value in values:
        named = dict(zip(metric.labels, labels, strict=True))
        topic = named.get("topic")
        if topic is not None:
            if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                continue  # a message that comes again is no further message
            named["is_system"] = _boolean(parts.topics.is_system(topic))
            if metric.name in ("messages_in", "bytes_in"):
                config = parts.topics.get(topic)
                kind = config.attributes.get(TYPE_ATTRIBUTE, NORMAL) if config is not None else NORMAL
                named["message_type"] = kind.lower()
        if "group" in named:
            named["consumer_group"] = named.pop("group")
        text = joined(common, label_text(named))
        yield text, _histogram(value) if isinstance(value, Latency) else value


def _bounded(metric: Metric, topics_max: int) -> Iterable[tuple[Labels, Value]]:
    """So many topics by themselves, the rest summed under OTHER: a monitoring system pays for every series."""
    place = metric.labels.index("topic")
    alone: set[str] = set()
    rest: dict[Labels, int | float] = {}
    for labels, value in metric.read():
        topic = labels[place]
        if isinstance(value, Latency) or topic in alone or len(alone) < topics_max:
            alone.add(topic)
            yield labels, value
        else:
            summed = (*labels[:place], OTHER, *labels[place + 1 :])
            rest[summed] = rest.get(summed, 0) + value
    yield from rest.items()


_LAG_FAMILIES: tuple[tuple[str, str, Callable[[Lag], float | None]], ...] = (
    ("rocketmq_consumer_lag_messages", "Not consumed", lambda lag: lag.messages),
    ("rocketmq_consumer_inflight_messages", "Handed out, not committed", lambda lag: lag.in_flight),
    ("rocketmq_consumer_ready_messages", "Not handed out yet", lambda lag: lag.ready),
    ("rocketmq_consumer_lag_latency", "Age of the first not consumed, ms", lambda lag: lag.latency_ms),
    (
        "rocketmq_consumer_queueing_latency",
        "Age of the first not handed out, ms",
        lambda lag: lag.queueing_ms,
    ),
    ("aerobee_consumer_unknown_queues", "Without a committed offset", lambda lag: lag.unknown_queues),
    (
        "aerobee_consumer_retention_left_seconds",
        "Until the first message that is not consumed is as old as fileReservedTime",
        lambda lag: None if lag.retention_ms is None else lag.retention_ms / 1000,
    ),
)


def _lag(parts: BrokerParts, lags: LagSampler, common: str) -> Iterator[Family]:
    sample = lags.sample
    if sample.measured_at is not None:
        age_s = max(0.0, parts.clock.monotonic() - sample.measured_at)
        yield Family("aerobee_lag_sample_age_seconds", GAUGE, "Since lag was measured", ((common, age_s),))
    for name, meaning, read in _LAG_FAMILIES:
        yield Family(name, GAUGE, meaning, _lag_samples(sample.lags, common, read))
    members = (
        (joined(common, label_text({"consumer_group": name})), parts.consumers.size_of(name))
        for name in list(parts.groups.groups)
        if not is_system_group(name)
    )
    yield Family("aerobee_consumer_members", GAUGE, "Connected consumers of a group, 0 too", members)


def _lag_samples(lags: Iterable[Lag], common: str, read: Callable[[Lag], float | None]) -> _Samples:
    for lag in lags:
        value = read(lag)
        if value is not None:
            yield f"{common},{lag.labels}", value


def _histogram(latency: Latency) -> Histogram:
    ends, counts = list(_ENDS_S), [0] * len(_ENDS_S)
    cumulative, position = 0, 0
    for end_s, seen in latency.buckets():
        while position < len(ends) and end_s > ends[position]:
            counts[position] = cumulative
            position += 1
        cumulative = seen
    counts[position:] = [cumulative] * (len(ends) - position)
    return Histogram(tuple(zip(ends, counts, strict=True)), cumulative, latency.sum_s)


def _boolean(value: bool) -> str:
    return "true" if value else "false"
