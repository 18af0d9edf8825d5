"""LMQs: one message, read from several queues; kept over restarts, built again when their files are lost."""

from __future__ import annotations

import shutil
import struct

import pytest

from aerobee import Message, MessageQueue
from aerobee.broker.fastpath.choice import VARIABLE, choose_backend
from aerobee.client import (
    ConsumeFrom,
    Producer,
    PullConsumerConfig,
    TransactionProducer,
    TransactionState,
)
from aerobee.clock import SystemClock
from aerobee.errors import ConfigError, MessageIllegal, RemoteError
from aerobee.message import decode_records, encode_properties
from aerobee.network import AsyncioNetwork
from aerobee.remoting.body.pop_handle import parse_message_offsets
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.client.draining import drain
from tests.integration.pop_requests import pop_request
from tests.waiting import wait_until

SETTINGS = {"enable_lmq": True, "enable_multi_dispatch": True}
FIRST = PullConsumerConfig(consume_from=ConsumeFrom.FIRST, pull_hold_s=1.0, auto_commit=False)


def light(name):
    return MessageQueue(f"%LMQ%{name}", "broker-a", 0)


async def send(cluster, *queues, count=1, first=0, **fields):
    async with Producer(cluster.nameserver_address, "PG") as producer:
        for number in range(first, first + count):
            properties = {"INNER_MULTI_DISPATCH": ",".join(f"%LMQ%{name}" for name in queues)}
            await producer.send(Message("orders", b"%d" % number, properties=properties, **fields))


@pytest.fixture
async def cluster():
    async with LocalCluster(store_config=SETTINGS) as running:
        await running.create_topic("orders", queues=1)
        yield running


async def test_a_message_is_read_from_its_topic_and_each_lmq(cluster):
    await send(cluster, "a")
    await send(cluster, "a", "b", count=2, first=1)
    store = cluster.broker().store
    assert [store.max_offset(topic, 0) for topic in ("orders", "%LMQ%a", "%LMQ%b")] == [3, 3, 2]
    found = [record.body for record in decode_records(store.get_messages("%LMQ%a", 0, 0, count_max=32).body)]
    assert found == [b"0", b"1", b"2"]
    last = next(decode_records(store.get_messages("%LMQ%b", 0, 1, count_max=32).body))
    assert last.properties["INNER_MULTI_QUEUE_OFFSET"] == "2,1"
    assert (last.topic, last.queue_offset) == ("orders", 2), "the record is in its topic"


async def test_an_lmq_reader_commits_offsets_and_resumes(cluster):
    await send(cluster, "a", count=2)
    await send(cluster, "b", count=3, first=2)
    async with cluster.pull_consumer("G", config=FIRST) as consumer:
        await consumer.assign([light("b")])
        messages = await drain(consumer, 3)
        assert [(message.queue_offset, message.body) for message in messages] == [
            (0, b"2"),
            (1, b"3"),
            (2, b"4"),
        ]
        await consumer.commit({light("b"): 2})
        assert await consumer.committed(light("b")) == 2
    async with cluster.pull_consumer("G", config=FIRST) as consumer:
        await consumer.assign([light("b")])
        assert [message.body for message in await drain(consumer, 1)] == [b"4"]


@pytest.mark.parametrize("lost", [False, True])
async def test_lmq_survive_a_killed_broker_and_lost_files(cluster, lost):
    await send(cluster, "a", "b", count=3)
    await send(cluster, "b", count=2, first=3)
    await cluster.kill_broker()
    if lost:
        shutil.rmtree(cluster.directory / "broker-a" / "consumequeue" / "%LMQ%b")
    await cluster.start_broker()
    store = cluster.broker().store
    assert [store.max_offset(topic, 0) for topic in ("%LMQ%a", "%LMQ%b")] == [3, 5]
    found = [record.body for record in decode_records(store.get_messages("%LMQ%b", 0, 0, count_max=32).body)]
    assert found == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_cannot_be_dispatched_is_refused_with_the_reason():
    async with LocalCluster(store_config={**SETTINGS, "max_lmq_consume_queue_num": 2}) as cluster:
        await cluster.create_topic("orders", queues=1)
        async with Producer(cluster.nameserver_address, "PG") as producer:
            with pytest.raises((MessageIllegal, RemoteError), match="%LMQ%"):
                await producer.send(Message("orders", b"x", properties={"INNER_MULTI_DISPATCH": "plain"}))
            await send(cluster, "a", "b")
            with pytest.raises(RemoteError, match="maxLmqConsumeQueueNum"):
                await producer.send(Message("orders", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%c"}))
        assert cluster.broker().store.max_offset("orders", 0) == 1


async def test_without_the_keys_the_property_means_nothing():
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        await send(cluster, "a")
        assert ("%LMQ%a", 0) not in cluster.broker().store.queues


FORGED = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0"}


def batch_of_one(body, properties):
    text = encode_properties(properties).encode()
    size = 22 + len(body) + len(text)
    return struct.pack(">5i", size, 0, 0, 0, len(body)) + body + struct.pack(">H", len(text)) + text


def a_send(code, properties, body):
    ext = dict(
        zip("abcdefghijk", ("p", "orders", "TBW102", "4", "0", "0", "1", "0", "", "0", "false"), strict=True)
    )
    ext["i"] = encode_properties(properties)
    return RemotingCommand(
        code, {**ext, "m": "true"} if code == RequestCode.SEND_BATCH_MESSAGE else ext, body
    )


@pytest.mark.parametrize("backend", ["python", "native"])
@pytest.mark.parametrize("kind", ["batch", "delayed", "given back"])
async def test_only_the_broker_writes_lmq_offsets(monkeypatch, backend, kind):
    """Clients can send them, and what is given back has those of its original: no entry of others is written over."""
    try:
        choose_backend(backend)
    except ConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setenv(VARIABLE, backend)
    async with LocalCluster(store_config=SETTINGS) as cluster:
        await cluster.create_topic("orders", queues=1)
        await send(cluster, "a", count=3)
        store = cluster.broker().store
        first = store.queue("%LMQ%a", 0).entry(0)[0]
        request = {
            "batch": a_send(
                RequestCode.SEND_BATCH_MESSAGE,
                {"UNIQ_KEY": "AB"},
                batch_of_one(b"forged", {"UNIQ_KEY": "AB", **FORGED}),
            ),
            "delayed": a_send(RequestCode.SEND_MESSAGE_V2, {"DELAY": "5", **FORGED}, b"forged"),
            "given back": RemotingCommand(
                RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": str(first), "group": "g", "delayLevel": "5"}
            ),
        }[kind]
        remoting = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
        assert (await remoting.invoke(cluster.broker().address, request, timeout_s=60)).code == 0
        await remoting.close()
        await cluster.kill_broker()
        await cluster.start_broker()
        store = cluster.broker().store
        found = [
            record.body for record in decode_records(store.get_messages("%LMQ%a", 0, 0, count_max=32).body)
        ]
        assert found == [b"0", b"1", b"2"]


DELAYS = [{"delay_level": 1}, {"deliver_after": 1}]


@pytest.mark.parametrize("when", DELAYS, ids=["level", "time"])
async def test_a_delayed_message_enters_its_lmq_on_delivery(when):
    async with LocalCluster(store_config=SETTINGS) as cluster:
        await cluster.create_topic("orders", queues=1)
        await send(cluster, "a")
        await send(cluster, "a", "b", first=1, **when)
        store = cluster.broker().store
        assert [store.max_offset(topic, 0) for topic in ("orders", "%LMQ%a")] == [1, 1]
        assert ("%LMQ%b", 0) not in store.queues, "not before it is due"
        await cluster.advance_clock(2)
        await wait_until(lambda: store.max_offset("orders", 0) == 2, "delivery")
        assert [store.max_offset(topic, 0) for topic in ("%LMQ%a", "%LMQ%b")] == [2, 1]
        found = decode_records(store.get_messages("%LMQ%a", 0, 1, count_max=32).body)
        assert [(record.topic, record.body) for record in found] == [("orders", b"1")]
        await cluster.kill_broker()
        shutil.rmtree(cluster.directory / "broker-a" / "consumequeue" / "%LMQ%b")
        await cluster.start_broker()
        store = cluster.broker().store
        assert [store.max_offset(topic, 0) for topic in ("orders", "%LMQ%a", "%LMQ%b")] == [2, 2, 1]


@pytest.mark.parametrize("when", DELAYS, ids=["level", "time"])
async def test_a_delayed_message_without_valid_lmq_is_refused(when):
    async with LocalCluster(store_config=SETTINGS) as cluster:
        await cluster.create_topic("orders", queues=1)
        async with Producer(cluster.nameserver_address, "PG") as producer:
            with pytest.raises((MessageIllegal, RemoteError), match="%LMQ%"):
                await producer.send(
                    Message("orders", b"x", properties={"INNER_MULTI_DISPATCH": "plain"}, **when)
                )


async def test_a_delivery_reaches_its_topic_when_its_lmq_are_full():
    async with LocalCluster(store_config={**SETTINGS, "max_lmq_consume_queue_num": 1}) as cluster:
        await cluster.create_topic("orders", queues=1)
        await send(cluster, "b", delay_level=1)
        await send(cluster, "a", first=1)
        await cluster.advance_clock(2)
        store = cluster.broker().store
        await wait_until(lambda: store.max_offset("orders", 0) == 2, "delivery")
        assert ("%LMQ%b", 0) not in store.queues


async def test_a_commit_reaches_its_topic_when_its_lmq_are_full():
    async with LocalCluster(store_config={**SETTINGS, "max_lmq_consume_queue_num": 1}) as cluster:
        await cluster.create_topic("orders", queues=1)

        async def take_the_last_room(message, argument):
            await send(cluster, "a")
            return TransactionState.COMMIT

        async with TransactionProducer(
            cluster.nameserver_address, "PG", checker=lambda message: TransactionState.UNKNOWN
        ) as producer:
            half = Message("orders", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%b"})
            result = await producer.send_in_transaction(half, executor=take_the_last_room)
        assert result.confirmed
        store = cluster.broker().store
        assert [store.max_offset(topic, 0) for topic in ("orders", "%LMQ%a")] == [2, 1]
        assert ("%LMQ%b", 0) not in store.queues


async def test_pops_of_an_lmq_use_the_offsets_of_the_lmq(cluster):
    await send(cluster, "other", count=3)
    await send(cluster, "a", count=2, first=3)
    broker = cluster.broker()
    remoting = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    try:
        request = pop_request(broker, "%LMQ%a", invisible_ms=1_000)
        reply = await remoting.invoke(broker.address, request, timeout_s=60)
        assert message_offsets(reply) == [0, 1]
        assert [record.body for record in decode_records(reply.body)] == [b"3", b"4"]
        assert (broker.offsets.query("group", "%LMQ%a", 0), broker.offsets.query("group", "orders", 0)) == (
            2,
            None,
        )
    finally:
        await remoting.close()


def message_offsets(reply):
    found = parse_message_offsets(reply.ext["msgOffsetInfo"])
    return [offset for offsets in found.values() for offset in offsets]


async def send_to_lmq(cluster, body, properties=None):
    """A send to the LMQ itself."""
    remoting = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    try:
        request = a_send(RequestCode.SEND_MESSAGE_V2, {"UNIQ_KEY": body.decode(), **(properties or {})}, body)
        request.ext["b"] = "%LMQ%a"
        return await remoting.invoke(cluster.broker().address, request, timeout_s=60)
    finally:
        await remoting.close()


async def test_a_message_sent_to_an_lmq_itself_is_there_once(cluster):
    await send(cluster, "a")
    for names in ("%LMQ%a", "%LMQ%a,%LMQ%b"):
        assert (await send_to_lmq(cluster, b"direct", {"INNER_MULTI_DISPATCH": names})).code == 0
    await send(cluster, "a", first=1)
    for _ in range(2):
        store = cluster.broker().store
        found = decode_records(store.get_messages("%LMQ%a", 0, 0, count_max=32).body)
        assert [record.body for record in found] == [b"0", b"direct", b"direct", b"1"]
        assert store.max_offset("%LMQ%b", 0) == 1
        await cluster.kill_broker()
        shutil.rmtree(cluster.directory / "broker-a" / "consumequeue")
        await cluster.start_broker()


async def test_a_message_sent_to_an_lmq_itself_is_popped(cluster):
    await send(cluster, "a")
    assert (await send_to_lmq(cluster, b"direct")).code == 0
    broker = cluster.broker()
    remoting = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    request = pop_request(broker, "%LMQ%a", invisible_ms=1_000)
    reply = await remoting.invoke(broker.address, request, timeout_s=60)
    await remoting.close()
    assert [record.body for record in decode_records(reply.body)] == [b"0", b"direct"]
