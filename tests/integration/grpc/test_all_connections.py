"""Bounds over all gRPC connections of a broker, and the user of a call, who is checked before its request is read."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from aerobee.grpc.frame_scanner import PREFACE
from aerobee.grpc.message_reader import frame_message
from aerobee.grpc.proto import messages as pb
from aerobee.testing import LocalCluster
from tests.integration.access_cluster import Cluster
from tests.integration.grpc.client import SERVICE, GrpcClient, until
from tests.integration.grpc.test_access import closed, signed
from tests.unit.grpc.raw_peer import RawPeer, settings

__all__ = ["closed"]
MIB = 1024 * 1024


async def asks_route(client: GrpcClient) -> int:
    """The code of a small call."""
    answer = await client("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders")))
    return int(answer.status.code)


async def opened(client: GrpcClient, count: int) -> list[Any]:
    """So many open Telemetry streams."""
    streams = []
    for _ in range(count):
        streams.append(client.telemetry())
        await streams[-1].initial_metadata()
    return streams


async def test_the_connection_with_the_most_calls_pays_for_a_new_one() -> None:
    async with LocalCluster(broker_config={"grpcCallsMax": 6}) as cluster:
        await cluster.create_topic("orders", queues=1)
        address = cluster.broker().address
        async with GrpcClient(address) as greedy, GrpcClient(address, "client-2") as modest:
            streams = await opened(greedy, 6)
            (kept,) = await opened(modest, 1)
            assert await streams[5].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "grpcCallsMax" in await streams[5].details()
            assert await asks_route(modest) == pb.OK
            assert await streams[4].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await opened(greedy, 1)  # one was free, since the route was answered
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asks_route(greedy)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not kept.done()
            traffic = cluster.broker().ports.grpc_traffic
            assert (traffic.connection_count, traffic.call_count) == (2, 6)
            assert traffic.refused["grpcCallsMax"] >= 3
            assert cluster.broker().bounds.reached_count >= 3
        await until(lambda: traffic.call_count == 0)


async def test_a_call_with_much_metadata_counts_as_several() -> None:
    """16 KiB of headers for each of 100,000 calls took more than a gigabyte."""
    async with LocalCluster(broker_config={"grpcCallsMax": 20}) as cluster:
        await cluster.create_topic("orders", queues=1)
        address = cluster.broker().address
        much = {f"x-{number}": "v" * 1_900 for number in range(4)}  # 8 KiB: as five calls
        async with GrpcClient(address, **much) as greedy, GrpcClient(address, "client-2") as modest:
            streams = await opened(greedy, 4)
            (kept,) = await opened(modest, 1)
            assert await streams[3].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            details = await streams[3].details()
            assert "count as 20 and a further one as 1, at most 20 are allowed (grpcCallsMax)" in details
            assert await asks_route(modest) == pb.OK
            assert not kept.done()
            assert not any(stream.done() for stream in streams[:3])
            await opened(modest, 4)  # three calls that count as five, and five that count as one
        traffic = cluster.broker().ports.grpc_traffic
        await until(lambda: traffic.call_count == 0)
        async with GrpcClient(address, "client-3") as other:
            await opened(other, 20)  # what the calls counted was given back


async def test_several_calls_end_for_one_with_much_metadata() -> None:
    async with LocalCluster(broker_config={"grpcCallsMax": 20}) as cluster:
        address = cluster.broker().address
        much = {f"x-{number}": "v" * 1_900 for number in range(4)}
        async with GrpcClient(address) as greedy, GrpcClient(address, "client-2", **much) as other:
            streams = await opened(greedy, 20)
            await opened(other, 1)
            assert [stream.done() for stream in streams[:15]] == [False] * 15
            for stream in streams[15:]:
                assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_whose_responses_are_not_taken_give_way_to_others() -> None:
    """They ended when their client opened a window, so that a client without one kept all others from opening calls."""
    async with LocalCluster(broker_config={"grpcCallsMax": 6}) as cluster:
        await cluster.create_topic("orders", queues=1)
        address = cluster.broker().address
        host, port = address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        peer = RawPeer(first=b"")
        writer.write(PREFACE + settings(s4=0))
        request = frame_message(pb.QueryRouteRequest(topic=pb.Resource(name="orders")).SerializeToString())
        for number in range(6):
            headers = peer.headers(x_mq_client_id="greedy")
            writer.write(peer.request(headers) + peer.data(request, 2 * number + 1))
        traffic = cluster.broker().ports.grpc_traffic
        await until(lambda: traffic.call_count == 6)
        async with GrpcClient(address, "client-2") as modest:
            assert await asks_route(modest) == pb.OK
            assert traffic.call_count == 5
        assert traffic.calls["QueryRoute", "CANCELLED"] == 1
        writer.close()


async def test_requests_of_all_connections_are_bounded_together() -> None:
    """Each connection may keep 32 MiB, so that a thousand of them were 32 GiB."""
    async with LocalCluster(broker_config={"grpcRequestBytesMax": 4 * MIB}) as cluster:
        await cluster.create_topic("orders", queues=1)
        address = cluster.broker().address
        clients = [GrpcClient(address, f"client-{number}") for number in range(3)]
        calls = []
        for client in clients:
            call = client.channel.stream_unary(SERVICE + "SendMessage")(
                metadata=client._metadata(), timeout=60.0
            )
            await call.write(bytes(2 * MIB))
            calls.append(call)
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(call.code()) for call in calls], return_when=asyncio.FIRST_COMPLETED
        )
        assert {each.result() for each in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        async with GrpcClient(address, "client-4") as other:
            assert await asks_route(other) == pb.OK
        for call in calls:
            call.cancel()
        for client in clients:
            await client.channel.close()
        assert cluster.broker().ports.grpc_traffic.refused["grpcRequestBytesMax"] >= 1


async def test_calls_are_counted_by_rpc_and_status(cluster: LocalCluster, client: GrpcClient) -> None:
    assert await asks_route(client) == pb.TOPIC_NOT_FOUND
    (stream,) = await opened(client, 1)
    stream.cancel()
    traffic = cluster.broker().ports.grpc_traffic
    await until(lambda: traffic.call_count == 0)
    assert traffic.calls == {("QueryRoute", "TOPIC_NOT_FOUND"): 1, ("Telemetry", "CANCELLED"): 1}
    assert traffic.received_bytes > 100
    assert traffic.sent_bytes > 100


async def test_a_closed_connection_is_no_longer_counted(cluster: LocalCluster) -> None:
    traffic = cluster.broker().ports.grpc_traffic
    host, port = cluster.broker().address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(PREFACE)
    await until(lambda: traffic.connection_count == 1)
    writer.close()
    await until(lambda: traffic.connection_count == 0)


async def test_a_call_without_a_user_is_refused_before_its_request(closed: Cluster) -> None:
    """A large request was parsed, and a client without a user could keep 32 MiB of them."""
    async with GrpcClient(closed.broker.address) as client:
        client.metadata |= signed("root", "wrong")
        call = client.channel.stream_unary(SERVICE + "SendMessage")(metadata=client._metadata(), timeout=60.0)
        answer = pb.SendMessageResponse.FromString(await call)  # no byte of a request was sent
        assert answer.status.code == pb.UNAUTHORIZED
        damaged = client.channel.unary_unary(SERVICE + "SendMessage")
        answer = pb.SendMessageResponse.FromString(
            await damaged(b"\xff" * 100, metadata=client._metadata(), timeout=60.0)
        )
        assert answer.status.code == pb.UNAUTHORIZED
