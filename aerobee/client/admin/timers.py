"""Admin calls on timer messages: list the pending ones, recall and reschedule them, count them.

Request 370 is RocketMQ's; the two others are Aerobee-specific (broker/timer/timer_calls.py), which RocketMQ's brokers
answer with REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aerobee.client.admin.base import AdminCalls
from aerobee.client.producer.recall import parse_handle, recall_message
from aerobee.errors import MalformedFrame, UsageError
from aerobee.remoting import fastjson
from aerobee.remoting.codes import RequestCode

LIST_MAX = 1_000  # maximum number of rows of one reply
ADMIN_GROUP = "TOOLS_PRODUCER"


@dataclass(slots=True, frozen=True, kw_only=True)
class TimerInfo:
    """A pending timer message. Times in ms since the epoch; `in_ms` is the time until delivery.

    `topic` and `queue_id` name its destination; `rolls` counts how often the broker stored it again before its
    delivery time.
    """

    message_id: str
    topic: str
    queue_id: int
    broker_address: str
    offset_message_id: str
    due_ms: int
    in_ms: int
    store_timestamp: int
    body_bytes: int
    keys: tuple[str, ...]
    tag: str
    rolls: int
    recall_handle: str


@dataclass(slots=True, frozen=True, kw_only=True)
class TimerList:
    """`pending`: number of pending messages of all topics; `timers`: the requested ones by due time."""

    pending: int
    timers: tuple[TimerInfo, ...]
    is_whole: bool


class TimerCalls(AdminCalls):
    """List, recall and reschedule timer messages."""

    async def timers(
        self,
        *,
        topic: str | None = None,
        from_ms: int = 0,
        until_ms: int | None = None,
        count_max: int = 100,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> TimerList:
        """Messages of the timer (not of delay levels) that are due in [from_ms, until_ms], the first due first.

        Raises RemoteError with code 3 when a broker is not an Aerobee broker.
        """
        if not 1 <= count_max <= LIST_MAX:
            raise UsageError(f"count_max is {count_max}: 1 to {LIST_MAX} are possible")
        ext = {"fromMs": str(from_ms), "maxNum": str(count_max)}
        if until_ms is not None:
            ext["untilMs"] = str(until_ms)
        if topic is not None:
            ext["topic"] = topic
        addresses = await self._masters(cluster, broker)
        answers = await asyncio.gather(
            *(self._call(address, RequestCode.AEROBEE_LIST_TIMERS, dict(ext)) for address in addresses)
        )
        pending, rows, is_whole = 0, [], True
        for address, answer in zip(addresses, answers, strict=True):
            fields = fastjson.loads_trusted(answer.body, "the list of timers")
            found = fields.get("messages")
            if not isinstance(found, list):
                raise MalformedFrame(f"the list of timers of {address} has no messages")
            pending += _number(fields, "pending")
            is_whole = is_whole and bool(fields.get("isWhole"))
            rows += [_info(row, address) for row in found if isinstance(row, dict)]
        rows.sort(key=lambda row: row.due_ms)
        return TimerList(
            pending=pending, timers=tuple(rows[:count_max]), is_whole=is_whole and len(rows) <= count_max
        )

    async def recall_timer(self, handle: str) -> str:
        """Recall a pending message; returns its id. Raises RemoteError with the reason, UsageError for an invalid
        handle."""
        self._session.check_open()
        topic = parse_handle(handle).topic
        return await recall_message(self._session, ADMIN_GROUP, topic, handle, timeout_s=self._timeout_s)

    async def reschedule_timer(self, handle: str, deliver_at: datetime | float) -> str:
        """Reschedule a pending message (a datetime, or seconds since the epoch); returns its new handle.

        The handle is empty when the new time has passed: the message is then delivered. Raises RemoteError with code
        22 when no such message is pending, with code 3 when the broker is not an Aerobee broker.
        """
        known = parse_handle(handle)
        if isinstance(deliver_at, datetime):
            if deliver_at.tzinfo is None:
                raise UsageError(f"the time {deliver_at.isoformat(sep=' ')} has no time zone")
            deliver_at = deliver_at.timestamp()
        address = await self._session.broker_address(known.broker_name, known.topic)
        answer = await self._call(
            address,
            RequestCode.AEROBEE_RESCHEDULE_TIMER,
            {"recallHandle": handle, "deliverMs": str(round(deliver_at * 1000))},
        )
        return answer.field("recallHandle") or ""


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _info(row: dict[str, Any], address: str) -> TimerInfo:
    return TimerInfo(
        message_id=_text(row, "messageId"),
        topic=_text(row, "topic"),
        queue_id=_number(row, "queueId"),
        broker_address=address,
        offset_message_id=_text(row, "offsetMsgId"),
        due_ms=_number(row, "dueMs"),
        in_ms=_number(row, "inMs"),
        store_timestamp=_number(row, "storedMs"),
        body_bytes=_number(row, "bodyBytes"),
        keys=tuple(_text(row, "keys").split()),
        tag=_text(row, "tag"),
        rolls=_number(row, "rolls"),
        recall_handle=_text(row, "recallHandle"),
    )
