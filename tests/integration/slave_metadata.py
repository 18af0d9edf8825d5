"""Commits at a master, and files of a slave."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.remoting.command import RemotingCommand
from tests.integration.replica_pair import Pair, same
from tests.waiting import wait_until


async def commit(pair: Pair, broker: Broker, offset: int, *, group: str = "g", topic: str = "t") -> None:
    request = RemotingCommand(
        15, {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    )
    reply = await pair.client.invoke(broker.address, request)
    assert reply.code == 0, reply


async def left_alone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> tuple[Broker, Broker]:
    """A slave that has its master's tables and copies none from here on, while the log still comes."""
    master = await pair.start("master")
    slave = await pair.start_slave(master)
    for topic in ("gone", "kept"):
        await pair.send(master, 3, topic=topic)
    await same(master, slave)
    await wait_until(lambda: "kept" in slave.topics.topics, timeout_s=60)
    await master.topics.delete_async(["gone"])
    await wait_until(lambda: slave.topics.topics == master.topics.topics, timeout_s=60)
    rounds = slave.replication.metadata
    synced = rounds.synced_at_s
    await wait_until(lambda: rounds.synced_at_s > synced, timeout_s=60)
    asked = asyncio.Event()

    async def never() -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(rounds, "_copy_topics", never)
    await asyncio.wait_for(asked.wait(), 60)
    return master, slave
