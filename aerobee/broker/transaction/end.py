"""END_TRANSACTION 37: a producer commits or rolls back a half message (EndTransactionProcessor).

RocketMQ looks at the half message only, so it delivers again for each commit that reaches it. Here the outcome belongs
to (producer group, transaction id): a repeated decision is confirmed; the opposite decision is refused with code 604,
and counted.
"""

from __future__ import annotations

import logging

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.admission.record_access import RecordAccess
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.refusal import store_refusal
from aerobee.broker.state.role import RoleState
from aerobee.broker.transaction.half_message import HalfMessage
from aerobee.broker.transaction.transaction_store import TransactionStore
from aerobee.broker.transaction.transaction_table import OpenTransaction, Outcome
from aerobee.clock import Clock
from aerobee.errors import RemoteError, StoreError
from aerobee.message import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import AppendResult
from aerobee.system_names import HALF_TOPIC

log = logging.getLogger(__name__)

UNKNOWN = 0
SHOWN_CHARS_MAX = 64  # of a field in a refusal
_DECISIONS = {TRANSACTION_COMMIT: Outcome.COMMITTED, TRANSACTION_ROLLBACK: Outcome.ROLLED_BACK}


class EndTransactionCalls:
    """The handler of END_TRANSACTION. `repeated_count`, `refused_count` and `unknown_count` count requests without
    effect.
    """

    def __init__(
        self,
        *,
        transaction_store: TransactionStore,
        config: StoreConfig,
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
        ack: AckPolicy,
        stats: BrokerStats,
        clock: Clock,
        records: RecordAccess,
    ) -> None:
        self._transaction_store = transaction_store
        self._config = config
        self._live = live
        self._identity = identity
        self._role = role
        self._ack = ack
        self._stats = stats
        self._clock = clock
        self._records = records
        self.repeated_count = self.refused_count = self.unknown_count = 0

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.END_TRANSACTION: self.end}

    def end(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Carry out a decision. No reply to "unknown": the transaction stays open and is checked later."""
        if not self._role.takes_writes:
            return request.reply(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                remark=f"broker {self._identity.name} id {self._identity.broker_id} is a slave: end the transaction at "
                "the master of that name",
            )
        decision = request.integer("commitOrRollback")
        outcome = _DECISIONS.get(decision)
        if outcome is None:
            if decision != UNKNOWN:
                raise RemoteError(
                    ResponseCode.SYSTEM_ERROR,
                    f"commitOrRollback is {decision}: 8 commits, 12 rolls back, 0 leaves the transaction open",
                )
            self.unknown_count += 1
            return None
        try:
            result = self._decide(peer, request, outcome)
        except RemoteError as error:
            log.warning("END_TRANSACTION of %s: %s", peer.address, error.remark)
            return request.reply(error.code, remark=error.remark)
        except StoreError as error:
            self._stats.put_failed()
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark)
        if request.is_oneway:
            return None
        return self._confirm(peer, request, result)

    def _confirm(self, peer: Peer, request: RemotingCommand, result: AppendResult | None) -> Reply:
        """Answer a sender that waits: with sync flush when the disk has the decision."""
        if result is None:
            result = self._transaction_store.write_ops()  # the op record is the only trace of a rollback
        reply = request.reply()
        return (
            reply if result is None else self._ack.answer(peer, reply, result.end, request_code=request.code)
        )

    def _decide(self, peer: Peer, request: RemotingCommand, outcome: Outcome) -> AppendResult | None:
        """Return the committed message's offsets, None when nothing was stored. Raises RemoteError, StoreError."""
        transaction_store = self._transaction_store
        queue_offset = request.integer("tranStateTableOffset")
        physical_offset = request.integer("commitLogOffset")
        group = request.text("producerGroup")
        transaction = transaction_store.table.open.get(queue_offset)
        if (
            transaction is None
            or transaction.queue_offset != queue_offset
            or transaction.physical_offset != physical_offset
            or transaction.key[0] != group
        ):
            half = self._find(peer, request, queue_offset, physical_offset, group)
            transaction = transaction_store.table.by_key.get(half.key)
            if transaction is not None and transaction.topic != half.topic:
                raise _not_found(request)  # of another sender, who was the first under this id
            if transaction is None or queue_offset < transaction.first_offset:
                _check_id(request, half.transaction_id)
                return self._decide_again(half, outcome)
        elif not self._records.may_decide(peer, request, transaction.topic):
            raise _not_found(request)
        _check_id(request, transaction.transaction_id)
        if transaction.immunity_ms is not None:
            self._check_time(request, transaction)
        if outcome is Outcome.COMMITTED:
            return transaction_store.commit(transaction)
        transaction_store.roll_back(transaction)
        return None

    def _find(
        self, peer: Peer, request: RemotingCommand, queue_offset: int, physical_offset: int, group: str
    ) -> HalfMessage:
        """The half message that a request names. Raises RemoteError, the same one for an unknown transaction and for
        one of another sender: a distinct refusal would reveal the data that is needed to end the transaction."""
        half = self._transaction_store.named_half(physical_offset, (HALF_TOPIC,))
        if (
            half is None
            or half.group != group
            or half.record.queue_offset != queue_offset
            or not self._records.may_decide(peer, request, half.topic)
        ):
            raise _not_found(request)
        return half

    def _check_time(self, request: RemotingCommand, transaction: OpenTransaction) -> None:
        """A producer that requested more time and used it up must wait for the check."""
        limit_ms = max(transaction.immunity_ms or 0, self._live.value.transaction_time_out)
        elapsed_ms = self._clock.now_ms() - transaction.stored_ms
        if elapsed_ms > limit_ms and not request.boolean("fromTransactionCheck", False):
            raise RemoteError(
                ResponseCode.ILLEGAL_OPERATION,
                f"transaction {transaction.transaction_id} is ended {elapsed_ms} ms after its half message, its "
                f"CHECK_IMMUNITY_TIME_IN_SECONDS allows {limit_ms}: answer the broker's check instead",
            )

    def _decide_again(self, half: HalfMessage, outcome: Outcome) -> AppendResult | None:
        """A decision about a transaction that is not open."""
        before = self.outcome_of(half)
        if before is outcome:
            self.repeated_count += 1
            return None
        if before is Outcome.GIVEN_UP:
            # The transaction was never decided: the broker gave up its checks, and this request is the late
            # answer.
            if outcome is Outcome.COMMITTED:
                return self._transaction_store.commit_given_up(half)
            self._transaction_store.table.remember(half.key, outcome)
            return None
        self.refused_count += 1
        raise RemoteError(
            ResponseCode.ILLEGAL_OPERATION,
            f"transaction {half.transaction_id} of {half.group} was {before.value} before: it cannot be "
            f"{outcome.value} now",
        )

    def outcome_of(self, half: HalfMessage) -> Outcome:
        """Outcome of a transaction that is not open: from memory, else from the log."""
        transaction_store = self._transaction_store
        outcome = transaction_store.table.outcomes.get(half.key)
        if outcome is None:
            if transaction_store.is_committed(half):
                outcome = Outcome.COMMITTED
            elif transaction_store.given_up_copy(half.transaction_id, half.group) is not None:
                outcome = Outcome.GIVEN_UP
            else:
                outcome = Outcome.ROLLED_BACK
            transaction_store.table.remember(half.key, outcome)
        return outcome


def _check_id(request: RemotingCommand, transaction_id: str) -> None:
    """Refuse a request that names another transaction: after a power loss another message can have its offset.

    A client may name it by the offset message id instead, which ends with the offset that it gives as well.
    """
    named = [text for name in ("transactionId", "msgId") if (text := request.field(name))]
    offset_text = f"{request.integer('commitLogOffset'):016X}"
    if (
        named
        and transaction_id not in named
        and not any(text.upper().endswith(offset_text) for text in named)
    ):
        raise _not_found(request)


def _not_found(request: RemotingCommand) -> RemoteError:
    """The refusal of a request that names no half message of its sender, whatever is wrong: it repeats the request and no record."""
    said = ", ".join(
        f"{name} {(request.field(name) or '')[:SHOWN_CHARS_MAX]!r}"
        for name in ("commitLogOffset", "tranStateTableOffset", "producerGroup", "transactionId")
    )
    return RemoteError(
        ResponseCode.SYSTEM_ERROR,
        f"Find prepared transaction message failed: this broker has no half message with {said} that this sender may end",
    )
