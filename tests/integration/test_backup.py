"""docs/install.md, "Backup and restore": a slave's store is packed while the master serves; both are lost; the copy becomes the master."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.client import Admin, ClientConfig, Producer, PullConsumer
from aerobee.message import Message, MessageQueue
from tests.interop.replica_processes import Slave, log_end
from tests.interop.rocketmq import Broker, NameServer, call
from tests.waiting import wait_until

GROUP = "billing"


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    server = NameServer("aerobee", tmp_path / "namesrv")
    server.start()
    yield server.address
    server.kill()


def committed(broker: Broker, topic: str) -> int:
    header, _ = call(broker.address, 14, {"consumerGroup": GROUP, "topic": topic, "queueId": "0"})
    return int(header["extFields"]["offset"]) if header["code"] == 0 else -1


def has_everything(master: Broker, slave: Broker) -> bool:
    _, body = call(master.address, 907, {})
    return bool(json.loads(body)["inSyncSlaveNums"]) and log_end(slave) == log_end(master)


async def run(*command: str | Path) -> tuple[int, str]:
    """Run a command to its end: exit code, and what it wrote."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def bodies(namesrv: str, wanted: int) -> dict[int, str]:
    """What topic orders holds, by offset: `wanted` messages, and what else comes within a long poll after them."""
    found: dict[int, str] = {}
    async with PullConsumer(namesrv, "auditors") as consumer:
        queue = MessageQueue("orders", "broker-a", 0)
        await consumer.assign([queue])
        await consumer.seek_to_begin(queue)
        async with asyncio.timeout(60):
            while len(found) < wanted:
                found |= {each.queue_offset: each.body.decode() for each in await consumer.poll()}
        found |= {each.queue_offset: each.body.decode() for each in await consumer.poll(0.5)}
    return found


async def test_a_packed_store_of_a_slave_becomes_the_master(namesrv: str, tmp_path: Path) -> None:
    master = Broker("aerobee", tmp_path / "master", namesrv, brokerName="broker-a")
    slave = Slave(
        "aerobee", tmp_path / "slave", namesrv, brokerName="broker-a", brokerRole="SLAVE", brokerId="1"
    )
    restored = Broker(
        "aerobee", tmp_path / "restored", namesrv, store=tmp_path / "back" / "store", brokerName="broker-a"
    )
    client = ClientConfig(route_refresh_s=1.0)
    try:
        await asyncio.to_thread(master.start)
        await asyncio.to_thread(slave.start)
        async with Admin(namesrv, client=client) as admin:
            await admin.create_topic("orders", queue_count=1)
            await admin.create_group(GROUP)
        async with Producer(namesrv, "writers", client=client) as producer:
            for number in range(100):
                await producer.send(Message("orders", f"m{number}".encode()))
        header, _ = call(
            master.address,
            15,
            {"consumerGroup": GROUP, "topic": "orders", "queueId": "0", "commitOffset": "40"},
        )
        assert header["code"] == 0
        await wait_until(lambda: has_everything(master, slave) and committed(slave, "orders") == 40)

        await asyncio.to_thread(slave.stop)
        archive = tmp_path / "store.tgz"
        assert (await run("tar", "-C", tmp_path / "slave", "-czf", archive, "store"))[0] == 0
        await asyncio.to_thread(slave.start)
        async with Producer(namesrv, "writers", client=client) as producer:
            for number in range(100, 130):
                await producer.send(Message("orders", f"m{number}".encode()))
        await wait_until(lambda: has_everything(master, slave))

        for broker in (master, slave):
            await asyncio.to_thread(broker.kill)
            shutil.rmtree(broker.store)
        (tmp_path / "back").mkdir()
        assert (await run("tar", "-C", tmp_path / "back", "-xzf", archive))[0] == 0
        code, text = await run(sys.executable, "-m", "aerobee", "store", "verify", *restored.command()[-2:])
        assert code == 0, text
        await asyncio.to_thread(restored.start)
        kept = {number: f"m{number}" for number in range(100)}
        assert await bodies(namesrv, 100) == kept
        assert committed(restored, "orders") == 40
        async with Producer(namesrv, "writers", client=client) as producer:
            result = await producer.send(Message("orders", b"afterwards"))
        assert result.queue_offset == 100
        assert await bodies(namesrv, 101) == kept | {100: "afterwards"}
    finally:
        for broker in (master, slave, restored):
            broker.kill()
