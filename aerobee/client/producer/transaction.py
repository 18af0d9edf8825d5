"""What a transaction is to its producer: its state, the result of sending it, and the ones that ended. Core.

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
    """What is known of the local work. UNKNOWN: the broker asks again later."""

    COMMIT = "COMMIT_MESSAGE"
    """The local work succeeded: deliver the message."""
    ROLLBACK = "ROLLBACK_MESSAGE"
    """The local work failed: never deliver the message."""
    UNKNOWN = "UNKNOW"
    """The outcome is not known yet: the broker checks again later."""

    @property
    def code(self) -> int:
        """commitOrRollback on the wire."""
        return _CODES[self]


_CODES = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: 0,
}


@dataclass(slots=True, frozen=True)
class TransactionResult:
    """How sending in a transaction ended.

    `state` is the state sent to the broker. `confirmed`: the broker confirmed it; otherwise it will check, or refused because
    an operator or the checker of another process decided otherwise before. `error` is what the local
    work raised.
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
    """The message as it is sent first. Raises UsageError for what cannot be a transaction message."""
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
    """Where the half message is in the broker's log."""
    return parse_offset_message_id(result.offset_message_id)[1]


class EndedTransactions:
    """The transactions of this producer that are running or have ended, the newest `count_max` of them.

    A broker may ask about one that this producer knows better than the user's checker: its local work still runs, its
    end was lost on the way, or it was decided at another broker, to which the send was repeated.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._running: set[str] = set()
        self._ended: OrderedDict[str, tuple[str, TransactionState]] = OrderedDict()

    def begin(self, transaction_id: str) -> None:
        self._running.add(transaction_id)

    def end(self, transaction_id: str, broker_name: str, state: TransactionState) -> None:
        """The local work is done. What ended as UNKNOWN is left to the checker."""
        self._running.discard(transaction_id)
        if state is TransactionState.UNKNOWN:
            return
        self._ended[transaction_id] = (broker_name, state)
        if len(self._ended) > self._count_max:
            self._ended.popitem(last=False)

    def answer(self, transaction_id: str, broker_name: str) -> TransactionState | None:
        """What to answer when `broker_name` asks; None: the checker knows. An empty name is the asker's own."""
        if transaction_id in self._running:
            return TransactionState.UNKNOWN
        ended = self._ended.get(transaction_id)
        if ended is None:
            return None
        decided_at, state = ended
        return state if broker_name in ("", decided_at) else TransactionState.ROLLBACK
