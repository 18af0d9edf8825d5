"""A cluster at ::1: every kind of message and consumer, ids with 16-byte hosts, and the commands."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

import pytest

from aerobee import Message, TransactionState
from aerobee.client import ConsumeFrom, ConsumerConfig, ReceivedMessage, RetryLater
from aerobee.host_port import split_address
from aerobee.message import parse_offset_message_id
from aerobee.testing import LocalCluster
from tests.waiting import wait_until

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(host="::1", brokers=2, nameservers=2) as cluster:
        await cluster.create_topic("orders", queues=2)
        yield cluster


async def test_every_kind_of_message_is_delivered(cluster: LocalCluster) -> None:
    received: dict[bytes, ReceivedMessage] = {}

    def handle(message: ReceivedMessage) -> None:
        if message.body == b"again" and message.reconsume_times == 0:
            raise RetryLater("not now", delay_level=1)
        received[message.body] = message

    async with (
        cluster.push_consumer("readers", {"orders": "*"}, handle, config=FIRST, trace=True),
        cluster.producer("makers", trace=True) as producer,
        cluster.transaction_producer("PG", checker=lambda message: TransactionState.UNKNOWN) as transactions,
    ):
        await producer.send(Message("orders", b"plain", keys=("k1",)))
        await producer.send(Message("orders", b"again"))
        await producer.send(Message("orders", b"keyed"), message_group="customer-7")
        await producer.send_batch([Message("orders", b"one"), Message("orders", b"two")])
        await producer.send(Message("orders", b"later", delay_level=1))
        await transactions.send_in_transaction(
            Message("orders", b"paid"), executor=lambda message, argument: TransactionState.COMMIT
        )
        await wait_until(lambda: len(received) >= 5)
        await cluster.advance_clock(15)
        wanted = {b"plain", b"again", b"keyed", b"one", b"two", b"later", b"paid"}
        await wait_until(lambda: set(received) == wanted)
    assert {message.born_host[0] for message in received.values()} == {"::1"}
    assert {message.store_host[0] for message in received.values()} == {"::1"}


async def test_a_message_is_found_by_its_id_of_a_16_byte_host_and_by_key(cluster: LocalCluster) -> None:
    async with cluster.producer("makers") as producer, cluster.admin() as admin:
        result = await producer.send(Message("orders", b"plain", keys=("k1",)))
        assert len(result.offset_message_id) == 56
        (host, port), _ = parse_offset_message_id(result.offset_message_id)
        assert (host, port) in [split_address(address) for address in cluster.broker_addresses]
        assert (await admin.message(result.offset_message_id)).body == b"plain"
        assert (await admin.message(result.message_id, "orders")).body == b"plain"
        assert [found.body for found in await admin.messages_by_key("orders", "k1")] == [b"plain"]


async def test_pop_hands_out_and_takes_acknowledgements(cluster: LocalCluster) -> None:
    async with cluster.producer("makers") as producer:
        for number in range(8):
            await producer.send(Message("orders", b"%d" % number))
    seen = set()
    async with cluster.simple_consumer("poppers", {"orders": "*"}) as consumer:
        while len(seen) < 8:
            messages = await consumer.receive()
            seen |= {message.body for message in messages}
            await consumer.ack_all(messages)
        await cluster.advance_clock(70)
        assert await consumer.receive(wait_s=0) == []


async def test_a_request_is_answered_through_the_requesters_broker(cluster: LocalCluster) -> None:
    async with cluster.producer("askers") as asker, cluster.producer("repliers-out") as replier:

        async def handle(message: ReceivedMessage) -> None:
            await replier.reply_to(message, b"reply to " + message.body)

        async with cluster.push_consumer("repliers", {"orders": "*"}, handle, config=FIRST):
            reply = await asker.request(Message("orders", b"where"), timeout_s=60)
    assert reply.body == b"reply to where"
    assert reply.born_host[0] == "::1"


async def test_commands_reach_the_cluster(cluster: LocalCluster) -> None:
    async def run(*arguments: str) -> str:
        environ = os.environ | {"AEROBEE_NAMESRV_ADDR": cluster.nameserver_address}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aerobee.ops", *arguments), stdout=asyncio.subprocess.PIPE, env=environ
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()

    await run("send", "orders", "a body", "--keys", "k1")
    rows = [json.loads(line) for line in (await run("message", "key", "orders", "k1", "--json")).splitlines()]
    assert "a body" in str(rows)
    assert "all passed" in await run("doctor")


@pytest.mark.parametrize("address", ["::1:9876", "fe80::1"])
async def test_an_address_without_brackets_is_refused_with_the_form_to_write(address: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aerobee.ops", "topic", "list", "-n", address), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert "in brackets" in said.decode()
