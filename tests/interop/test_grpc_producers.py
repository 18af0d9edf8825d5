"""RocketMQ's official Python client sends to a broker of ours without a proxy."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.message import Record, decode_records
from aerobee.testing import LocalCluster
from tests.interop.rocketmq import GRPC_PYTHON

PROGRAM = Path(__file__).parent / "grpc" / "producers.py"
KINDS = {
    "normal": "NORMAL",
    "fifo": "FIFO",
    "delay": "DELAY",
    "priority": "PRIORITY",
    "transaction": "TRANSACTION",
}


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    config = {"recallMessageEnable": True, "transactionTimeOut": 2_000}
    async with LocalCluster(broker_config=config) as started:
        for name, kind in KINDS.items():
            await started.create_topic(f"py-{name}", queues=4, attributes=f"+message.type={kind}")
        yield started


def stored(cluster: LocalCluster, topic: str) -> list[Record]:
    """The topic's messages by queue."""
    store = cluster.broker().store
    bodies = [store.get_messages(f"py-{topic}", queue_id, 0, count_max=32).body for queue_id in range(4)]
    return [record for body in bodies for record in decode_records(body)]


async def lines_of(process: asyncio.subprocess.Process) -> AsyncIterator[dict[str, Any]]:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line.startswith(b"{"):
            yield json.loads(line)


async def test_the_python_client_sends_every_kind(cluster: LocalCluster, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        str(GRPC_PYTHON), str(PROGRAM), cluster.broker().address, "py-",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    said: dict[str, dict[str, Any]] = {}
    async with asyncio.timeout(120):
        async for line in lines_of(process):
            said[line["kind"]] = line
            if line["kind"] == "checked":
                assert process.stdin is not None
                process.stdin.write(b"\n")
        assert await process.wait() == 0
    (normal,) = stored(cluster, "normal")
    assert (normal.unique_id, normal.tag, normal.keys) == (said["normal"]["ids"][0], "A", ("k1",))
    assert normal.properties["colour"] == "red"
    in_order = stored(cluster, "fifo")
    assert [record.body for record in in_order] == [b"f0", b"f1", b"f2", b"f3"]
    assert len({record.queue_id for record in in_order}) == 1
    assert said["delay"]["extra"] == "recalled"
    (urgent,) = stored(cluster, "priority")
    assert urgent.queue_id == 2
    assert said["wrong"]["extra"] not in ("", "sent")
    assert said["checked"]["extra"] == "forgotten"
    assert sorted(record.body for record in stored(cluster, "transaction")) == [b"commit", b"forgotten"]
