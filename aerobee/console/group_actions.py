"""Changes of a consumer group: redrive its dead-letter messages, reset its offsets, change its settings, delete it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aerobee.client import Admin
from aerobee.clock import Clock
from aerobee.console.fields import Fields, MakeCommand, Outcome, Run, integer, text
from aerobee.console.users import Role
from aerobee.errors import UsageError
from aerobee.message import MessageQueue, check_group_name
from aerobee.ops.commands.offset import parse_target
from aerobee.words import plural

REDRIVE_MAX = 200
# Switches of a group, as options of the command line, and their names in SubscriptionGroupConfig.
SWITCHES = {
    "consume": "consume_enable",
    "broadcast": "consume_broadcast_enable",
    "orderly": "consume_message_orderly",
}


class GroupActions:
    """`table`: name -> (role, run)."""

    def __init__(
        self, admin: Admin, clock: Clock, command: MakeCommand, must_end: Callable[[], bool] = lambda: False
    ) -> None:
        """`command` makes the text of the equivalent command. A redrive asks `must_end` before each message."""
        self._admin = admin
        self._clock = clock
        self._must_end = must_end
        self._command = command
        self.table: dict[str, tuple[Role, Run]] = {
            "redrive": (Role.OPERATOR, self.redrive),
            "reset": (Role.OPERATOR, self.reset),
            "group-update": (Role.ADMIN, self.update),
            "group-delete": (Role.ADMIN, self.delete),
        }

    async def redrive(self, fields: Fields, dry_run: bool) -> Outcome:
        """Redrive the dead-letter messages of a group that are not redriven yet, or those with the given `ids`.

        With `ids` and `waiting` only those of them that are not redriven yet. `until` and `after`: queue as broker/id -> the offset
        before which, and from which on, messages are redriven, for producers choose ids and may choose one twice.

        The progress is stored at the end, also when the call is cancelled: the next redrive repeats at most the message that was
        being sent.
        """
        group = text(fields, "group")
        check_group_name(group)
        ids = _ids(fields)
        only_waiting = not ids or fields.get("waiting") is True
        until, after = _offsets(fields, "until"), _offsets(fields, "after") or {}
        choice = (word for each in sorted(ids) for word in ("--id", each))
        command = self._command("dlq", "redrive", group, *choice, "--limit", str(REDRIVE_MAX), "--yes")
        rows: list[dict[str, Any]] = []
        seen: dict[str, int] = dict(after)
        progress: dict[MessageQueue, int] = {}
        is_gap: set[MessageQueue] = set()
        is_cut = False
        try:
            async for dead in self._admin.dead_letters(group, only_waiting=only_waiting):
                queue, offset = dead.message.queue, dead.message.queue_offset
                name = f"{queue.broker_name}/{queue.queue_id}"
                if until is not None and offset >= until.get(name, 0):
                    continue
                if offset < after.get(name, 0):
                    is_gap.add(queue)  # not redriven, or it would not be waiting any more
                    continue
                if ids and dead.message_id not in ids:
                    is_gap.add(queue)
                    continue
                if len(rows) >= REDRIVE_MAX:
                    break
                if not dry_run and self._must_end():
                    is_cut = True
                    break
                row = {
                    "message_id": dead.message_id,
                    "from": dead.topic,
                    "reason": dead.reason or dead.error,
                    "result": "",
                }
                if not dry_run:
                    sent = await self._admin.redrive(dead)
                    row["result"] = sent.error or "sent"
                    # As on the command line: record the offset up to which all messages are redriven.
                    if sent.error:
                        is_gap.add(queue)
                    elif queue not in is_gap:
                        progress[queue] = offset + 1
                rows.append(row)
                seen[name] = offset + 1
        finally:
            for queue, offset in progress.items():
                if only_waiting:
                    await self._admin.commit_redriven(queue, offset)
        failed = sum(row["result"] not in ("", "sent") for row in rows)
        said = "would be sent" if dry_run else "sent"
        return Outcome(
            command,
            f"{len(rows) - failed} {said} to the retry topic of group {group}, {failed} failed"
            + (", the rest was not tried" if is_cut else ""),
            tuple(rows),
            frozen={"ids": [row["message_id"] for row in rows], "until": seen},
            rest={"after": seen} if is_cut else {},
        )

    async def reset(self, fields: Fields, dry_run: bool) -> Outcome:
        """Reset the offsets of a group in a topic; the rows show each queue before and after."""
        group, topic, to = text(fields, "group"), text(fields, "topic"), text(fields, "to")
        check_group_name(group)
        target = parse_target(to, self._clock.now_ms())
        command = self._command("offset", "reset", group, "--topic", topic, "--to", to, "--yes")
        moves = await self._admin.plan_offsets(group, topic, target)
        if not dry_run:
            moves = await self._admin.move_offsets(group, moves)
        rows = tuple(
            {
                "broker": move.queue.broker_name,
                "queue_id": move.queue.queue_id,
                "begin": move.begin,
                "end": move.end,
                "before": move.before,
                "after": move.after,
                "distance": move.distance,
                "note": move.note,
            }
            for move in moves
        )
        return Outcome(
            command,
            f"offsets of {plural(len(rows), 'queue')} {'would be reset' if dry_run else 'reset'} to {to}",
            rows,
        )

    async def update(self, fields: Fields, dry_run: bool) -> Outcome:
        """Change settings of a group at every master that has it; the rows show each broker before and after."""
        group = text(fields, "group")
        check_group_name(group)
        wanted: dict[str, Any] = {}
        words: list[str] = []
        if fields.get("retries") not in (None, ""):
            wanted["retry_max_times"] = integer(fields, "retries")
            words += ["--retries", str(wanted["retry_max_times"])]
        for name, key in SWITCHES.items():
            value = fields.get(name)
            if value is not None:
                wanted[key] = value is True
                words.append(f"--{name}" if value is True else f"--no-{name}")
        if not wanted:
            raise UsageError("no change is given")
        rows = []
        for info in await self._admin.brokers():
            if info.broker_id != 0:
                continue
            config = (await self._admin.group_table(info.address)).get(group)
            if config is None:
                continue
            changed = replace(config, **wanted)
            row: dict[str, Any] = {"broker": info.address}
            for key in wanted:
                row |= {f"{key}_before": getattr(config, key), f"{key}_after": getattr(changed, key)}
            rows.append(row)
            if not dry_run:
                await self._admin.put_groups(info.address, [changed])
        if not rows:
            raise UsageError(f"group {group} does not exist")
        said = "would be changed" if dry_run else "is changed"
        return Outcome(
            self._command("group", "update", group, *words),
            f"group {group} {said} at {plural(len(rows), 'broker')}",
            tuple(rows),
        )

    async def delete(self, fields: Fields, dry_run: bool) -> Outcome:
        """Delete a group's settings and its committed offsets. The user must type its name to confirm."""
        group = text(fields, "group")
        check_group_name(group)
        command = self._command("group", "delete", group, "--yes")
        if dry_run:
            progress = await self._admin.consumer_progress(group)
            online = f"; {plural(len(progress.members), 'member')} online" if progress.members else ""
            return Outcome(
                command,
                f"group {group} and its offsets of {plural(len(progress.queues), 'queue')} would be deleted{online}",
            )
        if fields.get("confirm") != group:
            raise UsageError(f"write {group} to confirm the deletion")
        await self._admin.delete_group(group, clean_offsets=True)
        return Outcome(command, f"group {group} is deleted")


def _ids(fields: Fields) -> set[str]:
    ids = fields.get("ids") or ()
    if not isinstance(ids, (list, tuple)) or len(ids) > REDRIVE_MAX:
        raise UsageError(f"ids must be a list of at most {REDRIVE_MAX} message ids")
    return {str(each) for each in ids}


def _offsets(fields: Fields, name: str) -> dict[str, int] | None:
    offsets = fields.get(name)
    if offsets is None:
        return None
    if not isinstance(offsets, dict) or not all(type(offset) is int for offset in offsets.values()):
        raise UsageError(f"{name} must have an offset for each queue")
    return offsets
