"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue, asked by grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from aerobee.grpc.proto import messages as pb
from aerobee.message import Message
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient
from tests.waiting import wait_until

TOPIC, GROUP = pb.Resource(name="orders"), pb.Resource(name="workers")


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(broker_config={"enable_property_filter": True}) as started:
        await started.create_topic("orders", queues=1)
        yield started


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[GrpcClient]:
    async with GrpcClient(cluster.broker().address) as made:
        yield made


async def send(cluster: LocalCluster, *bodies: bytes, tag: str | None = None, **properties: str) -> None:
    async with cluster.producer() as producer:
        for body in bodies:
            await producer.send(Message("orders", body, tag=tag, properties=properties))


def receive_request(
    *,
    invisible_s: int = 60,
    poll_s: int = 0,
    count: int = 32,
    expression: str = "*",
    kind: Any = pb.TAG,
    attempt: str = "",
    auto_renew: bool = False,
) -> Any:
    request = pb.ReceiveMessageRequest(
        group=GROUP,
        message_queue=pb.MessageQueue(topic=TOPIC, id=0),
        filter_expression=pb.FilterExpression(type=kind, expression=expression),
        batch_size=count,
        auto_renew=auto_renew,
    )
    request.invisible_duration.seconds = invisible_s
    request.long_polling_timeout.seconds = poll_s
    if attempt:
        request.attempt_id = attempt
    return request


async def receive(client: GrpcClient, timeout: float = 10.0, **how: Any) -> tuple[Any, list[Any]]:
    """(status, messages) of one call, whose frames come in the order that clients expect."""
    frames = await client.stream("ReceiveMessage", receive_request(**how), timeout=timeout)
    kinds = [frame.WhichOneof("content") for frame in frames]
    assert kinds == ["status", *["message"] * (len(frames) - 2), "delivery_timestamp"]
    return frames[0].status, [frame.message for frame in frames[1:-1]]


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


async def receive_until(client: GrpcClient, number: int, **how: Any) -> list[Any]:
    """That many messages, of as many calls as it takes."""
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < number:
            found += (await receive(client, timeout=30, poll_s=5, **how))[1]
    return found


async def ack(client: GrpcClient, *messages: Any) -> Any:
    entries = [
        pb.AckMessageEntry(
            message_id=message.system_properties.message_id,
            receipt_handle=message.system_properties.receipt_handle,
        )
        for message in messages
    ]
    return await client("AckMessage", pb.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries))


async def change(client: GrpcClient, handle: str, seconds: int, *, suspend: bool = False) -> Any:
    request = pb.ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle, message_id="m", suspend=suspend
    )
    request.invisible_duration.seconds = seconds
    return await client("ChangeInvisibleDuration", request)


async def forward(client: GrpcClient, message: Any) -> Any:
    return await client(
        "ForwardMessageToDeadLetterQueue",
        pb.ForwardMessageToDeadLetterQueueRequest(
            group=GROUP,
            topic=TOPIC,
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            delivery_attempt=message.system_properties.delivery_attempt,
        ),
    )


async def test_a_dead_letter_that_is_stored_is_answered_ok(cluster: LocalCluster, client: GrpcClient) -> None:
    """A client repeats a refused call every second for ever: each time stored another dead letter."""
    await send(cluster, b"poison")
    _, messages = await receive(client)
    await cluster.advance_clock(120)
    assert (await forward(client, messages[0])).status.code == pb.OK
    assert cluster.broker().store.max_offset(f"%DLQ%{GROUP.name}", 0) == 1


def in_flight(cluster: LocalCluster) -> int:
    return cluster.broker().services.pops._engine.in_flight.message_count


async def test_messages_of_remoting_are_received_and_acknowledged(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    await send(cluster, b"1", b"2", tag="A", colour="red")
    status, messages = await receive(client)
    assert (status.code, bodies(messages)) == (pb.OK, [b"1", b"2"])
    system = messages[0].system_properties
    assert (system.tag, system.delivery_attempt, system.queue_offset) == ("A", 1, 0)
    assert len(system.receipt_handle.split(" ")) == 9
    assert dict(messages[0].user_properties) == {"colour": "red"}
    answer = await ack(client, *messages)
    assert (answer.status.code, [each.status.code for each in answer.entries]) == (pb.OK, [pb.OK] * 2)
    assert in_flight(cluster) == 0
    status, messages = await receive(client)
    assert (status.code, status.message, messages) == (pb.MESSAGE_NOT_FOUND, "no new message", [])


async def test_a_call_waits_for_a_message_and_ends_with_it(cluster: LocalCluster, client: GrpcClient) -> None:
    await receive(client)  # the group begins
    waiting = asyncio.create_task(receive(client, poll_s=15, timeout=20))
    await wait_until(lambda: bool(cluster.broker().services.pops._waiting.count))
    await send(cluster, b"late")
    status, messages = await waiting
    assert (status.code, bodies(messages)) == (pb.OK, [b"late"])


async def test_a_wait_that_ends_says_so_before_the_deadline(client: GrpcClient) -> None:
    status, messages = await receive(client, poll_s=15, timeout=2)
    assert (status.code, messages) == (pb.MESSAGE_NOT_FOUND, [])


async def test_a_client_that_leaves_waits_no_longer(cluster: LocalCluster, client: GrpcClient) -> None:
    await receive(client)
    waiting = asyncio.create_task(receive(client, poll_s=15, timeout=20))
    pops = cluster.broker().services.pops
    await wait_until(lambda: bool(pops._waiting.count))
    waiting.cancel()
    await wait_until(lambda: not pops._waiting.count)
    await send(cluster, b"1")
    assert bodies(await receive_until(client, 1)) == [b"1"]


async def test_a_changed_message_has_a_new_handle(cluster: LocalCluster, client: GrpcClient) -> None:
    await send(cluster, b"1")
    _, (message,) = await receive(client)
    handle = message.system_properties.receipt_handle
    changed = await change(client, handle, 30)
    assert changed.status.code == pb.OK
    assert changed.receipt_handle not in ("", handle)
    assert len(changed.receipt_handle.split(" ")) == 9
    again = await change(client, handle, 30)
    assert (again.status.code, again.receipt_handle) == (pb.INVALID_RECEIPT_HANDLE, handle)
    message.system_properties.receipt_handle = changed.receipt_handle
    assert (await ack(client, message)).status.code == pb.OK


@pytest.mark.parametrize(("suspend", "attempt"), [(True, 1), (False, 2)])
async def test_a_suspended_message_comes_back_with_the_same_attempt(
    cluster: LocalCluster, client: GrpcClient, suspend: bool, attempt: int
) -> None:
    await send(cluster, b"1")
    _, (message,) = await receive(client)
    assert (
        await change(client, message.system_properties.receipt_handle, 0, suspend=suspend)
    ).status.code == pb.OK
    (message,) = await receive_until(client, 1)
    system = message.system_properties
    assert (message.body, message.topic.name, system.delivery_attempt) == (b"1", "orders", attempt)
    assert (await ack(client, message)).status.code == pb.OK
    assert in_flight(cluster) == 0


async def test_filters_of_a_call_choose_its_messages(cluster: LocalCluster, client: GrpcClient) -> None:
    await send(cluster, b"a", tag="A", price="7")
    await send(cluster, b"b", tag="B", price="3")
    assert bodies((await receive(client, expression="B || C"))[1]) == [b"b"]
    await send(cluster, b"cheap", tag="A", price="1")
    await send(cluster, b"dear", tag="A", price="9")
    _, messages = await receive(client, expression="price > 5", kind=pb.SQL)
    assert bodies(messages) == [b"dear"]


async def test_a_tag_with_the_same_hash_is_not_delivered(cluster: LocalCluster, client: GrpcClient) -> None:
    await send(cluster, b"Aa", tag="Aa")
    await send(cluster, b"BB", tag="BB")  # the same hash in Java
    _, messages = await receive(client, expression="BB")
    assert bodies(messages) == [b"BB"]
    assert in_flight(cluster) == 1


async def test_a_block_in_order_comes_again_to_its_attempt(cluster: LocalCluster, client: GrpcClient) -> None:
    cluster.broker().groups.put(SubscriptionGroupConfig("workers", consume_message_orderly=True))
    await send(cluster, b"1", b"2", b"3")
    _, first = await receive(client, count=2, attempt="a")
    _, again = await receive(client, count=2, attempt="a")
    assert bodies(first) == bodies(again) == [b"1", b"2"]
    assert [message.system_properties.delivery_attempt for message in again] == [1, 1]
    status, _ = await receive(client, count=2, attempt="b")
    assert status.code == pb.MESSAGE_NOT_FOUND
    for message in again:
        assert (await change(client, message.system_properties.receipt_handle, 0)).status.code == pb.OK
    messages = await receive_until(client, 2, count=2, attempt="c")
    assert [(each.body, each.system_properties.delivery_attempt) for each in messages] == [
        (b"1", 2),
        (b"2", 2),
    ]
    assert (await ack(client, *messages)).status.code == pb.OK
    assert bodies(await receive_until(client, 1, attempt="d")) == [b"3"]


async def test_a_forwarded_message_is_a_dead_letter(cluster: LocalCluster, client: GrpcClient) -> None:
    await send(cluster, b"1")
    _, (message,) = await receive(client)
    assert (await forward(client, message)).status.code == pb.OK
    await asyncio.sleep(0)
    assert cluster.broker().store.max_offset("%DLQ%workers", 0) == 1
    assert in_flight(cluster) == 0


async def test_a_message_of_too_many_tries_becomes_a_dead_letter(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    cluster.broker().groups.put(SubscriptionGroupConfig("workers", retry_max_times=0))
    await send(cluster, b"1")
    _, (message,) = await receive(client)
    assert (await change(client, message.system_properties.receipt_handle, 0)).status.code == pb.OK
    async with asyncio.timeout(60):
        while not cluster.broker().store.max_offset("%DLQ%workers", 0):
            status, _ = await receive(client, poll_s=1)
            assert status.code == pb.MESSAGE_NOT_FOUND
    await wait_until(lambda: not in_flight(cluster))


@pytest.mark.parametrize(
    ("handle", "text"),
    [
        ("garbage", "is not a receipt handle"),
        ("", "is not a receipt handle"),
        ("0 1 60000 0 0 broker-z 0 0 0", "is of broker broker-z"),
        ("0 1 60000 0 0 broker-a 0 0 0", "receipt handle is expired"),
        ("x" * 2_000, "has 2000 characters"),
    ],
)
async def test_an_invalid_handle_ends_a_clients_repetitions(
    client: GrpcClient, handle: str, text: str
) -> None:
    message = pb.Message()
    message.system_properties.receipt_handle = handle
    for status in ((await ack(client, message)).status, (await change(client, handle, 10)).status):
        assert status.code == pb.INVALID_RECEIPT_HANDLE
        assert text in status.message


async def test_entries_that_differ_have_a_status_each(cluster: LocalCluster, client: GrpcClient) -> None:
    await send(cluster, b"1")
    _, (message,) = await receive(client)
    wrong = pb.Message()
    answer = await ack(client, message, wrong)
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert [each.status.code for each in answer.entries] == [pb.OK, pb.INVALID_RECEIPT_HANDLE]


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ({"invisible_s": 9}, pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 10000"),
        (
            {"invisible_s": 43_201},
            pb.ILLEGAL_INVISIBLE_TIME,
            "the invisibleTime is too large. max is 43200000",
        ),
        ({"kind": pb.SQL, "expression": " "}, pb.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty"),
        ({"kind": pb.SQL, "expression": "a >"}, pb.ILLEGAL_FILTER_EXPRESSION, ""),
    ],
)
async def test_an_impossible_call_is_refused(
    client: GrpcClient, how: dict[str, Any], code: Any, text: str
) -> None:
    frames = await client.stream("ReceiveMessage", receive_request(**how))
    assert frames[0].status.code == code
    assert text in frames[0].status.message


async def test_an_unknown_topic_is_refused(client: GrpcClient) -> None:
    request = receive_request()
    request.message_queue.topic.name = "nowhere"
    frames = await client.stream("ReceiveMessage", request)
    assert frames[0].status.code == pb.TOPIC_NOT_FOUND


async def test_a_message_that_would_be_renewed_can_be_put_off(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    await send(cluster, b"1")
    _, (message,) = await receive(client, auto_renew=True)
    assert in_flight(cluster) == 1
    changed = await change(client, message.system_properties.receipt_handle, 20)
    assert changed.status.code == pb.OK
    message.system_properties.receipt_handle = changed.receipt_handle
    assert (await ack(client, message)).status.code == pb.OK
    assert in_flight(cluster) == 0


async def test_a_deadline_ends_a_call_by_its_status(client: GrpcClient) -> None:
    """Of a call that nothing else ends: a ReceiveMessage answers before its deadline."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client.telemetry(timeout=0.05).read()
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
