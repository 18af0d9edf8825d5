"""Recurring schedules as a feature of the broker: delivers every tick exactly once.

The state is in the log (schedule_table.py), so a tick is delivered once over restarts and changes of master. A broker
that begins to lead delivers the ticks that were due meanwhile; with `missed` latest only the last one of each schedule.
No tick is delivered before its time. A wall clock that is set back delays the next tick and repeats none.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Mapping

from aerobee.broker.metrics.metrics import Registry
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.recurring.due_queue import DueQueue
from aerobee.broker.recurring.schedule_calls import ScheduleCalls
from aerobee.broker.recurring.schedule_log import END, ScheduleLog
from aerobee.broker.recurring.schedule_table import ScheduleTable, tick_record
from aerobee.broker.state.feature import Feature
from aerobee.clock import Timer, wall_wait_s
from aerobee.errors import RecordInvalid, StoreError, UsageError
from aerobee.message import encode_properties
from aerobee.property_names import SCHEDULE_NAME, SCHEDULE_TICK, UNIQUE_KEY
from aerobee.remoting.body.recurring_schedule import RecurringSchedule
from aerobee.remoting.peer import Handler
from aerobee.store.log.stored_message import StoredMessage

log = logging.getLogger(__name__)

TICKS_PER_PASS = 64  # then other tasks of the event loop run
RETRY_S = 1.0
LOOK_S = 10.0  # interval of the check whether schedules are to be written again


class RecurringSchedules(Feature):
    """The schedules of a master. Belongs to the event loop."""

    name = "schedule"

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._clock = parts.clock
        self._log = ScheduleLog(parts.store, parts.topics, parts.clock)
        self._table, self._due = ScheduleTable(), DueQueue()
        self._troubles: dict[str, str] = {}  # schedule -> why its due tick is not delivered
        self._retry_at: dict[str, float] = {}  # schedule in trouble -> monotonic time of the next try
        # The schedule whose last recorded tick has no message: the store refused it, or the log ended before it.
        self._unfinished = ""
        self._running = False
        self._timer: Timer | None = None
        self._delivered = 0
        self._calls = ScheduleCalls(
            table=lambda: self._table,
            schedule_log=self._log,
            troubles=self._troubles,
            settle=self._settle,
            on_changed=self._changed,
            topics=parts.topics,
            mappings=parts.mappings,
            ack=parts.ack,
            identity=parts.identity,
            role=parts.role,
            clock=parts.clock,
        )
        self._register_numbers(parts.stats.registry)

    def _register_numbers(self, registry: Registry) -> None:
        registry.gauges(
            "schedules",
            "Recurring schedules; absent at a broker that does not lead",
            lambda: [((), len(self._table.schedules))] if self._running else [],
            labels=(),
        )
        registry.gauges(
            "schedules_failing",
            "Recurring schedules whose due tick cannot be delivered and is tried again",
            lambda: [((), len(self._troubles))] if self._running else [],
            labels=(),
        )
        registry.counter(
            "schedule_ticks",
            "Delivered ticks of recurring schedules",
            lambda: [((), self._delivered)],
        )

    def handlers(self) -> Mapping[int, Handler]:
        return self._calls.handlers()

    # --- life

    def load(self) -> None:
        if self._parts.role.takes_writes:
            self._forget()
            for _ in self._log.reading(self._table):
                pass
            self._unfinished = self._log.taken_back

    async def take_over(self) -> None:
        self._forget()
        table = self._table
        for _ in self._log.reading(table):
            await asyncio.sleep(0)
        self._unfinished = self._log.taken_back

    def _forget(self) -> None:
        self._table, self._due = ScheduleTable(), DueQueue()
        self._troubles.clear()
        self._retry_at.clear()
        self._unfinished = ""

    def start(self) -> None:
        self._running = True
        for name in self._table.schedules:
            self._arm(name)
        if self._table.schedules:
            self._wake(0.0)

    def stop(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def runtime_info(self) -> Mapping[str, str]:
        return {
            "schedules": str(len(self._table.schedules)),
            "scheduleTicks": str(self._delivered),
        }

    # --- ticks

    def _changed(self, name: str) -> None:
        """A request created, changed or deleted this schedule."""
        self._troubles.pop(name, None)
        self._retry_at.pop(name, None)
        if self._running:
            self._arm(name)
            self._wake(0.0)

    def _wake(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(seconds, self._run)

    def _run(self) -> None:
        """Deliver the due ticks, and set the timer for the next one."""
        self._timer = None
        if not self._running or not self._table.schedules:
            return
        try:
            wait_s = self._work()
        except StoreError as error:
            log.error("ticks of schedules are due and cannot be stored: %s; trying again", error)
            wait_s = RETRY_S
        except Exception:
            # Requests and the next try continue: the error is logged at each try.
            log.exception("the delivery of schedules failed; trying again")
            wait_s = RETRY_S
        self._wake(wait_s)

    def _work(self) -> float:
        """One pass; returns the seconds until the next one. Raises StoreError; nothing is lost then."""
        self._settle()
        for _ in range(TICKS_PER_PASS):
            name = self._due.take(self._clock.now_ms())
            if name is None:
                break
            try:
                self._try(name)
            finally:
                self._arm(name)
        self._log.rewrite(self._table)
        first_ms = self._due.first_ms()
        if self._log.is_rewriting:
            return 0.0
        return LOOK_S if first_ms is None else wall_wait_s(self._clock, first_ms)

    def _arm(self, name: str) -> None:
        """Wait for the next tick of this schedule."""
        schedule = self._table.schedules.get(name)
        if schedule is None or schedule.is_paused:
            self._due.drop(name)
        else:
            self._due.set(name, self._due_ms(name, self._clock.now_ms()))

    def _due_ms(self, name: str, now_ms: int) -> int:
        """When to deliver the next tick of a schedule; of one in trouble the time of the next try."""
        try:
            due_ms = self._table.next_tick(name)[1]
        except UsageError as error:
            self._fails(name, str(error))
            due_ms = now_ms
        retry_s = self._retry_at.get(name)
        if retry_s is None:
            return due_ms
        return max(due_ms, now_ms + round((retry_s - self._clock.monotonic()) * 1000))

    def _settle(self) -> None:
        """Record that the last recorded tick is not delivered, when its message is missing. Raises StoreError.

        Any other record behind the tick's would hide from the next master that the message is missing.
        """
        if self._unfinished:
            self._log.append(self._table.record_of(self._unfinished, self._log.base))
            self._unfinished = ""

    def _try(self, name: str) -> None:
        """Deliver the due tick of one schedule; a schedule that cannot deliver holds up no other one."""
        try:
            self._deliver(name)
        except (UsageError, RecordInvalid) as error:
            self._retry_at.pop(name, None)
            self._fails(name, str(error))
            self._settle()  # before the tick of another schedule
            return
        self._troubles.pop(name, None)
        self._retry_at.pop(name, None)

    def _fails(self, name: str, why: str) -> None:
        if self._troubles.get(name) != why:
            log.error("schedule %s cannot deliver: %s; trying again", name, why)
        self._troubles[name] = why
        self._retry_at.setdefault(name, self._clock.monotonic() + LOOK_S)

    def _deliver(self, name: str) -> None:
        """Deliver one tick. Raises StoreError, RecordInvalid and UsageError; the tick is still to be delivered then."""
        schedule = self._table.schedules[name]
        now_ms = self._clock.now_ms()
        tick_ms = self._table.tick_at(name, now_ms)
        config = self._parts.topics.get(schedule.topic)
        if config is None:
            raise UsageError(
                f"topic {schedule.topic} does not exist at broker {self._parts.identity.name}: create it again, or "
                "delete the schedule"
            )
        if len(self._table.bodies[name]) > self._store.config.max_message_size:
            raise UsageError(
                f"the body has {len(self._table.bodies[name])} bytes: maxMessageSize is "
                f"{self._store.config.max_message_size} here"
            )
        self._store.check_writable()
        # All ticks of a schedule are in one queue, in order.
        queue_id = zlib.crc32(name.encode()) % max(1, config.write_queue_nums)
        message = _message(schedule, self._table.bodies[name], tick_ms, queue_id)
        message.born_host, message.born_timestamp = self._store.store_host, now_ms
        record = tick_record(schedule, tick_ms, self._log.base)
        # Nothing may come between these two appends: a master that begins looks for the message of the last tick
        # right behind the tick's record.
        self._unfinished = name
        self._log.append(record)
        result = self._store.append(message)
        self._unfinished = ""
        self._table.apply(record)
        self._delivered += 1
        self._parts.stats.topic_put(schedule.topic, 1, result.size)


def _message(schedule: RecurringSchedule, body: bytes, tick_ms: int, queue_id: int) -> StoredMessage:
    """The message of a tick; it has the same id whichever broker delivers it."""
    unique_key = f"{zlib.crc32(schedule.name.encode()):08X}{schedule.created_ms:012X}{tick_ms:012X}"
    properties = {
        **schedule.properties,
        **({"KEYS": schedule.keys} if schedule.keys else {}),
        **({"TAGS": schedule.tag} if schedule.tag else {}),
        UNIQUE_KEY: unique_key,
        SCHEDULE_NAME: schedule.name,
        SCHEDULE_TICK: str(tick_ms),
        **END,
    }
    return StoredMessage(
        topic=schedule.topic,
        queue_id=queue_id,
        body=body,
        properties=encode_properties(properties).encode(errors="surrogateescape"),
        born_host=b"",
    )
