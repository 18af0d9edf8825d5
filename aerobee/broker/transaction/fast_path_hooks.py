"""The hooks of the fast path for transactions and for delayed messages.

The transaction table contains the open transactions, because checks, operators and recovery use it; the fast path reads
it, and reports each transaction that a frame starts or decides as soon as its record is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aerobee.broker.fastpath.seam import Transaction
from aerobee.broker.transaction.transaction_store import TransactionStore
from aerobee.broker.transaction.transaction_table import OpenTransaction
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.queue_table import AnyQueue
from aerobee.system_names import HALF_TOPIC, SCHEDULE_TOPIC


class TransactionFastPath:
    """seam.TransactionHooks. `opened` is called with the first transaction of a burst: the first to be checked."""

    def __init__(
        self,
        *,
        store: MessageStore,
        transaction_store: TransactionStore,
        opened: Callable[[OpenTransaction], None],
        takes_halves: Callable[[], bool],
    ) -> None:
        self._store = store
        self._transaction_store = transaction_store
        self._opened = opened
        self.takes_halves = takes_halves
        # State of the present burst.
        self._first: OpenTransaction | None = None
        self._is_decided = False

    def half_queue(self) -> AnyQueue:
        """Topic and queue of half messages. Another object when the topic was deleted meanwhile."""
        return self._store.queue(HALF_TOPIC, 0)

    def open_transactions(self) -> Mapping[tuple[str, str], Transaction]:
        """By group and id."""
        return self._transaction_store.table.by_key

    def began(
        self,
        group: str,
        unique_key: str,
        topic: str,
        queue_offset: int,
        physical_offset: int,
        size: int,
        stored_ms: int,
        keys: str,
        tag: str,
    ) -> None:
        """A half message is in the log."""
        transaction = OpenTransaction(
            (group, unique_key), topic, queue_offset, physical_offset, stored_ms=stored_ms
        )
        transaction.size = size
        transaction.keys_and_tag = (keys, tag)
        transaction = self._transaction_store.prepared(transaction)
        if self._first is None:
            self._first = transaction

    # Its arguments below are OpenTransactions of open_transactions().

    def committed(self, transaction: Any) -> None:
        """The committed message is in the log."""
        self._is_decided = True
        self._transaction_store.committed(transaction)

    def rolled_back(self, transaction: Any) -> None:
        """The transaction is closed without a delivery."""
        self._is_decided = True
        self._transaction_store.rolled_back(transaction)

    def burst_done(self) -> None:
        """Called at the end of a burst that wrote a half message or decided a transaction."""
        first, self._first = self._first, None
        is_decided, self._is_decided = self._is_decided, False
        try:
            if first is not None:
                self._opened(first)
        finally:
            if is_decided:
                self._transaction_store.decisions_made()


class DelayFastPath:
    """seam.DelayHooks."""

    def __init__(
        self,
        *,
        takes_delayed: Callable[[], bool],
        appended: Callable[[str, int, int, int], None],
        timer_appended: Callable[[], None],
        timer_limits: Callable[[], tuple[int, int] | None],
    ) -> None:
        """`appended` takes (topic, queue id, the queue's new end, when its message is due, ms)."""
        self.takes_delayed = takes_delayed
        self.timer_appended = timer_appended
        self.timer_limits = timer_limits
        self._appended = appended

    def level_appended(self, queue_id: int, end: int, due_ms: int) -> None:
        """A level's queue has got a message."""
        self._appended(SCHEDULE_TOPIC, queue_id, end, due_ms)
