"""Writes decisions on transactions: commits, rollbacks, copies for checks, given-up transactions, and op records. No
IO.

Follows TransactionalMessageBridge of RocketMQ. Each method appends to the log and then changes the table, without an
await in between, so that the log and the table agree at every read:

    commit     the message itself first: it is the proof. A crash before its op record loses nothing, for a start looks
               for such messages (recovery.py)
    rollback   only an op record can prove it, so it is written as soon as the burst of requests is served
    check      the copy first; a crash before the op record of the old copy leaves two copies of one transaction

Op records hold every decision that was made before them, in one piece. Commits wait for company, at most
transactionOpBatchInterval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aerobee.broker.metrics.metrics import Spread
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.transaction.half_message import (
    HalfMessage,
    asked_again,
    committed,
    given_up,
    op_record,
    read_half,
)
from aerobee.broker.transaction.transaction_table import OpenTransaction, Outcome, TransactionTable
from aerobee.clock import Clock, Timer
from aerobee.errors import AerobeeError, MalformedRecord, StoreError
from aerobee.log_throttle import LogThrottle
from aerobee.message import TRANSACTION_COMMIT, TRANSACTION_MASK, decode_record, decode_records
from aerobee.record_head import RECORD_BYTES_MIN
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.system_names import HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC

log = logging.getLogger(__name__)

FINISH_ENDS_S = (5.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)  # of rocketmq_finish_message_latency

CANDIDATES_MAX = 64  # records of one key that are looked through for an outcome
OP_RETRY_S = 1.0
HELD_TOPICS = (HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)


BEHIND_MS = 1_000  # a clock that is behind the store times by less makes no check late


class TransactionStore:
    """The table and the store, kept in agreement. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        create_topic: Callable[[str], object],
        existing_queue: Callable[[str, int], int],
        writer: MessageWriter,
        stats: BrokerStats,
        clock: Clock,
        host: bytes,
        op_interval_ms: Callable[[], int],
        op_bytes_max: Callable[[], int],
    ) -> None:
        """`create_topic` makes one that is missing; `existing_queue` is TopicTable.existing_queue; `host` is the broker's own,
        packed.
        """
        self.table = TransactionTable()
        self.host = host
        self.committed_count = self.rolled_back_count = self.given_up_count = 0
        self.finish_latency = Spread(FINISH_ENDS_S)
        self._store = store
        self._create_topic = create_topic
        self._existing_queue = existing_queue
        self._writer = writer
        self._stats = stats
        self._clock = clock
        self._throttle = LogThrottle(log, clock.monotonic)
        self._op_interval_ms = op_interval_ms
        self._op_bytes_max = op_bytes_max
        self._op_timer: Timer | None = None
        self._op_urgent = False
        self._has_rollback = False

    @property
    def decided_count(self) -> int:
        """Commits and rollbacks since the start."""
        return self.committed_count + self.rolled_back_count

    def mend_times(self, interval_ms: int) -> None:
        """While the clock is behind the store times because it was set back, count the waits of open transactions from
        now."""
        now_ms = self._clock.now_ms()
        if self._store.store_time_now() > now_ms + BEHIND_MS:
            self.table.clock_set_back(now_ms, interval_ms)

    # --- reading

    def resume_with(self, table: TransactionTable) -> None:
        """Take over what recovery found, before anything is served."""
        self.table = table

    def prepared(self, transaction: OpenTransaction) -> OpenTransaction:
        """A half message is stored; return the transaction that it belongs to (TransactionTable.prepared)."""
        kept = self.table.prepared(transaction)
        if kept.topic != transaction.topic:
            self._throttle.warn(
                "other topic",
                "half message at queue offset %d of %s is rolled back: its transaction %s of producer group %s is open for %s",
                transaction.queue_offset,
                transaction.topic,
                transaction.transaction_id,
                transaction.key[0],
                kept.topic,
            )
            self._ops_changed(urgent=False)
        return kept

    def half_at(self, physical_offset: int, topics: tuple[str, ...] = HELD_TOPICS) -> HalfMessage | None:
        """The half message at an offset of the log, None when it was removed or its record is invalid."""
        # Also one that is not durable yet: store.read_record() would not show it, and its producer may end it already.
        commit_log = self._store.log
        if not commit_log.min_offset <= physical_offset <= commit_log.end - RECORD_BYTES_MIN:
            return None
        size = int.from_bytes(commit_log.read(physical_offset, 4), "big")
        if not RECORD_BYTES_MIN <= size <= commit_log.end - physical_offset:
            return None
        try:
            record = decode_record(commit_log.read(physical_offset, size))
            if record.physical_offset != physical_offset or record.topic not in topics:
                return None
            return read_half(record)
        except MalformedRecord as error:
            log.warning("no half message is at %d: %s", physical_offset, error)
            return None

    def named_half(self, physical_offset: int, topics: tuple[str, ...] = HELD_TOPICS) -> HalfMessage | None:
        """As half_at, at an offset that a request names: None for a message in the body of another one."""
        half = self.half_at(physical_offset, topics)
        if half is None:
            return None
        record = half.record
        is_real = self._store.has_entry(
            record.topic, record.queue_id, record.queue_offset, physical_offset, record.total_size
        )
        return half if is_real else None

    def is_committed(self, half: HalfMessage) -> bool:
        """Whether the log holds the committed message of this transaction, by the key index."""
        found = self._store.query(half.topic, half.transaction_id, count_max=CANDIDATES_MAX)
        return any(
            record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
            and record.topic == half.topic
            and (record.properties.get("PGROUP", ""), record.unique_id) == half.key
            for record in decode_records(found.body)
        )

    def given_up_copy(self, transaction_id: str, group: str | None) -> HalfMessage | None:
        """Its newest copy in TRANS_CHECK_MAX_TIME_TOPIC, None when it was not given up; of any group when None."""
        found = self._store.query(TRANS_CHECK_MAX_TIME_TOPIC, transaction_id, count_max=CANDIDATES_MAX)
        for record in reversed(list(decode_records(found.body))):
            if record.topic != TRANS_CHECK_MAX_TIME_TOPIC:
                continue
            try:
                copy = read_half(record)
            except MalformedRecord:
                continue  # not written by Aerobee: with RocketMQ any client can write to this topic
            if copy.transaction_id == transaction_id and group in (None, copy.group):
                return copy
        return None

    # --- decisions

    def commit(self, transaction: OpenTransaction) -> AppendResult:
        """Deliver it: readable on return. Raises StoreError, RemoteError; it is open as before then."""
        half = self.half_at(transaction.physical_offset)
        if half is None:
            raise StoreError(
                f"the half message of transaction {transaction.transaction_id} cannot be read any more",
                offset=transaction.physical_offset,
            )
        result = self._deliver(half)
        self.committed(transaction)
        self.decisions_made()
        return result

    def committed(self, transaction: OpenTransaction) -> None:
        """Its message is in the log: close it. decisions_made() follows, once for a burst."""
        self.table.decided(transaction, Outcome.COMMITTED)
        self.committed_count += 1
        self.finish_latency.add(max(0, self._clock.now_ms() - transaction.stored_ms) // 1000)

    def rolled_back(self, transaction: OpenTransaction) -> None:
        """Close it without a delivery. decisions_made() follows, once for a burst."""
        self.table.decided(transaction, Outcome.ROLLED_BACK)
        self.rolled_back_count += 1
        self._has_rollback = True

    def decisions_made(self) -> None:
        """Schedule the op records of the decisions made so far."""
        urgent, self._has_rollback = self._has_rollback, False
        self._ops_changed(urgent=urgent)

    def commit_given_up(self, half: HalfMessage) -> AppendResult:
        """Deliver a given-up transaction, or one whose half message was closed for that reason."""
        result = self._deliver(half)
        self.table.remember(half.key, Outcome.COMMITTED)
        self.committed_count += 1
        return result

    def _deliver(self, half: HalfMessage) -> AppendResult:
        message, properties = committed(half)
        message.queue_id = self._existing_queue(half.topic, half.queue_id)
        result = self._writer.put(message, properties, is_accepted=True)
        self._stats.topic_put(half.topic, 1, result.size)
        return result

    def roll_back(self, transaction: OpenTransaction) -> None:
        """Close it without a delivery."""
        self.rolled_back(transaction)
        self.decisions_made()

    def give_up(self, transaction: OpenTransaction) -> None:
        """Move it to TRANS_CHECK_MAX_TIME_TOPIC. Raises StoreError; it is open as before then."""
        half = self.half_at(transaction.physical_offset)
        if half is not None:
            self._create_topic(TRANS_CHECK_MAX_TIME_TOPIC)
            self._store.append(given_up(half))
        self.table.decided(transaction, Outcome.GIVEN_UP)
        self.given_up_count += 1
        self._ops_changed(urgent=False)

    # --- copies

    def ask_again(
        self, transaction: OpenTransaction, half: HalfMessage, *, due_ms: int
    ) -> tuple[StoredMessage, AppendResult]:
        """Store a new copy of the half message, with its number of checks, for the check that is sent now. Raises
        StoreError.
        """
        copy = asked_again(half, transaction.checks + 1)
        result = self._store.append(copy)
        self.table.asked(
            transaction,
            result.queue_offset,
            result.physical_offset,
            now_ms=result.store_timestamp,
            due_ms=due_ms,
        )
        self._ops_changed(urgent=False)
        return copy, result

    def begin_anew(self, half: HalfMessage, *, due_ms: int) -> OpenTransaction:
        """Make it open with no checks counted (RESUME_CHECK_HALF_MESSAGE). Raises StoreError."""
        result = self._store.append(asked_again(half, 0))
        known = self.table.by_key.get(half.key)
        if known is not None:
            self.table.asked(
                known, result.queue_offset, result.physical_offset, now_ms=known.asked_ms, due_ms=due_ms
            )
            known.checks = 0
            self._ops_changed(urgent=False)
            return known
        self.table.outcomes.pop(half.key, None)
        return self.table.prepared(
            OpenTransaction(
                half.key,
                half.topic,
                result.queue_offset,
                result.physical_offset,
                stored_ms=result.store_timestamp,
                due_ms=due_ms,
            )
        )

    # --- op records

    def _ops_changed(self, *, urgent: bool) -> None:
        """Write the op buffer soon: now when it is large, after this burst when urgent, else in company."""
        ops = self.table.ops
        if not ops:
            return
        if len(ops) * (len(str(ops[-1])) + 1) >= self._op_bytes_max():
            self._op_timer_ran()
        elif self._op_timer is None or (urgent and not self._op_urgent):
            if self._op_timer is not None:
                self._op_timer.cancel()
            self._op_urgent = urgent
            self._op_timer = self._clock.call_later(
                0.0 if urgent else self._op_interval_ms() / 1000, self._op_timer_ran
            )

    def _op_timer_ran(self) -> None:
        self._stop_op_timer()
        try:
            self.write_ops()
        except AerobeeError as error:
            log.error("an op record cannot be stored: %s; it is tried again", error)
            self._op_timer = self._clock.call_later(OP_RETRY_S, self._op_timer_ran)

    def write_ops(self) -> AppendResult | None:
        """Write one op record with every decision that has none yet; None when there is nothing. Raises StoreError."""
        self._stop_op_timer()
        offsets = self.table.take_ops()
        if not offsets:
            return None
        try:
            result = self._store.append(op_record(offsets, now_ms=self._clock.now_ms(), host=self.host))
        except BaseException:
            self.table.ops[:0] = offsets
            raise
        self.table.op_written(result.queue_offset, offsets)
        return result

    def stop(self) -> None:
        """Cancel the timer; decisions that have no op message yet are found again by recovery."""
        self._stop_op_timer()

    def _stop_op_timer(self) -> None:
        if self._op_timer is not None:
            self._op_timer.cancel()
        self._op_timer, self._op_urgent = None, False
