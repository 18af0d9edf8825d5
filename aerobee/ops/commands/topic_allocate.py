"""`aerobee topic allocate`: the queues that each member of a group would get. Equivalent of mqadmin's allocateMQ."""

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
        out.table(rows, {"member": "member", "queues": "queues"}, empty="no member is given")

    run(command)
