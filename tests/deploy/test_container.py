"""AerobeeContainer at a real Docker: clients of this machine reach every part at its advertised address."""

from __future__ import annotations

import json
import sys

import pytest

from tests.deploy.docker import DAEMON, IMAGE, ROOT, run, socket_path

pytestmark = pytest.mark.usefixtures("dockerd")

# Runs where the daemon's published ports are on 127.0.0.1.
SCRIPT = """
import asyncio, json, sys, urllib.request
from aerobee import Message
from aerobee.client import Admin, Producer, PullConsumer
from aerobee.testing.container import AerobeeContainer

async def exchange(nameserver):
    async with Admin(nameserver) as admin, Producer(nameserver) as producer, PullConsumer(nameserver, "g") as consumer:
        brokers = await admin.brokers()
        await admin.create_topic("orders", queue_count=2)
        sent = [(await producer.send(Message("orders", b"%d" % number))).queue.broker_name for number in range(20)]
        queues = await consumer.queues("orders")
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, 0)
        found = set()
        async with asyncio.timeout(60):
            while len(found) < 20:
                found |= {message.body for message in await consumer.poll()}
        return sorted({info.address for info in brokers}), sorted(set(sent))

options = json.loads(sys.argv[1])
with AerobeeContainer(sys.argv[2], **options) as cluster:
    addresses, used = asyncio.run(exchange(cluster.nameserver_address))
    page = urllib.request.urlopen(cluster.console_url).status if cluster.console_url else 0
    status = json.loads(cluster.command("cluster", "list", "--json"))
    print(json.dumps({
        "addresses": addresses, "expected": sorted(cluster.broker_addresses), "used": used, "page": page,
        "states": [row["state"] for row in status],
        "controllers": len(cluster.controller_addresses), "grpc": list(cluster.grpc_addresses),
    }))
"""


@pytest.mark.parametrize(
    ("options", "names", "brokers"),
    [
        ({"console": True}, 1, 1),
        ({"brokers": 2, "grpc": True}, 2, 2),
        ({"replicas": 2}, 1, 2),
    ],
)
def test_clients_of_the_host_reach_a_cluster_in_a_container(
    options: dict[str, object], names: int, brokers: int
) -> None:
    text = run(
        DAEMON,
        "inside",
        sys.executable,
        "-c",
        SCRIPT,
        json.dumps(options),
        IMAGE,
        DOCKER_HOST=f"unix://{socket_path()}",
        TESTCONTAINERS_RYUK_DISABLED="true",
        PYTHONPATH=str(ROOT),
    )
    found = json.loads(text.splitlines()[-1])
    assert found["addresses"] == found["expected"]
    assert len(found["used"]) == names
    assert found["states"] == ["up"] * brokers
    assert found["page"] == (200 if "console" in options else 0)
    assert len(found["grpc"]) == (2 if "grpc" in options else 0)
    assert found["controllers"] == (3 if "replicas" in options else 0)
