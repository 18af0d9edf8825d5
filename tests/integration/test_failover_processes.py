"""A group of three and three controllers as processes: masters are killed with -9 under load, and nothing acknowledged is lost.

AEROBEE_FAILOVER_KILLS says how many masters die (3 unless set). The times without service are printed, not asserted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.client import Producer, ProducerConfig
from aerobee.client.base.results import SendStatus
from aerobee.clock import SystemClock
from aerobee.errors import AerobeeError
from aerobee.host_port import join_address
from aerobee.message import Message
from aerobee.network import AsyncioNetwork
from aerobee.ops.commands.ha import QuorumAdmin
from aerobee.remoting.client import RemotingClient
from tests.integration.broker_calls import pull_request, records_of
from tests.ports import free_block

KILLS = int(os.environ.get("AEROBEE_FAILOVER_KILLS", "3"))
TOPIC = "failover"
QUEUES = 4
SENDERS = 8
WITHIN_S = 120.0


class Up:
    """`aerobee up --replicas 3` as a process, with its children."""

    def __init__(self, process: asyncio.subprocess.Process, nameserver: str, controllers: list[str]) -> None:
        self.process = process
        self.nameserver = nameserver
        self.client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
        self.quorum = QuorumAdmin(self.client, controllers)

    async def group(self) -> dict[str, Any]:
        """The state of broker-a at the leading controller; {} while there is none."""
        try:
            groups = (await self.quorum.status())["brokerGroups"]
        except AerobeeError:
            return {}
        return groups[0] if groups else {}

    async def master(self, *, other_than: str = "") -> str:
        """The address of the master, once every broker is in sync with it again."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = await self.group()
                brokers = found.get("brokers", [])
                masters = [each["address"] for each in brokers if each["brokerId"] == found["masterId"]]
                if masters and masters[0] != other_than and all(each["isInSync"] for each in brokers):
                    return str(masters[0])
                await asyncio.sleep(0.1)

    def pid_of(self, address: str) -> int:
        """The broker process that listens at an address."""
        wanted = f"listenPort={address.rpartition(':')[2]}".encode()
        for directory in Path("/proc").iterdir():
            if directory.name.isdigit():
                try:
                    arguments = (directory / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if wanted in arguments:
                    return int(directory.name)
        raise AssertionError(f"no process of the broker at {address}")


@pytest.fixture(params=["127.0.0.1", "::1"])
async def up(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Up]:
    base = free_block(60)
    host = request.param
    log = (tmp_path / "up.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "aerobee.ops", "up", "--json", "--replicas", "3", "--host", host),
        *("--data", str(tmp_path / "data")),
        *("--port", str(base + 20), "--nameserver-port", str(base), "--controller-port", str(base + 1)),
        *("--set", "mappedFileSizeCommitLog=16777216", "--set", "maxHashSlotNum=50000"),
        *("--set", "maxIndexNum=200000"),
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            line = await process.stdout.readline()
        assert line, (tmp_path / "up.log").read_text()
        ready = json.loads(line)
        assert ready.get("event") == "ready", ready
        # Who becomes what at a first start is nothing to warn of.
        said = (tmp_path / "up.log").read_text()
        assert "is now master" not in said, said
        assert "broker id" not in said, said
        controllers = [join_address(host, base + 1 + number) for number in range(3)]
        up = Up(process, ready["nameserver"], controllers)
        yield up
        await up.client.close()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(60):
                await process.communicate()


async def stored(up: Up, address: str) -> Counter[bytes]:
    """Every body that the master has, and how often."""
    found: Counter[bytes] = Counter()
    for queue in range(QUEUES):
        offset = 0
        while True:
            reply = await up.client.invoke(address, pull_request(TOPIC, offset, queue=queue), timeout_s=30)
            if reply.code != 0:
                assert reply.code == 19, reply
                break
            records = records_of(reply)
            found.update(record.body for record in records)
            offset = records[-1].queue_offset + 1
    return found


async def test_nothing_acknowledged_is_lost_when_masters_are_killed(up: Up) -> None:
    acknowledged: list[bytes] = []
    answered_at: list[float] = []
    is_over = asyncio.Event()
    producer = Producer(
        up.nameserver, "PG_failover", config=ProducerConfig(send_timeout_s=2.0, retry_count_max=2)
    )

    async def send(sender: int) -> None:
        number = 0
        while not is_over.is_set():
            body = b"%d-%d" % (sender, number)
            try:
                result = await producer.send(Message(TOPIC, body))
            except AerobeeError:
                await asyncio.sleep(0.02)  # it may be there or not; nothing was promised
            else:
                if result.status is SendStatus.SEND_OK:
                    acknowledged.append(body)
                    answered_at.append(time.monotonic())
            number += 1

    async with producer:
        master = await up.master()
        senders = [asyncio.create_task(send(sender)) for sender in range(SENDERS)]
        gaps = []
        kills = KILLS if up.nameserver.startswith("127.") else 1  # IPv6: whether it works at all
        for _ in range(kills):
            count = len(acknowledged)
            async with asyncio.timeout(WITHIN_S):
                while len(acknowledged) < count + 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            killed_s = time.monotonic()
            os.kill(up.pid_of(master), signal.SIGKILL)
            master = await up.master(other_than=master)
            before = max(at for at in answered_at if at <= killed_s)
            gaps.append(min((at for at in answered_at if at > killed_s + 0.2), default=before) - before)
        is_over.set()
        await asyncio.gather(*senders)
    master = await up.master()
    found = await stored(up, master)
    print(
        f"\n{len(acknowledged)} messages acknowledged, {kills} masters killed; "
        f"without service for {', '.join(f'{gap:.2f}' for gap in sorted(gaps))} s"
    )
    missing = [body for body in acknowledged if not found[body]]
    assert not missing, f"{len(missing)} of {len(acknowledged)} acknowledged messages are gone: {missing[:5]}"
