"""Changes of a consumer group: redrive its dead-letter messages, reset its offsets."""

from __future__ import annotations

from typing import Any

from aerobee.client import Admin
from aerobee.clock import Clock
from aerobee.console.fields import Fields, MakeCommand, Outcome, Run, text
from aerobee.console.users import Role
from aerobee.errors import UsageError
from aerobee.message import check_group_name
from aerobee.ops.commands.offset import parse_target
from aerobee.words import plural

REDRIVE_MAX = 200


class GroupActions:
    """`table`: name -> (role, run)."""

    def __init__(self, admin: Admin, clock: Clock, command: MakeCommand) -> None:
        """`command` makes the text of the equivalent command."""
        self._admin = admin
        self._clock = clock
        self._command = command
        self.table: dict[str, tuple[Role, Run]] = {
            "redrive": (Role.OPERATOR, self.redrive),
            "reset": (Role.OPERATOR, self.reset),
        }

    async def redrive(self, fields: Fields, dry_run: bool) -> Outcome:
        """Redrive the dead-letter messages of a group that are not redriven yet, or those with the given `ids`.

        With `ids` and `waiting` only those of them that are not redriven yet. `until`: queue as broker/id -> the offset before which
        messages are redriven, for producers choose ids and may choose one twice.
        """
        group = text(fields, "group")
        check_group_name(group)
        ids = _ids(fields)
        only_waiting = not ids or fields.get("waiting") is True
        until = _until(fields)
        seen: dict[str, int] = {}
        words = [
            "dlq",
            "redrive",
            group,
            *(word for each in sorted(ids) for word in ("--id", each)),
            "--limit",
            str(REDRIVE_MAX),
            "--yes",
        ]
        command = self._command(*words)
        rows: list[dict[str, Any]] = []
        done: dict[Any, int] = {}
        is_gap: set[Any] = set()
        async for dead in self._admin.dead_letters(group, only_waiting=only_waiting):
            queue = dead.message.queue
            name = f"{queue.broker_name}/{queue.queue_id}"
            if until is not None and dead.message.queue_offset >= until.get(name, 0):
                continue
            if ids and dead.message_id not in ids:
                is_gap.add(queue)
                continue
            if len(rows) >= REDRIVE_MAX:
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
                    done[queue] = dead.message.queue_offset + 1
            rows.append(row)
            seen[name] = dead.message.queue_offset + 1
        for queue, offset in done.items():
            if only_waiting:
                await self._admin.commit_redriven(queue, offset)
        failed = sum(row["result"] not in ("", "sent") for row in rows)
        said = "would be sent" if dry_run else "sent"
        return Outcome(
            command,
            f"{len(rows) - failed} {said} to the retry topic of group {group}, {failed} failed",
            tuple(rows),
            {"ids": [row["message_id"] for row in rows], "until": seen},
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


def _ids(fields: Fields) -> set[str]:
    ids = fields.get("ids") or ()
    if not isinstance(ids, (list, tuple)) or len(ids) > REDRIVE_MAX:
        raise UsageError(f"ids must be a list of at most {REDRIVE_MAX} message ids")
    return {str(each) for each in ids}


def _until(fields: Fields) -> dict[str, int] | None:
    until = fields.get("until")
    if until is None:
        return None
    if not isinstance(until, dict) or not all(type(offset) is int for offset in until.values()):
        raise UsageError("until must have an offset for each queue")
    return until
