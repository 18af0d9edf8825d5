"""`aerobee timer`: list, recall, reschedule, stats."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import typer

from aerobee.client.admin.timers import LIST_MAX, TimerInfo
from aerobee.client.producer.recall import parse_handle
from aerobee.errors import QueryNotFound, RequestNotSupported, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, Yes, ask, never_delivered
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_ms, moment_text, span_ms, until_text
from aerobee.words import plural

app = typer.Typer(
    name="timer",
    help="Timer messages: list, recall, reschedule, stats.",
    no_args_is_help=True,
)

Handles = Annotated[
    list[str],
    typer.Argument(metavar="HANDLE...", help="Recall handles, as `list --json` and `send` show them."),
]
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)\Z")
_SPAN_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STATS = {
    "timerPending": "pending",
    "timerDelivered": "delivered since start",
    "timerDeliveryErrorP50Ms": "delivery lateness, p50 (ms)",
    "timerDeliveryErrorP99Ms": "delivery lateness, p99 (ms)",
    "timerDeliveryErrorMaxMs": "delivery lateness, max (ms)",
    "timerReadBehind": "behind (s)",
    "timerOffsetBehind": "not in the wheel yet",
    "timerEnqueueTps": "stored/s",
    "timerDequeueTps": "delivered/s",
    "scheduleDelivered": "delay levels: delivered since start",
    "scheduleDeliveryErrorP50Ms": "delay levels: delivery lateness, p50 (ms)",
    "scheduleDeliveryErrorP99Ms": "delay levels: delivery lateness, p99 (ms)",
    "scheduleDeliveryErrorMaxMs": "delay levels: delivery lateness, max (ms)",
}


@app.command("list")
def list_timers(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Messages to this topic only.")] = None,
    within: Annotated[
        str | None,
        typer.Option("--within", metavar="SPAN", help="Messages due within this time only (90s, 2h)."),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", min=1, max=LIST_MAX, help="Maximum number of messages.")
    ] = 100,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the pending messages of the timer by delivery time, without those with a delay level."""
    out = Output(as_json)
    until_ms = None if within is None else time.time_ns() // 1_000_000 + span_ms(within)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                found = await admin.timers(topic=topic, until_ms=until_ms, count_max=count, cluster=cluster)
            except RequestNotSupported as error:
                raise _not_ours(error) from error
        out.table(
            [_row(info) for info in found.timers],
            {
                "due": "due",
                "in": "due in",
                "topic": "topic",
                "message_id": "message id",
                "keys": "keys",
                "body_bytes": "body bytes",
            },
            empty="no message is pending" + (f" for topic {topic}" if topic else ""),
        )
        if not found.is_whole:
            out.note(
                f"showing {len(found.timers)} of the matching messages; {found.pending} are pending in total; --count shows more"
            )

    run(command)


def _row(info: TimerInfo) -> dict[str, Any]:
    return {
        "due": moment_text(info.due_ms),
        "due_ms": info.due_ms,
        "in": until_text(info.in_ms),
        "in_ms": info.in_ms,
        "topic": info.topic,
        "queue": info.queue_id,
        "message_id": info.message_id,
        "keys": list(info.keys),
        "tag": info.tag,
        "body_bytes": info.body_bytes,
        "stored": moment_text(info.store_timestamp),
        "rolls": info.rolls,
        "offset_message_id": info.offset_message_id,
        "broker": info.broker_address,
        "recall_handle": info.recall_handle,
    }


@app.command("recall")
def recall_timers(
    handles: Handles,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Recall pending messages, so that they are never delivered. The broker needs recallMessageEnable=true."""
    out = Output(as_json)
    for handle in handles:
        parse_handle(handle)  # refuse an invalid handle before asking for confirmation
    ask(f"Recall {_these(handles)}? {never_delivered(len(handles))}", yes)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            for handle in handles:
                message_id = await admin.recall_timer(handle)
                out.line(
                    {"message_id": message_id, "outcome": "recalled"}, f"message {message_id} is recalled"
                )

    run(command)


@app.command("reschedule")
def reschedule_timer(
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="The message's recall handle.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="New delivery time (2026-11-21T10:00:00+01:00)."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="SPAN", help="New delay from now (90s, 2h); 0s: deliver immediately."
        ),
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change the delivery time of a pending message. It keeps its id and gets a new handle."""
    out = Output(as_json)
    if (at is None) == (after is None):
        raise UsageError("give either --at or --after")
    now_ms = time.time_ns() // 1_000_000
    deliver_ms = moment_ms(at, now_ms) if at is not None else now_ms + span_ms(after or "")

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                new_handle = await admin.reschedule_timer(handle, deliver_ms / 1000)
            except QueryNotFound as error:
                raise NotFound(f"{error.remark}; `aerobee timer list` shows the pending messages") from error
            except RequestNotSupported as error:
                raise _not_ours(error) from error
        document = {"due": moment_text(deliver_ms), "due_ms": deliver_ms, "recall_handle": new_handle}
        text = (
            f"due at {moment_text(deliver_ms)}, {until_text(deliver_ms - now_ms)}\nhandle {new_handle}"
            if new_handle
            else "delivered immediately"
        )
        out.document(document, text)

    run(command)


@app.command("stats")
def timer_stats(
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the number of pending messages of each broker, and the delivery lateness of the last minutes."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        rows: list[dict[str, Any]] = []
        async with open_admin(nameserver) as admin:
            for broker in await admin.brokers(cluster):
                if broker.broker_id != 0:
                    continue
                runtime = await admin.broker_runtime(broker.address)
                figures = {key: _number(runtime[key]) for key in _STATS if key in runtime}
                if as_json:
                    rows.append({"broker": broker.broker_name, "address": broker.address, **figures})
                else:
                    rows += [
                        {"broker": broker.broker_name, "what": _STATS[key], "figure": value}
                        for key, value in figures.items()
                    ]
        if as_json:
            out.document(rows)
        else:
            out.table(
                rows,
                {"broker": "broker", "what": "figure", "figure": "value"},
                empty="no master is registered at the NameServer",
            )

    run(command)


def _number(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _these(handles: list[str]) -> str:
    return "the message" if len(handles) == 1 else plural(len(handles), "message")


def _not_ours(error: RequestNotSupported) -> UsageError:
    return UsageError(
        f"broker {error.address} is not an Aerobee broker: RocketMQ's brokers can neither list nor reschedule "
        "pending messages; select other brokers with --cluster"
    )
