"""docs/acknowledgements.md: each level by the fault that it promises to survive, requested by a send or by its topic.

The brokers' own settings ask for nothing here: asynchronous flush, asynchronous replication.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.client import Producer, SendStatus
from aerobee.clock import SystemClock
from aerobee.errors import UsageError
from aerobee.message import Message
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.broker_calls import STORE, pull_request, records_of, send_request
from tests.integration.replica_pair import Pair, same

WAYS = ("send", "topic")
NO_FLUSH = {"flush_interval_commit_log": 3_600_000, "flush_commit_log_thorough_interval": 3_600_000}


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    yield client
    await client.close()


def leveled(level: str, way: str, body: bytes) -> RemotingCommand:
    text = "UNIQ_KEY\x01k\x02" + (f"ACK_LEVEL\x01{level}\x02" if way == "send" else "")
    return send_request("t", body, properties=text)


async def make_topic(client: RemotingClient, broker: Broker, level: str, way: str) -> None:
    """The topic, with its level when it is the topic that asks."""
    ext = {
        "topic": "t", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    if way == "topic":
        ext["attributes"] = f"+ack.level={level}"
    reply = await client.invoke(broker.address, RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))
    assert reply.code == 0, reply


class PowerWorld:
    """A broker on a disk that loses what was not synced when the power goes."""

    def __init__(self, seed: int) -> None:
        self.disk = SimulatedDisk(random.Random(seed))
        self.broker: Broker

    async def start(self) -> Broker:
        self.broker = Broker(
            BrokerConfig(bind_address="127.0.0.1", broker_ip1="127.0.0.1", listen_port=0),
            StoreConfig(store_path_root_dir="/store", **{**STORE, **NO_FLUSH}),
            disk=self.disk,
        )
        await self.broker.start()
        return self.broker

    def has(self) -> bool:
        store = self.broker.store
        return store.max_offset("t", 0) > 0


@pytest.mark.parametrize("way", WAYS)
async def test_stored_survives_a_crash_of_the_process(client: RemotingClient, way: str) -> None:
    world = PowerWorld(1)
    broker = await world.start()
    await make_topic(client, broker, "stored", way)
    reply = await client.invoke(broker.address, leveled("stored", way, b"x"))
    assert reply.code == 0
    assert reply.ext is not None
    assert (reply.ext["aerobeeAck"], reply.ext["aerobeeEpoch"]) == ("stored", "0")
    await broker.kill()
    world.disk.crash()
    await world.start()
    assert world.has()
    await world.broker.stop()


@pytest.mark.parametrize("way", WAYS)
async def test_flushed_survives_power_loss(client: RemotingClient, way: str) -> None:
    for seed in range(3):
        world = PowerWorld(seed)
        broker = await world.start()
        await make_topic(client, broker, "flushed", way)
        reply = await client.invoke(broker.address, leveled("flushed", way, b"x"), timeout_s=60)
        assert reply.code == 0, reply
        assert broker.store.flushed.value >= int((reply.ext or {})["aerobeeOffset"])
        await broker.kill()
        world.disk.power_loss()
        await world.start()
        assert world.has(), seed
        await world.broker.stop()


async def test_what_is_only_stored_may_go_with_the_power(client: RemotingClient) -> None:
    """The level below promises less: else the test above would show nothing."""
    lost = 0
    for seed in range(5):
        world = PowerWorld(seed)
        broker = await world.start()
        await make_topic(client, broker, "stored", "topic")
        assert (await client.invoke(broker.address, leveled("stored", "topic", b"x"))).code == 0
        await broker.kill()
        world.disk.power_loss()
        await world.start()
        lost += not world.has()
        await world.broker.stop()
    assert lost


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["replicated", "flushed+replicated"])
async def test_replicated_survives_the_loss_of_the_machine(pair: Pair, way: str, level: str) -> None:
    master = await pair.start("master", store=NO_FLUSH)
    slave = await pair.start_slave(master, slave_read_enable=True)
    await make_topic(pair.client, master, level, way)
    await pair.send(master, 1, topic="other")
    await same(master, slave)
    reply = await pair.client.invoke(master.address, leveled(level, way, b"safe"), timeout_s=60)
    assert reply.code == 0, reply
    assert (reply.ext or {})["aerobeeAck"] == level
    offset = int((reply.ext or {})["aerobeeOffset"])
    assert slave.store.log.end >= offset, "it was answered before the slave had it"
    if level == "flushed+replicated":
        assert master.store.flushed.value >= offset
    await master.kill()
    await slave.clock.sleep(0)
    assert slave.store.max_offset("t", 0) == 1
    data = slave.store.read_record(slave.store.queue("t", 0).entry(0)[0])  # type: ignore[index]
    assert data is not None
    assert b"safe" in data


async def test_replicated_without_a_replica_says_so_and_the_message_is_there(pair: Pair) -> None:
    master = await pair.start("master", store={"slave_timeout": 300})
    await pair.send(master, 1)
    reply = await pair.client.invoke(master.address, leveled("replicated", "send", b"alone"))
    assert reply.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    found = await pair.client.invoke(master.address, pull_request("t"))
    assert [record.body for record in records_of(found)][-1:] == [b"alone"]


async def test_a_level_that_is_none_is_refused_with_those_that_there_are(pair: Pair) -> None:
    master = await pair.start("master")
    reply = await pair.client.invoke(master.address, leveled("sure", "send", b"x"))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "flushed+replicated" in (reply.remark or "")
    assert master.store.max_offset("t", 0) == 0


async def test_a_send_result_says_level_epoch_and_offset() -> None:
    async with LocalCluster() as cluster, Producer(cluster.nameserver_address) as producer:
        plain = await producer.send(Message("t", b"plain"))
        assert (plain.ack, plain.epoch, plain.log_offset) == ("", -1, -1)
        result = await producer.send(Message("t", b"flushed", ack="flushed"))
        assert (result.status, result.ack, result.epoch) == (SendStatus.SEND_OK, "flushed", 0)
        broker = cluster.broker()
        assert 0 < result.log_offset <= broker.store.flushed.value
        with pytest.raises(UsageError, match=r"ACK_LEVEL.*use Message's .*ack"):
            await producer.send(Message("t", b"x", properties={"ACK_LEVEL": "flushed"}))
        with pytest.raises(UsageError, match="message 0 of the batch has ack='flushed'"):
            await producer.send_batch([Message("t", b"x", ack="flushed")])
        with pytest.raises(UsageError, match="one-way"):
            await producer.send_oneway(Message("t", b"x", ack="flushed"))
        with pytest.raises(UsageError, match="priority excludes a message group"):
            await producer.send(Message("t", b"x", priority=1), message_group="g")


async def test_a_repeated_send_is_answered_at_the_level_that_it_asks_for(
    tmp_path: Path, client: RemotingClient
) -> None:
    """The first one was stored and its copy did not come: the second is no better off, and may not say that it is."""
    broker = Broker(
        BrokerConfig(
            bind_address="127.0.0.1", broker_ip1="127.0.0.1", listen_port=0, dedup_window_millis=600_000
        ),
        StoreConfig(store_path_root_dir=str(tmp_path / "store"), **STORE),
    )
    await broker.start()
    try:
        await make_topic(client, broker, "", "send")
        text = "UNIQ_KEY\x01k\x02DEDUP_KEY\x01d\x02ACK_LEVEL\x01replicated\x02"
        replies = [
            await client.invoke(broker.address, send_request("t", b"x", properties=text), timeout_s=30)
            for _ in range(2)
        ]
    finally:
        await broker.stop()
    assert [(reply.ext or {}).get("duplicate") for reply in replies] == [None, "true"]
    assert [reply.code for reply in replies] == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 2
