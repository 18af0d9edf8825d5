"""Changes of topics: create, delete."""

from __future__ import annotations

from aerobee.client import Admin
from aerobee.console.fields import Fields, MakeCommand, Outcome, Run, integer, text
from aerobee.console.users import Role
from aerobee.errors import UsageError
from aerobee.message import check_topic_name
from aerobee.words import plural


class TopicActions:
    """`table`: name -> (role, run)."""

    def __init__(self, admin: Admin, command: MakeCommand) -> None:
        """`command` makes the text of the equivalent command."""
        self._admin = admin
        self._command = command
        self.table: dict[str, tuple[Role, Run]] = {
            "topic-create": (Role.ADMIN, self.topic_create),
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
