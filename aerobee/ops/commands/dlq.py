"""`aerobee dlq`: dead-letter messages: groups that have some, their contents and causes, redrive.

A redriven message goes to the retry topic of its group, so that no other group receives it a second time, unless --to
names a topic. The dead-letter messages stay in the DLQ; the broker stores the offset up to which they were redriven,
and the next redrive continues there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from aerobee.client import Admin
from aerobee.client.admin.dead_letters import Redriven
from aerobee.client.consumer.dead_letter import DeadLetter, DeadLetterFilter
from aerobee.clock import SystemClock
from aerobee.errors import UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import MessageQueue, check_group_name
from aerobee.ops.commands.consume import shown_document
from aerobee.ops.commands.send import parse_properties
from aerobee.ops.commands.topic import require_topic
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, GroupArgument, NameServers, Yes, ask
from aerobee.ops.terminal.failure import ExitCode, NotFound
from aerobee.ops.terminal.output import Output, body_text
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_ms, moment_text
from aerobee.words import plural

app = typer.Typer(name="dlq", help="Dead-letter messages: list, show, redrive.", no_args_is_help=True)

BODY_CHARS = 60  # of a body in a table
COLUMNS = {
    "position": "position",
    "died": "died",
    "topic": "topic",
    "message_id": "message id",
    "tries": "tries",
    "reason": "reason",
    "error": "last error",
    "body": "body",
}

Topic = Annotated[str, typer.Option("--topic", "-t", help="Only messages of this original topic.")]
Tag = Annotated[str, typer.Option("--tag", help="Only messages with this tag.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--keys", "-k", metavar="KEY", help="Only messages with this key; may be repeated."),
]
Ids = Annotated[
    list[str] | None, typer.Option("--id", help="Only this message id (of either kind); may be repeated.")
]
ErrorText = Annotated[str, typer.Option("--error", help="Only messages whose last error contains this text.")]
ReasonText = Annotated[str, typer.Option("--reason", help="Only messages whose reason contains this text.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Only messages dead-lettered after this (2026-11-21T10:00, 15m)."),
]
Until = Annotated[str | None, typer.Option("--until", help="Only messages dead-lettered before this time.")]
Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property", metavar="NAME=VALUE", help="Only messages with this property; may be repeated."
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of messages.")]


@app.command("list")
def list_groups(nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False) -> None:
    """List the groups that have dead-letter messages, and how many are not redriven yet."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            rows = [
                row for group in await admin.dead_letter_groups() for row in await queue_rows(admin, group)
            ]
        out.table(
            rows,
            {
                "group": "group",
                "broker": "broker",
                "dead_letters": "dead letters",
                "waiting": "not redriven",
                "newest": "newest",
            },
            empty="there are no dead-letter messages",
        )

    run(command)


async def queue_rows(admin: Admin, group: str) -> list[dict[str, Any]]:
    """The dead-letter queues of a group: number of messages, of those not redriven, and time of the newest."""
    rows = []
    for dlq in await admin.dead_letter_queues(group):
        newest = None
        if dlq.count:
            newest = (await admin.message_at(dlq.queue, dlq.end - 1)).store_timestamp
        rows.append(
            {
                "group": group,
                "broker": dlq.queue.broker_name,
                "queue_id": dlq.queue.queue_id,
                "dead_letters": dlq.count,
                "waiting": dlq.waiting,
                "newest": moment_text(newest or 0),
            }
        )
    return rows


@app.command("show")
def show(
    group: GroupArgument,
    topic: Topic = "",
    tag: Tag = "",
    keys: Keys = None,
    ids: Ids = None,
    error: ErrorText = "",
    reason: ReasonText = "",
    since: Since = None,
    until: Until = None,
    properties: Property = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only messages that were not redriven yet.")
    ] = False,
    limit: Limit = 100,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show a group's dead-letter messages: original topic, reason, last error."""
    out = Output(as_json)
    wanted = _filter(topic, tag, keys, ids, error, reason, since, until, properties)
    check_group_name(group)

    async def command(stop: Stop) -> None:
        found: list[DeadLetter] = []
        async with open_admin(nameserver) as admin:
            await _require_dead_letters(admin, group)
            async for dead in admin.dead_letters(group, wanted, only_waiting=waiting):
                found.append(dead)
                if len(found) == limit:
                    break
        out.table(
            [_document(dead) if as_json else _row(dead) for dead in found],
            COLUMNS,
            empty=f"group {group} has no matching dead-letter message",
        )

    run(command)


@dataclass(slots=True)
class _Redrive:
    """One redrive: its counts, and for each queue the offset up to which all dead-letter messages are redriven."""

    admin: Admin
    out: Output
    to: str
    dry_run: bool
    sent: int = 0
    failed: int = 0
    left: int = 0
    done: dict[MessageQueue, int] = field(default_factory=dict)
    gap: set[MessageQueue] = field(default_factory=set)

    async def one(self, dead: DeadLetter) -> None:
        """Redrive one message and print the result."""
        target = self.to or f"the retry topic of {dead.group}"
        if self.dry_run:
            self._say(Redriven(dead, target), "would be sent to")
            self.sent += 1
            return
        try:
            result = await self.admin.redrive(dead, to=self.to)
        except UsageError as error:
            result = Redriven(dead, target, error=str(error))
        if result.error:
            self.failed += 1
            self._say(result, "FAILED, not sent to")
            self.skip(dead)
        else:
            self.sent += 1
            self._say(result, "sent to")
            if dead.message.queue not in self.gap:
                self.done[dead.message.queue] = dead.message.queue_offset + 1

    def skip(self, dead: DeadLetter) -> None:
        """Record that a message was not redriven: it and all later messages of its queue stay "not redriven"."""
        self.gap.add(dead.message.queue)

    async def store_progress(self) -> None:
        for queue, offset in self.done.items():
            await self.admin.commit_redriven(queue, offset)
        self.done.clear()

    def _say(self, redriven: Redriven, what: str) -> None:
        dead, result = redriven.dead_letter, redriven.result
        document = {
            "position": _position(dead),
            "message_id": dead.message_id,
            "topic": dead.topic,
            "target": redriven.target,
            "status": "dry run" if self.dry_run else "failed" if redriven.error else "sent",
            "offset_message_id": result.offset_message_id if result else None,
            "broker": result.queue.broker_name if result else None,
            "queue_id": result.queue.queue_id if result else None,
            "queue_offset": result.queue_offset if result else None,
            "error": redriven.error or None,
        }
        stored = (
            f" {result.queue.broker_name}/{result.queue.queue_id}@{result.queue_offset}" if result else ""
        )
        reason = f": {redriven.error}" if redriven.error else ""
        self.out.line(
            document, f"{_position(dead)}  {dead.message_id}  {what} {redriven.target}{stored}{reason}"
        )


@app.command("redrive")
def redrive(
    group: GroupArgument,
    topic: Topic = "",
    tag: Tag = "",
    keys: Keys = None,
    ids: Ids = None,
    error: ErrorText = "",
    reason: ReasonText = "",
    since: Since = None,
    until: Until = None,
    properties: Property = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TOPIC|origin",
            help="Target topic, or origin: the original topic of each message (default: the group's retry topic).",
        ),
    ] = "",
    all_dead: Annotated[
        bool, typer.Option("--all", help="Include messages that were redriven before.")
    ] = False,
    rate: Annotated[
        float, typer.Option("--rate", min=0.01, help="Maximum number of messages per second.")
    ] = 100.0,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Maximum number of messages; 0: no limit.")
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be sent and send nothing.")
    ] = False,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Redrive dead-letter messages and print the result of each; exit code 1 when one of them failed."""
    out = Output(as_json)
    wanted = _filter(topic, tag, keys, ids, error, reason, since, until, properties)
    check_group_name(group)

    async def command(stop: Stop) -> int:
        clock = SystemClock()
        async with open_admin(nameserver) as admin:
            await _require_dead_letters(admin, group)
            if to not in ("", "origin"):
                await require_topic(admin, to)
            if not dry_run:
                which = (
                    "all dead-letter messages" if all_dead else "the dead-letter messages not redriven yet"
                )
                where = {"": f"the retry topic of group {group}", "origin": "their original topics"}.get(
                    to, f"topic {to}"
                )
                matching = "" if wanted.is_empty else " that match the filter"
                ask(f"Send {which}{matching} to {where}?", yes)
            work = _Redrive(admin, out, to, dry_run)
            stop.taken = True  # the first Ctrl-C ends the redrive between two messages
            began = clock.monotonic()
            try:
                async for dead in _chosen(admin, group, wanted, work, only_waiting=not all_dead):
                    if stop or (limit and work.sent + work.failed >= limit):
                        break
                    work.to = dead.topic if to == "origin" else to
                    await work.one(dead)
                    ahead_s = (work.sent + work.failed) / rate - (clock.monotonic() - began)
                    if ahead_s > 0 and not dry_run:
                        await clock.sleep(ahead_s)
            finally:
                await work.store_progress()
        out.note(
            f"{plural(work.sent, 'message')} {'would be sent' if dry_run else 'sent'}, {work.failed} failed, "
            f"{work.left} excluded by the filter"
            + ("" if all_dead or work.sent + work.failed else "; --all includes messages redriven before")
        )
        return ExitCode.REFUSED if work.failed else ExitCode.DONE

    run(command)


async def _chosen(
    admin: Admin, group: str, wanted: DeadLetterFilter, work: _Redrive, *, only_waiting: bool
) -> AsyncIterator[DeadLetter]:
    """Yield the messages that match the filter; count and skip the others."""
    async for dead in admin.dead_letters(group, only_waiting=only_waiting):
        if wanted.matches(dead):
            yield dead
        else:
            work.left += 1
            work.skip(dead)


def _filter(
    topic: str,
    tag: str,
    keys: list[str] | None,
    ids: list[str] | None,
    error: str,
    reason: str,
    since: str | None,
    until: str | None,
    properties: list[str] | None,
) -> DeadLetterFilter:
    now_ms = SystemClock().now_ms()
    return DeadLetterFilter(
        topic=topic,
        tag=tag,
        keys=tuple(keys or ()),
        message_ids=frozenset(ids or ()),
        error=error,
        reason=reason,
        since_ms=moment_ms(since, now_ms) if since else 0,
        until_ms=moment_ms(until, now_ms) if until else 0,
        properties=parse_properties(properties or []),
    )


async def _require_dead_letters(admin: Admin, group: str) -> None:
    groups = await admin.dead_letter_groups()
    if group not in groups:
        known = f"; groups that have some: {', '.join(groups)}" if groups else ", and no other group has any"
        raise NotFound(f"group {group} has no dead-letter messages{known}")


def _position(dead: DeadLetter) -> str:
    message = dead.message
    return f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"


def _row(dead: DeadLetter) -> dict[str, Any]:
    stored, damage = dead.message.body_or_stored()
    body, _ = body_text(stored)
    text = " ".join(body.split())
    return {
        "position": _position(dead),
        "died": moment_text(dead.died_ms),
        "topic": dead.topic or None,
        "message_id": dead.message_id,
        "tries": dead.tries,
        "reason": dead.reason or None,
        "error": dead.error or None,
        **({"damage": damage} if damage else {}),
        "body": text if len(text) <= BODY_CHARS else text[: BODY_CHARS - 1] + "…",
    }


def _document(dead: DeadLetter) -> dict[str, Any]:
    origin = {
        "group": dead.group,
        "origin_topic": dead.topic or None,
        "origin_message_id": dead.message_id,
        "reason": dead.reason or None,
        "last_error": dead.error or None,
        "tries": dead.tries,
        "died": moment_text(dead.died_ms),
    }
    return origin | shown_document(dead.message)
