"""Admin calls on recurring schedules: create, list, pause, resume and delete them.

All requests are Aerobee-specific (broker/recurring/schedule_calls.py); RocketMQ's brokers answer them with
REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass

from aerobee.client.admin.base import AdminCalls
from aerobee.errors import MalformedFrame, QueryNotFound, RemoteError
from aerobee.message import encode_properties
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.recurring_schedule import SCHEDULE_BODY_BYTES_MAX, RecurringSchedule
from aerobee.remoting.codes import RequestCode, ResponseCode

ACTIONS = ("pause", "resume", "delete")


@dataclass(slots=True, frozen=True, kw_only=True)
class ScheduleInfo:
    """A schedule and its state at its broker. Times in ms since the epoch.

    `next_tick_ms` and `next_due_ms` (with the jitter) are 0 while it is paused. `trouble` says why a due tick is not
    delivered; the broker retries every ten seconds.
    """

    schedule: RecurringSchedule
    broker_address: str
    next_tick_ms: int
    next_due_ms: int
    body_bytes: int
    trouble: str


class ScheduleCalls(AdminCalls):
    """Recurring schedules. Each belongs to one broker, which delivers its ticks into a topic that it has."""

    async def create_schedule(
        self, schedule: RecurringSchedule, body: bytes, *, broker: str | None = None
    ) -> str:
        """Create a schedule whose ticks deliver `body`; returns the broker's address. As durable as a message on return.

        `broker` is a name or an address; by default the first broker, by name, that has the topic. Raises UsageError
        for an invalid definition, RemoteError when the broker refuses: another schedule has this name, the topic is
        unknown there, the broker cannot read cron expressions, or it is not an Aerobee broker (code 3). Repeating the
        call after a lost reply is safe.
        """
        if schedule.interval_ms:  # cron expressions are read by the broker, which has the package
            schedule.check()
        if broker is None:
            address = sorted(await self._topic_addresses(schedule.topic))[0][1]
        else:
            (address,) = await self._masters(None, broker)
        ext = {
            "name": schedule.name,
            "topic": schedule.topic,
            "timeZone": schedule.time_zone,
            "jitterMs": str(schedule.jitter_ms),
            "missed": schedule.missed,
            "tag": schedule.tag,
            "keys": schedule.keys,
            "properties": encode_properties(schedule.properties),
        }
        if schedule.cron:
            ext["cron"] = schedule.cron
        if schedule.interval_ms:
            ext["intervalMs"] = str(schedule.interval_ms)
        await self._call(address, RequestCode.AEROBEE_CREATE_SCHEDULE, ext, body)
        return address

    async def schedules(
        self, *, name: str | None = None, cluster: str | None = None, broker: str | None = None
    ) -> tuple[ScheduleInfo, ...]:
        """The schedules of all masters, by name. Raises RemoteError with code 3 when a broker is not an Aerobee broker."""
        addresses = await self._masters(cluster, broker)
        ext = {} if name is None else {"name": name}
        answers = await asyncio.gather(
            *(self._call(address, RequestCode.AEROBEE_LIST_SCHEDULES, dict(ext)) for address in addresses)
        )
        found = []
        for address, answer in zip(addresses, answers, strict=True):
            rows = fastjson.loads_trusted(answer.body, "the list of schedules").get("schedules")
            if not isinstance(rows, list):
                raise MalformedFrame(f"the list of schedules of {address} has no schedules")
            found += [_info(row, address) for row in rows if isinstance(row, dict)]
        return tuple(sorted(found, key=lambda info: (info.schedule.name, info.broker_address)))

    async def schedule_body(self, name: str, topic: str, broker: str) -> bytes:
        """The body of the messages of one schedule of a topic at a broker, by address or name. Raises QueryNotFound when it has none."""
        (address,) = await self._masters(None, broker)
        ext = {"name": name, "topic": topic, "withBody": "true"}
        answer = await self._call(address, RequestCode.AEROBEE_LIST_SCHEDULES, ext)
        rows = fastjson.loads_trusted(answer.body, "the list of schedules").get("schedules")
        if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
            raise QueryNotFound(
                ResponseCode.QUERY_NOT_FOUND.value,
                f"broker {address} has no schedule {name} of topic {topic}",
                request="AEROBEE_LIST_SCHEDULES",
            )
        return decoded_body(rows[0])

    async def change_schedule(
        self, name: str, action: str, *, cluster: str | None = None, broker: str | None = None
    ) -> int:
        """Pause, resume or delete the schedules of this name; returns their number (one for each broker that has it).

        Raises QueryNotFound when no broker has one.
        """
        changed, missing = 0, None
        for address in await self._masters(cluster, broker):
            try:
                await self._call(
                    address, RequestCode.AEROBEE_CHANGE_SCHEDULE, {"name": name, "action": action}
                )
                changed += 1
            except RemoteError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                missing = error
        if not changed:
            raise missing or QueryNotFound(
                ResponseCode.QUERY_NOT_FOUND.value,
                f"no broker has a schedule {name}",
                request="AEROBEE_CHANGE_SCHEDULE",
            )
        return changed


def decoded_body(row: Mapping[str, object]) -> bytes:
    """The `body` of a schedule in a list or a file. Raises MalformedFrame when it is missing, too large, or not base64."""
    text = json_fields.text(row, "body")
    if not 0 < len(text) <= SCHEDULE_BODY_BYTES_MAX * 2:
        raise MalformedFrame(
            f"the body of a schedule has {len(text)} characters of base64, must be 1 to {SCHEDULE_BODY_BYTES_MAX * 2}"
        )
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise MalformedFrame(f"the body of a schedule is not base64: {error}") from error


def _info(row: dict[str, object], address: str) -> ScheduleInfo:
    return ScheduleInfo(
        schedule=RecurringSchedule.from_dict(row),
        broker_address=address,
        next_tick_ms=json_fields.integer(row, "nextTickMs"),
        next_due_ms=json_fields.integer(row, "nextDueMs"),
        body_bytes=json_fields.integer(row, "bodyBytes"),
        trouble=json_fields.text(row, "trouble"),
    )
