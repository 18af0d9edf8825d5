"""`aerobee group`: list, describe, lag, pop, mode, reset, delete; group_change.py adds create and update."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from aerobee.client import Admin
from aerobee.client.admin.explain import QueueLock
from aerobee.client.admin.pops import MODES
from aerobee.errors import ConsumerNotOnline, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import check_group_name
from aerobee.ops.commands import offset
from aerobee.ops.commands.group_change import create_group, update_group
from aerobee.ops.commands.known_groups import require_group
from aerobee.ops.commands.topic import require_topic
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, GroupArgument, NameServers, Yes, ask
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_text
from aerobee.system_names import is_hidden_group

app = typer.Typer(
    name="group",
    help="Consumer groups: list, create, update, describe, lag, pop, mode, reset, delete.",
    no_args_is_help=True,
)
app.command("create")(create_group)
app.command("update")(update_group)


@app.command("list")
def list_groups(
    all_groups: Annotated[bool, typer.Option("--all", "-a", help="Include system groups.")] = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the consumer groups of all brokers."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            infos = await admin.groups()
        rows: dict[str, dict[str, Any]] = {}
        for info in infos:
            if not all_groups and is_hidden_group(info.name):
                continue
            row = rows.setdefault(
                info.name,
                {
                    "group": info.name,
                    "consume": info.consume_enabled,
                    "broadcast": info.broadcast_enabled,
                    "orderly": info.orderly,
                    "retries": info.retry_count_max,
                    "brokers": [],
                },
            )
            row["brokers"].append(info.broker_address)
        out.table(
            [rows[name] for name in sorted(rows)],
            {
                "group": "group",
                "consume": "may consume",
                "broadcast": "may broadcast",
                "orderly": "orderly",
                "retries": "retries",
                "brokers": "brokers",
            },
            empty="there are no consumer groups yet; a group appears when its first consumer joins",
        )

    run(command)


def _lock_row(lock: QueueLock) -> dict[str, Any]:
    """A queue that an orderly consumer has locked."""
    return {
        "topic": lock.queue.topic,
        "broker": lock.queue.broker_name,
        "queue_id": lock.queue.queue_id,
        "holder": lock.client_id,
        "since": moment_text(lock.since_ms),
        "renewed_s_ago": round(lock.age_ms / 1000, 1),
        "lease_s": lock.lease_ms / 1000,
        "state": "held" if lock.age_ms <= lock.lease_ms else "lapsed",
    }


@app.command("describe")
def describe_group(
    group: GroupArgument, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """Show a group's settings, members, subscriptions and queue locks."""
    out = Output(as_json)
    check_group_name(group)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            document = await group_document(admin, group)
        if as_json:
            out.document(document)
        else:
            _show_description(out, document)

    run(command)


async def group_document(admin: Admin, group: str) -> dict[str, Any]:
    """A group's settings, members, subscriptions, conflicts and queue locks. Raises NotFound for an unknown group."""
    await require_group(admin, group)
    settings = [info for info in await admin.groups() if info.name == group]
    try:
        online = await admin.consumer_connections(group)
    except ConsumerNotOnline:
        online = None
    locks = await admin.queue_locks(group)
    members = [
        {
            "client_id": member.client_id,
            "address": member.address,
            "language": member.language,
            "version": member.version,
            "protocol": member.protocol,
        }
        for member in (online.connections if online else ())
    ]
    subscriptions = [
        {"topic": item.topic, "expression": item.expression, "type": item.expression_type}
        for item in (online.subscriptions if online else ())
    ]
    conflicts = [
        {
            "topic": item.topic,
            "client_id": item.client_id,
            "expression": item.expression,
            "other_client_id": item.other_client_id,
            "other_expression": item.other_expression,
        }
        for item in (online.conflicts if online else ())
    ]
    return {
        "group": group,
        "brokers": [info.broker_address for info in settings],
        "consume_enabled": all(info.consume_enabled for info in settings),
        "retry_count_max": settings[0].retry_count_max if settings else None,
        "model": online.message_model if online else None,
        "type": online.consume_type if online else None,
        "members": members,
        "subscriptions": subscriptions,
        "conflicts": conflicts,
        "locks": None if locks is None else [_lock_row(lock) for lock in locks],
    }


def _show_description(out: Output, document: dict[str, Any]) -> None:
    tables = ("members", "subscriptions", "conflicts", "locks")
    out.facts({key: value for key, value in document.items() if key not in tables})
    out.say("")
    out.table(
        document["members"],
        {
            "client_id": "member",
            "address": "address",
            "protocol": "protocol",
            "language": "language",
            "version": "version",
        },
        empty="no member is online",
    )
    if document["subscriptions"]:
        out.say("")
        out.table(
            document["subscriptions"],
            {"topic": "topic", "expression": "expression", "type": "expression type"},
            empty="no subscription",
        )
    if document["conflicts"]:
        out.say("")
        out.say(
            "Members have different subscriptions, so they miss messages: use one group per subscription."
        )
        out.table(
            document["conflicts"],
            {
                "topic": "topic",
                "client_id": "member",
                "expression": "expression",
                "other_client_id": "other member",
                "other_expression": "other expression",
            },
            empty="",
        )
    if document["locks"]:
        out.say("")
        out.table(
            document["locks"],
            {
                "topic": "topic",
                "broker": "broker",
                "queue_id": "queue",
                "holder": "holder",
                "since": "held since",
                "renewed_s_ago": "renewed s ago",
                "lease_s": "lease s",
                "state": "state",
            },
            empty="",
        )


@app.command("lag")
def group_lag(
    group: GroupArgument,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Show the lag in this topic only.")
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the lag of a group, per queue and in total."""
    out = Output(as_json)
    check_group_name(group)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            document = await lag_document(admin, group, topic)
        rows = document["queues"]
        filters = any(row["wanted"] is not None for row in rows)
        if as_json:
            out.document(document)
            return
        out.table(
            rows,
            {
                "topic": "topic",
                "broker": "broker",
                "queue_id": "queue",
                "broker_offset": "broker offset",
                "consumer_offset": "consumer offset",
                "lag": "lag",
                **({"wanted": "filtered lag"} if filters else {}),
                "last_consumed": "last consumed",
                "member": "owner",
            },
            empty=f"group {group} has no committed offsets: it never consumed",
        )
        out.say(f"lag {document['lag']}, {document['consume_tps']:.2f} messages/s")

    run(command)


async def lag_document(admin: Admin, group: str, topic: str | None) -> dict[str, Any]:
    """A group's lag in total and per queue. Raises NotFound for an unknown group or topic."""
    if topic is not None:
        await require_topic(admin, topic)
    await require_group(admin, group)
    progress = await admin.consumer_progress(group, topic)
    rows = [
        {
            "topic": row.queue.topic,
            "broker": row.queue.broker_name,
            "queue_id": row.queue.queue_id,
            "broker_offset": row.broker_offset,
            "consumer_offset": row.consumer_offset,
            "lag": row.lag,
            "wanted": row.wanted,
            "last_consumed": moment_text(row.last_timestamp_ms),
            "member": row.client_id or None,
        }
        for row in progress.queues
    ]
    return {"group": group, "lag": progress.lag, "consume_tps": progress.consume_tps, "queues": rows}


@app.command("pop")
def group_pops(
    group: GroupArgument,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Show messages of this topic only.")
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the messages that POP delivered to a group and that are invisible: until when, and at which consumer."""
    out = Output(as_json)
    check_group_name(group)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await require_group(admin, group)
            invisible = await admin.invisible_messages(group, topic)
            modes = [mode for mode in await admin.request_modes(group) if topic in (None, mode.topic)]
        if invisible is None:
            raise NotFound("no broker lists invisible messages: RocketMQ's brokers do not support it")
        now_ms = time.time_ns() // 1_000_000
        rows = [
            {
                "topic": message.queue.topic,
                "broker": message.queue.broker_name,
                "queue_id": message.queue.queue_id,
                "offset": message.offset,
                "popped": moment_text(message.popped_ms),
                "visible_at": moment_text(message.visible_at_ms),
                "left_s": round((message.visible_at_ms - now_ms) / 1000, 1),
                "ordered": message.ordered,
                "consumer": message.client_id or None,
            }
            for message in sorted(invisible, key=lambda each: (each.visible_at_ms, each.queue, each.offset))
        ]
        mode_rows: list[dict[str, Any]] = [
            {
                "topic": mode.topic,
                "broker": mode.broker_address,
                "mode": mode.mode,
                "share_queue_num": mode.share_queue_num,
            }
            for mode in modes
        ]
        if as_json:
            out.document({"group": group, "modes": mode_rows, "invisible": rows})
            return
        for mode in mode_rows:
            out.say(f"{mode['topic']} at {mode['broker']}: push consumers use {mode['mode'].lower()} mode")
        out.table(
            rows,
            {
                "topic": "topic",
                "broker": "broker",
                "queue_id": "queue",
                "offset": "offset",
                "popped": "popped",
                "visible_at": "visible again",
                "left_s": "seconds left",
                "consumer": "consumer",
            },
            empty=f"group {group} has no invisible messages",
        )

    run(command)


@app.command("mode")
def group_mode(
    group: GroupArgument,
    mode: Annotated[str, typer.Argument(metavar="pull|pop", help="Request mode of the members.")],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic.")],
    share: Annotated[
        int,
        typer.Option(
            "--share",
            help="In pop mode: number of other members whose queues a member also pops; -1: all queues.",
        ),
    ] = -1,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Set the request mode (pull or pop) of push consumers whose queues the broker assigns."""
    out = Output(as_json)
    check_group_name(group)
    if mode.upper() not in MODES:
        raise UsageError(f"unknown mode {mode!r}: write pull or pop")

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await require_topic(admin, topic)
            addresses = await admin.set_request_mode(group, topic, mode.upper(), share_queue_num=share)
        out.document(
            {"group": group, "topic": topic, "mode": mode.upper(), "brokers": addresses},
            f"group {group} uses {mode.lower()} mode for {topic} at {', '.join(addresses)}; "
            "members switch within 20 s",
        )

    run(command)


app.command("reset")(offset.reset)  # the other name of `offset reset`


@app.command("delete")
def delete_group(
    group: GroupArgument,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Keep the committed offsets at the brokers.")
    ] = False,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a group's settings and its committed offsets."""
    out = Output(as_json)
    check_group_name(group)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await require_group(admin, group)
            ask(f"Delete group {group}{'' if keep_offsets else ' and its committed offsets'}?", yes)
            await admin.delete_group(group, clean_offsets=not keep_offsets)
        out.document({"group": group, "deleted": True}, f"group {group} is deleted")

    run(command)
