"""`aerobee topic static`: topics whose logical queues stay the same while brokers come and go.

What a move is about to do is shown first, and asked for. A change that broke off, for a broker was away, is ended by the same
command again.
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
    typer.Option("--brokers", "-b", metavar="NAME,NAME", help="At these brokers; at all unless set."),
]
GiveLost = Annotated[
    bool,
    typer.Option(
        "--give-lost",
        help="Give queues that nobody leads to others, from offset 0 on; else the command refuses, for their broker may be away.",
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
            help="Logical queues in all; more than there are: it gets more.",
        ),
    ],
    brokers: Brokers = None,
    cluster: ClusterName = None,
    give_lost: GiveLost = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make a static topic, or give one more queues; their number never becomes smaller."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            names = await _names(admin, brokers, cluster)
            made = await admin.create_static_topic(topic, queues, brokers=names, gives_lost=give_lost)
        _tell(out, made, f"topic {topic} has {plural(made.total, 'logical queue')}")

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
    """Move the queues of a static topic to these brokers alone, while messages flow.

    A queue goes on at its new broker; what it had before is read where it is, until it is too old. Nothing is copied.
    """
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        if brokers is None and cluster is None:
            raise UsageError("say to where: --brokers NAME,NAME or --cluster NAME")
        async with open_admin(nameserver) as admin:
            names = await _names(admin, brokers, cluster)
            now = await admin.static_topic(topic)
            away = sum(leader not in names for leader in now.leaders.values())
            note = "" if now.is_whole else "; a change that broke off is ended first"
            ask(
                f"{topic}: {plural(now.total, 'logical queue')} at {', '.join(names)}, {away} of them away from where they are{note}?",
                assume_yes,
            )
            there = await admin.move_static_topic(topic, names, gives_lost=give_lost)
        _tell(
            out, there, f"the queues of topic {topic} are at {', '.join(sorted(set(there.leaders.values())))}"
        )

    run(command)


@app.command("describe")
def describe(
    topic: TopicArgument, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """Show each logical queue: which broker leads it, and of how many parts it is."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            found = await admin.static_topic(topic)
        text = "" if found.is_whole else "a change broke off: the same command again ends it"
        if lost := found.leaderless:
            text = f"nobody leads {', '.join(map(str, lost))}: a broker is away, or the making broke off"
        _tell(out, found, text)

    run(command)


async def _names(admin: Admin, brokers: str | None, cluster: str | None) -> tuple[str, ...]:
    """Names of masters: those given, those of a cluster, or all."""
    if brokers is not None:
        names = tuple(name.strip() for name in brokers.split(",") if name.strip())
        if not names or len(set(names)) < len(names):
            raise UsageError(f"--brokers is {brokers!r}: names with commas between them, each once")
        return names
    found = {info.broker_name for info in await admin.brokers(cluster) if info.broker_id == MASTER_ID}
    if not found:
        raise TopicNotExist(17, "no master is registered at the NameServer")
    return tuple(sorted(found))


def _tell(out: Output, topic: StaticTopic, text: str) -> None:
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
    out.table(rows, COLUMNS, empty="it has no queue")
    if text:
        out.say(text)
