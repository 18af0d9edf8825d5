"""The hot path of transactions with the native lane: TransactionLaneCore (lane_core.py) is its definition.

Messages with a delay level or a time, which the lane leaves to this one as well, are stored by native/src/delayed.rs, the
twin of broker/lane/delayed.py.

The records are read and written by the native twin (native/src/transaction.rs). Which transactions are open stays in the
book: the twin looks into `by_key`, and calls back for each that a frame begins or decides as soon as its record is in
the log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aerobee.broker.lane.core import Put
from aerobee.broker.lane.delayed import DelayedSends, delayed_special_properties
from aerobee.broker.topic_table import HALF_TOPIC, SCHEDULE_TOPIC
from aerobee.broker.transaction.book import OpenTransaction
from aerobee.broker.transaction.lane_core import special_properties
from aerobee.broker.transaction.ledger import Ledger
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.message_store import MessageStore


class NativeTransactionLane:
    """Serves the transaction frames of a burst. `opened` is told of the first transaction that begins in it."""

    def __init__(
        self,
        *,
        make: Callable[..., Any],
        ledger: Ledger,
        opened: Callable[[OpenTransaction], None],
        is_allowed: Callable[[], bool],
        half_topic: TopicConfig,
        delayed: DelayedSends,
        store: MessageStore,
        **shared: Any,
    ) -> None:
        """`make` makes the native twin of LaneCore, `shared` are its other arguments."""
        ordinary = shared["special_properties"]
        shared["special_properties"] = special_properties(ordinary)
        self._core = make(store=store, **shared)
        self._core.serve_levels(
            delayed.schedule_topic,
            list(delayed.delays_ms),
            timer_topic=delayed.timer_topic,
            broker_name=delayed.broker_name,
            special_properties=delayed_special_properties(ordinary),
        )
        self._delayed = delayed
        self._level_arrived = partial(delayed.arrived, SCHEDULE_TOPIC)
        self._store = store
        self._ledger = ledger
        self._opened = opened
        self._is_allowed = is_allowed
        self._half_topic = half_topic
        self._now_ms = 0
        self._first: OpenTransaction | None = None

    def forget_topics(self) -> None:
        """Topics have changed: look everything up again."""
        self._core.forget_topics()

    def transactions(
        self, data: bytes | bytearray, position: int, born_host: bytes, now_ms: int
    ) -> tuple[bytes, int, bytes, list[Put]]:
        """Serve transaction frames from `position` on; return (replies, used, held, puts) as LaneCore.burst does."""
        half_queue = self._store.queue(HALF_TOPIC, 0)
        if type(half_queue) is not ConsumeQueue:
            return b"", position, b"", []
        ledger, delayed = self._ledger, self._delayed
        self._now_ms, self._first = now_ms, None
        decided = ledger.decided_count
        try:
            answer: tuple[bytes, int, bytes, list[Put]] = self._core.transactions(
                data,
                position,
                born_host,
                now_ms,
                takes_halves=self._is_allowed(),
                takes_levels=delayed.is_allowed(),
                by_key=ledger.book.by_key,
                half_topic=self._half_topic,
                half_queue=half_queue,
                began=self._began,
                committed=ledger.committed,
                rolled_back=ledger.rolled_back,
                arrived=self._level_arrived,
                timer_arrived=delayed.timer_arrived,
                timer_limits=delayed.timer_limits(),
            )
        finally:
            if self._first is not None:
                self._opened(self._first)
            if ledger.decided_count != decided:
                ledger.decisions_made()
        return answer

    def _began(
        self,
        group: str,
        unique_key: str,
        topic: str,
        queue_offset: int,
        offset: int,
        size: int,
        keys: str,
        tag: str,
    ) -> None:
        """A half message is in the log."""
        transaction = OpenTransaction(
            (group, unique_key), topic, queue_offset, offset, stored_ms=self._now_ms
        )
        transaction.size = size
        transaction.marks = (keys, tag)
        transaction = self._ledger.book.prepared(transaction)
        if self._first is None:
            self._first = transaction
