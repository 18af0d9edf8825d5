"""Changes of topics: create, update, delete."""

from __future__ import annotations

from aerobee.client import Admin
from aerobee.console.fields import Fields, MakeCommand, Outcome, Run, integer, text
from aerobee.console.users import Role
from aerobee.errors import UsageError
from aerobee.message import check_topic_name
from aerobee.ops.commands.topic_change import PERMS, hidden_warning, out_of_sight, perm_text
from aerobee.words import plural


class TopicActions:
    """`table`: name -> (role, run)."""

    def __init__(self, admin: Admin, command: MakeCommand) -> None:
        """`command` makes the text of the equivalent command."""
        self._admin = admin
        self._command = command
        self.table: dict[str, tuple[Role, Run]] = {
            "topic-create": (Role.ADMIN, self.topic_create),
            "topic-update": (Role.ADMIN, self.topic_update),
            "topic-delete": (Role.ADMIN, self.topic_delete),
        }

    async def topic_create(self, fields: Fields, dry_run: bool) -> Outcome:
        """Create a topic at every master. One that exists is changed; with `new` it is refused."""
        topic, queues = text(fields, "topic"), integer(fields, "queues")
        check_topic_name(topic)
        if not 1 <= queues <= 1024:
            raise UsageError(f"the number of queues is {queues}, must be 1 to 1024")
        command = self._command("topic", "create", topic, "--queues", str(queues))
        only_new = fields.get("new") is True
        exists = (dry_run or only_new) and await self._admin.topic_exists(topic)
        if exists and only_new:
            raise UsageError(
                f"topic {topic} exists already: creating it again would change its queues and rights"
            )
        if dry_run:
            changed = "exists: it would be readable and writable, and " if exists else ""
            return Outcome(
                command, f"topic {topic} {changed}would get {plural(queues, 'queue')} at every master"
            )
        addresses = await self._admin.create_topic(topic, queue_count=queues)
        return Outcome(command, f"topic {topic} is created at {', '.join(addresses)}")

    async def topic_update(self, fields: Fields, dry_run: bool) -> Outcome:
        """Change the number of queues, the permission or the order flag of a topic at every broker that has it."""
        topic = text(fields, "topic")
        check_topic_name(topic)
        queues = integer(fields, "queues") if fields.get("queues") not in (None, "") else None
        if queues is not None and not 1 <= queues <= 1024:
            raise UsageError(f"the number of queues is {queues}, must be 1 to 1024")
        perm, order = str(fields.get("perm") or ""), fields.get("order")
        if perm and perm not in PERMS:
            raise UsageError(f"perm is {perm!r}, must be one of {', '.join(PERMS)}")
        words = [
            *(("--queues", str(queues)) if queues is not None else ()),
            *(("--perm", perm) if perm else ()),
            *(() if order is None else ("--order" if order is True else "--no-order",)),
        ]
        if not words:
            raise UsageError("no change is given")
        command = self._command("topic", "update", topic, *words, "--yes")
        there = await self._admin.topic_config(topic)
        hidden = await out_of_sight(self._admin, topic, queues, None, None)
        rows = tuple(
            {
                "broker": each.broker_address,
                "queues_before": each.read_queue_count,
                "queues_after": queues or each.read_queue_count,
                "permission_before": perm_text(each.perm),
                "permission_after": perm or perm_text(each.perm),
                "ordered_before": each.order,
                "ordered_after": each.order if order is None else order is True,
            }
            for each in there
        )
        if not dry_run:
            for each in there:
                await self._admin.create_topic(
                    topic,
                    read_queue_count=queues or each.read_queue_count,
                    write_queue_count=queues or each.write_queue_count,
                    perm=PERMS[perm] if perm else each.perm,
                    order=each.order if order is None else order is True,
                    broker=each.broker_address,
                )
        warning = f": {hidden_warning(hidden, queues or 0)}" if hidden else ""
        said = "would be changed" if dry_run else "is changed"
        return Outcome(command, f"topic {topic} {said} at {plural(len(there), 'broker')}{warning}", rows)

    async def topic_delete(self, fields: Fields, dry_run: bool) -> Outcome:
        """Delete a topic and its messages. The user must type its name to confirm."""
        topic = text(fields, "topic")
        command = self._command("topic", "delete", topic, "--yes")
        if dry_run:
            stats = await self._admin.topic_stats(topic)
            count = sum(row.max_offset - row.min_offset for row in stats)
            return Outcome(
                command, f"topic {topic} and its {plural(count, 'message')} would be deleted permanently"
            )
        if fields.get("confirm") != topic:
            raise UsageError(f"write {topic} to confirm the deletion")
        await self._admin.delete_topic(topic)
        return Outcome(command, f"topic {topic} is deleted")
