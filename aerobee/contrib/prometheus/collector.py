"""A collector of `prometheus-client`: what the producers and consumers of this process did, and their present state.

Metrics have the labels `client` (producer, push_consumer, pull_consumer, simple_consumer) and `group`, and where it applies
`topic` and `error`. Clients of one kind and group are summed. aerobee/client/base/metering.py bounds the values of each label;
what is beyond a bound has the value "(other)".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from aerobee.client.base.metering import (
    BOUNDS_S,
    METERS,
    ClientState,
    Durations,
    GroupFigures,
    Meters,
    TopicFigures,
)

GROUP_LABELS = ("client", "group")
TOPIC_LABELS = (*GROUP_LABELS, "topic")
ERROR_LABELS = (*TOPIC_LABELS, "error")
SENDS, CONSUMES = frozenset({"producer"}), frozenset({"push_consumer", "pull_consumer", "simple_consumer"})
CALLS = frozenset({"push_consumer"})  # clients with handler calls
PULLS = frozenset({"push_consumer", "pull_consumer"})

# Name without _total, help, kinds of clients that have it, value of a topic.
_COUNTERS: tuple[tuple[str, str, frozenset[str], Callable[[TopicFigures], int]], ...] = (
    (
        "aerobee_client_sent_messages",
        "Messages that brokers have stored, one-way messages included.",
        SENDS,
        lambda figures: figures.sends.count + figures.sent_further,
    ),
    (
        "aerobee_client_send_retries",
        "Further tries of sends after a failed try.",
        SENDS,
        lambda figures: figures.send_retries,
    ),
    (
        "aerobee_client_received_messages",
        "Messages that arrived from brokers and match the subscription; topic is the topic of the queue.",
        CONSUMES,
        lambda figures: figures.received,
    ),
    (
        "aerobee_client_consumed_messages",
        "Messages whose handler call succeeded, that poll() returned, or that were acknowledged.",
        CONSUMES,
        lambda figures: figures.consumed,
    ),
    (
        "aerobee_client_retried_messages",
        "Messages that this client gave back for another delivery.",
        CONSUMES,
        lambda figures: figures.retried,
    ),
    (
        "aerobee_client_dead_letters",
        "Messages that this client dead-lettered.",
        CONSUMES,
        lambda figures: figures.dead_letters,
    ),
)
_FAILURES: tuple[tuple[str, str, frozenset[str], Callable[[TopicFigures], dict[str, int]]], ...] = (
    (
        "aerobee_client_send_failures",
        "Messages whose send raised an error, by class of the error.",
        SENDS,
        lambda figures: figures.send_failures,
    ),
    (
        "aerobee_client_handler_failures",
        "Messages whose handler call raised an error, by class of the error.",
        CALLS,
        lambda figures: figures.handler_failures,
    ),
)
_DURATIONS: tuple[tuple[str, str, frozenset[str], Callable[[TopicFigures], Durations]], ...] = (
    (
        "aerobee_client_send_seconds",
        "Duration of successful sends, all tries included; a batch counts once per request.",
        SENDS,
        lambda figures: figures.sends,
    ),
    (
        "aerobee_client_handler_seconds",
        "Duration of handler calls, failed calls included.",
        CALLS,
        lambda figures: figures.handled,
    ),
)
_GROUP_STATES: tuple[tuple[str, str, frozenset[str], Callable[[ClientState], int]], ...] = (
    ("aerobee_client_open", "Open clients.", SENDS | CONSUMES, lambda state: state.clients),
    (
        "aerobee_client_connections",
        "Open connections of the clients.",
        SENDS | CONSUMES,
        lambda state: state.connections,
    ),
    (
        "aerobee_client_in_flight",
        "Sends that wait for a reply; running handler calls of consumers.",
        SENDS | CALLS,
        lambda state: state.in_flight,
    ),
)
_TOPIC_STATES: tuple[tuple[str, str, Callable[[ClientState], dict[str, int]]], ...] = (
    ("aerobee_client_queues", "Queues that the consumers own.", lambda state: state.queues),
    (
        "aerobee_client_buffered_messages",
        "Messages that arrived and are not finished.",
        lambda state: state.buffered,
    ),
    (
        "aerobee_client_buffered_bytes",
        "Size of the messages that arrived and are not finished.",
        lambda state: state.buffered_bytes,
    ),
    (
        "aerobee_client_lag_messages",
        "Messages after the offsets that the consumers commit next, in their queues, as of the last reply of each queue's broker.",
        lambda state: state.lag,
    ),
)


class AerobeeCollector(Collector):
    """Register one with a registry of prometheus-client. Clients that were made before it are not counted.

    collect() may run in any thread, as prometheus_client.start_http_server() does. It reads counters and takes no lock of a client.
    """

    def __init__(self, meters: Meters = METERS) -> None:
        self._meters = meters
        meters.enable()

    def describe(self) -> Iterable[Metric]:
        """The families without samples: a registry checks the names by them."""
        return _families(())

    def collect(self) -> Iterable[Metric]:
        """The families with the values of this moment."""
        return _families(sorted(self._meters.read(), key=lambda each: (each.kind, each.group)))


def _families(groups: Sequence[GroupFigures]) -> Iterator[Metric]:
    for name, text, kinds, read in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=TOPIC_LABELS)
        for labels, figures in _topics(groups, kinds):
            counter.add_metric(labels, read(figures))
        yield counter
    for name, text, kinds, failures_of in _FAILURES:
        counter = CounterMetricFamily(name, text, labels=ERROR_LABELS)
        for labels, figures in _topics(groups, kinds):
            for error, count in tuple(failures_of(figures).items()):
                counter.add_metric((*labels, error), count)
        yield counter
    for name, text, kinds, durations_of in _DURATIONS:
        histogram = HistogramMetricFamily(name, text, labels=TOPIC_LABELS)
        for labels, figures in _topics(groups, kinds):
            durations = durations_of(figures)
            histogram.add_metric(labels, _buckets(durations.counts), durations.sum_s)
        yield histogram
    for name, text, kinds, state_of in _GROUP_STATES:
        gauge = GaugeMetricFamily(name, text, labels=GROUP_LABELS)
        for group in groups:
            if group.kind in kinds:
                gauge.add_metric((group.kind, group.group), state_of(group.state))
        yield gauge
    for name, text, numbers_of in _TOPIC_STATES:
        gauge = GaugeMetricFamily(name, text, labels=TOPIC_LABELS)
        for group in groups:
            if group.kind in PULLS:
                for topic, number in sorted(numbers_of(group.state).items()):
                    gauge.add_metric((group.kind, group.group, topic), number)
        yield gauge


def _topics(
    groups: Sequence[GroupFigures], kinds: frozenset[str]
) -> Iterator[tuple[tuple[str, str, str], TopicFigures]]:
    for group in groups:
        if group.kind in kinds:
            for topic, figures in sorted(group.topics.items()):
                yield (group.kind, group.group, topic), figures


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Upper bounds and cumulative numbers, as a histogram of Prometheus has them."""
    bounds = [*(repr(bound) for bound in BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))
