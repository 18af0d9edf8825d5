"""Stores due messages under their real topics, runs of them in one call: what levels and timers deliver with.

DeliveryCore (delivery_core.py, or its native twin) takes what is ordinary; Redelivery takes the rest, a message at a time.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import cast

from aerobee.broker.delay.delivery_core import DeliveryCore, DeliveryTwin
from aerobee.broker.delay.delivery_runs import Looked, Stamp, Stored
from aerobee.broker.lane.choice import NATIVE, LaneChoice
from aerobee.broker.stats import BrokerStats
from aerobee.broker.topic_table import NOT_SENDABLE, SYSTEM_PREFIX, TopicTable
from aerobee.message import LEGAL_NAME, TOPIC_BYTES_MAX
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.message_store import MessageStore


class Deliveries:
    """Belongs to the event loop. Only a broker that takes messages delivers."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        stats: BrokerStats,
        waiting: Container[tuple[str, int]],
        choice: LaneChoice,
    ) -> None:
        """`waiting` holds the queues whose messages are announced, as for the lane. The store's host is known."""
        self._store = store
        self._topics = topics
        self._stats = stats
        make = choice.make if choice.name == NATIVE else DeliveryCore
        core = make(
            store=store,
            find_topic=self._find_topic,
            find_grant=lambda key: None,
            store_host=store.store_host,
            own_properties="",
            reply_fields="",
            reply_ext={},
            waiting=waiting,
            special_properties=frozenset(),
        )
        self._core: DeliveryTwin | None = cast(DeliveryTwin, core)
        topics.on_change(lambda _: self._forget())

    def run(
        self, sources: Sequence[int], stamp: Stamp | None = None
    ) -> tuple[int, list[Stored], Exception | None]:
        """As DeliveryRuns.run."""
        store, core = self._store, self._core
        if core is None or not sources or not store.is_writable:
            return 0, [], None
        count, puts, fault = core.deliver(
            sources, store.store_time_now(), readable_end=store.readable_offset, stamp=stamp
        )
        if puts:
            for topic, number, size, _ in puts:
                self._stats.topic_put(topic, number, size)
            store.burst_done()
        return count, puts, fault

    def look(self, sources: Sequence[int], precision_ms: int) -> list[Looked]:
        """As DeliveryRuns.look."""
        core = self._core
        if core is None or not sources:
            return []
        return core.look(sources, readable_end=self._store.readable_offset, precision_ms=precision_ms)

    def close(self) -> None:
        """Let go of the broker, as Lane.close(): the native twin is unknown to Python's garbage collection."""
        self._core = None

    def _forget(self) -> None:
        if self._core is not None:
            self._core.forget_topics()

    def _find_topic(self, name: str) -> TopicConfig | None:
        """The config of a topic to which runs are delivered. What goes to the broker's own is looked at one by one."""
        if (
            name in NOT_SENDABLE
            or name.startswith(SYSTEM_PREFIX)
            or len(name) > TOPIC_BYTES_MAX
            or not LEGAL_NAME.match(name)
        ):
            return None
        return self._topics.get(name)
