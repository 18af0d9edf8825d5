"""QueryRoute and SendMessage, asked by grpcio at a broker's ordinary port."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from aerobee.grpc.proto import messages as pb
from aerobee.message import Record, decode_record
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient, message


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as started:
        yield started


def stored_record(cluster: LocalCluster, topic: str, queue_id: int = 0, offset: int = 0) -> Record:
    """A message of the broker's store."""
    found = cluster.broker().store.get_messages(topic, queue_id, offset, count_max=1)
    return decode_record(found.body)


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[GrpcClient]:
    async with GrpcClient(cluster.broker().address) as made:
        yield made


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
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client("SyncLiteSubscription", pb.SyncLiteSubscriptionRequest())
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.value.details() == (
        "Method apache.rocketmq.v2.MessagingService/SyncLiteSubscription is unimplemented"
    )


async def test_a_call_without_a_client_id_is_refused(client: GrpcClient) -> None:
    client.metadata["x-mq-client-id"] = " "
    found = await client("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders")))
    assert (found.status.code, found.status.message) == (pb.CLIENT_ID_REQUIRED, "client id cannot be empty")
