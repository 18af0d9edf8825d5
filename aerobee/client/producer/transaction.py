"""A transaction at its producer: its state, its result, and the table of ended transactions. Core.

Follows LocalTransactionState and TransactionSendResult of RocketMQ.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

from aerobee.client.base.results import SendResult
from aerobee.errors import UsageError
from aerobee.message import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    Message,
    parse_offset_message_id,
)
from aerobee.property_names import IMMUNITY, PRODUCER_GROUP, TRAN_MSG

_FORBIDDEN = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", TRAN_MSG, PRODUCER_GROUP)


class TransactionState(Enum):
    """Outcome of the local work. UNKNOWN: the broker checks again later."""

    COMMIT = "COMMIT_MESSAGE"
    """The local work succeeded: deliver the message."""
    ROLLBACK = "ROLLBACK_MESSAGE"
    """The local work failed: never deliver the message."""
    UNKNOWN = "UNKNOW"
    """The outcome is not known yet: the broker checks again later."""

    @property
    def code(self) -> int:
        """Value of commitOrRollback in requests."""
        return _CODES[self]


_CODES = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: 0,
}


@dataclass(slots=True, frozen=True)
class TransactionResult:
    """How sending in a transaction ended.

    `state` is the state sent to the broker. `confirmed`: the broker confirmed it; otherwise the broker will check, or
    refused because an operator or the checker of another process decided differently before. `error` is the exception
    of the local work.
    """

    send: SendResult
    """Result of the send of the half message."""
    state: TransactionState
    """State that the producer reported to the broker."""
    confirmed: bool
    """Whether the broker confirmed `state`."""
    error: Exception | None = None
    """Exception of the local work. None: it raised none."""

    @property
    def transaction_id(self) -> str:
        """Id of the transaction, which a checker receives as `message_id`."""
        return self.send.transaction_id or self.send.message_id


def half_of(message: Message, group: str, immunity_s: int | None) -> Message:
    """The half message. Raises UsageError for a message that cannot be sent in a transaction."""
    if message.is_delayed:
        raise UsageError(
            "a transaction message cannot be delayed: leave out delay_level, deliver_at and deliver_after"
        )
    for name in _FORBIDDEN:
        if name in message.properties:
            raise UsageError(f"a transaction message cannot have property {name}: remove it")
    if not message.wait_store_ok:
        raise UsageError("a transaction message is waited for: leave wait_store_ok true")
    properties = {**message.properties, TRAN_MSG: "true", PRODUCER_GROUP: group}
    if immunity_s is not None:
        if immunity_s < 0:
            raise UsageError(f"immunity_s is {immunity_s}, must not be negative")
        properties[IMMUNITY] = str(immunity_s)
    return Message(
        message.topic,
        message.body,
        tag=message.tag,
        keys=message.keys,
        properties=properties,
        flag=message.flag,
    )


def end_fields(
    *,
    group: str,
    topic: str,
    broker_name: str,
    transaction_id: str,
    queue_offset: int,
    physical_offset: int,
    state: TransactionState,
    from_check: bool,
) -> dict[str, str]:
    """The fields of END_TRANSACTION."""
    return {
        "producerGroup": group,
        "topic": topic,
        "bname": broker_name,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(physical_offset),
        "commitOrRollback": str(state.code),
        "fromTransactionCheck": "true" if from_check else "false",
        "msgId": transaction_id,
        "transactionId": transaction_id,
    }


def physical_offset_of(result: SendResult) -> int:
    """Physical offset of the half message."""
    return parse_offset_message_id(result.offset_message_id)[1]


class EndedTransactions:
    """The transactions of this producer that are running or have ended, the newest `count_max` of them.

    A broker may check a transaction whose state this producer knows better than the user's checker: its local work
    still runs, its end request was lost, or a retried send decided it at another broker.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._running: set[str] = set()
        self._ended: OrderedDict[str, tuple[str, TransactionState]] = OrderedDict()

    def begin(self, transaction_id: str) -> None:
        self._running.add(transaction_id)

    def end(self, transaction_id: str, broker_name: str, state: TransactionState) -> None:
        """The local work has ended. The checker resolves transactions that ended as UNKNOWN."""
        self._running.discard(transaction_id)
        if state is TransactionState.UNKNOWN:
            return
        self._ended[transaction_id] = (broker_name, state)
        if len(self._ended) > self._count_max:
            self._ended.popitem(last=False)

    def answer(self, transaction_id: str, broker_name: str) -> TransactionState | None:
        """The reply to a check of `broker_name`; None: call the checker. An empty name stands for the broker that sent
        the check."""
        if transaction_id in self._running:
            return TransactionState.UNKNOWN
        ended = self._ended.get(transaction_id)
        if ended is None:
            return None
        decided_at, state = ended
        return state if broker_name in ("", decided_at) else TransactionState.ROLLBACK
