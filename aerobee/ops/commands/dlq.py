"""`aerobee dlq`: dead letters: which groups have some, what is in them and why, sending them again.

A letter that is sent again goes to its group's retry topic, so that no other group gets it a second time, unless --to
names a topic. The letters stay where they are; how far they were sent again is remembered at the broker, and the next
redrive goes on from there.
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

app = typer.Typer(name="dlq", help="Dead letters: list, show, send again.", no_args_is_help=True)

BODY_CHARS = 60  # of a body in a table
COLUMNS = {
    "place": "letter",
    "died": "died",
    "topic": "topic",
    "message_id": "message id",
    "tries": "tries",
    "reason": "reason",
    "error": "last error",
    "body": "body",
}

Topic = Annotated[str, typer.Option("--topic", "-t", help="Only letters that came from this topic.")]
Tag = Annotated[str, typer.Option("--tag", help="Only with this tag.")]
Key = Annotated[str, typer.Option("--key", help="Only with this key.")]
Ids = Annotated[
    list[str] | None, typer.Option("--id", help="Only this message id (of either kind); may be repeated.")
]
ErrorText = Annotated[str, typer.Option("--error", help="Only where the last error holds this text.")]
ReasonText = Annotated[str, typer.Option("--reason", help="Only where the reason holds this text.")]
Since = Annotated[str | None, typer.Option("--since", help="Died after this (2026-11-21T10:00, 15m).")]
Until = Annotated[str | None, typer.Option("--until", help="Died before this.")]
Property = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Only with it; may be repeated.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many.")]


@app.command("list")
def list_groups(nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False) -> None:
    """List the groups that have dead letters, and how many wait to be sent again."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        rows = []
        async with open_admin(nameserver) as admin:
            for group in await admin.dead_letter_groups():
                for place in await admin.dead_letter_queues(group):
                    newest = None
                    if place.count:
                        newest = (await admin.message_at(place.queue, place.end - 1)).store_timestamp
                    rows.append(
                        {
                            "group": group,
                            "broker": place.queue.broker_name,
                            "queue_id": place.queue.queue_id,
                            "letters": place.count,
                            "waiting": place.waiting,
                            "newest": moment_text(newest or 0),
                        }
                    )
        out.table(
            rows,
            {
                "group": "group",
                "broker": "broker",
                "letters": "letters",
                "waiting": "not sent again",
                "newest": "newest",
            },
            empty="there are no dead letters",
        )

    run(command)


@app.command("show")
def show(
    group: GroupArgument,
    topic: Topic = "",
    tag: Tag = "",
    key: Key = "",
    ids: Ids = None,
    error: ErrorText = "",
    reason: ReasonText = "",
    since: Since = None,
    until: Until = None,
    properties: Property = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only those that were not sent again.")] = False,
    limit: Limit = 100,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show a group's dead letters: where they came from, why they died, the last error."""
    out = Output(as_json)
    wanted = _filter(topic, tag, key, ids, error, reason, since, until, properties)
    check_group_name(group)

    async def command(stop: Stop) -> None:
        letters: list[DeadLetter] = []
        async with open_admin(nameserver) as admin:
            await _require_letters(admin, group)
            async for letter in admin.dead_letters(group, wanted, only_waiting=waiting):
                letters.append(letter)
                if len(letters) == limit:
                    break
        out.table(
            [_document(letter) if as_json else _row(letter) for letter in letters],
            COLUMNS,
            empty=f"group {group} has no dead letter that fits",
        )

    run(command)


@dataclass(slots=True)
class _Redrive:
    """One run: what is sent, and how far the letters of each queue are done without a gap."""

    admin: Admin
    out: Output
    to: str
    dry_run: bool
    sent: int = 0
    failed: int = 0
    left: int = 0
    done: dict[MessageQueue, int] = field(default_factory=dict)
    gap: set[MessageQueue] = field(default_factory=set)

    async def one(self, letter: DeadLetter) -> None:
        """Send one letter, say what became of it."""
        target = self.to or f"the retry topic of {letter.group}"
        if self.dry_run:
            self._say(Redriven(letter, target), "would be sent to")
            self.sent += 1
            return
        try:
            result = await self.admin.redrive(letter, to=self.to)
        except UsageError as error:
            result = Redriven(letter, target, error=str(error))
        if result.error:
            self.failed += 1
            self._say(result, "FAILED, not sent to")
            self.pass_by(letter)
        else:
            self.sent += 1
            self._say(result, "sent to")
            if letter.message.queue not in self.gap:
                self.done[letter.message.queue] = letter.message.queue_offset + 1

    def pass_by(self, letter: DeadLetter) -> None:
        """A letter that was not sent: what comes behind it counts as waiting, too."""
        self.gap.add(letter.message.queue)

    async def remember(self) -> None:
        for queue, offset in self.done.items():
            await self.admin.mark_redriven(queue, offset)
        self.done.clear()

    def _say(self, redriven: Redriven, what: str) -> None:
        letter, result = redriven.letter, redriven.result
        document = {
            "letter": _place(letter),
            "message_id": letter.message_id,
            "topic": letter.topic,
            "target": redriven.target,
            "status": "dry run" if self.dry_run else "failed" if redriven.error else "sent",
            "offset_message_id": result.offset_message_id if result else None,
            "broker": result.queue.broker_name if result else None,
            "queue_id": result.queue.queue_id if result else None,
            "queue_offset": result.queue_offset if result else None,
            "error": redriven.error or None,
        }
        place = f" {result.queue.broker_name}/{result.queue.queue_id}@{result.queue_offset}" if result else ""
        trouble = f": {redriven.error}" if redriven.error else ""
        self.out.line(
            document, f"{_place(letter)}  {letter.message_id}  {what} {redriven.target}{place}{trouble}"
        )


@app.command("redrive")
def redrive(
    group: GroupArgument,
    topic: Topic = "",
    tag: Tag = "",
    key: Key = "",
    ids: Ids = None,
    error: ErrorText = "",
    reason: ReasonText = "",
    since: Since = None,
    until: Until = None,
    properties: Property = None,
    to: Annotated[
        str, typer.Option("--to", metavar="TOPIC|origin", help="A topic, or origin: where each came from.")
    ] = "",
    all_letters: Annotated[
        bool, typer.Option("--all", help="Also those that were sent again before.")
    ] = False,
    rate: Annotated[float, typer.Option("--rate", min=0.01, help="At most so many a second.")] = 100.0,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, send nothing.")] = False,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again, each with its own result; ends with 1 when one of them failed."""
    out = Output(as_json)
    wanted = _filter(topic, tag, key, ids, error, reason, since, until, properties)
    check_group_name(group)

    async def command(stop: Stop) -> int:
        clock = SystemClock()
        async with open_admin(nameserver) as admin:
            await _require_letters(admin, group)
            if to not in ("", "origin"):
                await require_topic(admin, to)
            if not dry_run:
                which = "Every dead letter" if all_letters else "Every dead letter that waits"
                where = {"": f"group {group} again", "origin": "the topic it came from"}.get(
                    to, f"topic {to}"
                )
                ask(f"{which}{'' if wanted.is_empty else ' and fits'} is sent to {where}. Go on?", yes)
            work = _Redrive(admin, out, to, dry_run)
            stop.taken = True  # the first Ctrl-C ends it between two letters
            began = clock.monotonic()
            try:
                async for letter in _chosen(admin, group, wanted, work, only_waiting=not all_letters):
                    if stop or (limit and work.sent + work.failed >= limit):
                        break
                    work.to = letter.topic if to == "origin" else to
                    await work.one(letter)
                    ahead_s = (work.sent + work.failed) / rate - (clock.monotonic() - began)
                    if ahead_s > 0 and not dry_run:
                        await clock.sleep(ahead_s)
            finally:
                await work.remember()
        out.note(
            f"{plural(work.sent, 'letter')} {'would be sent' if dry_run else 'sent'}, {work.failed} failed, "
            f"{work.left} left aside by the filter"
            + (
                ""
                if all_letters or work.sent + work.failed
                else "; --all takes those that were sent before, too"
            )
        )
        return ExitCode.REFUSED if work.failed else ExitCode.DONE

    run(command)


async def _chosen(
    admin: Admin, group: str, wanted: DeadLetterFilter, work: _Redrive, *, only_waiting: bool
) -> AsyncIterator[DeadLetter]:
    """The letters that fit; of each of the others, that it was left aside."""
    async for letter in admin.dead_letters(group, only_waiting=only_waiting):
        if wanted.matches(letter):
            yield letter
        else:
            work.left += 1
            work.pass_by(letter)


def _filter(
    topic: str,
    tag: str,
    key: str,
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
        key=key,
        message_ids=frozenset(ids or ()),
        error=error,
        reason=reason,
        since_ms=moment_ms(since, now_ms) if since else 0,
        until_ms=moment_ms(until, now_ms) if until else 0,
        properties=parse_properties(properties or []),
    )


async def _require_letters(admin: Admin, group: str) -> None:
    groups = await admin.dead_letter_groups()
    if group not in groups:
        known = f"; groups that have some: {', '.join(groups)}" if groups else ", and no other group has any"
        raise NotFound(f"group {group} has no dead letters{known}")


def _place(letter: DeadLetter) -> str:
    message = letter.message
    return f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"


def _row(letter: DeadLetter) -> dict[str, Any]:
    stored, damage = letter.message.body_or_stored()
    body, _ = body_text(stored)
    text = " ".join(body.split())
    return {
        "place": _place(letter),
        "died": moment_text(letter.died_ms),
        "topic": letter.topic or None,
        "message_id": letter.message_id,
        "tries": letter.tries,
        "reason": letter.reason or None,
        "error": letter.error or None,
        **({"damage": damage} if damage else {}),
        "body": text if len(text) <= BODY_CHARS else text[: BODY_CHARS - 1] + "…",
    }


def _document(letter: DeadLetter) -> dict[str, Any]:
    origin = {
        "group": letter.group,
        "origin_topic": letter.topic or None,
        "origin_message_id": letter.message_id,
        "reason": letter.reason or None,
        "last_error": letter.error or None,
        "tries": letter.tries,
        "died": moment_text(letter.died_ms),
    }
    return origin | shown_document(letter.message)
