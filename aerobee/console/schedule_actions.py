"""Changes of recurring schedules: create, pause, resume, delete."""

from __future__ import annotations

from aerobee.client import Admin
from aerobee.client.admin.schedules import ScheduleInfo
from aerobee.console.fields import Fields, MakeCommand, Outcome, Run, text
from aerobee.console.users import Role
from aerobee.errors import RequestNotSupported, UsageError
from aerobee.ops.commands.schedule import not_an_aerobee_broker, ticks_after
from aerobee.ops.terminal.times import moment_text, span_ms
from aerobee.remoting.body.recurring_schedule import ALL, SCHEDULE_BODY_BYTES_MAX, RecurringSchedule

NEXT_TICKS = 5
DONE = {"pause": "is paused", "resume": "is resumed", "delete": "is deleted"}
EFFECTS = {
    "pause": "would send nothing until it is resumed; the ticks in between are never delivered",
    "resume": "would continue with its next tick from now on",
    "delete": "would be deleted; messages that it sent stay in their topic",
}


class ScheduleActions:
    """`table`: name -> (role, run)."""

    def __init__(self, admin: Admin, command: MakeCommand) -> None:
        """`command` makes the text of the equivalent command."""
        self._admin = admin
        self._command = command
        self.table: dict[str, tuple[Role, Run]] = {
            "schedule-create": (Role.OPERATOR, self.create),
            "schedule-change": (Role.OPERATOR, self.change),
        }

    async def create(self, fields: Fields, dry_run: bool) -> Outcome:
        """Create a schedule: `name`, `topic`, `body`, and either `cron` with `time_zone` or the span `every`."""
        schedule, body = _schedule(fields), str(fields.get("body", "")).encode()
        if not body:
            raise UsageError("body is missing: the message of each tick")
        if len(body) > SCHEDULE_BODY_BYTES_MAX:
            raise UsageError(f"the body is larger than the limit of {SCHEDULE_BODY_BYTES_MAX} bytes")
        ticks = (
            ("--cron", schedule.cron, "--tz", schedule.time_zone)
            if schedule.cron
            else ("--every", f"{schedule.interval_ms}ms")
        )
        jitter = ("--jitter", f"{schedule.jitter_ms}ms") if schedule.jitter_ms else ()
        command = self._command(
            "schedule", "create", schedule.name, schedule.topic, body.decode(), *ticks, *jitter
        )
        if dry_run:
            schedule.check()
            if any(info.schedule.name == schedule.name for info in await self._schedules(schedule.name)):
                raise UsageError(f"a schedule {schedule.name} exists already")
            await self._admin.topic_route(schedule.topic)
            return Outcome(command, f"schedule {schedule.name} would send to {schedule.topic} at every tick")
        try:
            address = await self._admin.create_schedule(schedule, body)
        except RequestNotSupported as error:
            raise not_an_aerobee_broker(error) from error
        return Outcome(command, f"schedule {schedule.name} is created at {address}")

    async def change(self, fields: Fields, dry_run: bool) -> Outcome:
        """Pause, resume or delete a schedule: `name`, `action`."""
        name, action = text(fields, "name"), text(fields, "action")
        if action not in DONE:
            raise UsageError(f"action is {action!r}, must be {', '.join(DONE)}")
        command = self._command("schedule", action, name, *(("--yes",) if action == "delete" else ()))
        found = await self._schedules(name)
        if not found:
            raise UsageError(f"no broker has a schedule {name!r}")
        rows = tuple(
            {
                "broker": info.broker_address,
                "topic": info.schedule.topic,
                "state": "paused" if info.schedule.is_paused else "active",
                "next": moment_text(info.next_tick_ms),
            }
            for info in found
        )
        if dry_run:
            return Outcome(command, f"schedule {name} {EFFECTS[action]}", rows)
        await self._admin.change_schedule(name, action)
        return Outcome(command, f"schedule {name} {DONE[action]}", rows)

    async def _schedules(self, name: str) -> tuple[ScheduleInfo, ...]:
        try:
            return await self._admin.schedules(name=name)
        except RequestNotSupported as error:
            raise not_an_aerobee_broker(error) from error


def next_ticks(info: ScheduleInfo, now_ms: int) -> list[int]:
    """The next ticks in ms since the epoch; of a paused schedule those after a resume now. Empty if this machine cannot read the
    expression, because the package or the time zone is missing."""
    schedule = info.schedule
    after_ms = max(schedule.last_tick_ms, now_ms) if schedule.is_paused else schedule.last_tick_ms
    try:
        return list(ticks_after(schedule.recurrence, after_ms, NEXT_TICKS))
    except UsageError:
        return []


def _schedule(fields: Fields) -> RecurringSchedule:
    """The new schedule. Raises UsageError."""
    cron, every = str(fields.get("cron", "")).strip(), str(fields.get("every", "")).strip()
    if bool(cron) == bool(every):
        raise UsageError("give either cron or every")
    return RecurringSchedule(
        name=text(fields, "name"),
        topic=text(fields, "topic"),
        cron=cron,
        time_zone=str(fields.get("time_zone", "")).strip() or "UTC",
        interval_ms=span_ms(every) if every else 0,
        jitter_ms=span_ms(str(fields.get("jitter", "")).strip() or "0s"),
        missed=str(fields.get("missed", "")).strip() or ALL,
    )
