"""Transactions as a part of the broker: half messages, decisions, checks, and the state that survives a restart.

Follows TransactionalMessageServiceImpl and TransactionMetrics of RocketMQ. On the disk, besides the half and the op queue:

    config/consumerOffset.json       group CID_RMQ_SYS_TRANS: from where both queues are read at a start
    config/transactionMetrics        {"dataVersion", "transactionCount": {topic: {"count", "timeStamp"}}}
    config/transactionSettled.json   {"settledOffset": n}: every decision before n bytes of the log has its op record

None of the three says more than the disk has of the log, so a power loss makes no open transaction look decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypedDict

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.delay.delay_levels import DelayLevels
from aerobee.broker.fastpath.seam import DelaySettings, TransactionSettings
from aerobee.broker.metrics.metrics import Registry
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.feature import Feature, PutHook
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.broker.timer.timer_feature import Timers
from aerobee.broker.transaction.check import Checker
from aerobee.broker.transaction.end import EndTransactionCalls
from aerobee.broker.transaction.fast_path_hooks import DelayFastPath, TransactionFastPath
from aerobee.broker.transaction.half_message import (
    HalfMessage,
    immunity_ms,
    is_half,
    to_half,
)
from aerobee.broker.transaction.metrics import TransactionMetrics
from aerobee.broker.transaction.operator_calls import TransactionOperatorCalls
from aerobee.broker.transaction.recovery import Recovered, Source, recover, recovering
from aerobee.broker.transaction.transaction_store import TransactionStore
from aerobee.broker.transaction.transaction_table import OpenTransaction, Outcome, TransactionTable
from aerobee.clock import Clock, Timer
from aerobee.errors import AerobeeError, StoreError
from aerobee.property_names import PRODUCER_GROUP, TRAN_MSG, UNIQUE_KEY
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.peer import Handler
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.system_names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP, WHEEL_TIMER_TOPIC

log = logging.getLogger(__name__)


class _Rules(TypedDict):
    """The check interval and the test for committed messages, as keyword arguments of recover()."""

    interval_ms: int
    was_committed: Callable[[HalfMessage], bool]


class Transactions(Feature):
    """The transaction feature. `transaction_store` holds the open transactions, `checker` sends their checks to
    producers.
    """

    name = "transactions"

    def __init__(self, parts: BrokerParts, *, timers: Timers | None = None) -> None:
        """With `timers` the fast path also serves timer messages."""
        self._timers = timers
        self._store: MessageStore = parts.store
        self._topics: TopicTable = parts.topics
        self._offsets: ConsumerOffsets = parts.offsets
        self._live: LiveConfig = parts.live
        self._identity: BrokerIdentity = parts.identity
        self._role: RoleState = parts.role
        self._clock: Clock = parts.clock
        self._schedule = parts.schedule
        self._escaped = parts.escaped
        self._settled_file: ConfigFile = parts.config_file("transactionSettled.json")
        self._metrics = TransactionMetrics(file=parts.config_file("transactionMetrics"), clock=parts.clock)
        self._settled_offset = 0
        self._decisions = parts.decisions
        self._save_timer: Timer | None = None
        self._saved_progress = (-1, -1)
        self._term = 0  # incremented at each resignation: results pending on a flush are then void
        self._is_loaded = False
        self._has_table = False  # the open transactions are known: the files may contain the decided offset
        self._running = False
        self._unserved = parts.unserved
        self.transaction_store = TransactionStore(
            create_topic=self._topics.create_internal,
            existing_queue=self._topics.existing_queue,
            store=parts.store,
            writer=parts.writer,
            stats=parts.stats,
            clock=parts.clock,
            host=parts.identity.store_host,
            op_interval_ms=lambda: self._live.value.transaction_op_batch_interval,
            op_bytes_max=lambda: self._live.value.transaction_op_msg_max_size,
        )
        self.checker = Checker(
            transaction_store=self.transaction_store,
            producers=parts.producers,
            live=parts.live,
            config=parts.store.config,
            identity=parts.identity,
            clock=parts.clock,
            may_send=parts.may_send,
        )
        self.ends = EndTransactionCalls(
            transaction_store=self.transaction_store,
            config=parts.store.config,
            live=parts.live,
            identity=parts.identity,
            role=parts.role,
            ack=parts.ack,
            stats=parts.stats,
            clock=parts.clock,
            records=parts.records,
        )
        self._operator = TransactionOperatorCalls(
            transaction_store=self.transaction_store,
            checker=self.checker,
            ends=self.ends,
            store=parts.store,
            producers=parts.producers,
            live=parts.live,
            identity=parts.identity,
            clock=parts.clock,
            records=parts.records,
        )
        self.put_hook = PutHook(frozenset({TRAN_MSG}), self._hook)
        parts.writer.on_stored(HALF_TOPIC, self._stored)
        self._register_numbers(parts.stats.registry)

    def handlers(self) -> dict[int, Handler]:
        return {**self.ends.handlers(), **self._operator.handlers()}

    def _register_numbers(self, registry: Registry) -> None:
        transaction_store = self.transaction_store
        registry.gauges(
            "half_messages",
            "Half messages without a decision",
            lambda: [((topic,), count) for topic, count in list(self.transaction_store.table.counts.items())],
            labels=("topic",),
        )
        registry.gauges(
            "oldest_half_message_seconds",
            "Age of the oldest half message without a decision, s; absent without one",
            lambda: [((), self._oldest_ms() / 1000)] if transaction_store.table.by_key else [],
            labels=(),
            unit="s",
        )
        registry.counter(
            "transactions_committed",
            "Transactions committed",
            lambda: [((), transaction_store.committed_count)],
        )
        registry.spread(
            "finish_message_latency",
            "Time from half message to commit, whole seconds",
            lambda: [((), transaction_store.finish_latency)],
            unit="s",
        )
        registry.counter(
            "transactions_rolled_back",
            "Transactions rolled back",
            lambda: [((), transaction_store.rolled_back_count)],
        )
        registry.counter(
            "transactions_given_up",
            "Transactions that stayed undecided after transactionCheckMax checks",
            lambda: [((), transaction_store.given_up_count)],
        )

    def _oldest_ms(self) -> int:
        """Age of the oldest open transaction; 0 without one."""
        oldest = min((each.stored_ms for each in self.transaction_store.table.by_key.values()), default=None)
        return max(0, self._clock.now_ms() - oldest) if oldest is not None else 0

    def runtime_info(self) -> dict[str, str]:
        transaction_store, table = self.transaction_store, self.transaction_store.table
        return {
            "openTransactions": str(len(table.by_key)),
            "oldestOpenTransactionMs": str(self._oldest_ms()),
            "transactionsCommitted": str(transaction_store.committed_count),
            "transactionsRolledBack": str(transaction_store.rolled_back_count),
            "transactionsGivenUp": str(transaction_store.given_up_count),
            "transactionChecksSent": str(self.checker.sent_count),
            "transactionChecksUnsent": str(self.checker.unsent_count),
            "transactionEndsRepeated": str(self.ends.repeated_count),
            "transactionEndsRefused": str(self.ends.refused_count),
        }

    def transaction_settings(self) -> TransactionSettings:
        """For the fast path: half messages and their ends."""
        hooks = TransactionFastPath(
            store=self._store,
            transaction_store=self.transaction_store,
            opened=self.checker.opened,
            takes_halves=self._takes_halves,
        )
        return TransactionSettings(hooks=hooks, half_topic=self._topics.create_internal(HALF_TOPIC))

    def delay_settings(self) -> DelaySettings:
        """For the fast path: messages with a delay level or a time."""
        timers = self._timers
        hooks = DelayFastPath(
            takes_delayed=self._takes_delayed,
            appended=self._schedule.on_appended,
            timer_appended=timers.on_messages if timers is not None else lambda: None,
            timer_limits=timers.limits if timers is not None else lambda: None,
        )
        return DelaySettings(
            hooks=hooks,
            schedule_topic=self._topics.create_internal(SCHEDULE_TOPIC),
            timer_topic=TopicConfig(WHEEL_TIMER_TOPIC, 1, 1),
            broker_name=self._identity.name,
            delays_ms=self._store.config.delay_levels_ms(),
        )

    def _takes_halves(self) -> bool:
        config = self._live.value
        return not (
            config.reject_transaction_message
            or config.enable_topic_message_type_check
            or self._unserved.has(self.name)
        )

    def _takes_delayed(self) -> bool:
        unserved = self._unserved
        return not (
            self._live.value.enable_topic_message_type_check
            or (unserved.reasons and (unserved.has(DelayLevels.name) or unserved.has(Timers.name)))
        )

    # --- half messages

    def _hook(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
        return to_half(message, properties) if is_half(message) else message

    def _stored(self, message: StoredMessage, properties: dict[str, str], result: AppendResult) -> None:
        """A half message is in the log."""
        transaction = OpenTransaction(
            (properties[PRODUCER_GROUP], properties[UNIQUE_KEY]),
            properties["REAL_TOPIC"],
            result.queue_offset,
            result.physical_offset,
            stored_ms=result.store_timestamp,
            immunity_ms=immunity_ms(properties),
        )
        self.checker.opened(self.transaction_store.prepared(transaction))

    # --- life

    def load(self) -> None:
        """Build the table of open transactions. A slave does it when it becomes a master."""
        self._metrics.load()
        if self._role.is_master:
            self._use(self._look())

    async def take_over(self) -> None:
        self._is_loaded = False
        steps = recovering(self._source(), **self._rules())
        while True:
            try:
                extents = next(steps)
            except StopIteration as end:
                self._use(end.value)
                return
            await self._store.warm_records(extents)
            await asyncio.sleep(0)

    def start(self) -> None:
        self._running = True
        self._decisions.lead(lambda: bool(self.transaction_store.table.ops))
        if not self._is_loaded:
            self._use(self._look())
        try:
            self.transaction_store.write_ops()
        except StoreError as error:
            log.error("the op record for what was found decided cannot be stored now: %s", error)
        self.checker.start()
        self._save_again()

    def log_cut(self, log_offset: int) -> None:
        self._decisions.cut()

    def resign(self) -> None:
        self.stop()
        # From here on another broker decides: transactions that are open here may be decided there, or
        # truncated.
        self.transaction_store.resume_with(TransactionTable())
        self._has_table = False
        self._term += 1
        self._saved_progress = (-1, -1)

    def stop(self) -> None:
        self._running = False
        self._is_loaded = False
        self._decisions.resign()
        self.transaction_store.stop()
        self.checker.stop()
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None

    def open_halves(self) -> list[tuple[int, int]]:
        """At a slave: the half messages that its log leaves open, the newest copy of each: its physical offset, and when its
        producer is to be asked (ms since 1970)."""
        time_out = self._live.value.transaction_time_out
        return [
            (each.physical_offset, each.stored_ms + time_out if each.due_ms is None else each.due_ms)
            for each in self._look().table.by_key.values()
        ]

    def _look(self) -> Recovered:
        return recover(self._source(), **self._rules())

    def _source(self) -> Source:
        store, log_files = self._store, self._store.log
        self._settled_offset = self._read_settled()
        return Source(
            half_queue=store.queues.get((HALF_TOPIC, 0)),
            op_queue=store.queues.get((OP_TOPIC, 0)),
            read=log_files.read,
            log_start=log_files.min_offset,
            log_end=log_files.end,
            half_offset=self._offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0),
            op_offset=self._offsets.query(TRANSACTION_GROUP, OP_TOPIC, 0),
            settled_offset=max(self._settled_offset, self._decisions.offset),
        )

    def _rules(self) -> _Rules:
        return _Rules(
            interval_ms=self._live.value.transaction_check_interval,
            was_committed=self.transaction_store.is_committed,
        )

    def _read_settled(self) -> int:
        """The offset before which decisions have their op records. 0 is always valid, but makes recovery search more of
        the log.
        """
        tree = self._settled_file.read_statistics() or {}  # without the file the log is searched
        settled = tree.get("settledOffset")
        return settled if isinstance(settled, int) and 0 <= settled <= self._store.log.end else 0

    def _use(self, found: Recovered) -> None:
        for transaction in list(found.table.by_key.values()):
            if transaction.physical_offset in self._escaped:
                found.table.decided(transaction, Outcome.ROLLED_BACK)  # here: another broker asks about it
        self.transaction_store.resume_with(found.table)
        self._is_loaded = self._has_table = True
        if found.table.by_key or found.found_commits:
            log.info(
                "%d transactions are open; %d commits had no op record yet (%d bytes of the log searched)",
                len(found.table.by_key), found.found_commits, found.scanned_bytes,
            )  # fmt: skip

    # --- files

    def save(self) -> None:
        """At the stop: every decision gets its op record, and the files say how far everything is decided."""
        if not self._is_loaded_for_save():
            return
        self.transaction_store.write_ops()
        self._commit_progress(*self.transaction_store.table.progress())
        self._offsets.save()
        self._metrics.write(self.transaction_store.table.counts)

    def _is_loaded_for_save(self) -> bool:
        return self._role.is_master and self._has_table and self._store.is_writable

    def _save_again(self) -> None:
        self._save_timer = self._clock.call_later(
            self._live.value.transaction_metric_flush_interval / 1000, self._save_again
        )
        try:
            self.transaction_store.write_ops()
        except AerobeeError as error:
            log.error("an op record cannot be stored: %s; it is tried again", error)
            return
        progress = self.transaction_store.table.progress()
        settled = self._store.log.end
        term = self._term
        if progress != self._saved_progress:
            self._saved_progress = progress
            self._store.flushed.when(
                settled, lambda ok: self._commit_progress(*progress) if ok and term == self._term else None
            )
        if self.transaction_store.table.open and settled > self._settled_offset:
            self._store.flushed.when(
                settled, lambda ok: self._write_settled(settled) if ok and term == self._term else None
            )
        if self._metrics.changed(self.transaction_store.table.counts):
            counts = dict(self.transaction_store.table.counts)
            self._metrics.write_soon(counts)

    def _commit_progress(self, half_offset: int, op_offset: int) -> None:
        if not half_offset and not op_offset:
            return  # no transaction was ever ended: the group shows in no list, as in RocketMQ
        self._offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, half_offset)
        self._offsets.commit(TRANSACTION_GROUP, OP_TOPIC, 0, op_offset)

    def _write_settled(self, offset: int) -> None:
        if not self._running:
            return
        self._settled_offset = offset
        content: dict[str, Any] = {"settledOffset": offset}
        self._settled_file.write_soon(lambda: self._settled_file.write(content))
