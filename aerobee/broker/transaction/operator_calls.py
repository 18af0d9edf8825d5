"""Requests of operators and tools about transactions: RocketMQ's 323, and two Aerobee-specific requests, documented
here.

RESUME_CHECK_HALF_MESSAGE 323 (topic, msgId: an offset message id) makes a half message open again with no checks counted;
it may be one that was given up.

AEROBEE_LIST_TRANSACTIONS 910037: ext (all optional) `state` open or given-up, `producerGroup`, `topic`, `transactionId`,
`olderThanMs`, `maxNum`. The answer's body is JSON, oldest first:

    {"total": n, "transactions": [{"transactionId", "producerGroup", "topic", "queueId", "state", "queueOffset",
     "physicalOffset", "offsetMsgId", "bornTimestamp", "storeTimestamp", "ageMs", "checks", "checksMax", "nextCheckMs",
     "producer": "ip:port", "producersOnline", "keys", "tag", "bodyBytes"}]}

`total` counts what matches, `transactions` holds up to `maxNum`; `nextCheckMs` is how long until the next check.

AEROBEE_RESOLVE_TRANSACTION 910038: ext `transactionId`, `action` commit, rollback or check, `producerGroup` (needed only
when two groups use one id). The answer's ext says what became of it: `outcome`, and for a commit `topic`, `queueId`,
`queueOffset`.
"""

from __future__ import annotations

from typing import Any

from aerobee.broker.admission.record_access import RecordAccess
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.broker.state.refusal import store_refusal
from aerobee.broker.transaction.check import Checker
from aerobee.broker.transaction.end import EndTransactionCalls
from aerobee.broker.transaction.half_message import HalfMessage
from aerobee.broker.transaction.transaction_store import TransactionStore
from aerobee.broker.transaction.transaction_table import OpenTransaction, Outcome
from aerobee.clock import Clock
from aerobee.errors import RemoteError, StoreError, UsageError
from aerobee.host_port import join_address
from aerobee.message import parse_offset_message_id
from aerobee.remoting import fastjson
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.store.log.stored_message import AppendResult
from aerobee.store.message_store import MessageStore
from aerobee.system_names import TRANS_CHECK_MAX_TIME_TOPIC

LIST_DEFAULT, LIST_MAX = 100, 1_000
GIVEN_UP_LOOK_MAX = 5_000  # of the newest that were given up
OPEN, GIVEN_UP = "open", "given-up"


class TransactionOperatorCalls:
    """Answers 323, 910037 and 910038."""

    def __init__(
        self,
        *,
        transaction_store: TransactionStore,
        checker: Checker,
        ends: EndTransactionCalls,
        store: MessageStore,
        producers: ProducerRegistry,
        live: LiveConfig,
        identity: BrokerIdentity,
        clock: Clock,
        records: RecordAccess,
    ) -> None:
        self._transaction_store = transaction_store
        self._checker = checker
        self._ends = ends
        self._store = store
        self._producers = producers
        self._live = live
        self._identity = identity
        self._clock = clock
        self._records = records

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
            RequestCode.AEROBEE_LIST_TRANSACTIONS: self.listing,
            RequestCode.AEROBEE_RESOLVE_TRANSACTION: self.resolve,
        }

    # --- 323

    def resume(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """323: begin again with the checks of a half message, given up or not."""
        try:
            _, physical_offset = parse_offset_message_id(request.text("msgId"))
        except UsageError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        half = self._transaction_store.named_half(physical_offset)
        if half is None or not self._records.may_decide(peer, request, half.topic):
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"no half message, and none that was given up, is at offset {physical_offset} of broker "
                f"{self._identity.name}",
            )
        try:
            self._begin_anew(half)
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark)
        except StoreError as error:
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark)
        return request.reply()

    def _begin_anew(self, half: HalfMessage) -> OpenTransaction:
        """Open it again, due now. Raises RemoteError when it was committed or rolled back, StoreError."""
        if half.key not in self._transaction_store.table.by_key:
            outcome = self._ends.outcome_of(half)
            if outcome is not Outcome.GIVEN_UP:
                raise _refused(half, f"was {outcome.value}: it is not asked about any more")
        transaction = self._transaction_store.begin_anew(half, due_ms=self._clock.now_ms())
        self._checker.opened(transaction)
        return transaction

    # --- listing

    def listing(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """910037: open transactions, or those that were given up."""
        state = request.text("state", OPEN)
        if state not in (OPEN, GIVEN_UP):
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER, f"state is {state[:40]!r}: it must be {OPEN} or {GIVEN_UP}"
            )
        count_max = min(max(1, request.integer("maxNum", LIST_DEFAULT)), LIST_MAX)
        rows: list[dict[str, Any]] = []
        total = 0
        for half, transaction in self._open(request) if state == OPEN else self._given_up(request):
            total += 1
            if len(rows) < count_max:
                rows.append(self._row(half, transaction))
        return request.reply(body=fastjson.dumps({"total": total, "transactions": rows}))

    def _open(self, request: RemotingCommand) -> list[tuple[HalfMessage | None, OpenTransaction | None]]:
        group, topic, transaction_id, newest_ms = self._filters(request)
        count_max = min(max(1, request.integer("maxNum", LIST_DEFAULT)), LIST_MAX)
        found = [
            transaction
            for transaction in self._transaction_store.table.by_key.values()
            if group in ("", transaction.group)
            and topic in ("", transaction.topic)
            and transaction_id in ("", transaction.transaction_id)
            and transaction.stored_ms <= newest_ms
        ]
        found.sort(key=lambda transaction: (transaction.stored_ms, transaction.queue_offset))
        # Read only the records that the reply shows.
        return [
            (
                self._transaction_store.half_at(transaction.physical_offset) if number < count_max else None,
                transaction,
            )
            for number, transaction in enumerate(found)
        ]

    def _given_up(self, request: RemotingCommand) -> list[tuple[HalfMessage | None, OpenTransaction | None]]:
        group, topic, transaction_id, newest_ms = self._filters(request)
        queue = self._store.queues.get((TRANS_CHECK_MAX_TIME_TOPIC, 0))
        if queue is None:
            return []
        found: dict[tuple[str, str], HalfMessage] = {}
        for offset in range(max(queue.min_offset, queue.max_offset - GIVEN_UP_LOOK_MAX), queue.max_offset):
            entry = queue.entry(offset)
            half = (
                self._transaction_store.half_at(entry[0], (TRANS_CHECK_MAX_TIME_TOPIC,))
                if entry is not None
                else None
            )
            if (
                half is not None
                and group in ("", half.group)
                and topic in ("", half.topic)
                and transaction_id in ("", half.transaction_id)
                and half.record.store_timestamp <= newest_ms
                and half.key not in self._transaction_store.table.by_key
            ):
                found[half.key] = half
        return [(half, None) for half in found.values() if self._ends.outcome_of(half) is Outcome.GIVEN_UP]

    def _filters(self, request: RemotingCommand) -> tuple[str, str, str, int]:
        return (
            request.text("producerGroup", ""),
            request.text("topic", ""),
            request.text("transactionId", ""),
            self._clock.now_ms() - request.integer("olderThanMs", 0),
        )

    def _row(self, half: HalfMessage | None, transaction: OpenTransaction | None) -> dict[str, Any]:
        now_ms = self._clock.now_ms()
        row: dict[str, Any] = {"state": OPEN if transaction is not None else GIVEN_UP}
        if transaction is not None:
            due_ms = transaction.due_ms
            if due_ms is None:
                due_ms = transaction.stored_ms + self._live.value.transaction_time_out
            row |= {
                "transactionId": transaction.transaction_id,
                "producerGroup": transaction.group,
                "topic": transaction.topic,
                "queueOffset": transaction.queue_offset,
                "physicalOffset": transaction.physical_offset,
                "storeTimestamp": transaction.stored_ms,
                "checks": transaction.checks,
                "nextCheckMs": max(0, due_ms - now_ms),
            }
        elif half is not None:
            row |= {
                "transactionId": half.transaction_id,
                "producerGroup": half.group,
                "topic": half.topic,
                "queueOffset": half.record.queue_offset,
                "physicalOffset": half.record.physical_offset,
                "storeTimestamp": half.record.store_timestamp,
                "checks": half.checks,
            }
        row["ageMs"] = max(0, now_ms - row["storeTimestamp"])
        row["checksMax"] = self._live.value.transaction_check_max
        row["producersOnline"] = len(self._producers.members(row["producerGroup"]))
        if half is not None:
            record = half.record
            row |= {
                "queueId": half.queue_id,
                "offsetMsgId": record.offset_message_id,
                "bornTimestamp": record.born_timestamp,
                "producer": join_address(*record.born_host),
                "keys": record.properties.get("KEYS", ""),
                "tag": record.tag or "",
                "bodyBytes": len(record.body),
            }
        return row

    # --- deciding

    def resolve(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """910038: an operator commits, rolls back, or has a producer asked now."""
        transaction_id, action = request.text("transactionId"), request.text("action")
        group = request.text("producerGroup", "") or None
        if action not in ("commit", "rollback", "check"):
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER,
                f"action is {action[:40]!r}: it must be commit, rollback or check",
            )
        try:
            transaction = self._find_open(transaction_id, group)
            if transaction is None:
                ext = self._resolve_given_up(transaction_id, group, action)
            else:
                ext = self._resolve_open(transaction, action)
            self._transaction_store.write_ops()
        except StoreError as error:
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark)
        return request.reply(ext=ext)

    def _find_open(self, transaction_id: str, group: str | None) -> OpenTransaction | None:
        by_key = self._transaction_store.table.by_key
        if group is not None:
            return by_key.get((group, transaction_id))
        found = [transaction for key, transaction in by_key.items() if key[1] == transaction_id]
        if len(found) > 1:
            groups = ", ".join(sorted(transaction.group for transaction in found))
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER,
                f"several producer groups have a transaction {transaction_id}: say which one, of {groups}",
            )
        return found[0] if found else None

    def _resolve_open(self, transaction: OpenTransaction, action: str) -> dict[str, str]:
        if action == "rollback":
            self._transaction_store.roll_back(transaction)
            return {"outcome": Outcome.ROLLED_BACK.value}
        half = self._transaction_store.half_at(transaction.physical_offset)
        if half is None:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"the half message of transaction {transaction.transaction_id} at {transaction.physical_offset} "
                "cannot be read any more: it can only be rolled back",
            )
        if action == "commit":
            return _offsets_of(half, self._transaction_store.commit(transaction))
        return self._ask_now(transaction, half)

    def _ask_now(self, transaction: OpenTransaction, half: HalfMessage) -> dict[str, str]:
        if not self._checker.ask(transaction, half):
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"no producer of group {transaction.group} that may send to {transaction.topic} is connected to broker "
                f"{self._identity.name}: start a producer of that group, or decide the transaction yourself",
            )
        return {"outcome": "asked", "checks": str(transaction.checks)}

    def _resolve_given_up(self, transaction_id: str, group: str | None, action: str) -> dict[str, str]:
        half = self._transaction_store.given_up_copy(transaction_id, group)
        if half is None:
            raise RemoteError(
                ResponseCode.QUERY_NOT_FOUND,
                f"broker {self._identity.name} has no open transaction {transaction_id}"
                f"{f' of group {group}' if group else ''}, and none that was given up: it was decided already, or it is "
                "at another broker",
            )
        outcome = self._ends.outcome_of(half)
        if outcome is not Outcome.GIVEN_UP:
            raise _refused(half, f"was {outcome.value} already")
        if action == "commit":
            return _offsets_of(half, self._transaction_store.commit_given_up(half))
        if action == "rollback":
            self._transaction_store.table.remember(half.key, Outcome.ROLLED_BACK)
            return {"outcome": Outcome.ROLLED_BACK.value}
        transaction = self._begin_anew(half)
        fresh = self._transaction_store.half_at(transaction.physical_offset)
        return self._ask_now(transaction, fresh or half)


def _refused(half: HalfMessage, why: str) -> RemoteError:
    return RemoteError(
        ResponseCode.ILLEGAL_OPERATION, f"transaction {half.transaction_id} of {half.group} {why}"
    )


def _offsets_of(half: HalfMessage, result: AppendResult) -> dict[str, str]:
    return {
        "outcome": Outcome.COMMITTED.value,
        "topic": half.topic,
        "queueId": str(half.queue_id),
        "queueOffset": str(result.queue_offset),
    }
