"""Stores due messages of delay levels and timers under their real topics, in runs of one call.

A DeliveryBackend (fastpath/) stores ordinary messages; Redelivery stores the others one by one.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from aerobee.broker.fastpath.choice import BackendChoice
from aerobee.broker.fastpath.exclusions import is_own_or_illegal
from aerobee.broker.fastpath.results import DeliveryResult as NothingDelivered
from aerobee.broker.fastpath.seam import DeliveryBackend, DeliveryResult, Looked, Stamp
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.state.topic_table import TopicTable
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.message_store import MessageStore

_NOTHING = NothingDelivered(0, (), None)


class Deliveries:
    """Stores due messages in runs, only while the broker accepts messages. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        stats: BrokerStats,
        waiting: Container[tuple[str, int]],
        choice: BackendChoice,
    ) -> None:
        """`waiting` contains the queues with pending requests, as for the fast path. The store's host is set."""
        self._store = store
        self._topics = topics
        self._stats = stats
        self._backend: DeliveryBackend | None = choice.make_delivery(
            store=store, find_topic=self._find_topic, store_host=store.store_host, waiting=waiting
        )
        topics.on_change(lambda _: self._forget())

    def run(self, sources: Sequence[int], stamp: Stamp | None = None) -> DeliveryResult:
        """As DeliveryRuns.run."""
        store, backend = self._store, self._backend
        if backend is None or not sources or not store.is_writable:
            return _NOTHING
        result = backend.deliver(
            sources, store.store_time_now(), readable_end=store.readable_offset, stamp=stamp
        )
        appended = result.appended
        if appended:
            for topic, message_count, byte_count, _, larger in appended:
                self._stats.topic_put(topic, message_count, byte_count, larger=larger)
            store.burst_done()
        return result

    def look(self, sources: Sequence[int], precision_ms: int) -> list[Looked]:
        """As DeliveryRuns.look."""
        backend = self._backend
        if backend is None or not sources:
            return []
        return backend.look(sources, readable_end=self._store.readable_offset, precision_ms=precision_ms)

    def close(self) -> None:
        """Release the broker, as FastPath.close(): the native backend is unknown to Python's garbage collection."""
        self._backend = None

    def _forget(self) -> None:
        if self._backend is not None:
            self._backend.forget_topics()

    def _find_topic(self, name: str) -> TopicConfig | None:
        """The config of a topic to which runs are delivered. Messages for system topics are stored one by one."""
        if is_own_or_illegal(name):
            return None
        return self._topics.get(name)
