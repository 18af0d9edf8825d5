"""Admin calls about transactions: list open transactions and those whose checks ended, and resolve them on
behalf of a producer.

323 is RocketMQ's; the two others are Aerobee-specific (broker/transaction/operator_calls.py), which RocketMQ's brokers
answer with REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aerobee.client.admin.base import AdminCalls
from aerobee.errors import MalformedFrame, QueryNotFound, RemoteError, UsageError
from aerobee.host_port import join_address
from aerobee.message import parse_offset_message_id
from aerobee.remoting import fastjson
from aerobee.remoting.codes import RequestCode, ResponseCode

OPEN, GIVEN_UP = "open", "given-up"
ACTIONS = ("commit", "rollback", "check")
LIST_MAX = 1_000  # maximum number of rows of one reply


@dataclass(slots=True, frozen=True, kw_only=True)
class TransactionInfo:
    """An undecided transaction, as its broker reports it. Times in ms.

    `topic` and `queue_id` name its destination after a commit. `producer` is the address of the sender, `group` its
    producer group, of which `producers_online` members are connected and can answer checks. `next_check_ms` is the
    time until the next check.
    """

    transaction_id: str
    group: str
    topic: str
    queue_id: int
    state: str
    broker_address: str
    offset_message_id: str
    age_ms: int
    checks: int
    checks_max: int
    next_check_ms: int
    producer: str
    producers_online: int
    keys: tuple[str, ...]
    tag: str
    body_bytes: int
    store_timestamp: int
    born_timestamp: int


@dataclass(slots=True, frozen=True, kw_only=True)
class TransactionList:
    """`total` transactions match, of which the oldest are in `transactions`."""

    total: int
    transactions: tuple[TransactionInfo, ...]


@dataclass(slots=True, frozen=True, kw_only=True)
class TransactionOutcome:
    """Result of resolving a transaction: `outcome` is committed, rolled back or asked.

    `queue_offset` is that of the committed message; `checks` is the number of checks sent. -1: does not apply.
    """

    outcome: str
    broker_address: str
    topic: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    checks: int = -1


class TransactionCalls(AdminCalls):
    """List and resolve open transactions."""

    async def transactions(
        self,
        *,
        state: str = OPEN,
        group: str | None = None,
        topic: str | None = None,
        transaction_id: str | None = None,
        older_than_s: float = 0.0,
        count_max: int = 100,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> TransactionList:
        """Open transactions, or with state "given-up" those whose checks the broker stopped; oldest first.

        Raises RemoteError with code 3 when a broker is not an Aerobee broker.
        """
        if state not in (OPEN, GIVEN_UP):
            raise UsageError(f"state is {state!r}: it must be {OPEN} or {GIVEN_UP}")
        if not 1 <= count_max <= LIST_MAX:
            raise UsageError(f"count_max is {count_max}: 1 to {LIST_MAX} are possible")
        ext = {"state": state, "olderThanMs": str(round(older_than_s * 1000)), "maxNum": str(count_max)}
        for name, value in (("producerGroup", group), ("topic", topic), ("transactionId", transaction_id)):
            if value:
                ext[name] = value
        addresses = await self._masters(cluster, broker)
        answers = await asyncio.gather(
            *(self._call(address, RequestCode.AEROBEE_LIST_TRANSACTIONS, dict(ext)) for address in addresses)
        )
        total, rows = 0, []
        for address, answer in zip(addresses, answers, strict=True):
            fields = fastjson.loads_trusted(answer.body, "the list of transactions")
            found = fields.get("transactions")
            if not isinstance(found, list):
                raise MalformedFrame(f"the list of transactions of {address} has no transactions")
            total += _number(fields, "total")
            rows += [_info(row, address) for row in found if isinstance(row, dict)]
        rows.sort(key=lambda row: -row.age_ms)
        return TransactionList(total=total, transactions=tuple(rows[:count_max]))

    async def resolve_transaction(
        self,
        transaction_id: str,
        action: str,
        *,
        group: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> TransactionOutcome:
        """Commit or roll back a transaction, or let its broker send a check to a producer now ("check"); the
        transaction is open or given up.

        Raises QueryNotFound when no broker has it, another RemoteError when it cannot be done (it was decided already,
        no producer of the group is connected).
        """
        if action not in ACTIONS:
            raise UsageError(f"action is {action!r}: it must be one of {', '.join(ACTIONS)}")
        ext = {
            "transactionId": transaction_id,
            "action": action,
            **({"producerGroup": group} if group else {}),
        }
        missing: RemoteError | None = None
        for address in await self._masters(cluster, broker):
            try:
                answer = await self._call(address, RequestCode.AEROBEE_RESOLVE_TRANSACTION, dict(ext))
            except RemoteError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                missing = error
                continue
            fields = answer.ext or {}
            return TransactionOutcome(
                outcome=fields.get("outcome", ""),
                broker_address=address,
                topic=fields.get("topic", ""),
                queue_id=answer.integer("queueId", -1),
                queue_offset=answer.integer("queueOffset", -1),
                checks=answer.integer("checks", -1),
            )
        raise missing or QueryNotFound(
            ResponseCode.QUERY_NOT_FOUND.value,
            f"no broker is known that could resolve transaction {transaction_id}",
            request="AEROBEE_RESOLVE_TRANSACTION",
        )

    async def resume_transaction_checks(self, topic: str, offset_message_id: str) -> None:
        """Restart the checks of a half message, also of a given-up one (RESUME_CHECK_HALF_MESSAGE)."""
        (host, port), _ = parse_offset_message_id(offset_message_id)
        await self._call(
            join_address(host, port),
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            {"topic": topic, "msgId": offset_message_id},
        )


def _info(row: dict[str, Any], address: str) -> TransactionInfo:
    return TransactionInfo(
        transaction_id=str(row.get("transactionId", "")),
        group=str(row.get("producerGroup", "")),
        topic=str(row.get("topic", "")),
        queue_id=_number(row, "queueId", -1),
        state=str(row.get("state", "")),
        broker_address=address,
        offset_message_id=str(row.get("offsetMsgId", "")),
        age_ms=_number(row, "ageMs"),
        checks=_number(row, "checks"),
        checks_max=_number(row, "checksMax"),
        next_check_ms=_number(row, "nextCheckMs", -1),
        producer=str(row.get("producer", "")),
        producers_online=_number(row, "producersOnline"),
        keys=tuple(str(row.get("keys", "")).split()),
        tag=str(row.get("tag", "")),
        body_bytes=_number(row, "bodyBytes"),
        store_timestamp=_number(row, "storeTimestamp"),
        born_timestamp=_number(row, "bornTimestamp"),
    )


def _number(fields: dict[str, Any], name: str, default: int = 0) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int):
        raise MalformedFrame(f"{name} in a list of transactions is {value!r}, not a number")
    return value
