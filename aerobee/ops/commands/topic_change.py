"""`aerobee topic create` and `aerobee topic update`.

`create` never changes an existing topic: with the same settings it reports that the topic exists, with others it fails.
`update` changes only the given settings. Reducing the number of queues hides the messages of the removed queues from
every consumer until they expire: the command warns and asks for confirmation first.
"""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from aerobee.client import Admin
from aerobee.client.base.results import TopicInfo
from aerobee.errors import TopicNotExist, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import AckLevel, check_topic_name
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, TopicArgument, Yes, ask
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.remoting.protocol import ACK_LEVEL_ATTRIBUTE, MESSAGE_TYPES, TYPE_ATTRIBUTE
from aerobee.words import plural

PERMS = {"rw": 6, "r": 4, "w": 2}
QUEUES = 8

Queues = Annotated[
    int | None,
    typer.Option(
        "--queues", "-q", min=1, max=65_536, help=f"Number of queues on each broker (default {QUEUES})."
    ),
]
Perm = Annotated[
    str | None,
    typer.Option("--perm", help="Permission: rw, r or w (default rw).", autocompletion=lambda: list(PERMS)),
]
Order = Annotated[bool | None, typer.Option("--order/--no-order", help="Whether the topic is ordered.")]
Kind = Annotated[
    str | None,
    typer.Option(
        "--type",
        help="Message type: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or MIXED.",
        autocompletion=lambda: list(MESSAGE_TYPES),
    ),
]
Ack = Annotated[
    AckLevel | None,
    typer.Option("--ack", help="When a send returns. Default: as the broker's settings say."),
]
AtBroker = Annotated[
    str | None, typer.Option("--broker", "-b", help="Only this broker: a name or HOST:PORT.")
]


def perm_text(perm: int) -> str:
    """6 is rw, 4 is r, 2 is w."""
    return ("r" if perm & 4 else "") + ("w" if perm & 2 else "") or "none"


def create_topic(
    topic: TopicArgument,
    queues: Queues = None,
    perm: Perm = None,
    order: Order = None,
    message_type: Kind = None,
    ack: Ack = None,
    broker: AtBroker = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a topic. An existing topic stays unchanged."""
    out = Output(as_json)
    wanted = _wanted(queues, perm, order, message_type, ack)
    check_topic_name(topic)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            there = await _existing(admin, topic, cluster, broker)
            for info in there:
                _refuse_other(topic, info, wanted)
            count = queues or (there[0].read_queue_count if there else QUEUES)
            now = PERMS[perm] if perm else there[0].perm if there else PERMS["rw"]
            known = {info.broker_address for info in there}
            targets = [
                address for address in await _addresses(admin, cluster, broker) if address not in known
            ]
            if targets or not there:  # without any broker the call raises the error that names the cause
                await admin.create_topic(
                    topic,
                    queue_count=count,
                    perm=now,
                    order=bool(order),
                    attributes=_attributes(message_type, ack),
                    cluster=cluster,
                    broker=targets[0] if len(targets) == 1 else broker,
                )
        brokers = sorted(known | set(targets))
        sentence = f"topic {topic} has {plural(count, 'queue')} at each of {', '.join(brokers)}"
        out.document(
            {
                "topic": topic,
                "queues": count,
                "perm": perm_text(now),
                "brokers": brokers,
                "created": bool(targets),
            },
            sentence if targets else f"{sentence}; it existed already",
        )

    run(command)


def update_topic(
    topic: TopicArgument,
    queues: Queues = None,
    perm: Perm = None,
    order: Order = None,
    message_type: Kind = None,
    ack: Ack = None,
    broker: AtBroker = None,
    cluster: ClusterName = None,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change the queues, permission, order flag, message type or ack level of an existing topic."""
    out = Output(as_json)
    wanted = _wanted(queues, perm, order, message_type, ack)
    if not wanted:
        raise UsageError("no change is given: use --queues, --perm, --order, --type or --ack")
    check_topic_name(topic)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            there = await _existing(admin, topic, cluster, broker)
            if not there:
                raise NotFound(
                    f"topic {topic} does not exist there; `aerobee topic create {topic}` creates it"
                )
            hidden = await out_of_sight(admin, topic, queues, cluster, broker)
            if hidden:
                ask(f"{hidden_warning(hidden, queues or 0)}. Continue?", yes)
            for info in there:
                await admin.create_topic(
                    topic,
                    read_queue_count=queues or info.read_queue_count,
                    write_queue_count=queues or info.write_queue_count,
                    perm=PERMS[perm] if perm else info.perm,
                    order=info.order if order is None else order,
                    attributes=_attributes(message_type, ack),
                    broker=info.broker_address,
                )
        brokers = sorted(info.broker_address for info in there)
        changed = ", ".join(f"{name} {value}" for name, value in wanted.items())
        out.document(
            {"topic": topic, "changed": wanted, "brokers": brokers, "out_of_sight": sum(hidden.values())},
            f"set {changed} for topic {topic} at {', '.join(brokers)}",
        )
        if hidden:
            out.note(hidden_warning(hidden, queues or 0), style="yellow")

    run(command)


def _attributes(message_type: str | None, ack: str | None) -> dict[str, str] | None:
    """The attributes given on the command line; None without any."""
    found = {TYPE_ATTRIBUTE: message_type.upper()} if message_type else {}
    if ack:
        found[ACK_LEVEL_ATTRIBUTE] = ack
    return found or None


def _wanted(
    queues: int | None, perm: str | None, order: bool | None, message_type: str | None, ack: str | None
) -> dict[str, object]:
    """The settings given on the command line. Raises UsageError."""
    if perm is not None and perm not in PERMS:
        raise UsageError(f"--perm {perm!r} must be one of {', '.join(PERMS)}")
    if message_type is not None and message_type.upper() not in MESSAGE_TYPES:
        raise UsageError(f"--type {message_type!r} must be one of {', '.join(MESSAGE_TYPES)}")
    values = {
        "queues": queues,
        "perm": perm,
        "order": order,
        "type": message_type.upper() if message_type else None,
        "ack": ack,
    }
    return {name: value for name, value in values.items() if value is not None}


def _refuse_other(topic: str, info: TopicInfo, wanted: dict[str, object]) -> None:
    """Raise UsageError when the existing topic has other settings than those given."""
    there: dict[str, object] = {
        "queues": info.read_queue_count,
        "perm": perm_text(info.perm),
        "order": info.order,
        "type": info.message_type,
        "ack": info.ack,
    }
    other = [name for name, value in wanted.items() if there[name] != value]
    if other:
        now = ", ".join(f"{name} {there[name]}" for name in other)
        options = " ".join(
            f"--{name}" if value is True else f"--no-{name}" if value is False else f"--{name} {value}"
            for name, value in ((name, wanted[name]) for name in other)
        )
        raise UsageError(
            f"topic {topic} exists at {info.broker_address} with {now}: `aerobee topic update {topic} {options}` changes it"
        )


async def _existing(admin: Admin, topic: str, cluster: str | None, broker: str | None) -> list[TopicInfo]:
    found = []
    for address in await _addresses(admin, cluster, broker):
        with contextlib.suppress(TopicNotExist):
            found.append(await admin.topic_config_at(topic, address))
    return found


async def _addresses(admin: Admin, cluster: str | None, broker: str | None) -> list[str]:
    """Addresses of the chosen masters."""
    return [
        info.address
        for info in await admin.brokers()
        if info.broker_id == 0
        and cluster in (None, info.cluster)
        and broker in (None, info.broker_name, info.address)
    ]


async def out_of_sight(
    admin: Admin, topic: str, queues: int | None, cluster: str | None, broker: str | None
) -> dict[str, int]:
    """Number of messages in each queue that no consumer reads any more once the topic has `queues` queues."""
    if queues is None:
        return {}
    names = {
        info.broker_name
        for info in await admin.brokers()
        if cluster in (None, info.cluster) and broker in (None, info.broker_name, info.address)
    }
    return {
        f"{row.queue.broker_name}/{row.queue.queue_id}": row.max_offset - row.min_offset
        for row in await admin.topic_stats(topic)
        if row.queue.queue_id >= queues and row.queue.broker_name in names and row.max_offset > row.min_offset
    }


def hidden_warning(hidden: dict[str, int], queues: int) -> str:
    listed = ", ".join(f"{queue} ({count})" for queue, count in hidden.items())
    return (
        f"with {plural(queues, 'queue')}, consumers cannot read {plural(sum(hidden.values()), 'message')} "
        f"of the removed queues: {listed}; restoring the previous number of queues makes them readable again"
    )
