"""CHECK_TRANSACTION_STATE 39: asks producers for the outcome of their open transactions, and gives up after a maximum
number of checks.

Follows TransactionalMessageCheckService and AbstractTransactionalMessageCheckListener of RocketMQ. A transaction is checked
when its immunity has expired (transactionTimeOut, or its sender's value), then every transactionCheckInterval, up
to transactionCheckMax times; then it goes to TRANS_CHECK_MAX_TIME_TOPIC, as one does that is older than the log is kept.

Differences from RocketMQ: one timer stands at the next due time instead of a pass over the queue, so the first check is
on time; a check counts only when there is a producer to send it to.
"""

from __future__ import annotations

import logging
from collections import Counter

from aerobee.broker.parts.parts import MaySend, any_client_may_send
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.broker.transaction.half_message import HalfMessage, check_body
from aerobee.broker.transaction.transaction_store import TransactionStore
from aerobee.broker.transaction.transaction_table import OpenTransaction
from aerobee.clock import Clock, Timer, wall_wait_s
from aerobee.errors import RemoteError, StoreError
from aerobee.message import offset_message_id, unpack_host
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer
from aerobee.store.files.config import StoreConfig
from aerobee.system_names import HALF_TOPIC

log = logging.getLogger(__name__)

CHECKS_PER_PASS = 64  # then other tasks of the event loop run
ERROR_PAUSE_MS = 1_000
CHANNEL_TRIES = 3  # maximum number of members of a group that are tried for one that accepts requests
HOUR_MS = 3_600_000


class Checker:
    """Sends checks when they are due. `sent_count`; `unsent_count`: no producer of the group was connected."""

    def __init__(
        self,
        *,
        transaction_store: TransactionStore,
        producers: ProducerRegistry,
        live: LiveConfig,
        config: StoreConfig,
        identity: BrokerIdentity,
        clock: Clock,
        may_send: MaySend = any_client_may_send,
    ) -> None:
        self._transaction_store = transaction_store
        self._may_send = may_send
        self._producers = producers
        self._live = live
        self._config = config
        self._identity = identity
        self._clock = clock
        self._timer: Timer | None = None
        self._armed_ms = 0
        self._running = False
        self.sent_count = self.unsent_count = 0

    def start(self) -> None:
        """Ask producers about transactions that stay open, from now on."""
        self._running = True
        self._live.on_change(lambda _: self._arm())
        self._arm()

    def stop(self) -> None:
        """Send no more checks."""
        self._running = False
        self._disarm()

    def opened(self, transaction: OpenTransaction) -> None:
        """A transaction was opened, or its check became due earlier."""
        due_ms = transaction.due_ms
        if due_ms is None:
            due_ms = transaction.stored_ms + self._live.value.transaction_time_out
        if self._timer is None or due_ms < self._armed_ms:
            self._arm()

    def ask(self, transaction: OpenTransaction, half: HalfMessage) -> bool:
        """Ask a producer of its group now; False when none is connected. Raises StoreError; nothing is counted then."""
        peer = self._connection_of(transaction)
        if peer is None:
            return False
        due_ms = self._clock.now_ms() + self._live.value.transaction_check_interval
        copy, result = self._transaction_store.ask_again(transaction, half, due_ms=due_ms)
        ext = {
            "bname": self._identity.name,
            "commitLogOffset": str(result.physical_offset),
            "topic": HALF_TOPIC,
            "msgId": transaction.transaction_id,
            "tranStateTableOffset": str(result.queue_offset),
            "offsetMsgId": offset_message_id(
                unpack_host(self._transaction_store.host), result.physical_offset
            ),
            "transactionId": transaction.transaction_id,
        }
        body = check_body(half, copy, result, self._transaction_store.host)
        peer.invoke_oneway(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, ext, body))
        self.sent_count += 1
        self.opened(transaction)
        return True

    def _connection_of(self, transaction: OpenTransaction) -> Peer | None:
        """A member of the group; membership is unauthenticated, but the message goes only to clients that might have
        sent it."""
        for _ in range(CHANNEL_TRIES):
            channel = self._producers.channel_of(
                transaction.group,
                lambda each: self._may_send(each.principal, each.peer, transaction.topic),
            )
            if channel is None:
                return None
            if not channel.peer.congested:
                return channel.peer
        return None

    # --- the timer

    def _arm(self) -> None:
        self._disarm()
        self._transaction_store.mend_times(self._live.value.transaction_check_interval)
        due_ms = self._transaction_store.table.next_due_ms(self._live.value.transaction_time_out)
        if due_ms is not None and self._running:
            self._armed_ms = due_ms
            self._timer = self._clock.call_later(wall_wait_s(self._clock, due_ms), self._run)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        unsent: Counter[str] = Counter()
        for transaction in self._transaction_store.table.due(
            now_ms, self._live.value.transaction_time_out, CHECKS_PER_PASS
        ):
            try:
                if not self._settle(transaction, now_ms):
                    unsent[transaction.group] += 1
            except (StoreError, RemoteError) as error:
                log.error("transaction %s cannot be asked about now: %s", transaction.transaction_id, error)
                self._transaction_store.table.put_off(transaction, now_ms + ERROR_PAUSE_MS)
        for group, count in unsent.items():
            log.warning(
                "%d open transactions wait for producer group %s: no producer of it with the permission is connected",
                count,
                group,
            )
        self._arm()

    def _settle(self, transaction: OpenTransaction, now_ms: int) -> bool:
        """Ask, or give up; False when it could not be asked."""
        config = self._live.value
        half = self._transaction_store.half_at(transaction.physical_offset)
        age_ms = now_ms - transaction.stored_ms
        if half is None:
            log.error(
                "transaction %s of %s is dropped: its half message at %d is gone",
                transaction.transaction_id, transaction.group, transaction.physical_offset,
            )  # fmt: skip
            self._transaction_store.give_up(transaction)
        elif (
            transaction.checks >= config.transaction_check_max
            or age_ms > self._config.file_reserved_time * HOUR_MS
        ):
            self._transaction_store.give_up(transaction)
            log.warning(
                "transaction %s of %s for topic %s is given up after %d checks in %d s: it is in "
                "TRANS_CHECK_MAX_TIME_TOPIC; `aerobee transaction list --given-up` shows it",
                transaction.transaction_id, transaction.group, transaction.topic, transaction.checks, age_ms // 1000,
            )  # fmt: skip
        elif not self.ask(transaction, half):
            self.unsent_count += 1
            self._transaction_store.table.put_off(transaction, now_ms + config.transaction_check_interval)
            return False
        return True
