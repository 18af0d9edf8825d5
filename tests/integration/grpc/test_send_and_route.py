"""QueryRoute and SendMessage, asked by grpcio at a broker's ordinary port."""

from __future__ import annotations

import gzip
from typing import Any

import grpc
import pytest

from aerobee.broker.grpc.endpoint import NOT_SERVED
from aerobee.grpc.proto import messages as pb
from aerobee.grpc.proto.messages import DESCRIPTOR
from aerobee.message import Record, decode_record
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import SERVICE, GrpcClient, message


def stored_record(cluster: LocalCluster, topic: str, queue_id: int = 0, offset: int = 0) -> Record:
    """A message of the broker's store."""
    found = cluster.broker().store.get_messages(topic, queue_id, offset, count_max=1)
    return decode_record(found.body)


async def test_a_route_names_the_endpoint_that_was_asked(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("orders", queues=3)
    found = await client(
        "QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders"), endpoints=client.endpoints())
    )
    assert found.status.code == pb.OK
    assert [queue.id for queue in found.message_queues] == [0, 1, 2]
    queue = found.message_queues[0]
    assert queue.permission == pb.READ_WRITE
    assert list(queue.accept_message_types) == [pb.NORMAL]
    assert queue.broker.endpoints == client.endpoints()
    assert queue.broker.name == cluster.broker().identity.name


async def test_a_sent_message_is_stored_as_remoting_stores_it(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    await cluster.create_topic("orders", queues=1)
    sent = message("orders")
    sent.user_properties["colour"] = "red"
    sent.system_properties.tag = "A"
    sent.system_properties.keys.append("k1")
    answer = await client("SendMessage", pb.SendMessageRequest(messages=[sent]))
    assert answer.status.code == pb.OK
    (entry,) = answer.entries
    assert (entry.status.code, entry.message_id, entry.offset) == (
        pb.OK,
        sent.system_properties.message_id,
        0,
    )
    record = stored_record(cluster, "orders")
    assert record.body == b"hello"
    assert (record.tag, record.keys, record.properties["colour"]) == ("A", ("k1",), "red")


async def test_an_unserved_rpc_is_unimplemented(client: GrpcClient) -> None:
    metadata = tuple((name.replace("_", "-"), value) for name, value in client.metadata.items())
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client.channel.unary_unary(SERVICE + "QueryTopics")(b"", metadata=metadata, timeout=60)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.value.details() == "Method apache.rocketmq.v2.MessagingService/QueryTopics is unimplemented"


async def test_a_call_without_a_client_id_is_refused(client: GrpcClient) -> None:
    client.metadata["x-mq-client-id"] = " "
    found = await client("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders")))
    assert (found.status.code, found.status.message) == (pb.CLIENT_ID_REQUIRED, "client id cannot be empty")


async def test_the_endpoint_serves_what_the_page_says(cluster: LocalCluster, client: GrpcClient) -> None:
    await client("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders")))
    broker = cluster.broker()
    (connection,) = (each for each in broker.connections if each._other is not None)
    served = set(connection._other._rpcs)  # type: ignore[union-attr]
    methods = {
        f"/{service.full_name}/{method.name}"
        for service in DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.name not in NOT_SERVED
    }
    assert served == methods


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"body": b""}, pb.MESSAGE_BODY_EMPTY, "message body cannot be empty"),
        ({"body": bytes(4_194_305)}, pb.MESSAGE_BODY_TOO_LARGE, "message body cannot exceed the max 4194304"),
        ({"message_id": " "}, pb.ILLEGAL_MESSAGE_ID, "message id cannot be empty"),
        ({"tag": "a|b"}, pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'"),
        ({"keys": [" "]}, pb.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace"),
        ({"properties": {"KEYS": "a"}}, pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "property is used by system: KEYS"),
        (
            {"properties": {"a": "\x01"}},
            pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
            "the value of property cannot contain control character",
        ),
        (
            {"properties": {str(number): "" for number in range(129)}},
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            "too many user properties, max is 128",
        ),
        (
            {"properties": {"a": "b" * 16_384}},
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            "the total size of user property is too large, max is 16384",
        ),
        ({"message_group": "g" * 64}, pb.ILLEGAL_MESSAGE_GROUP, "message group exceed the max size 64"),
        (
            {"message_group": "g"},
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "TopicMessageType validate failed, the expected type is NORMAL, but actual type is FIFO",
        ),
        (
            {"topic": "nowhere"},
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "TopicMessageType validate failed, the expected type is UNSPECIFIED, but actual type is NORMAL",
        ),
        ({"topic": "TBW102"}, pb.ILLEGAL_TOPIC, "cannot access system topic"),
        ({"topic": " "}, pb.ILLEGAL_TOPIC, "The specified topic is blank"),
        ({"priority": -1}, pb.INTERNAL_SERVER_ERROR, "The priority must be greater than or equal to 0."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_message_that_cannot_be_sent_is_refused(
    cluster: LocalCluster, client: GrpcClient, change: dict[str, Any], code: int, text: str
) -> None:
    await cluster.create_topic("orders", queues=1)
    sent = message("orders")
    for name, value in change.items():
        if name == "topic":
            sent.topic.name = value
        elif name == "body":
            sent.body = value
        elif name == "properties":
            sent.user_properties.update(value)
        elif name == "keys":
            sent.system_properties.keys.extend(value)
        else:
            setattr(sent.system_properties, name, value)
    answer = await client("SendMessage", pb.SendMessageRequest(messages=[sent]))
    assert (answer.status.code, answer.status.message) == (code, text)
    assert cluster.broker().store.max_offset("orders", 0) == 0


async def test_a_batch_has_one_entry_for_each_message(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("orders", queues=1)
    batch = [message("orders", b"%d" % number, f"id-{number}") for number in range(3)]
    answer = await client("SendMessage", pb.SendMessageRequest(messages=batch))
    assert answer.status.code == pb.OK
    assert [(entry.message_id, entry.offset) for entry in answer.entries] == [
        ("id-0", 0),
        ("id-1", 1),
        ("id-2", 2),
    ]
    batch[1].topic.name = "others"
    answer = await client("SendMessage", pb.SendMessageRequest(messages=batch))
    assert (answer.status.code, answer.status.message) == (
        pb.MESSAGE_CORRUPTED,
        "topic in message is not same",
    )


async def test_a_message_group_keeps_its_queue(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("in-order", queues=8, attributes="+message.type=FIFO")
    sent = message("in-order")
    sent.system_properties.message_group = "g1"
    for offset in range(3):
        answer = await client("SendMessage", pb.SendMessageRequest(messages=[sent]))
        assert answer.entries[0].offset == offset
    assert cluster.broker().store.max_offset("in-order", 6) == 3


async def test_priorities_choose_the_queue(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("urgent", queues=4, attributes="+message.type=PRIORITY")
    for priority in (99, 2):
        sent = message("urgent")
        sent.system_properties.priority = priority
        assert (await client("SendMessage", pb.SendMessageRequest(messages=[sent]))).status.code == pb.OK
    assert [cluster.broker().store.max_offset("urgent", queue) for queue in range(4)] == [0, 0, 1, 1]


async def test_a_gzip_body_is_stored_for_every_consumer(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("orders", queues=1)
    sent = message("orders", gzip.compress(b"hello"))
    sent.system_properties.body_encoding = pb.GZIP
    assert (await client("SendMessage", pb.SendMessageRequest(messages=[sent]))).status.code == pb.OK
    assert stored_record(cluster, "orders").body == b"hello"
    sent.body = b"no gzip"
    answer = await client("SendMessage", pb.SendMessageRequest(messages=[sent]))
    assert answer.status.code == pb.MESSAGE_CORRUPTED


async def test_an_assignment_is_one_queue_or_all_in_order(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("orders", queues=3)
    request = pb.QueryAssignmentRequest(
        topic=pb.Resource(name="orders"), group=pb.Resource(name="readers"), endpoints=client.endpoints()
    )
    found = await client("QueryAssignment", request)
    assert [each.message_queue.id for each in found.assignments] == [-1]
    async with cluster.admin() as admin:
        await admin.create_group("readers", orderly=True)
    found = await client("QueryAssignment", request)
    assert [each.message_queue.id for each in found.assignments] == [0, 1, 2]


async def test_an_endpoint_of_several_is_the_one_that_was_reached(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    await cluster.create_topic("orders", queues=1)
    (own,) = client.endpoints().addresses
    asked = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="10.0.0.9", port=1), own])
    found = await client(
        "QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders"), endpoints=asked)
    )
    assert list(found.message_queues[0].broker.endpoints.addresses) == [own]
    found = await client("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders")))
    endpoints = found.message_queues[0].broker.endpoints
    assert (endpoints.scheme, list(endpoints.addresses)) == (pb.IPv4, [own])


async def test_a_broker_that_stops_answers_what_it_serves_and_says_goodbye(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    await cluster.create_topic("orders", queues=1)
    stream = client.telemetry()
    assert await stream.initial_metadata() is not None
    await cluster.stop_broker()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
