"""Small requests whose answers, or whose contents, would take much memory."""

from __future__ import annotations

import gzip

import pytest

from aerobee.grpc.proto import messages as pb
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient, message

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
    unknown = b"\xfa\x07\x80\x80\x40" + bytes(MIB)  # field 127, which no message has
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
