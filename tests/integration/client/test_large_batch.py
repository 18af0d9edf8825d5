"""Batches that the broker stores in pieces, between messages of other producers."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.broker.send.send_header import FAST_BATCH_ENTRIES_MAX
from aerobee.client import Producer, ProducerConfig
from aerobee.client.session.send_header import decode_batch_reply
from aerobee.errors import MalformedFrame, UsageError
from aerobee.message import Message, MessageQueue, decode_records
from aerobee.remoting.command import RemotingCommand
from aerobee.testing import LocalCluster

QUEUE = MessageQueue("orders", "broker-a", 0)


async def test_results_name_the_offset_of_each_message() -> None:
    """Those behind the first piece named the offsets of messages of other producers."""
    config = ProducerConfig(batch_bytes_max=4_000_000, send_timeout_s=60.0)
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        batch = [Message("orders", b"batch %d" % number) for number in range(FAST_BATCH_ENTRIES_MAX + 100)]
        async with (
            Producer(cluster.nameserver_addresses, "A", config=config) as producer,
            Producer(cluster.nameserver_addresses, "B", config=config) as other,
        ):
            await other.send(Message("orders", b"first"))
            sending = asyncio.create_task(producer.send_batch(batch))
            singles = [await other.send(Message("orders", b"single"))]
            while not sending.done():
                singles.append(await other.send(Message("orders", b"single")))
            results = await sending
        offsets = [result.queue_offset for result in results]
        assert offsets == sorted(offsets)
        assert len({*offsets, *(single.queue_offset for single in singles)}) == len(offsets) + len(singles)
        assert offsets[-1] - offsets[0] >= len(offsets), "messages of the other producer lie between"
        store = cluster.broker().store
        for number in (0, 511, 512, 513, 4_000, len(batch) - 1):
            found = store.get_messages("orders", 0, offsets[number], count_max=1)
            (record,) = decode_records(found.body)
            assert record.body == batch[number].body


def reply(gaps: str) -> RemotingCommand:
    ext = {"queueId": "0", "msgId": "A", "queueOffset": "5", "aerobeeQueueOffsets": gaps}
    return RemotingCommand(0, ext)


def test_queue_offsets_of_a_batch_are_read() -> None:
    results = decode_batch_reply(reply("2:9,3:20"), QUEUE, ["1", "2", "3", "4", "5"], "broker")
    assert [result.queue_offset for result in results] == [5, 6, 9, 20, 21]
    results = decode_batch_reply(reply(""), QUEUE, ["1", "2"], "broker")
    assert [result.queue_offset for result in results] == [5, 6]


@pytest.mark.parametrize(
    "gaps", ["x", "1", "1:", "0:3", "-1:3", "2:3", "1:3,1:4", "1:3:4", "99999999999999999999:1"]
)
def test_unreadable_queue_offsets_are_refused(gaps: str) -> None:
    with pytest.raises(MalformedFrame, match="queue offsets"):
        decode_batch_reply(reply(gaps), QUEUE, ["1", "2"], "broker")


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"x", properties={"__LITE_TOPIC": "room"}),
        Message("orders", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}),
        Message("orders", b"x", properties={"DEDUP_KEY": "a"}),
        Message("orders", b"x", properties={"TIMER_DELAY_SEC": "5"}),
        Message("orders", b"x", priority=3),
    ],
    ids=lambda message: next(iter(message.properties), "priority"),
)
async def test_a_batch_refuses_what_brokers_see_outside_of_batches_only(message: Message) -> None:
    """They were stored, and the property had no effect."""
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        async with Producer(cluster.nameserver_addresses, "A") as producer:
            with pytest.raises(UsageError, match="send it on its own"):
                await producer.send_batch([Message("orders", b"first"), message])
        assert cluster.broker().store.max_offset("orders", 0) == 0
