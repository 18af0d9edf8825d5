"""Changes that the pages make: each action has a role, a dry run, and the equivalent command.

A dry run changes nothing and returns a preview with the command. The same fields without `dry_run` execute the action.
"""

from __future__ import annotations

import shlex
from base64 import b64decode

from aerobee import Message
from aerobee.client import Admin, Producer
from aerobee.client.producer.recall import parse_handle
from aerobee.clock import Clock
from aerobee.console.access_actions import AccessActions
from aerobee.console.fields import Fields, Outcome, Run, text
from aerobee.console.group_actions import GroupActions
from aerobee.console.schedule_actions import ScheduleActions
from aerobee.console.topic_actions import TopicActions
from aerobee.console.topology import Topology
from aerobee.console.topology_actions import TopologyActions
from aerobee.console.users import Role
from aerobee.errors import UsageError
from aerobee.message import check_topic_name
from aerobee.ops.terminal.times import moment_text, span_ms
from aerobee.words import plural

BODY_MAX = 4 * 1024 * 1024


class Actions:
    """`table`: name -> (role, run)."""

    def __init__(
        self, admin: Admin, producer: Producer, clock: Clock, nameserver: str, topology: Topology
    ) -> None:
        self._admin = admin
        self._producer = producer
        self._clock = clock
        self._nameserver = nameserver
        self.table: dict[str, tuple[Role, Run]] = {
            "send": (Role.OPERATOR, self.send),
            "transaction": (Role.OPERATOR, self.transaction),
            "recall": (Role.OPERATOR, self.recall),
            "reschedule": (Role.OPERATOR, self.reschedule),
            "setting": (Role.ADMIN, self.setting),
            **GroupActions(admin, clock, self._command).table,
            **TopicActions(admin, self._command).table,
            **ScheduleActions(admin, self._command).table,
            **AccessActions(admin, self._command).table,
            **TopologyActions(admin, topology, self._command).table,
        }

    def _command(self, *words: str) -> str:
        return shlex.join(("aerobee", *words, "--nameserver", self._nameserver))

    async def send(self, fields: Fields, dry_run: bool) -> Outcome:
        """Send one message: `body` is text, `body_base64` any bytes; `properties` are the user's."""
        message = _message(fields)
        topic = message.topic
        options = [
            *(("--tag", message.tag) if message.tag else ()),
            *(word for key in message.keys for word in ("--keys", key)),
            *(
                word
                for name, value in message.properties.items()
                for word in ("--property", f"{name}={value}")
            ),
        ]
        try:
            command = self._command("send", topic, message.body.decode(), *options)
        except UnicodeDecodeError:
            command = self._command("send", topic, "--file", "BODY", "--whole", *options)
        size = plural(len(message.body), "byte")
        if dry_run:
            return Outcome(command, f"one message of {size} would be sent to {topic}")
        result = await self._producer.send(message)
        queue = result.queue
        row = {
            "message_id": result.message_id,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "offset": result.queue_offset,
            "status": result.status.value,
        }
        return Outcome(command, f"sent: {result.message_id}", (row,))

    async def transaction(self, fields: Fields, dry_run: bool) -> Outcome:
        """Commit, roll back, or check one transaction."""
        name, action = text(fields, "id"), text(fields, "action")
        if action not in ("commit", "rollback", "check"):
            raise UsageError(f"action is {action!r}, must be commit, rollback or check")
        command = self._command("transaction", action, name, *(() if action == "check" else ("--yes",)))
        if dry_run:
            return Outcome(command, f"transaction {name}: {action}")
        outcome = await self._admin.resolve_transaction(name, action)
        return Outcome(command, f"transaction {name} is {outcome.outcome}")

    async def recall(self, fields: Fields, dry_run: bool) -> Outcome:
        """Recall a pending timer message."""
        handle = text(fields, "handle")
        command = self._command("timer", "recall", handle)
        if dry_run:
            return Outcome(command, "the message would be recalled and never delivered")
        return Outcome(command, f"message {await self._admin.recall_timer(handle)} is recalled")

    async def reschedule(self, fields: Fields, dry_run: bool) -> Outcome:
        """Change the delivery time of a pending message: `after` is a duration (90s, 2h); 0s delivers it immediately."""
        handle, after = text(fields, "handle"), text(fields, "after")
        wait_ms = span_ms(after)
        due_ms = self._clock.now_ms() + wait_ms
        command = self._command("timer", "reschedule", handle, "--after", after)
        if dry_run:
            parse_handle(handle)
            return Outcome(command, f"the message would be delivered at {moment_text(due_ms)}")
        again = await self._admin.reschedule_timer(handle, due_ms / 1000)
        return Outcome(
            command,
            f"the message is delivered at {moment_text(due_ms)}, its new handle is {again}"
            if again
            else "the message is delivered",
        )

    async def setting(self, fields: Fields, dry_run: bool) -> Outcome:
        """Change one setting of one running broker. The broker refuses settings that need a restart."""
        broker, key, value = text(fields, "broker"), text(fields, "key"), str(fields.get("value", ""))
        if broker not in {info.address for info in await self._admin.brokers()}:
            raise UsageError(f"{broker} is not a broker of this cluster")
        if any(character in key + value for character in "\r\n="):
            raise UsageError("key and value must not contain line ends or =")
        before = (await self._admin.broker_config(broker)).get(key)
        if before is None:
            raise UsageError(f"{broker} has no setting {key}")
        command = self._command("config", "set", broker, f"{key}={value}")
        if not dry_run:
            await self._admin.update_broker_config(broker, {key: value})
            after = (await self._admin.broker_config(broker)).get(key)
            if after != value:
                raise UsageError(f"{broker} still has {key}={after}: this setting cannot change at runtime")
        rows = ({"broker": broker, "key": key, "before": before, "after": value},)
        return Outcome(command, f"{key} {'would become' if dry_run else 'is'} {value}", rows)


def _message(fields: Fields) -> Message:
    """The message of a send. Raises UsageError."""
    topic = text(fields, "topic")
    check_topic_name(topic)
    encoded = fields.get("body_base64")
    try:
        body = (
            b64decode(encoded, validate=True) if encoded is not None else str(fields.get("body", "")).encode()
        )
    except (TypeError, ValueError):
        raise UsageError("body_base64 is not base64") from None
    if len(body) > BODY_MAX:
        raise UsageError(f"the body is larger than the limit of {BODY_MAX} bytes")
    properties = fields.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(each, str) for each in properties.values()):
        raise UsageError("properties must map names to texts")
    tag, keys = str(fields.get("tag", "")).strip(), tuple(str(fields.get("keys", "")).split())
    return Message(topic, body, tag=tag or None, keys=keys, properties=properties)
