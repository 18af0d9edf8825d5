"""Number of lagging messages that match a group's filter: counted in a small range, else estimated.

Follows estimateAccumulation (RocketMQ), which scans the first 20,000 entries and extrapolates. Here the sample is
spread over the whole range, so that an old range with another tag does not dominate the estimate.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.queue_lag import QueuePosition
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.topic_table import TopicTable
from aerobee.store.message_store import MessageStore

SAMPLE_MAX = 1_000  # sampled entries, about 2 ms

Takes = Callable[[int, int], bool]  # (queue id, offset) -> whether the group's filter matches that message


class WantedMessages:
    """Evaluates filters on queue entries, and SQL92 filters on records where the entry does not suffice."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        consumers: ConsumerRegistry,
        expressions: Expressions,
        live: LiveConfig,
    ) -> None:
        self._store = store
        self._topics = topics
        self._consumers = consumers
        self._expressions = expressions
        self._live = live

    def filter_of(self, group: str, topic: str) -> Takes | None:
        """None when the group has no filter, when its filter is unknown, or when estimateAccumulation is off."""
        subscription = self._consumers.subscription(group, topic)
        config = self._topics.get(topic)
        if (
            not self._live.value.estimate_accumulation
            or subscription is None
            or config is None
            or config.is_batch
        ):
            return None
        record_test: Callable[[bytes], bool] | None = None
        if subscription.is_tag_filter:
            codes = subscription.tag_codes
        else:
            try:
                expression = self._expressions.get(subscription.sub_string)
            except FilterSyntaxError:
                return None  # its pulls are refused, with the reason
            codes, record_test = expression.tag_codes, expression.test.record
        if codes is None and record_test is None:
            return None
        store = self._store

        def takes(queue_id: int, offset: int) -> bool:
            queue = store.queues.get((topic, queue_id))
            entry = None if queue is None else queue.entry(offset)
            if entry is None or (codes is not None and entry[2] not in codes):
                return False
            if record_test is None:
                return True
            record = store.read_record(entry[0])
            return record is not None and record_test(record)

        return takes


def wanted_count(position: QueuePosition, queue_id: int, takes: Takes) -> int:
    """The part of the lag that matches the filter: counted for a small lag, else estimated from a sample.

    For a group without a committed offset all stored messages count.
    """
    first = position.first_unread
    begin = position.min_offset if first is None else first
    return estimated(begin, position.max_offset, lambda offset: takes(queue_id, offset))


def estimated(begin: int, end: int, takes: Callable[[int], bool]) -> int:
    """Number of offsets in [begin, end) for which `takes` returns True."""
    count = end - begin
    if count <= 0:
        return 0
    if count <= SAMPLE_MAX:
        return sum(takes(offset) for offset in range(begin, end))
    taken = sum(takes(begin + number * count // SAMPLE_MAX) for number in range(SAMPLE_MAX))
    return round(taken * count / SAMPLE_MAX)
