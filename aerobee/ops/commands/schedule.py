"""`aerobee schedule`: create, list, next, pause, resume, delete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from aerobee.client.admin.schedules import ScheduleInfo
from aerobee.errors import QueryNotFound, RequestNotSupported, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, Yes, ask
from aerobee.ops.options.send_options import Keys, Properties, Tag
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output, snake_keys
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_text, span_ms, until_text
from aerobee.recurrence import Recurrence
from aerobee.remoting.body.recurring_schedule import ALL, RecurringSchedule

app = typer.Typer(
    name="schedule",
    help="Recurring schedules: create, list, next, pause, resume, delete.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
BrokerName = Annotated[
    str | None, typer.Option("--broker", "-b", help="Broker that keeps the schedule (a name or HOST:PORT).")
]
Cron = Annotated[
    str | None,
    typer.Option(
        "--cron",
        metavar="EXPRESSION",
        help="Minute, hour, day of month, month, day of week; six fields start with the second.",
    ),
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="SPAN", help="Interval between two ticks (30s, 1h30m).")
]
Zone = Annotated[
    str, typer.Option("--tz", metavar="ZONE", help="Time zone of the cron expression (Europe/Berlin).")
]
Jitter = Annotated[
    str, typer.Option("--jitter", metavar="SPAN", help="Spread each tick over this time (default 0s).")
]


@app.command("create")
def create_schedule(
    name: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic that gets the messages.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Body of each message.")] = "",
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the body from this file instead of TEXT.")
    ] = None,
    cron: Cron = None,
    every: Every = None,
    time_zone: Zone = "UTC",
    jitter: Jitter = "0s",
    missed: Annotated[
        str,
        typer.Option(
            "--missed",
            metavar="all|latest",
            help="Ticks that were due while no master led: deliver all of them, or the latest one.",
        ),
    ] = ALL,
    tag: Tag = None,
    keys: Keys = None,
    properties: Properties = None,
    broker: BrokerName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a schedule: its broker sends a message to TOPIC at every tick, exactly once."""
    out = Output(as_json)
    if bool(text) == (file is not None):
        raise UsageError("give either TEXT or --file")
    schedule = RecurringSchedule(
        name=name,
        topic=topic,
        cron=cron or "",
        time_zone=time_zone,
        interval_ms=_interval(cron, every),
        jitter_ms=span_ms(jitter),
        missed=missed,
        tag=tag or "",
        keys=" ".join(keys or ()),
        properties=dict(_pairs(properties or [])),
    )
    body = text.encode(errors="surrogateescape") if file is None else file.read_bytes()

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                address = await admin.create_schedule(schedule, body, broker=broker)
                (info,) = await admin.schedules(name=name, broker=address)
            except RequestNotSupported as error:
                raise not_an_aerobee_broker(error) from error
        out.document(
            schedule_row(info), f"schedule {name} is created at {address}; next tick {_next_text(info)}"
        )

    run(command)


@app.command("list")
def list_schedules(
    cluster: ClusterName = None,
    broker: BrokerName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the schedules of all brokers, with their next ticks."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                found = await admin.schedules(cluster=cluster, broker=broker)
            except RequestNotSupported as error:
                raise not_an_aerobee_broker(error) from error
        out.table(
            [schedule_row(info) for info in found],
            {
                "name": "name",
                "topic": "topic",
                "ticks": "ticks",
                "state": "state",
                "next": "next",
                "in": "due in",
                "delivered": "delivered",
            },
            empty="no broker has a schedule",
        )
        for info in found:
            if info.trouble:
                out.note(f"schedule {info.schedule.name}: {info.trouble}")

    run(command)


@app.command("next")
def next_ticks(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A schedule; without it, give --cron or --every.")
    ] = None,
    cron: Cron = None,
    every: Every = None,
    time_zone: Zone = "UTC",
    count: Annotated[int, typer.Option("--count", min=1, max=1_000, help="Number of ticks.")] = 5,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the next ticks of a schedule, or of an expression that no schedule has yet."""
    out = Output(as_json)
    if (name is None) == (cron is None and every is None):
        raise UsageError("give either NAME, or --cron or --every")
    now_ms = time.time_ns() // 1_000_000

    async def command(stop: Stop) -> None:
        if name is None:
            recurrence = Recurrence(
                cron=cron or "", time_zone=time_zone, interval_ms=_interval(cron, every), anchor_ms=now_ms
            )
            recurrence.check()
            last_ms = now_ms
        else:
            async with open_admin(nameserver) as admin:
                try:
                    found = await admin.schedules(name=name, cluster=cluster)
                except RequestNotSupported as error:
                    raise not_an_aerobee_broker(error) from error
            if not found:
                raise NotFound(
                    f"no broker has a schedule {name}; `aerobee schedule list` shows all schedules"
                )
            recurrence, last_ms = found[0].schedule.recurrence, found[0].schedule.last_tick_ms
            if found[0].schedule.is_paused:
                out.note(f"schedule {name} is paused; these are its ticks after a resume")
                last_ms = max(last_ms, now_ms)
        rows = [
            {"tick": moment_text(tick), "tick_ms": tick, "in": until_text(tick - now_ms)}
            for tick in ticks_after(recurrence, last_ms, count)
        ]
        out.table(rows, {"tick": "tick", "in": "due in"}, empty="no tick")

    run(command)


def ticks_after(recurrence: Recurrence, last_ms: int, count: int) -> Iterator[int]:
    """The next `count` ticks after `last_ms`, in ms since the epoch."""
    for _ in range(count):
        last_ms = recurrence.next_after(last_ms)
        yield last_ms


@app.command("pause")
def pause_schedule(
    name: Name,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Stop the ticks of a schedule until it is resumed; the ticks in between are never delivered."""
    _change(name, "pause", "is paused", cluster, nameserver, as_json)


@app.command("resume")
def resume_schedule(
    name: Name,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Continue a paused schedule with its next tick from now on."""
    _change(name, "resume", "is resumed", cluster, nameserver, as_json)


@app.command("delete")
def delete_schedule(
    name: Name,
    yes: Yes = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a schedule. Messages that it sent stay in their topic."""
    ask(f"Delete schedule {name}?", yes)
    _change(name, "delete", "is deleted", cluster, nameserver, as_json)


def _change(
    name: str, action: str, outcome: str, cluster: str | None, nameserver: str, as_json: bool
) -> None:
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                await admin.change_schedule(name, action, cluster=cluster)
            except QueryNotFound as error:
                raise NotFound(
                    f"no broker has a schedule {name}; `aerobee schedule list` shows all schedules"
                ) from error
            except RequestNotSupported as error:
                raise not_an_aerobee_broker(error) from error
        out.line({"name": name, "outcome": outcome}, f"schedule {name} {outcome}")

    run(command)


def _interval(cron: str | None, every: str | None) -> int:
    if (cron is None) == (every is None):
        raise UsageError("give either --cron or --every")
    return 0 if every is None else span_ms(every)


def _pairs(properties: list[str]) -> Iterator[tuple[str, str]]:
    for text in properties:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise UsageError(f"--property is {text!r}: write NAME=VALUE")
        yield name, value


def _next_text(info: ScheduleInfo) -> str:
    return moment_text(info.next_tick_ms)


def schedule_row(info: ScheduleInfo) -> dict[str, Any]:
    """A schedule with its next tick and state, for a table and for JSON."""
    schedule = info.schedule
    now_ms = time.time_ns() // 1_000_000
    ticks = f"{schedule.cron} ({schedule.time_zone})" if schedule.cron else f"every {schedule.interval_ms} ms"
    state = "paused" if schedule.is_paused else "failing" if info.trouble else "active"
    return {
        **snake_keys(schedule.to_dict(), unchanged=("properties",)),
        "ticks": ticks,
        "state": state,
        "next": moment_text(info.next_tick_ms),
        "in": until_text(info.next_due_ms - now_ms) if info.next_due_ms else "-",
        "next_tick_ms": info.next_tick_ms,
        "next_due_ms": info.next_due_ms,
        "broker": info.broker_address,
        "body_bytes": info.body_bytes,
        "trouble": info.trouble,
    }


def not_an_aerobee_broker(error: RequestNotSupported) -> UsageError:
    """The failure to raise when a broker does not know schedules."""
    return UsageError(
        f"broker {error.address} is not an Aerobee broker: RocketMQ's brokers have no recurring schedules; select "
        "other brokers with --cluster or --broker"
    )
