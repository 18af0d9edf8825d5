"""A master and its slave as processes: the master is killed with -9 under load, the slave is read, the master returns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.client import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
)
from aerobee.message import Message
from tests.interop.replica_processes import Slave, check_same, log_end
from tests.interop.rocketmq import Broker, NameServer, call
from tests.waiting import wait_until

COUNT = 300
READ_BEFORE = 20  # messages handled before the master dies; the others are read from the slave


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    server = NameServer("aerobee", tmp_path / "namesrv")
    server.start()
    yield server.address
    server.kill()


@pytest.fixture
def pair(namesrv: str, tmp_path: Path) -> Iterator[tuple[Broker, Slave]]:
    sync = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "totalReplicas": "2", "slaveTimeout": "10000"}
    master = Broker("aerobee", tmp_path / "master", namesrv, **sync)
    slave = Slave(
        "aerobee", tmp_path / "slave", namesrv, brokerRole="SLAVE", brokerId="1", slaveReadEnable="true"
    )
    try:
        yield master, slave
    finally:
        master.kill()
        slave.kill()


def follows(master: Broker) -> bool:
    _, body = call(master.address, 907, {})
    return bool(json.loads(body)["inSyncSlaveNums"])


async def test_what_was_acknowledged_is_read_from_the_slave_and_the_master_returns(
    namesrv: str, pair: tuple[Broker, Slave]
) -> None:
    master, slave = pair
    await asyncio.to_thread(master.start)
    await asyncio.to_thread(slave.start)
    await wait_until(lambda: follows(master))
    received: list[str] = []
    acknowledged: set[str] = set()
    master_is_dead = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        received.append(message.body.decode())
        if len(received) > READ_BEFORE:
            await master_is_dead.wait()

    # Little is fetched ahead, so that most of it is read from the slave.
    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST, concurrency=2, pull_batch_count=8, cached_count_max=8
    )
    client = ClientConfig(route_refresh_s=1.0)
    consumer = PushConsumer(
        namesrv, "readers", subscriptions={"orders": "*"}, handler=handle, config=config, client=client
    )
    async with Producer(namesrv, "writers", client=client) as producer:
        result = await producer.send(Message("orders", b"first"))
        assert result.status is SendStatus.SEND_OK
        acknowledged.add("first")
        async with consumer:
            for first in range(0, COUNT, 50):
                bodies = [f"m{number}" for number in range(first, first + 50)]
                for body, sent in zip(
                    bodies,
                    await asyncio.gather(
                        *(producer.send(Message("orders", body.encode())) for body in bodies)
                    ),
                    strict=True,
                ):
                    assert sent.status is SendStatus.SEND_OK
                    acknowledged.add(body)
            await wait_until(lambda: len(received) > READ_BEFORE)
            # The slave copies the topic within a second or so; without it nothing can be read there.
            await wait_until(lambda: call(slave.address, 351, {"topic": "orders"})[0]["code"] == 0)
            end = log_end(master)
            await asyncio.to_thread(master.kill)
            assert len(set(received)) < COUNT, "everything was read before the master died"
            assert log_end(slave) == end
            master_is_dead.set()
            await wait_until(lambda: set(received) >= acknowledged, timeout_s=90)
            await asyncio.to_thread(master.start)
            await wait_until(lambda: follows(master), timeout_s=60)
            for number in range(20):
                await producer.send(Message("orders", f"again{number}".encode()))
                acknowledged.add(f"again{number}")
            await wait_until(lambda: set(received) >= acknowledged, timeout_s=90)
    await asyncio.to_thread(check_same, master, slave)
