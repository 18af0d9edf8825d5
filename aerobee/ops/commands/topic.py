"""`aerobee topic`: list, delete, describe, stats, allocate; topic_change.py adds create and update."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import typer

from aerobee.client import Admin
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.client.consumer.allocation import Allocation, average, average_by_circle, consistent_hash
from aerobee.errors import TopicNotExist, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, check_topic_name
from aerobee.ops.commands.topic_change import create_topic, perm_text, update_topic
from aerobee.ops.commands.topic_static import app as static_app
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, TopicArgument, Yes, ask
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_text
from aerobee.words import plural

app = typer.Typer(
    name="topic",
    help="Topics: list, create, update, delete, describe, stats, allocate, static.",
    no_args_is_help=True,
)
app.add_typer(static_app)
STRATEGIES: dict[str, Allocation] = {
    "average": average,
    "circle": average_by_circle,
    "consistent-hash": consistent_hash,
}


@app.command("list")
def list_topics(
    all_topics: Annotated[
        bool, typer.Option("--all", "-a", help="Include retry, dead-letter and system topics.")
    ] = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the topics that the NameServer knows."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            names = await admin.topics(cluster)
            system = set(await admin.system_topics())
            brokers = await admin.brokers(cluster)
        rows = [
            {"topic": name, "kind": topic_kind(name, system)}
            for name in names
            if all_topics or topic_kind(name, system) == "user"
        ]
        out.table(
            rows,
            {"topic": "topic", "kind": "topic kind"} if all_topics else {"topic": "topic"},
            empty="there are no topics yet; create one with `aerobee topic create NAME` or by sending to it "
            "(`--all` shows system topics)"
            if brokers
            else "no broker is registered at the NameServer, so no topic is known: start one, or run `aerobee doctor`",
        )

    run(command)


app.command("create")(create_topic)
app.command("update")(update_topic)


@app.command("allocate")
def allocate_queues(
    topic: TopicArgument,
    members: Annotated[list[str], typer.Argument(metavar="CLIENT_ID…", help="Client ids of the members.")],
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            help="Allocation strategy: average, circle or consistent-hash.",
            autocompletion=lambda: list(STRATEGIES),
        ),
    ] = "average",
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show how a strategy divides the queues of a topic among these members. Changes nothing."""
    # As mqadmin's allocateMQ.
    out = Output(as_json)
    check_topic_name(topic)
    if strategy not in STRATEGIES:
        raise UsageError(f"--strategy {strategy!r} must be one of {', '.join(STRATEGIES)}")
    ids = sorted(set(members))

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                route = await admin.topic_route(topic)
            except TopicNotExist:
                raise NotFound(
                    f"topic {topic} does not exist; `aerobee topic list` shows the existing topics"
                ) from None
        queues = sorted(subscribe_queues(route))
        rows = [
            {"member": member, "queues": [f"{queue.broker_name}/{queue.queue_id}" for queue in found]}
            for member in ids
            for found in (STRATEGIES[strategy](member, queues, ids),)
        ]
        out.table(rows, {"member": "member", "queues": "assigned queues"}, empty="no member is given")

    run(command)


@app.command("delete")
def delete_topic(
    topic: TopicArgument,
    yes: Yes = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and its messages."""
    out = Output(as_json)
    check_topic_name(topic)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await require_topic(admin, topic)
            ask(f"Delete topic {topic} and all its messages?", yes)
            addresses = await admin.delete_topic(topic, cluster=cluster)
        out.document(
            {"topic": topic, "deleted_at": list(addresses)},
            f"topic {topic} is deleted at {', '.join(addresses)}",
        )

    run(command)


@app.command("describe")
def describe_topic(
    topic: TopicArgument, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """Show a topic's settings at each broker, its consumer groups, and its number of messages."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            document = await topic_document(admin, topic)
        if as_json:
            out.document(document)
            return
        out.table(
            document["brokers"],
            {
                "broker": "broker",
                "read_queues": "read queues",
                "write_queues": "write queues",
                "perm": "perm",
                "order": "order",
                "type": "message type",
            },
            empty="no broker has this topic",
        )
        out.say(
            f"{plural(document['messages'], 'message')} in {plural(document['queues'], 'queue')}; "
            f"consumed by: {', '.join(document['groups']) or 'no group'}"
        )

    run(command)


async def topic_document(admin: Admin, topic: str) -> dict[str, Any]:
    """A topic's settings at each broker, its groups, and its number of messages and queues. Raises NotFound."""
    await require_topic(admin, topic)
    infos = await admin.topic_config(topic)
    groups = await admin.topic_groups(topic)
    stats = await admin.topic_stats(topic)
    names = {info.broker_address: info for info in infos}
    rows = [
        {
            "broker": address,
            "read_queues": info.read_queue_count,
            "write_queues": info.write_queue_count,
            "perm": perm_text(info.perm),
            "order": info.order,
            "type": info.message_type,
        }
        for address, info in names.items()
    ]
    messages = sum(row.max_offset - row.min_offset for row in stats)
    return {
        "topic": topic,
        "brokers": rows,
        "groups": list(groups),
        "messages": messages,
        "queues": len(stats),
    }


@app.command("stats")
def topic_stats(
    topic: TopicArgument, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """Show the first and last offset of each queue."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await require_topic(admin, topic)
            stats = await admin.topic_stats(topic)
        rows: list[dict[str, Any]] = [
            {
                "broker": row.queue.broker_name,
                "queue_id": row.queue.queue_id,
                "min_offset": row.min_offset,
                "max_offset": row.max_offset,
                "messages": row.max_offset - row.min_offset,
                "last_update": moment_text(row.last_update_ms),
            }
            for row in stats
        ]
        out.table(
            rows,
            {
                "broker": "broker",
                "queue_id": "queue",
                "min_offset": "min offset",
                "max_offset": "max offset",
                "messages": "messages",
                "last_update": "last message",
            },
            empty=f"topic {topic} has no queues",
        )

    run(command)


async def require_topic(admin: Admin, topic: str) -> None:
    """Raise NotFound, with similar names, for a topic without a route."""
    check_topic_name(topic)
    try:
        await admin.topic_route(topic)
    except TopicNotExist:
        raise await missing_topic(admin, topic) from None


async def missing_topic(admin: Admin, topic: str) -> NotFound:
    """The failure to raise for a topic that no broker has."""
    if not await admin.brokers():
        return NotFound(
            f"topic {topic} cannot be found: no broker is registered at the NameServer; start one, "
            "or run `aerobee doctor` to find the cause"
        )
    alike = difflib.get_close_matches(topic, await admin.topics(), n=3)
    hint = f" (did you mean {' or '.join(alike)}?)" if alike else ""
    return NotFound(
        f"topic {topic} does not exist{hint}; `aerobee topic list` shows the existing topics, "
        f"`aerobee topic create {topic}` creates it; if it existed before, its broker is down: `aerobee doctor`"
    )


def topic_kind(name: str, system: set[str]) -> str:
    """user, retry, dead letters, or system."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead letters"
    if name in system or name.startswith(("rmq_sys_", "RMQ_SYS_")):
        return "system"
    return "user"
