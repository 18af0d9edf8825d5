"""`aerobee bench probe`: latency of single sends to each broker. Equivalent of mqadmin's checkMsgSendRT, clusterRT and
sendMsgStatus."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from aerobee.errors import AerobeeError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import Message
from aerobee.ops.commands.cluster_change import AtBroker
from aerobee.ops.options.clients import masters, open_admin, open_producer
from aerobee.ops.options.options import AsJson, ClusterName, NameServers
from aerobee.ops.terminal.failure import UnhealthyError, explain
from aerobee.ops.terminal.latency import LatencyHistogram
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.words import plural

TOPIC = "aerobee-probe"
SIZE_MAX = 4_194_304


def probe(
    topic: Annotated[
        str,
        typer.Option(
            "--topic",
            "-t",
            help="Topic of the messages; the default one is created, with one queue per broker.",
        ),
    ] = TOPIC,
    count: Annotated[
        int, typer.Option("--count", min=1, max=100_000, help="Number of messages to each broker.")
    ] = 20,
    size: Annotated[int, typer.Option("--size", "-s", min=0, max=SIZE_MAX, help="Body size in bytes.")] = 128,
    broker: AtBroker = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Send one message at a time to each broker, and show the latencies."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            names = {info.broker_name for info in await masters(admin, cluster=cluster, broker=broker)}
            if topic == TOPIC and not await admin.topic_exists(topic):
                await admin.create_topic(topic, queue_count=1, cluster=cluster)
        message = Message(topic, os.urandom(size))
        rows = []
        async with open_producer(nameserver, "aerobee-probe") as producer:
            await producer.send(message)  # fetches the route and opens the first connection
            known = await producer.queues(topic)
            for name in sorted(names):
                queues = [queue for queue in known if queue.broker_name == name]
                histogram, failed, last = LatencyHistogram(), 0, ""
                for number in range(count if queues else 0):
                    began = time.perf_counter()
                    try:
                        await producer.send(message, queue=queues[number % len(queues)])
                    except AerobeeError as error:
                        failed, last = failed + 1, explain(error).sentence
                    else:
                        histogram.add(time.perf_counter() - began)
                rows.append(
                    {
                        "broker": name,
                        "queues": len(queues),
                        "sent": count - failed if queues else 0,
                        "failed": failed,
                        "p50_ms": round(histogram.percentile_ms(50), 3),
                        "p99_ms": round(histogram.percentile_ms(99), 3),
                        "max_ms": round(histogram.max_s * 1000, 3),
                        "last_error": last or None,
                    }
                )
        out.table(
            rows,
            {"broker": "broker", "queues": "queues", "sent": "sent", "failed": "failed", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "max_ms": "longest ms"},
            empty="no broker is registered",
        )  # fmt: skip
        trouble = [row for row in rows if row["failed"] or not row["sent"]]
        if trouble:
            raise UnhealthyError(
                "; ".join(
                    f"{row['broker']}: {row['failed']} of {plural(count, 'send')} failed, the last with: {row['last_error']}"
                    if row["failed"]
                    else f"{row['broker']} has no writable queue of topic {topic}"
                    for row in trouble
                )
            )

    run(command)
