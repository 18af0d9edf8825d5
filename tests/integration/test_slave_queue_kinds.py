"""Topics of type BatchCQ at a slave whose table of topics lags behind the log."""

from __future__ import annotations

import pytest

from aerobee import Message
from aerobee.broker.assembly.broker import Broker
from aerobee.client.session.send_header import encode_batch_entry
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import RemotingCommand
from tests.integration.broker_calls import pull_request, records_of, send_request
from tests.integration.replica_pair import Pair, same
from tests.integration.slave_metadata import left_alone
from tests.waiting import wait_until

BATCH = {"queue.type": "BatchCQ"}


async def create(broker: Broker, topic: str, **attributes: str) -> None:
    await broker.topics.put_async([TopicConfig(topic, 2, 2, attributes=attributes)])


async def delete(pair: Pair, broker: Broker, topic: str) -> None:
    reply = await pair.client.invoke(broker.address, RemotingCommand(215, {"topic": topic}))
    assert reply.code == 0, reply


async def send_batch(pair: Pair, broker: Broker, topic: str, count: int = 3) -> int:
    """The first offset of the batch."""
    body = b"".join(
        encode_batch_entry(Message(topic, b"%d" % number), f"U{number}") for number in range(count)
    )
    reply = await pair.client.invoke(broker.address, send_request(topic, body, code=320))
    assert reply.code == 0, reply
    return int((reply.ext or {})["queueOffset"])


async def test_a_batch_topic_made_just_before_a_failover(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = await left_alone(pair, monkeypatch)
    await create(master, "batches", **BATCH)
    assert [await send_batch(pair, master, "batches") for _ in range(3)] == [0, 3, 6]
    await same(master, slave)
    slave.replication.become_master(1)
    made = slave.topics.topics["batches"]
    assert (made.read_queue_nums, made.attributes) == (1, BATCH)
    assert await send_batch(pair, slave, "batches") == 9
    reply = await pair.client.invoke(slave.address, pull_request("batches"))
    assert [record.queue_offset for record in records_of(reply)] == [0, 3, 6, 9]


async def test_a_normal_topic_recreated_as_batch_before_failover(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await left_alone(pair, monkeypatch)
    await delete(pair, master, "kept")
    await create(master, "kept", **BATCH)
    assert [await send_batch(pair, master, "kept") for _ in range(2)] == [0, 3]
    await same(master, slave)
    slave.replication.become_master(1)
    assert slave.topics.topics["kept"].attributes == BATCH
    assert await send_batch(pair, slave, "kept") == 6


async def test_slaves_follow_a_batch_topic_recreated_as_normal(pair: Pair) -> None:
    master = await pair.start("master")
    slave = await pair.start_slave(master)
    await create(master, "topic", **BATCH)
    assert [await send_batch(pair, master, "topic") for _ in range(2)] == [0, 3]
    await same(master, slave)
    await wait_until(lambda: "topic" in slave.topics.topics, timeout_s=60)
    await delete(pair, master, "topic")
    await create(master, "topic")
    await pair.send(master, 2, topic="topic")
    await same(master, slave)
    await wait_until(lambda: slave.topics.topics == master.topics.topics, timeout_s=60)
    await wait_until(lambda: not slave.store.queues["topic", 0].is_batch, timeout_s=60)
    slave.replication.become_master(1)
    assert slave.store.max_offset("topic", 0) == 2
    await pair.send(slave, 1, topic="topic")
    reply = await pair.client.invoke(slave.address, pull_request("topic"))
    assert [record.queue_offset for record in records_of(reply)] == [0, 1, 2]
