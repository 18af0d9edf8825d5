"""`aerobee cluster drain`: empty broker groups before they are removed.

A drained broker group accepts no messages: its brokers' permission becomes read-only, and routes advertise it. The
group is empty when every consumer group has committed all its messages, no timer or delay-level message is pending,
and no transaction is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from aerobee.client import Admin
from aerobee.client.base.results import BrokerInfo, ConsumerProgress
from aerobee.errors import AerobeeError, RemoteError, RequestTimeout, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, Yes, ask
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import above_zero
from aerobee.remoting.protocol import MASTER_ID

READ_ONLY = "4"
LOOK_S = 2.0
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Remainder:
    """Messages of a broker group that are not consumed, delivered or decided yet."""

    broker_name: str
    what: str  # "group orders-app", "timers", "delay levels", "open transactions"
    count: int

    def __str__(self) -> str:
        return f"{self.broker_name}: {self.count} of {self.what}"


def unread(progress: Iterable[ConsumerProgress], names: frozenset[str]) -> list[Remainder]:
    """Lag of consumer groups, per group and broker name."""
    found = []
    for each in progress:
        for name in sorted(names):
            count = sum(max(0, queue.lag) for queue in each.queues if queue.queue.broker_name == name)
            if count:
                found.append(Remainder(name, f"group {each.group}", count))
    return found


def waiting(broker_name: str, runtime: Mapping[str, str]) -> list[Remainder]:
    """Pending timers and delay levels and open transactions of a broker, from its counters."""
    levels = 0
    for key, value in runtime.items():
        if key.startswith("scheduleMessageOffset_"):
            done, _, end = value.partition(",")
            levels += max(0, int(end) - int(done)) if done.isdigit() and end.isdigit() else 0
    counts = {
        "timers": _count(runtime, "timerPending"),
        "delay levels": levels,
        "open transactions": _count(runtime, "openTransactions"),
    }
    return [Remainder(broker_name, what, count) for what, count in counts.items() if count]


def chosen(brokers: Iterable[BrokerInfo], named: Iterable[str], all_but: Iterable[str]) -> frozenset[str]:
    """The broker names to drain. Raises UsageError for one that is not registered."""
    known = {each.broker_name for each in brokers}
    wanted = frozenset(named)
    if strange := wanted - known:
        raise UsageError(
            f"{', '.join(sorted(strange))} is not registered; registered brokers (`aerobee cluster list`): "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    kept = frozenset(all_but)
    return wanted or (frozenset(known - kept) if kept else frozenset())


def drain(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[BROKER_NAME]…", help="Broker groups to drain.")
    ] = None,
    all_but: Annotated[
        str | None,
        typer.Option(
            "--all-but", metavar="NAME[,…]", help="Drain all broker groups of the cluster except these."
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", parser=above_zero, metavar="SPAN", help="Maximum time to wait."),
    ] = 600.0,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drain broker groups before their removal: stop writes and wait until all messages are consumed."""
    if bool(names) == bool(all_but):
        raise UsageError("give either the brokers to drain or, with --all-but, those to keep")
    if all_but and cluster is None:
        raise UsageError("--all-but needs --cluster")
    kept = [each.strip() for each in (all_but or "").split(",") if each.strip()]
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            brokers = await admin.brokers(cluster)
            wanted = chosen(brokers, names or (), kept)
            if not wanted:
                out.document({"drained": []}, "nothing to drain")
                return
            ask(f"Stop writes to {', '.join(sorted(wanted))}?", yes)
            for each in brokers:
                if each.broker_name in wanted:
                    await make_read_only(admin, each.address)
            await _wait(admin, wanted, cluster, timeout_s, out)
            out.document(
                {"drained": sorted(wanted)},
                f"{', '.join(sorted(wanted))}: drained, can be removed",
            )

    run(command)


async def make_read_only(admin: Admin, address: str) -> None:
    """Set a broker read-only. Raises the broker's error unless the setting is in effect nevertheless.

    In a container the configuration file is mounted read-only: the broker reports that its next start loses the change.
    """
    try:
        await admin.update_broker_config(address, {"brokerPermission": READ_ONLY})
    except RemoteError:
        if (await admin.broker_config(address)).get("brokerPermission") != READ_ONLY:
            raise


async def _wait(
    admin: Admin, wanted: frozenset[str], cluster: str | None, timeout_s: float, out: Output
) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    said = ""
    while left := await remainders(admin, wanted, cluster):
        sentence = "; ".join(str(each) for each in left[:SHOWN_MAX])
        if len(left) > SHOWN_MAX:
            sentence += f"; and {len(left) - SHOWN_MAX} more"
        if loop.time() > end_s:
            raise RequestTimeout(
                f"not empty after {timeout_s:.0f} s: {sentence}; start the consumers, or delete unused groups"
            )
        if sentence != said:
            out.note(f"waiting: {sentence}")
            said = sentence
        await asyncio.sleep(LOOK_S)


async def remainders(admin: Admin, wanted: frozenset[str], cluster: str | None) -> list[Remainder]:
    """Messages of these brokers that are not consumed, delivered or decided yet."""
    found: list[Remainder] = []
    for each in await admin.brokers(cluster):
        if each.broker_name in wanted and each.broker_id == MASTER_ID:
            found += waiting(each.broker_name, await admin.broker_runtime(each.address))
    progress = []
    for group in sorted({each.name for each in await admin.groups(cluster)}):
        try:
            progress.append(await admin.consumer_progress(group))
        except AerobeeError:
            if group in {each.name for each in await admin.groups(cluster)}:
                raise
    return found + unread(progress, wanted)


def _count(runtime: Mapping[str, str], key: str) -> int:
    text = runtime.get(key, "0")
    return int(text) if text.isdigit() else 0
