"""`aerobee topic static`: topics whose logical queues stay the same while brokers are added and removed.

A move shows its effect and asks for confirmation first. If a change is interrupted, for example because a broker is
down, run the same command again to complete it.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aerobee.client import Admin
from aerobee.client.base.static_plan import StaticTopic
from aerobee.errors import TopicNotExist, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, TopicArgument, Yes, ask
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.remoting.protocol import MASTER_ID
from aerobee.words import plural

app = typer.Typer(
    name="static",
    help="Static topics, whose queues stay the same while brokers change: create, move, describe.",
    no_args_is_help=True,
)

Brokers = Annotated[
    str | None,
    typer.Option("--brokers", "-b", metavar="NAME,NAME", help="Brokers of the queues (default: all)."),
]
GiveLost = Annotated[
    bool,
    typer.Option(
        "--give-lost",
        help="Assign leaderless queues to other brokers, starting at offset 0. Without this option the command fails, "
        "because their broker may only be down.",
    ),
]
COLUMNS = {
    "queue": "queue",
    "broker": "broker",
    "broker_queue": "its queue",
    "begins_at": "begins at",
    "parts": "parts",
}


@app.command("create")
def create(
    topic: TopicArgument,
    queues: Annotated[
        int,
        typer.Option(
            "--queues",
            "-q",
            min=1,
            max=9_999,
            help="Total number of logical queues; a larger number than before adds queues.",
        ),
    ],
    brokers: Brokers = None,
    cluster: ClusterName = None,
    give_lost: GiveLost = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a static topic, or add queues to one; the number of queues never decreases."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            names = await _names(admin, brokers, cluster)
            made = await admin.create_static_topic(topic, queues, brokers=names, gives_lost=give_lost)
        _print(out, made, f"topic {topic} has {plural(made.total, 'logical queue')}")

    run(command)


@app.command("move")
def move(
    topic: TopicArgument,
    brokers: Brokers = None,
    cluster: ClusterName = None,
    give_lost: GiveLost = False,
    assume_yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Move the queues of a static topic to these brokers only, without interrupting producers and consumers.

    A queue continues at its new broker. Consumers read its previous messages at the old broker until they expire; no
    message is copied.
    """
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        if brokers is None and cluster is None:
            raise UsageError("no target is given: use --brokers NAME,NAME or --cluster NAME")
        async with open_admin(nameserver) as admin:
            names = await _names(admin, brokers, cluster)
            now = await admin.static_topic(topic)
            away = sum(leader not in names for leader in now.leaders.values())
            note = "" if now.is_whole else " and complete an interrupted change first"
            ask(
                f"Assign {plural(now.total, 'logical queue')} of {topic} at {', '.join(names)} ({away} to move){note}?",
                assume_yes,
            )
            there = await admin.move_static_topic(topic, names, gives_lost=give_lost)
        _print(
            out, there, f"the queues of topic {topic} are at {', '.join(sorted(set(there.leaders.values())))}"
        )

    run(command)


@app.command("describe")
def describe(
    topic: TopicArgument, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """Show each logical queue: its leading broker and its number of parts."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            found = await admin.static_topic(topic)
        text = "" if found.is_whole else "a change was interrupted: run the same command again to complete it"
        if lost := found.leaderless:
            text = (
                f"queues without a leader: {', '.join(map(str, lost))}; "
                "a broker is down, or the creation was interrupted"
            )
        _print(out, found, text)

    run(command)


async def _names(admin: Admin, brokers: str | None, cluster: str | None) -> tuple[str, ...]:
    """Names of masters: those given, those of a cluster, or all."""
    if brokers is not None:
        names = tuple(name.strip() for name in brokers.split(",") if name.strip())
        if not names or len(set(names)) < len(names):
            raise UsageError(f"--brokers is {brokers!r}: write distinct names, separated by commas")
        return names
    found = {info.broker_name for info in await admin.brokers(cluster) if info.broker_id == MASTER_ID}
    if not found:
        raise TopicNotExist(17, "no master is registered at the NameServer")
    return tuple(sorted(found))


def _print(out: Output, topic: StaticTopic, text: str) -> None:
    rows: list[dict[str, Any]] = [
        {
            "queue": queue_id,
            "broker": items[-1].broker_name,
            "broker_queue": items[-1].queue_id,
            "begins_at": items[-1].logic_offset,
            "parts": len(items),
        }
        for queue_id, items in sorted(topic.queues.items())
    ]
    out.table(rows, COLUMNS, empty="the topic has no queues")
    if text:
        out.say(text)
