"""Requests about recurring schedules, Aerobee-specific and documented here.

AEROBEE_CREATE_SCHEDULE 910380: ext `name`, `topic`, `cron` or `intervalMs`, and optional `timeZone` (default UTC),
`jitterMs`, `missed` (all or latest), `tag`, `keys`, `properties` (text form); the body is that of every message. The
answer waits for disk and replicas as that of a send does. A repeated request with equal fields succeeds.

AEROBEE_LIST_SCHEDULES 910381: ext (optional) `name`, and with it `withBody` true and the schedule's `topic`. The answer's body is JSON, by name:

    {"schedules": [{... as RecurringSchedule.to_dict, "nextTickMs", "nextDueMs", "bodyBytes", "trouble"}]}

`withBody` adds `body`, in base64. `nextTickMs` is 0 for a paused schedule; `trouble` says why a due tick is not delivered.

AEROBEE_CHANGE_SCHEDULE 910382: ext `name`, `action` pause, resume or delete. Ticks of the time of a pause are not
delivered. A tick that waits for its jitter when the request comes is not delivered after pause and delete.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.recurring.schedule_log import ScheduleLog
from aerobee.broker.recurring.schedule_table import (
    SCHEDULES_MAX,
    ScheduleTable,
    deleted_record,
    schedule_record,
)
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.refusal import store_refusal
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable, takes_client_sends
from aerobee.clock import Clock
from aerobee.errors import RemoteError, StoreError, UsageError
from aerobee.message import check_topic_name, decode_properties
from aerobee.property_names import INNER_PREFIX
from aerobee.remoting import fastjson
from aerobee.remoting.body.recurring_schedule import ALL, SCHEDULE_BODY_BYTES_MAX, RecurringSchedule
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply

PAUSE, RESUME, DELETE = "pause", "resume", "delete"
ACTIONS = (PAUSE, RESUME, DELETE)
# Properties by which a broker stores a message in another form, or that it sets itself.
_RESERVED_PREFIXES = (INNER_PREFIX, "TIMER_", "TRAN", "REAL_", "AEROBEE_", "POP_", "UNIQ_", "DEDUP_", "__")
_RESERVED = frozenset({"KEYS", "TAGS", "DELAY", "PGROUP", "WAIT", "ACK_LEVEL", "MSG_TYPE", "REPLY_TO_CLIENT"})


class ScheduleCalls:
    """Answers 910380, 910381 and 910382."""

    def __init__(
        self,
        *,
        table: Callable[[], ScheduleTable],
        schedule_log: ScheduleLog,
        troubles: Mapping[str, str],
        settle: Callable[[], None],
        on_changed: Callable[[str], None],
        topics: TopicTable,
        mappings: QueueMappings,
        ack: AckPolicy,
        identity: BrokerIdentity,
        role: RoleState,
        clock: Clock,
    ) -> None:
        self._table = table
        self._log = schedule_log
        self._troubles = troubles
        self._settle = settle
        self._on_changed = on_changed
        self._topics = topics
        self._mappings = mappings
        self._ack = ack
        self._identity = identity
        self._role = role
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.AEROBEE_CREATE_SCHEDULE: self.create,
            RequestCode.AEROBEE_LIST_SCHEDULES: self.listing,
            RequestCode.AEROBEE_CHANGE_SCHEDULE: self.change,
        }

    # --- 910380

    def create(self, peer: Peer, request: RemotingCommand) -> Reply:
        """910380: store a schedule."""
        self._check_master()
        table, schedule = self._table(), self._wanted(request)
        known = table.schedules.get(schedule.name)
        if known is not None:
            if not _is_same(known, schedule) or table.bodies[schedule.name] != request.body:
                raise RemoteError(
                    ResponseCode.INVALID_PARAMETER,
                    f"broker {self._identity.name} has another schedule {schedule.name}: delete it first",
                )
            schedule = known
        elif len(table.schedules) >= SCHEDULES_MAX:
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER,
                f"broker {self._identity.name} has {len(table.schedules)} schedules, the maximum: delete one first, or "
                "create it at another broker",
            )
        record = schedule_record(schedule, request.body, self._log.base)
        return self._write(peer, request, schedule.name, record)

    def _wanted(self, request: RemotingCommand) -> RecurringSchedule:
        """The requested schedule. Raises RemoteError."""
        now_ms = self._clock.now_ms()
        text = request.text
        schedule = RecurringSchedule(
            name=text("name"),
            topic=text("topic"),
            cron=text("cron", ""),
            time_zone=text("timeZone", "UTC"),
            interval_ms=request.integer("intervalMs", 0),
            jitter_ms=request.integer("jitterMs", 0),
            missed=text("missed", ALL),
            tag=text("tag", ""),
            keys=text("keys", ""),
            properties=decode_properties(text("properties", "")),
            created_ms=now_ms,
            last_tick_ms=now_ms,
        )
        try:
            schedule.check()
            check_topic_name(schedule.topic)
        except UsageError as error:
            raise RemoteError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        self._check_topic(schedule)
        for name in schedule.properties:
            if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
                raise RemoteError(
                    ResponseCode.INVALID_PARAMETER,
                    f"property {name[:80]!r} belongs to clients and brokers: a schedule cannot set it",
                )
        if not 1 <= len(request.body) <= SCHEDULE_BODY_BYTES_MAX:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body of a schedule's messages has {len(request.body)} bytes: 1 to {SCHEDULE_BODY_BYTES_MAX} are possible",
            )
        return schedule

    def _check_topic(self, schedule: RecurringSchedule) -> None:
        topic = schedule.topic
        if not takes_client_sends(topic) or self._topics.is_system(topic):
            raise RemoteError(ResponseCode.NO_PERMISSION, f"topic {topic} is the broker's own")
        if self._topics.get(topic) is None:
            raise RemoteError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} does not exist at broker {self._identity.name}: create it first",
            )
        if self._mappings.get(topic) is not None:
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic} is a static topic, whose queues may move to other brokers: use an ordinary topic",
            )

    # --- 910381

    def listing(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """910381: the schedules, or one of them."""
        self._check_master()
        table, wanted = self._table(), request.text("name", "")
        rows = [self._row(table, name) for name in sorted(table.schedules) if wanted in ("", name)]
        if wanted and request.boolean("withBody", False):
            # The permission of the caller was checked for this topic.
            rows = [row for row in rows if row["topic"] == request.text("topic", "")]
            for row in rows:
                row["body"] = b64encode(table.bodies[wanted]).decode()
        return request.reply(body=fastjson.dumps({"schedules": rows}))

    def _row(self, table: ScheduleTable, name: str) -> dict[str, Any]:
        schedule, tick_ms, due_ms = table.schedules[name], 0, 0
        trouble = self._troubles.get(name, "")
        if not schedule.is_paused:
            try:
                tick_ms, due_ms = table.next_tick(name)
            except UsageError as error:
                trouble = str(error)
        return {
            **schedule.to_dict(),
            "nextTickMs": tick_ms,
            "nextDueMs": due_ms,
            "bodyBytes": len(table.bodies[name]),
            "trouble": trouble,
        }

    # --- 910382

    def change(self, peer: Peer, request: RemotingCommand) -> Reply:
        """910382: pause, resume or delete a schedule."""
        self._check_master()
        name, action = request.text("name"), request.text("action")
        if action not in ACTIONS:
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER,
                f"action is {action[:40]!r}: it must be one of {', '.join(ACTIONS)}",
            )
        table, base = self._table(), self._log.base
        schedule = table.schedules.get(name)
        if schedule is None:
            raise RemoteError(
                ResponseCode.QUERY_NOT_FOUND,
                f"broker {self._identity.name} has no schedule {name[:80]!r}",
            )
        if action == DELETE:
            return self._write(peer, request, name, deleted_record(name, base))
        if action == PAUSE:
            schedule = replace(schedule, is_paused=True)
        elif schedule.is_paused:
            now_ms = self._clock.now_ms()
            schedule = replace(schedule, is_paused=False, last_tick_ms=max(schedule.last_tick_ms, now_ms))
        return self._write(peer, request, name, schedule_record(schedule, table.bodies[name], base))

    def _write(self, peer: Peer, request: RemotingCommand, name: str, record: bytes) -> Reply:
        try:
            self._settle()
            result = self._log.append(record)
        except StoreError as error:
            refusal = store_refusal(error)
            raise RemoteError(refusal.code, refusal.remark) from error
        self._table().apply(record)
        self._on_changed(name)
        return self._ack.answer(peer, request.reply(), result.end, request_code=request.code)

    def _check_master(self) -> None:
        if not self._role.is_master:
            raise RemoteError(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                f"broker {self._identity.name} is a slave here: ask its master",
            )


def _is_same(known: RecurringSchedule, wanted: RecurringSchedule) -> bool:
    """Whether both define the same ticks and messages."""
    return wanted == replace(
        known,
        created_ms=wanted.created_ms,
        last_tick_ms=wanted.last_tick_ms,
        is_paused=False,
        delivered=0,
    )
