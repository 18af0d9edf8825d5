"""`aerobee offset`: committed offsets of a group: show, reset, clone, skip.

Every change first shows its effect on each queue and asks for confirmation; --dry-run stops there. After the change
the command reads the offsets from the brokers again, so the last column shows the brokers' values.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from aerobee.client import Admin, OffsetMove, OffsetTarget
from aerobee.errors import UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import RETRY_PREFIX, MessageQueue, check_group_name
from aerobee.ops.commands.known_groups import require_group
from aerobee.ops.commands.send import find_queue
from aerobee.ops.commands.topic import require_topic
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, GroupArgument, NameServers, Yes, ask
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_ms
from aerobee.words import plural

app = typer.Typer(
    name="offset", help="Committed offsets of a group: show, reset, clone, skip.", no_args_is_help=True
)

AnyTopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="Limit the command to this topic (default: all topics of the group)."),
]
QueueOption = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="BROKER/ID", help="Limit the command to this queue; may be repeated."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")]
MakePlan = Callable[[Admin], Awaitable[Sequence[OffsetMove]]]
_NUMBER = re.compile(r"[+-]?\d+\Z")
COLUMNS = {
    "topic": "topic",
    "broker": "broker",
    "queue_id": "queue",
    "begin": "begin",
    "end": "end",
    "before": "before",
    "after": "after",
    "moved": "moved by",
    "note": "note",
}


def parse_target(text: str, now_ms: int) -> OffsetTarget:
    """Parse --to. Raises UsageError that lists the accepted forms."""
    if text in ("earliest", "first"):
        return OffsetTarget.earliest()
    if text in ("latest", "last"):
        return OffsetTarget.latest()
    if text[:1] in "+-" and _NUMBER.match(text):
        return OffsetTarget.relative(int(text))
    number = text.removeprefix("offset:")
    if number != text or (text.isdecimal() and len(text) < 12):
        if not number.isdecimal():
            raise UsageError(f"--to {text!r}: write offset: and a number, for example offset:120")
        return OffsetTarget.offset(int(number))
    try:
        return OffsetTarget.time(moment_ms(text, now_ms))
    except UsageError:
        raise UsageError(
            f"--to {text!r}: write earliest, latest, offset:120, +100 or -100 (relative to the committed offset), "
            "2026-11-21T10:00:00.500, milliseconds since the epoch, or 15m for 15 minutes ago"
        ) from None


@app.command("show")
def show(
    group: GroupArgument,
    topic: AnyTopicOption = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show a group's committed offset in each queue, and the queue's first and last offset."""
    out = Output(as_json)
    check_group_name(group)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            topics = await _topics(admin, group, topic)
            rows = [
                {
                    **_queue_columns(move.queue),
                    "begin": move.begin,
                    "committed": move.before,
                    "end": move.end,
                    "lag": move.end - (move.begin if move.before is None else max(move.before, move.begin)),
                }
                for each in topics
                for move in await admin.offsets(group, each)
            ]
        out.table(
            rows,
            {
                "topic": "topic",
                "broker": "broker",
                "queue_id": "queue",
                "begin": "begin",
                "committed": "committed",
                "end": "end",
                "lag": "lag",
            },
            empty=f"group {group} has no committed offsets; name a topic with --topic",
        )

    run(command)


@app.command("reset")
def reset(
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="New offset: earliest, latest, offset:N, +N or -N relative to the committed offset, "
            "or a time (2026-11-21T10:00:00, ms, 15m ago).",
        ),
    ],
    topic: AnyTopicOption = None,
    queue: QueueOption = None,
    only_back: Annotated[
        bool, typer.Option("--only-back", help="Never move an offset forward, so that no message is skipped.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Reset a group's offsets in one topic or in all its topics, whether members are online or not."""
    target = parse_target(to, time.time_ns() // 1_000_000)
    plan = _plan(group, topic, queue, target, may_skip=not only_back)
    _change(group, topic, plan, nameserver, as_json, dry_run=dry_run, yes=yes)


@app.command("skip")
def skip(
    group: GroupArgument,
    topic: AnyTopicOption = None,
    queue: QueueOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Skip the backlog: the group does not consume the messages that are stored now."""
    plan = _plan(group, topic, queue, OffsetTarget.latest())
    _change(group, topic, plan, nameserver, as_json, dry_run=dry_run, yes=yes)


@app.command("clone")
def clone(
    source: Annotated[str, typer.Argument(help="Group to copy the offsets from.", metavar="SOURCE")],
    target: Annotated[str, typer.Argument(help="Group to copy the offsets to.", metavar="TARGET")],
    topic: AnyTopicOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Copy the offsets of one group to another; creates the target group when no broker knows it."""
    check_group_name(source)
    if source == target:
        raise UsageError(f"source and target are both {source}")

    async def plan(admin: Admin) -> Sequence[OffsetMove]:
        topics = await _topics(admin, source, topic)
        return [move for each in topics for move in await admin.plan_clone(source, target, each)]

    _change(target, topic, plan, nameserver, as_json, dry_run=dry_run, yes=yes, create=True)


def _plan(
    group: str,
    topic: str | None,
    queues: Sequence[str] | None,
    target: OffsetTarget,
    *,
    may_skip: bool = True,
) -> MakePlan:
    """Plan the moves of one group to `target`: in these queues of a topic, in a topic, or in all topics with offsets."""
    if queues and topic is None:
        raise UsageError("--queue needs --topic")

    async def plan(admin: Admin) -> Sequence[OffsetMove]:
        moves: list[OffsetMove] = []
        for each in await _topics(admin, group, topic):
            named = await _queues(admin, each, queues)
            moves += await admin.plan_offsets(group, each, target, queues=named, may_skip=may_skip)
        return moves

    return plan


def _change(
    group: str,
    topic: str | None,
    make_plan: MakePlan,
    nameserver: str,
    as_json: bool,
    *,
    dry_run: bool,
    yes: bool,
    create: bool = False,
) -> None:
    """Plan, show, ask, carry out, show again."""
    out = Output(as_json)
    check_group_name(group)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            if topic is not None:
                await require_topic(admin, topic)
            is_new = create and group not in {info.name for info in await admin.groups()}
            if not is_new:
                await require_group(admin, group)
            plan = await make_plan(admin)
            if dry_run or not plan:
                _show(out, group, plan, "nothing was changed")
                return
            if not as_json and not yes:
                _show(out, group, plan, "planned")
            skipped = sum(max(0, move.distance) for move in plan)
            again = sum(max(0, -move.distance) for move in plan)
            ask(
                f"Change the offsets of group {group}? {plural(skipped, 'message is', 'messages are')} skipped, "
                f"{plural(again, 'message is', 'messages are')} redelivered.",
                yes,
            )
            if is_new:
                await admin.create_group(group)
            _show(out, group, await admin.move_offsets(group, plan), "done")

    run(command)


def _show(out: Output, group: str, moves: Sequence[OffsetMove], state: str) -> None:
    rows: list[dict[str, Any]] = [
        {
            **_queue_columns(move.queue),
            "begin": move.begin,
            "end": move.end,
            "before": move.before,
            "after": move.after,
            "moved": f"{move.distance:+d}" if move.distance else "0",
            "note": move.note,
        }
        for move in moves
    ]
    columns = (
        COLUMNS if any(move.note for move in moves) else {k: v for k, v in COLUMNS.items() if k != "note"}
    )
    out.table(rows, columns, empty=f"group {group} has no offsets to change", title=f"group {group}: {state}")


def _queue_columns(queue: MessageQueue) -> dict[str, Any]:
    return {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}


async def _topics(admin: Admin, group: str, topic: str | None) -> list[str]:
    """The named topic, or all topics in which the group has offsets, except its retry topic."""
    if topic is not None:
        await require_topic(admin, topic)
        return [topic]
    await require_group(admin, group)
    progress = await admin.consumer_progress(group)
    return sorted(
        {row.queue.topic for row in progress.queues if not row.queue.topic.startswith(RETRY_PREFIX)}
    )


async def _queues(admin: Admin, topic: str, names: Sequence[str] | None) -> list[MessageQueue] | None:
    if not names:
        return None
    known = tuple(row.queue for row in await admin.topic_stats(topic))
    return [find_queue(known, name, topic) for name in names]
