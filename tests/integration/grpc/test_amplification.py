"""Small requests whose answers, or whose contents, would take much memory."""

from __future__ import annotations

import asyncio
import gzip

import grpc
import pytest

from aerobee.grpc.proto import messages as pb
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import SERVICE, GrpcClient, message

MIB = 1024 * 1024


async def test_the_bodies_of_a_request_are_bounded_together_when_they_inflate(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    """A thousand bodies of 4 KiB that inflate to 4 MiB each were 4 GiB for a request of 4 MiB."""
    await cluster.create_topic("orders", queues=1)
    sent = []
    for number in range(5):
        each = message("orders", gzip.compress(bytes(4 * MIB)), message_id=f"M{number}")
        each.system_properties.body_encoding = pb.GZIP
        sent.append(each)
    answer = await client("SendMessage", pb.SendMessageRequest(messages=sent))
    assert answer.status.code == pb.MESSAGE_BODY_TOO_LARGE
    assert "16777216 bytes inflated" in answer.status.message
    assert cluster.broker().store.max_offset("orders", 0) == 0
    answer = await client("SendMessage", pb.SendMessageRequest(messages=sent[:4]))
    assert (answer.status.code, len(answer.entries)) == (pb.OK, 4)


@pytest.mark.parametrize("name", ["QueryRoute", "QueryAssignment"])
async def test_an_answer_repeats_bounded_names_for_each_queue(
    cluster: LocalCluster, client: GrpcClient, name: str
) -> None:
    await cluster.create_topic("orders", queues=16)
    unknown = b"\xfa\x07\x80\x80\x04" + bytes(65_536)  # field 127, which no message has
    topic = pb.Resource.FromString(unknown + pb.Resource(name="orders").SerializeToString())
    address = pb.Address.FromString(unknown + pb.Address(host="127.0.0.1", port=8081).SerializeToString())
    request = getattr(pb, f"{name}Request")(
        topic=topic, endpoints=pb.Endpoints(scheme=pb.IPv4, addresses=[address])
    )
    if name == "QueryAssignment":
        request.group.name = "readers"
    answer = await client(name, request)
    assert answer.status.code == pb.OK
    assert answer.ByteSize() < 4_096
    request.topic.resource_namespace = "n" * 256
    assert (await client(name, request)).status.code == pb.ILLEGAL_TOPIC
    request.topic.resource_namespace = "n" * 255
    request.endpoints.addresses[0].host = "h" * 256
    assert (await client(name, request)).status.code == pb.ILLEGAL_ACCESS_POINT


async def test_requests_that_wait_for_their_end_are_bounded_together(client: GrpcClient) -> None:
    """16 KB by gzip are 16 MiB, 10,000 calls may be open on a connection, and nothing ended them."""
    held = bytes(15 * MIB)
    calls = [
        client.channel.stream_unary(SERVICE + "SendMessage")(
            metadata=client._metadata(), compression=grpc.Compression.Gzip, timeout=60.0
        )
        for _ in range(3)
    ]
    for call in calls:
        await call.write(held)
    done, _ = await asyncio.wait(
        [asyncio.ensure_future(call.code()) for call in calls], return_when=asyncio.FIRST_COMPLETED
    )
    assert [each.result() for each in done] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
    for call in calls:
        call.cancel()


async def test_a_request_has_the_bound_of_its_rpc(client: GrpcClient) -> None:
    request = pb.QueryRouteRequest(topic=pb.Resource(name="t", resource_namespace="n" * 3 * MIB))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client("QueryRoute", request)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_attempt_id_is_bounded(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("orders", queues=1)
    request = pb.ReceiveMessageRequest(attempt_id="a" * 256)
    request.group.name, request.message_queue.topic.name = "readers", "orders"
    request.invisible_duration.seconds = 30
    (answer,) = await client.stream("ReceiveMessage", request)
    assert answer.status.code == pb.BAD_REQUEST


@pytest.mark.parametrize(
    "data", [b"\x0a\x00" * 40_000, b"\x0a\x83\xe2\x09\x1a\xff\xe1\x09" + b"\x12\x01k" * 53_333]
)
async def test_fields_are_counted_before_a_send_is_parsed(client: GrpcClient, data: bytes) -> None:
    """8 million messages of no bytes were 16 KB by gzip, 650 MB of objects, and 0.4 s of the event loop."""
    call = client.channel.unary_unary(SERVICE + "SendMessage")
    with pytest.raises(grpc.aio.AioRpcError, match="more than 20000 fields") as refused:
        await call(data, metadata=client._metadata(), timeout=60.0)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_settings_of_a_client_are_bounded(client: GrpcClient) -> None:
    """1.7 MB of topics with filters blocked the event loop for 0.2 s."""
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.name = "readers"
    for number in range(20):
        entry = settings.subscription.subscriptions.add()
        entry.topic.name = f"orders-{number}"
        entry.expression.expression = "a" * 14_000
    stream = client.telemetry()
    await stream.write(pb.TelemetryCommand(settings=settings))
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 262144 are allowed" in await stream.details()
