"""Every process of a cluster is restarted, one after the other, while a producer with sync replication sends and a consumer reads.

No send may fail that the client's own retries hide, and the consumer gets every message. With AEROBEE_ROLLING_ROUNDS, which says how
often the whole cluster is gone through, the producer has its defaults: run it alone then. Without, concurrently with other tests, a send has
half a minute, and one that a master stored whose lease ended meanwhile is sent again: leases end while processes wait for a turn.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.client import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
)
from aerobee.errors import AerobeeError
from aerobee.message import Message
from tests.interop.rocketmq import Broker, Controller, NameServer, Server, call
from tests.ports import free_ports
from tests.waiting import wait_for, wait_until

ROUNDS = int(os.environ.get("AEROBEE_ROLLING_ROUNDS", "1"))
NAMES = ("broker-a", "broker-b")
TOPIC = "rolling"
SENDERS = 4
IS_ALONE = "AEROBEE_ROLLING_ROUNDS" in os.environ
CONFIG = ProducerConfig() if IS_ALONE else ProducerConfig(send_timeout_s=30, retry_when_not_stored_ok=True)
WHOLE_TIMEOUT_S = 300  # six brokers start together on a machine that may be busy


class Replica(Broker):
    """A broker of a controller group: it serves when it answers; who is master is looked at elsewhere."""

    def is_ready(self) -> bool:
        try:
            call(self.address, 28, {})
        except OSError:
            return False
        return True


class World:
    """2 NameServers, 3 controllers, 2 groups of 3 brokers, each a process."""

    def __init__(self, path: Path) -> None:
        self.nameservers = [NameServer("aerobee", path / f"namesrv{number}") for number in range(2)]
        self.namesrv = ";".join(each.address for each in self.nameservers)
        ports = free_ports(3)
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        self.controllers = [
            Controller("aerobee", path / f"controller{number}", peers, f"n{number}", port)
            for number, port in enumerate(ports)
        ]
        self.brokers = [
            Replica(
                "aerobee", path / f"{name}-{number}", self.namesrv, brokerName=name, enableControllerMode="true",
                controllerAddr=";".join(each.address for each in self.controllers), allAckInSyncStateSet="true",
                slaveReadEnable="true",
            )
            for name in NAMES
            for number in range(3)
        ]  # fmt: skip

    @property
    def all(self) -> list[Server]:
        return [*self.nameservers, *self.controllers, *self.brokers]

    def start(self) -> None:
        for servers in (self.nameservers, self.controllers, self.brokers):
            for server in servers:
                server.start(wait=False)
            for server in servers:
                server.wait_ready()
        self.wait_whole()

    def wait_whole(self) -> None:
        wait_for("every broker to be in sync", self._is_whole, WHOLE_TIMEOUT_S)

    def _is_whole(self) -> bool:
        """Every group has a master that takes messages, and three members in sync, as the leading controller says."""
        try:
            header, _ = call(self.controllers[0].address, 1005, {})
            leader = header["extFields"]["controllerLeaderAddress"]
            _, body = call(leader, 1006, {}, json.dumps(NAMES).encode())
            table = json.loads(body)["replicasInfoTable"]
        except (OSError, KeyError, ValueError):
            return False
        return len(table) == len(NAMES) and all(len(each["inSyncReplicas"]) == 3 for each in table.values())

    def kill(self) -> None:
        for server in reversed(self.all):
            server.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    try:
        yield world
    finally:
        world.kill()


async def test_a_rolling_restart_of_the_whole_cluster_fails_no_send_and_loses_no_message(
    world: World,
) -> None:
    await asyncio.to_thread(world.start)
    client = ClientConfig(route_refresh_s=2.0)
    sent: list[bytes] = []
    failed: list[str] = []
    seen: set[bytes] = set()
    is_over = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        seen.add(message.body)

    producer = Producer(world.namesrv, "PG_rolling", config=CONFIG, client=client)
    consumer = PushConsumer(
        world.namesrv,
        "CG_rolling",
        subscriptions={TOPIC: "*"},
        handler=handle,
        config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
        client=client,
    )

    async def send(sender: int) -> None:
        number = 0
        while not is_over.is_set():
            body = b"%d-%d" % (sender, number)
            number += 1
            try:
                result = await producer.send(Message(TOPIC, body))
            except AerobeeError as error:
                failed.append(f"{body!r}: {error}")
            else:
                if result.status is not SendStatus.SEND_OK:
                    failed.append(f"{body!r}: {result.status}")
                sent.append(body)
            await asyncio.sleep(0.005)

    async with producer:
        await producer.send(Message(TOPIC, b"first"))
        async with consumer:
            senders = [asyncio.create_task(send(sender)) for sender in range(SENDERS)]
            for _ in range(ROUNDS):
                for server in world.all:
                    await asyncio.to_thread(server.stop)
                    await asyncio.to_thread(server.start)
                    await asyncio.to_thread(world.wait_whole)
            is_over.set()
            await asyncio.gather(*senders)
            assert not failed, f"{len(failed)} of {len(sent)} sends failed: {failed[:3]}"
            await wait_until(
                lambda: set(sent) <= seen, "the consumer has every message", timeout_s=WHOLE_TIMEOUT_S
            )
