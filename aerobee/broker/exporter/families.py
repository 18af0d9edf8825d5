"""A broker's metrics as families of /metrics: RocketMQ's names for equal metrics, `aerobee_…` for others.

Every metric of the registry (metrics.py) is exported: those in ROCKETMQ_NAMES under RocketMQ's name and labels, any
other as aerobee_<name>. Values outside the registry (sizes, lag, connections) are read here from their owners.

Source: DefaultStoreMetricsManager, BrokerMetricsManager, BrokerMetricsConstant (RocketMQ).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, compress, islice
from typing import Any

from aerobee.broker.exporter.grpc_families import grpc_families
from aerobee.broker.exporter.lag_families import OTHER, LagChunks, group_families, lag_families
from aerobee.broker.exporter.lag_sampler import LagSampler
from aerobee.broker.exporter.replication_families import replication_families
from aerobee.broker.exporter.request_families import request_families
from aerobee.broker.metrics.grpc_traffic import GrpcTraffic
from aerobee.broker.metrics.metrics import (
    SIZE_ENDS,
    Kind,
    Labels,
    Latency,
    Metric,
    SampleBlock,
    Spread,
    Value,
)
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.replication.replication import ReplicationState
from aerobee.broker.send.message_type import NORMAL
from aerobee.broker.state.config import parse_labels
from aerobee.broker.state.producer_registry import ClientChannel
from aerobee.broker.state.role import Role
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX
from aerobee.monitoring.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Family,
    Histogram,
    Slice,
    joined,
    label_text,
)
from aerobee.remoting.json_header import LANGUAGE_NAMES
from aerobee.remoting.loop_watch import LoopWatch
from aerobee.remoting.protocol import TYPE_ATTRIBUTE
from aerobee.remoting.request_stats import RequestStats
from aerobee.system_names import SCHEDULE_TOPIC, is_system_group

# Aerobee's name of a metric -> RocketMQ's.
ROCKETMQ_NAMES = {
    "message_size": "rocketmq_message_size",
    "messages_in": "rocketmq_messages_in_total",
    "bytes_in": "rocketmq_throughput_in_total",
    "messages_out": "rocketmq_messages_out_total",
    "bytes_out": "rocketmq_throughput_out_total",
    "half_messages": "rocketmq_half_messages",
    "timing_messages": "rocketmq_timing_messages",
    "timer_enqueue_lag": "rocketmq_timer_enqueue_lag",
    "timer_enqueue_latency": "rocketmq_timer_enqueue_latency",
    "timer_dequeue_lag": "rocketmq_timer_dequeue_lag",
    "timer_dequeue_latency": "rocketmq_timer_dequeue_latency",
    "timer_message_snapshot": "rocketmq_timer_message_snapshot",
    "topic_create_execution_time": "rocketmq_topic_create_execution_time",
    "consumer_group_create_execution_time": "rocketmq_consumer_group_create_execution_time",
    "pop_revive_behind": "rocketmq_pop_revive_lag",
    "pop_revive_latency": "rocketmq_pop_revive_latency",
    "pop_checkpoints_buffered": "rocketmq_pop_checkpoint_buffer_size",
    "pop_offsets_buffered": "rocketmq_pop_offset_buffer_size",
    # These have no labels for topic, group and kind, unlike RocketMQ's:
    "timer_enqueued": "rocketmq_timer_enqueue_total",
    "timer_dequeued": "rocketmq_timer_dequeue_total",
    "transactions_committed": "rocketmq_commit_messages_total",
    "transactions_rolled_back": "rocketmq_rollback_messages_total",
    "finish_message_latency": "rocketmq_finish_message_latency",
    "delay_message_latency": "rocketmq_delay_message_latency",
    "pop_revive_in": "rocketmq_pop_revive_in_message_total",
    "pop_revive_out": "rocketmq_pop_revive_out_message_total",
    "pop_revived": "rocketmq_pop_revive_retry_messages_total",
}
_TYPED = ("messages_in", "bytes_in", "message_size")  # with the topic's message type as a label
SAMPLES_A_SLICE = 256
_STORAGE = label_text({"storage_type": "local", "storage_medium": "disk"})
_KINDS = {
    Kind.COUNTER: COUNTER, Kind.GAUGE: GAUGE, Kind.LATENCY: HISTOGRAM, Kind.SIZES: HISTOGRAM, Kind.SPREAD: HISTOGRAM,
}  # fmt: skip
_ENDINGS = {
    Kind.COUNTER: "_total",
    Kind.GAUGE: "",
    Kind.LATENCY: "_seconds",
    Kind.SIZES: "_bytes",
    Kind.SPREAD: "",
}
_NUMBERS = (Kind.COUNTER, Kind.GAUGE)
_CHANGE_IN_PLACE = (Kind.LATENCY, Kind.SPREAD)
_SIZE_ENDS = tuple(map(float, SIZE_ENDS))
# Powers of two from 7.6 us to 32 s, which are also bounds of Latency's buckets.
_ENDS_S = tuple(2.0**exponent for exponent in range(-17, 6))

_Samples = Iterator[tuple[str, float | Histogram]]


@dataclass(slots=True, eq=False)
class _Layout:
    """The labels of a block as text, and its samples with separate series; None: all.

    Labels and selection do not change while the object stays the same.
    """

    made_of: Hashable
    texts: tuple[str, ...]  # tuples, because the garbage collector would traverse lists repeatedly
    shown: tuple[bool, ...] | None = None
    counted: frozenset[str] = frozenset()  # topics with which `shown` was computed


class BrokerFamilies:
    """The families of one broker. Encoded labels are cached between pages."""

    def __init__(
        self,
        parts: BrokerParts,
        lags: LagSampler,
        *,
        replication: Callable[[], ReplicationState],
        watch: LoopWatch,
        requests: RequestStats,
        grpc_traffic: GrpcTraffic,
    ) -> None:
        self._parts = parts
        self._lags = lags
        self._replication = replication
        self._watch = watch
        self._requests = requests
        self._grpc_traffic = grpc_traffic
        self._common = ""
        # Encoded labels before the group, by label names.
        self._texts: dict[tuple[str, ...], dict[Labels, str]] = {}
        self._group_texts: dict[str, str] = {}
        self._shown: frozenset[str] = frozenset()  # topics with separate series
        self._counted: frozenset[str] = frozenset()  # those that are not retry topics
        self._fresh: tuple[int, int, str] | None = None  # inputs of the cached labels
        # By label names and block Per block of a metric: the sum under OTHER, with the token of its reading.
        self._layouts: dict[tuple[tuple[str, ...], Hashable], _Layout] = {}
        self._rests: dict[tuple[str, Hashable], tuple[Hashable, dict[Labels, Any]]] = {}
        self._lag_chunks = LagChunks()
        self._generation = 0  # data version of the topics, whose attributes are labels
        self._system_count = 0  # number of system topics, which never decreases
        parts.topics.on_change(self._topics_changed)

    @property
    def size(self) -> int:
        """Approximate number of series of each large family."""
        return len(self._parts.topics.topics) + len(self._lags.sample.lags) + self._parts.stats.reader_count

    def _topics_changed(self, configs: object) -> None:
        self._generation += 1

    def families(self) -> Iterator[Family]:
        """All families, read one after the other: the last values are slightly later than the first.

        Families of the whole broker come first, then those of topics, of groups, and of pairs of both: a page with a
        short deadline omits the last ones (monitoring/http_server.py).
        """
        parts = self._parts
        config, identity = parts.live.value, parts.identity
        labels = {
            "cluster": identity.cluster,
            "node_type": "broker",
            "node_id": identity.name,
            "broker_id": str(identity.broker_id),
            **parse_labels(config.metrics_label),
        }
        self._refresh(label_text(labels), config.metrics_topics_max)
        common = self._common
        yield from _broker(parts, self._watch, common)
        yield from _storage(parts, common)
        yield from _delays(parts, common)
        yield from replication_families(parts, self._replication(), common)
        yield from _connections(parts, common)
        yield from request_families(self._requests, parts.ack, common)
        yield from grpc_families(self._grpc_traffic, common)
        if parts.role.role in (Role.MASTER, Role.ACTING):  # a slave's copy would be counted twice
            yield from _dead_letters(parts, common)
        metrics = list(parts.stats.registry.metrics())
        yield from (self._family(metric) for metric in metrics if "group" not in metric.labels)
        yield from group_families(parts, common, self._shown)
        yield from (self._family(metric) for metric in metrics if "group" in metric.labels)
        yield from lag_families(parts, self._lags.sample, self._lag_chunks, common, self._shown)

    def _family(self, metric: Metric) -> Family:
        name = ROCKETMQ_NAMES.get(metric.name) or f"aerobee_{metric.name}{_ENDINGS[metric.kind]}"
        return Family(name, _KINDS[metric.kind], metric.meaning, slices=self._slices(metric))

    def _refresh(self, common: str, topics_max: int) -> None:
        """Topics with separate series: the oldest of the table, so that the selection is stable."""
        generation = (self._generation, topics_max, common)
        if generation == self._fresh:
            return
        self._fresh = generation
        self._common = common
        self._texts.clear()
        self._group_texts.clear()
        parts = self._parts
        names = [name for name in parts.topics.topics if not parts.topics.is_system(name)]
        retries = [name for name in names if name.startswith((RETRY_PREFIX, DLQ_PREFIX))]
        own = [name for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))]
        system = [name for name in parts.topics.topics if parts.topics.is_system(name)]
        self._system_count = len(parts.topics.system_topics)
        counted = frozenset((*own[:topics_max], *system))
        if counted != self._counted:
            self._counted = counted
        self._shown = counted.union(retries[:topics_max])

    def _slices(self, metric: Metric) -> Iterator[Slice]:
        """One metric of the registry: separate series for the shown topics, the others summed under OTHER, because
        every series costs a monitoring system resources."""
        rest: dict[Labels, Any] = {}
        for block in metric.blocks() if metric.blocks is not None else _blocks(metric):
            layout = self._layout(metric, block)
            if layout.shown is not None:
                for labels, value in self._rest(metric, block, layout).items():
                    rest[labels] = rest[labels] + value if labels in rest else value
            yield Slice((layout, block.token), partial(_samples, metric.kind, block, layout))
        names = self._names(metric)
        for block in _cut((metric.name, OTHER), rest.items()):
            layout = _Layout(None, tuple(self._text(names, labels) for labels in block.labels()))
            yield Slice((self._common, block.token), partial(_samples, metric.kind, block, layout))

    def _layout(self, metric: Metric, block: SampleBlock) -> _Layout:
        """Recomputed when the block's samples or labels change: a new topic does not affect other blocks."""
        names = self._names(metric)
        # Topic attributes matter only for families with the message type as a label.
        generation = self._generation if metric.name in _TYPED else 0
        made_of = (block.labels_token, self._common, self._system_count, generation)
        layout = self._layouts.get((names, block.key))
        is_known = layout is not None and layout.made_of == made_of
        if layout is not None and is_known and layout.counted is self._counted:
            return layout
        labels, shown = block.labels(), None
        if "topic" in metric.labels and metric.kind not in _CHANGE_IN_PLACE:
            position = metric.labels.index("topic")
            if not self._counted.issuperset([each[position] for each in labels]):
                shown = tuple(each[position] in self._counted for each in labels)
        if layout is not None and is_known and layout.shown == shown:
            layout.counted = self._counted
            return layout
        texts = tuple(self._text(names, each) for each in labels)
        layout = self._layouts[names, block.key] = _Layout(made_of, texts, shown, self._counted)
        return layout

    def _rest(self, metric: Metric, block: SampleBlock, layout: _Layout) -> dict[Labels, Any]:
        """The sums of samples without separate series, by their labels with OTHER."""
        token = (layout, block.token)
        known = self._rests.get((metric.name, block.key))
        if known is not None and known[0] == token:
            return known[1]
        position = metric.labels.index("topic")
        rest: dict[Labels, Any] = {}
        for labels, value in zip(block.labels(), block.values(), strict=True):
            topic = labels[position]
            # A redelivered message does not count as a further message.
            if topic not in self._counted and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                summed = (*labels[:position], OTHER, *labels[position + 1 :])
                rest[summed] = rest[summed] + value if summed in rest else value
        self._rests[metric.name, block.key] = (token, rest)
        return rest

    def _names(self, metric: Metric) -> tuple[str, ...]:
        return metric.labels if metric.name not in _TYPED else (*metric.labels, "message_type")

    def _text(self, names: tuple[str, ...], labels: Labels) -> str:
        """The text between the braces for series with these labels. `names` may contain one more label: the topic's
        message type."""
        if names[-1:] == ("group",):  # last, so that the text before it is encoded once for all groups
            head = self._texts.setdefault(names[:-1], {})
            text = head.get(labels[:-1])
            if text is None:
                text = head[labels[:-1]] = self._text(names[:-1], labels[:-1])
            group = self._group_texts.get(labels[-1])
            if group is None:
                group = self._group_texts[labels[-1]] = label_text({"consumer_group": labels[-1]})
            return joined(text, group)
        topics, named = self._parts.topics, dict(zip(names, labels, strict=False))
        topic = named.get("topic")
        if topic is not None:
            named["is_system"] = _boolean(topics.is_system(topic))
            if "message_type" in names:
                config = topics.get(topic)
                kind = config.attributes.get(TYPE_ATTRIBUTE, NORMAL) if config is not None else NORMAL
                named["message_type"] = kind.lower()
        if "group" in named:
            named["consumer_group"] = named.pop("group")
        return joined(self._common, label_text(named))


def _broker(parts: BrokerParts, watch: LoopWatch, common: str) -> Iterator[Family]:
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
        ("aerobee_role_epoch", "Epoch of the present role", role.epoch),
        ("aerobee_loop_wait_seconds", "Present lateness of the event loop", overload.wait_ms / 1000),
        (
            "aerobee_loop_wait_longest_seconds",
            "Longest lateness since the start",
            overload.wait_max_ms / 1000,
        ),
        (
            "aerobee_loop_held_longest_seconds",
            "Longest block by one request or batch of frames since the start",
            watch.longest_s,
        ),
    ):
        yield Family(name, GAUGE, meaning, ((common, value),))
    label = joined(common, label_text({"role": role.role.value}))
    yield Family("aerobee_role", GAUGE, "1, with the role as a label", ((label, 1),))
    for name, meaning, count in (
        ("aerobee_overload_refused_total", "Sends refused because of overload", overload.refused_count),
        (
            "aerobee_loop_held_total",
            "Requests and bursts that blocked the event loop 50 ms or more",
            watch.held_count,
        ),
        ("aerobee_loop_held_seconds_total", "Total duration of these blocks", watch.held_s),
        ("aerobee_bounds_reached_total", "Requests refused at a bound", parts.bounds.reached_count),
    ):
        yield Family(name, COUNTER, meaning, ((common, count),))


def _delays(parts: BrokerParts, common: str) -> Iterator[Family]:
    """Messages of the delay levels; only a master delivers them."""
    if not parts.role.takes_writes:
        return
    schedule, queues = parts.schedule, parts.store.queues
    waiting = []
    for level, offset in sorted(schedule.offsets.items()):
        queue = queues.get((SCHEDULE_TOPIC, level - 1))
        if queue is not None:
            text = joined(common, label_text({"level": str(level)}))
            waiting.append((text, max(0, queue.max_offset - offset)))
    yield Family(
        "aerobee_delay_level_messages", GAUGE, "Messages that wait for the delay of the level", waiting
    )
    late = (
        (joined(common, label_text({"quantile": name})), late_s)
        for (name,), late_s in schedule.lateness.quantiles_s()
    )
    meaning = "Delay of deliveries behind their time, over the last minutes, s; absent without deliveries"
    yield Family("aerobee_delay_level_late_seconds", GAUGE, meaning, late)


def _dead_letters(parts: BrokerParts, common: str) -> Iterator[Family]:
    """Messages ever dead-lettered here, from the queues' offsets: survives restarts."""
    name, meaning = "rocketmq_send_to_dlq_messages_total", "Messages dead-lettered after the last try"
    sent, there = [], []
    for topic, config in list(parts.topics.topics.items()):
        if not topic.startswith(DLQ_PREFIX):
            continue
        labels = {"consumer_group": topic.removeprefix(DLQ_PREFIX), "topic": topic, "is_system": "false"}
        text = joined(common, label_text(labels))
        ends = [parts.store.max_offset(topic, queue_id) for queue_id in range(config.write_queue_nums)]
        begins = [parts.store.min_offset(topic, queue_id) for queue_id in range(config.write_queue_nums)]
        sent.append((text, sum(ends)))
        there.append((text, sum(ends) - sum(begins)))
    yield Family(name, COUNTER, meaning, sent)
    yield Family("aerobee_dead_letters", GAUGE, "Messages stored in the dead-letter topic", there)


def _storage(parts: BrokerParts, common: str) -> Iterator[Family]:
    store, labels = parts.store, joined(common, _STORAGE)
    log_ratio, queue_ratio = store.disk_ratios()
    for name, meaning, value in (
        ("rocketmq_storage_size", "Bytes of the log", store.log.end - store.log.min_offset),
        ("rocketmq_storage_flush_behind_bytes", "Stored but not flushed to disk", store.unflushed_bytes),
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
    return {"language": language, "version": str(channel.version), "protocol_type": channel.peer.protocol}


def _blocks(metric: Metric) -> Iterator[SampleBlock]:
    """The values themselves are the token, except values that change in place."""
    for block in _cut(metric.name, metric.read()):
        yield block if metric.kind not in _CHANGE_IN_PLACE else replace(block, token=object())


def _cut(name: Hashable, samples: Iterable[tuple[Labels, Value]]) -> Iterator[SampleBlock]:
    rest = iter(samples)
    number = 0
    while some := tuple(islice(rest, SAMPLES_A_SLICE)):
        labels, values = zip(*some, strict=True)
        yield SampleBlock((name, number), some, labels, partial(tuple, labels), partial(tuple, values))
        number += 1


def _samples(kind: Kind, block: SampleBlock, layout: _Layout) -> Iterable[tuple[str, Any]]:
    """The samples of a block with separate series."""
    values = block.values()
    samples = zip(layout.texts, values if kind in _NUMBERS else map(_shown_value, values), strict=True)
    return samples if layout.shown is None else compress(samples, layout.shown)


def _shown_value(value: Value) -> float | Histogram:
    if isinstance(value, int | float):
        return value
    if isinstance(value, Latency):
        return _histogram(value)
    if isinstance(value, Spread):
        within = tuple(accumulate(value.counts))
        return Histogram(tuple(zip(value.ends, within, strict=False)), within[-1], value.sum)
    within = value.within()
    return Histogram(tuple(zip(_SIZE_ENDS, within, strict=True)), value.count, value.sum)


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
