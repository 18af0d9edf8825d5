"""`aerobee top`: brokers with their rates, the busiest topics and the groups with the highest lag, repeated.

A topic's rate is the growth of its queues between two samples, so the first sample shows none. In a terminal each sample
replaces the previous one; in a pipe or a file it follows; with --json each sample is a document on one line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import typer

from aerobee.client import Admin
from aerobee.client.base.results import BrokerInfo
from aerobee.errors import AerobeeError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX
from aerobee.ops.commands.cluster import disk_share, first_rate
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, NameServers
from aerobee.ops.terminal.failure import explain
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import above_zero
from aerobee.ops.terminal.watching import begin_look
from aerobee.system_names import is_hidden_group

Sort = Literal["rate", "size", "name"]
SHOWN_MAX = 15  # topics, and groups, that one sample shows
ASKED_MAX = 200  # topics, and groups, that one sample reads
CALLS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Look:
    """One sample. `ends`: topic -> sum of its end offsets; `lags`: group -> (lag, messages a second)."""

    at_s: float
    brokers: tuple[Mapping[str, Any], ...] = ()
    ends: Mapping[str, int] = field(default_factory=dict)
    lags: Mapping[str, tuple[int, float]] = field(default_factory=dict)


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    interval: Annotated[
        float,
        typer.Option(
            "--interval", "-i", parser=above_zero, metavar="SPAN", help="Interval between two samples."
        ),
    ] = 2.0,
    sort: Annotated[
        Sort | None,
        typer.Option("--sort", help="Order of topics and groups. Default: topics by rate, groups by lag."),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=0, help="Number of samples; 0: no limit.")] = 0,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Watch brokers, topics and groups: rates and lag, until Ctrl-C."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        before: Look | None = None
        number = 0
        async with open_admin(nameserver) as admin:
            while not stop:
                now = await look(admin)
                begin_look("top", interval, as_json=as_json, number=number)
                show(out, now, before, sort)
                before, number = now, number + 1
                if number == count:
                    return
                await stop.or_done(asyncio.sleep(interval))

    run(command)


async def look(admin: Admin) -> Look:
    """Take one sample. Topics and groups without a reply are missing in it."""
    gate = asyncio.Semaphore(CALLS_AT_ONCE)
    infos = await admin.brokers()
    topics = [name for name in await admin.topics() if _is_users(name, infos)][:ASKED_MAX]
    groups = sorted({info.name for info in await admin.groups() if not is_hidden_group(info.name)})[
        :ASKED_MAX
    ]
    ends: dict[str, int] = {}
    lags: dict[str, tuple[int, float]] = {}

    async def topic(name: str) -> None:
        async with gate:
            try:
                ends[name] = sum(queue.max_offset for queue in await admin.topic_stats(name))
            except AerobeeError:
                return  # the topic is deleted, or its broker does not answer, which the table of brokers shows

    async def group(name: str) -> None:
        async with gate:
            try:
                progress = await admin.consumer_progress(name)
            except AerobeeError:
                return
            if progress.queues:
                lags[name] = (progress.lag, progress.consume_tps)

    brokers = await asyncio.gather(*(_broker(admin, info) for info in infos))
    await asyncio.gather(*(topic(name) for name in topics), *(group(name) for name in groups))
    return Look(time.monotonic(), tuple(brokers), ends, lags)


def _is_users(topic: str, infos: Sequence[BrokerInfo]) -> bool:
    """Whether a topic is a user's: not a system topic, and not named like a broker or cluster."""
    own = {info.broker_name for info in infos} | {info.cluster for info in infos}
    return topic not in own and not topic.endswith("_REPLY_TOPIC") and not topic.startswith(
        (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_", "SCHEDULE_TOPIC", "TBW102", "SELF_TEST", "OFFSET_MOVED",
         "TRANS_CHECK", "BenchmarkTest")
    )  # fmt: skip


async def _broker(admin: Admin, info: BrokerInfo) -> dict[str, Any]:
    row: dict[str, Any] = {"broker": info.broker_name, "id": info.broker_id, "address": info.address}
    try:
        runtime = await admin.broker_runtime(info.address)
    except AerobeeError as error:
        return row | {"in_tps": None, "out_tps": None, "disk": None, "state": explain(error).sentence}
    return row | {
        "in_tps": first_rate(runtime.get("putTps")),
        "out_tps": first_rate(runtime.get("getTransferredTps")),
        "disk": disk_share(runtime),
        "state": "up",
    }


def tables(
    now: Look, before: Look | None, sort: Sort | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of topics, busiest first, and of groups, highest lag first. Pure."""
    seconds = 0.0 if before is None else now.at_s - before.at_s
    topics = []
    for name, end in now.ends.items():
        known = before is not None and seconds > 0 and name in before.ends
        rate = max(0, end - before.ends[name]) / seconds if before is not None and known else None
        topics.append({"topic": name, "messages": end, "in_tps": rate})
    _order(topics, sort or "rate", "topic", rate="in_tps", size="messages")
    groups = [{"group": name, "lag": lag, "out_tps": rate} for name, (lag, rate) in now.lags.items()]
    _order(groups, sort or "size", "group", rate="out_tps", size="lag")
    return topics, groups


def _order(rows: list[dict[str, Any]], sort: Sort, name: str, *, rate: str, size: str) -> None:
    """Sort rows: by name, or by rate or size with the highest first and the other one where they are equal."""
    first, second = (rate, size) if sort == "rate" else (size, rate)
    if sort == "name":
        rows.sort(key=lambda row: str(row[name]))
    else:
        rows.sort(key=lambda row: (-(row[first] or 0), -(row[second] or 0), row[name]))


def _span(now: Look, before: Look | None) -> str:
    """The time over which the rates of topics are taken."""
    return "next sample" if before is None else f"{now.at_s - before.at_s:.0f} s"


def show(out: Output, now: Look, before: Look | None, sort: Sort | None = None) -> None:
    """Print one sample."""
    topics, groups = tables(now, before, sort)
    if out.as_json:
        out.line({"brokers": list(now.brokers), "topics": topics, "groups": groups}, "")
        return
    out.table(
        now.brokers,
        {"broker": "broker", "id": "id", "address": "address", "in_tps": "in/s (10 s)", "out_tps": "out/s (10 s)", "disk": "disk",
         "state": "state"},
        empty="no broker is registered",
    )  # fmt: skip
    out.say("")
    out.table(
        topics[:SHOWN_MAX],
        {"topic": "topic", "messages": "messages", "in_tps": f"in/s ({_span(now, before)})"},
        empty="no topics yet",
    )
    out.say("")
    out.table(
        groups[:SHOWN_MAX],
        {"group": "group", "lag": "lag", "out_tps": "out/s (1 min)"},
        empty="no group consumes yet",
    )
    for rows, what in ((topics, "topics"), (groups, "groups")):
        if len(rows) > SHOWN_MAX:
            out.say(f"{len(rows) - SHOWN_MAX} more {what}", style="dim")
