"""`aerobee topic allocate`: which queues which member of a group would have. Twin of mqadmin's allocateMQ."""

from __future__ import annotations

from typing import Annotated

import typer

from aerobee.client.base.topic_route import subscribe_queues
from aerobee.client.consumer.allocation import Allocation, average, average_by_circle, consistent_hash
from aerobee.errors import TopicNotExist, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import check_topic_name
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, NameServers, TopicArgument
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run

STRATEGIES: dict[str, Allocation] = {
    "average": average,
    "circle": average_by_circle,
    "consistent-hash": consistent_hash,
}


def allocate_queues(
    topic: TopicArgument,
    members: Annotated[
        list[str], typer.Argument(metavar="CLIENT_ID…", help="The members, as they call themselves.")
    ],
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy", help="average, circle or consistent-hash.", autocompletion=lambda: list(STRATEGIES)
        ),
    ] = "average",
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show how the queues of a topic would be divided among these members. Nothing is changed."""
    out = Output(as_json)
    check_topic_name(topic)
    if strategy not in STRATEGIES:
        raise UsageError(f"--strategy {strategy!r}: it is one of {', '.join(STRATEGIES)}")
    ids = sorted(set(members))

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                route = await admin.topic_route(topic)
            except TopicNotExist:
                raise NotFound(
                    f"topic {topic} does not exist; `aerobee topic list` shows what does"
                ) from None
        queues = sorted(subscribe_queues(route))
        rows = [
            {"member": member, "queues": [f"{queue.broker_name}/{queue.queue_id}" for queue in found]}
            for member in ids
            for found in (STRATEGIES[strategy](member, queues, ids),)
        ]
        out.table(rows, {"member": "member", "queues": "queues"}, empty="nobody is named")

    run(command)
