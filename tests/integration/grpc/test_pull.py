"""PullMessage and offsets by gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aerobee import Message
from aerobee.client.base.config import Compression, ProducerConfig
from aerobee.grpc.proto import messages as pb
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient, message, until
from tests.integration.grpc.through import BOTH, served

GROUP = pb.Resource(name="readers")


def queue(topic: str = "orders", number: int = 0) -> pb.MessageQueue:
    return pb.MessageQueue(topic=pb.Resource(name=topic), id=number)


def pull(offset: int = 0, *, tags: str = "*", polling_s: int = 0) -> pb.PullMessageRequest:
    made = pb.PullMessageRequest(group=GROUP, message_queue=queue(), offset=offset, batch_size=32)
    made.filter_expression.type, made.filter_expression.expression = pb.TAG, tags
    made.long_polling_timeout.seconds = polling_s
    return made


async def send(client: GrpcClient, body: bytes, tag: str = "") -> None:
    made = message("orders", body, f"id-{body.decode()}")
    if tag:
        made.system_properties.tag = tag
    assert (await client("SendMessage", pb.SendMessageRequest(messages=[made]))).status.code == pb.OK


@pytest.fixture(params=BOTH)
async def client(orders: LocalCluster, request: pytest.FixtureRequest) -> AsyncIterator[GrpcClient]:
    async with served(orders, request.param) as address, GrpcClient(address) as made:
        yield made


@pytest.fixture
async def orders(cluster: LocalCluster) -> LocalCluster:
    """Topic orders with one queue, and a client that may send to it."""
    await cluster.create_topic("orders", queues=1)
    return cluster


async def test_a_pull_gives_messages_and_where_to_continue(orders: LocalCluster, client: GrpcClient) -> None:
    for body, tag in ((b"1", "A"), (b"2", "B"), (b"3", "A")):
        await send(client, body, tag)
    first, *found, last = await client.stream("PullMessage", pull(tags="A"))
    assert first.status.code == pb.OK
    assert [each.message.body for each in found] == [b"1", b"3"]
    assert last.next_offset == 3
    system = found[0].message.system_properties
    assert (system.message_id, system.tag, system.queue_offset, system.delivery_attempt) == (
        "id-1",
        "A",
        0,
        1,
    )
    assert (system.body_encoding, system.message_type, system.body_digest.type) == (
        pb.IDENTITY,
        pb.NORMAL,
        pb.MD5,
    )
    assert found[0].message.user_properties == {}


async def test_a_message_of_remoting_is_read_by_grpc(orders: LocalCluster, client: GrpcClient) -> None:
    """Compressed, with keys and properties, as clients of remoting send it."""
    config = ProducerConfig(compression=Compression.ZSTD, compress_over_bytes=10)
    async with orders.producer(config=config) as producer:
        await producer.send(
            Message("orders", b"x" * 1_000, tag="A", keys=("k1", "k2"), properties={"c": "red"})
        )
    _, found, _ = await client.stream("PullMessage", pull())
    system = found.message.system_properties
    assert (found.message.body, list(system.keys), system.tag) == (b"x" * 1_000, ["k1", "k2"], "A")
    assert found.message.user_properties == {"c": "red"}


async def test_a_pull_waits_for_a_message(orders: LocalCluster, client: GrpcClient) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.stream("PullMessage", pull(polling_s=20), timeout=30))
        await until(lambda: orders.broker().pending_pulls.count == 1)
        await send(client, b"1")
    assert [each.message.body for each in waiting.result()[1:-1]] == [b"1"]


async def test_a_pull_that_finds_nothing_says_so(orders: LocalCluster, client: GrpcClient) -> None:
    first, last = await client.stream("PullMessage", pull())
    assert (first.status.code, last.next_offset) == (pb.MESSAGE_NOT_FOUND, 0)
    first, last = await client.stream("PullMessage", pull(offset=100))
    assert (first.status.code, last.next_offset) == (pb.ILLEGAL_OFFSET, 0)


@pytest.mark.parametrize(
    "client", ["broker"], indirect=True
)  # through a proxy the broker holds it on, for at most 20 s
async def test_a_cancelled_pull_is_not_held_on(orders: LocalCluster, client: GrpcClient) -> None:
    waiting = asyncio.create_task(client.stream("PullMessage", pull(polling_s=20), timeout=30))
    await until(lambda: orders.broker().pending_pulls.count == 1)
    waiting.cancel()
    await until(lambda: orders.broker().pending_pulls.count == 0)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_offsets_are_stored_for_either_protocol(orders: LocalCluster, client: GrpcClient) -> None:
    for body in (b"1", b"2"):
        await send(client, body)
    get = pb.GetOffsetRequest(group=GROUP, message_queue=queue())
    assert (await client("GetOffset", get)).status.code == pb.OFFSET_NOT_FOUND
    async with orders.admin() as admin:
        await admin.create_group("readers")
    update = pb.UpdateOffsetRequest(group=GROUP, message_queue=queue(), offset=1)
    assert (await client("UpdateOffset", update)).status.code == pb.OK
    found = await client("GetOffset", get)
    assert (found.status.code, found.offset) == (pb.OK, 1)
    assert orders.broker().offsets.query("readers", "orders", 0) == 1
    update.offset = -1
    assert (await client("UpdateOffset", update)).status.code == pb.ILLEGAL_OFFSET


@pytest.mark.parametrize(
    ("policy", "seconds", "offset"), [(pb.BEGINNING, None, 0), (pb.END, None, 2), (pb.TIMESTAMP, 0, 0)]
)
async def test_a_queue_is_asked_for_its_offsets(
    orders: LocalCluster, client: GrpcClient, policy: int, seconds: int | None, offset: int
) -> None:
    for body in (b"1", b"2"):
        await send(client, body)
    query = pb.QueryOffsetRequest(message_queue=queue(), query_offset_policy=policy)
    if seconds is not None:
        found = await client("QueryOffset", query)
        assert found.status.code == pb.BAD_REQUEST
        query.timestamp.seconds = seconds
    found = await client("QueryOffset", query)
    assert (found.status.code, found.offset) == (pb.OK, offset)


async def test_a_queue_that_is_not_there_is_refused(orders: LocalCluster, client: GrpcClient) -> None:
    for wanted, code in ((queue(number=1), pb.BAD_REQUEST), (queue("nowhere"), pb.TOPIC_NOT_FOUND)):
        found = await client("QueryOffset", pb.QueryOffsetRequest(message_queue=wanted))
        assert found.status.code == code
