"""A file of the commit log that cannot be opened: its messages are refused with a sentence, all else continues."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from aerobee.client import Producer
from aerobee.message import Message
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.testing.local_cluster import LocalCluster


def pull(offset: int) -> RemotingCommand:
    """What the Java client asks for, without waiting."""
    fields = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext=fields)


@pytest.mark.parametrize("backend", ["python", "native"])
async def test_pulls_of_an_unreadable_file_are_refused_and_the_connection_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str
) -> None:
    if backend == "native":
        pytest.importorskip("aerobee_native")
    monkeypatch.setenv("AEROBEE_FAST_PATH", backend)
    settings = {"mapped_file_size_commit_log": 64 * 1024}
    for first in (True, False):
        async with LocalCluster(store_config=settings, directory=tmp_path) as cluster:
            if first:
                await cluster.create_topic("T", queues=1)
                async with Producer(cluster.nameserver_address) as producer:
                    for number in range(4):
                        await producer.send(
                            Message("T", b"%d" % number + random.Random(number).randbytes(40_000))
                        )
                continue
            store = cluster.broker().store
            damaged = store.log.segments[0]
            damaged.close()
            os.rename(damaged.path, damaged.path + ".away")
            client = RemotingClient(clock=cluster.clock, network=cluster.network)
            address = cluster.broker().address
            connection = await client.connect(address)
            refused = await connection.invoke(pull(0), timeout_s=60)
            assert refused.code == 1
            assert "cannot be read" in (refused.remark or "")
            served = await connection.invoke(pull(3), timeout_s=60)
            assert served.code == 0
            assert (served.ext or {})["nextBeginOffset"] == "4"
            os.rename(damaged.path + ".away", damaged.path)
            assert (await connection.invoke(pull(0), timeout_s=60)).code == 0
            assert connection.is_open
            await client.close()
