"""Topics of type BatchCQ: batches as one record each, over our client and with the bytes that Java's client sent."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from aerobee import Message
from aerobee.client import ConsumeFrom, ConsumerConfig, Producer, RetryLater
from aerobee.message import INNER_BATCH, NEED_UNWRAP, decode_records
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame
from aerobee.store.queue.batch_consume_queue import BatchConsumeQueue
from aerobee.testing.local_cluster import LocalCluster
from tests.fakes import FakePeer
from tests.waiting import wait_until

DATA = Path(__file__).parent.parent / "data"
FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture
async def cluster():
    async with LocalCluster() as running, running.admin() as admin:
        await admin.create_topic("orders", queue_count=1, attributes={"queue.type": "BatchCQ"})
        yield running


async def test_batches_are_one_record_each_and_consumed_one_by_one(cluster):
    async with Producer(cluster.nameserver_address, "PG") as producer:
        first = await producer.send_batch([Message("orders", b"a%d" % n, tag="T") for n in range(3)])
        second = await producer.send_batch([Message("orders", b"b%d" % n, tag="T") for n in range(4)])
        single = await producer.send(Message("orders", b"single", tag="T"))
    assert [result.queue_offset for result in (*first, *second, single)] == list(range(8))
    store = cluster.broker().store
    queue = store.queues["orders", 0]
    assert isinstance(queue, BatchConsumeQueue)
    entries = queue.entries_from(0, 10)
    assert [(entry.base_offset, entry.batch_size) for entry in entries] == [(0, 3), (3, 4), (7, 1)]
    records = list(decode_records(store.get_messages("orders", 0, 0, count_max=32).body))
    assert [record.sys_flag & (INNER_BATCH | NEED_UNWRAP) for record in records] == [0xC0, 0xC0, 0]
    assert [record.properties.get("INNER_NUM") for record in records] == ["3", "4", None]
    seen = []
    async with cluster.push_consumer(
        "G", {"orders": "T"}, lambda m: seen.append((m.queue_offset, m.body)), config=FIRST
    ):
        await wait_until(lambda: len(seen) == 8)
    bodies = [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2", b"b3", b"single"]
    assert sorted(seen) == list(enumerate(bodies))


async def test_batch_queues_continue_after_a_restart(cluster):
    async with Producer(cluster.nameserver_address, "PG") as producer:
        await producer.send_batch([Message("orders", b"a%d" % n) for n in range(3)])
        await cluster.stop_broker()
        await cluster.start_broker()
        results = await producer.send_batch([Message("orders", b"b%d" % n) for n in range(2)])
    assert [result.queue_offset for result in results] == [3, 4]


async def test_java_batches_are_stored_as_rocketmq_stored_them(cluster):
    """The frames of tests/data/wire/java-batch-queue, and the records of tests/data/store/batch-consume-queue."""
    broker = cluster.broker()
    async with cluster.admin() as admin:
        await admin.create_topic("StoreBcq", queue_count=1, attributes={"queue.type": "BatchCQ"})
    answers = []
    with gzip.open(DATA / "wire" / "java-batch-queue.jsonl.gz", "rt") as lines:
        for line in lines:
            frame = json.loads(line)
            if frame["direction"] == "request" and frame["code"] in (310, 320):
                request = decode_frame(bytes.fromhex(frame["frame_hex"]))
                if request.ext["b"] == "StoreBcq":
                    reply = broker.handlers[request.code](FakePeer(("127.0.0.1", 39842)), request)
                    answers.append((reply.code, reply.ext["queueOffset"], reply.ext.get("batchUniqId")))
    expected = json.loads((DATA / "store" / "batch-consume-queue.expected.json").read_text())["records"]
    expected = [record for record in expected if record["topic"] == "StoreBcq"]
    keys = [record["properties"]["UNIQ_KEY"] for record in expected]
    assert answers == [(0, "0", keys[0]), (0, "3", keys[1]), (0, "7", None)]
    stored = list(decode_records(broker.store.get_messages("StoreBcq", 0, 0, count_max=32).body))
    for record, wanted in zip(stored, expected, strict=True):
        assert (record.sys_flag, record.queue_offset) == (wanted["sysFlag"], wanted["queueOffset"])
        assert dict(record.properties) == wanted["properties"]
        assert record.body == (
            bytes.fromhex(wanted["body_hex"]) if "body_hex" in wanted else wanted["body"].encode()
        )


async def test_a_message_of_a_batch_that_fails_comes_again_alone(cluster):
    """The retry topic once got the whole batch at one offset, and clients took the next batch for what they had already."""
    failed, seen = [], []

    async def handle(message):
        if message.body in (b"a1", b"b0", b"b2") and message.body not in failed:
            failed.append(message.body)
            raise RetryLater("not yet", after=0.2)
        seen.append(message.body)

    async with Producer(cluster.nameserver_address, "PG") as producer:
        await producer.send_batch([Message("orders", b"a%d" % n, tag="T") for n in range(3)])
        await producer.send_batch([Message("orders", b"b%d" % n, tag="T") for n in range(4)])
    async with cluster.push_consumer("G", {"orders": "T"}, handle, config=FIRST):
        await wait_until(lambda: len(seen) >= 7)
    assert sorted(seen) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2", b"b3"]
    (record, *_) = decode_records(cluster.broker().store.get_messages("%RETRY%G", 0, 0, count_max=32).body)
    assert not record.sys_flag & (INNER_BATCH | NEED_UNWRAP)


async def test_a_batch_without_the_message_that_is_given_back_is_refused(cluster):
    async with Producer(cluster.nameserver_address, "PG") as producer:
        await producer.send_batch([Message("orders", b"a%d" % n) for n in range(3)])
    broker = cluster.broker()
    ext = {
        "offset": "0",
        "group": "G",
        "delayLevel": "0",
        "originMsgId": "of another one",
        "originTopic": "orders",
    }
    request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    reply = broker.handlers[request.code](FakePeer(("127.0.0.1", 39842)), request)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "no message of it has the id 'of another one'" in reply.remark
