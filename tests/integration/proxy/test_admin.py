"""The Admin service of a proxy: off without access control, wherever the peer is; topics of the cluster and clients of the proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from aerobee.access.config import AccessConfig
from aerobee.broker.grpc.admin_rpcs import ADMIN_SERVICE
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.config import ProxyConfig
from aerobee.proxy.server import ProxyServer
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient, message
from tests.integration.proxy.test_access import Closed, as_user, closed

__all__ = ["closed"]
ORDERS, WORKERS = pb.Resource(name="orders"), pb.Resource(name="workers")


async def admin(client: GrpcClient, name: str, request: Any) -> Any:
    call = client.channel.unary_unary(
        f"/{ADMIN_SERVICE}/{name}",
        request_serializer=lambda each: each.SerializeToString(),
        response_deserializer=getattr(pb, f"{name}Response").FromString,
    )
    return await call(request, metadata=client._metadata(), timeout=60)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(brokers=2) as started:
        await started.create_topic("orders", queues=2, attributes="+message.type=NORMAL")
        yield started


async def start(cluster: LocalCluster, *, admin_open: bool) -> ProxyServer:
    config = ProxyConfig(nameservers=cluster.nameserver_address, host="127.0.0.1", port=0)
    proxy = ProxyServer(config, access=AccessConfig(admin_open=admin_open))
    await proxy.start()
    return proxy


async def test_it_is_off_without_access_control(cluster: LocalCluster) -> None:
    """Also at a loopback address, from which a balancer passes on clients of every address."""
    proxy = await start(cluster, admin_open=False)
    try:
        async with GrpcClient(proxy.address) as client:
            found = await admin(client, "GetProxyRuntimeStats", pb.GetProxyRuntimeStatsRequest())
            assert found.status.code == pb.UNAUTHORIZED
            changed = await admin(client, "ChangeLogLevel", pb.ChangeLogLevelRequest())
            assert changed.remark.startswith("UNAUTHORIZED")
    finally:
        await proxy.stop()


async def test_users_need_permissions_on_the_cluster(closed: Closed) -> None:
    requests = {
        "GetProxyRuntimeStats": pb.GetProxyRuntimeStatsRequest(),
        "DescribeTopicStatus": pb.DescribeTopicStatusRequest(topic=ORDERS),
        "GetTopicRoute": pb.GetTopicRouteRequest(topic=ORDERS),
        "ListConsumerConnection": pb.ListConsumerConnectionRequest(group=WORKERS),
        "PrintThreadStackTrace": pb.PrintThreadStackTraceRequest(group=WORKERS),
        "ResetGroupOffset": pb.ResetGroupOffsetRequest(group=WORKERS, topic=ORDERS),
    }
    async with as_user(closed, "reader") as reader, as_user(closed, "owner", "client-2") as owner:
        for name, request in requests.items():
            assert (await admin(reader, name, request)).status.code == pb.UNAUTHORIZED, name
        for name in ("GetProxyRuntimeStats", "DescribeTopicStatus", "GetTopicRoute"):
            assert (await admin(owner, name, requests[name])).status.code == pb.OK, name


async def test_topics_and_clients_are_shown(cluster: LocalCluster) -> None:
    proxy = await start(cluster, admin_open=True)
    try:
        async with GrpcClient(proxy.address, "host@1") as client:
            stream = client.telemetry()
            settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
            settings.subscription.group.name = "workers"
            settings.subscription.subscriptions.add().topic.name = "orders"
            await stream.write(pb.TelemetryCommand(settings=settings))
            assert (await stream.read()).HasField("settings")
            stats = await admin(client, "GetProxyRuntimeStats", pb.GetProxyRuntimeStatsRequest())
            assert (stats.connections, stats.producers, stats.consumers) == (1, 0, 1)
            found = await admin(client, "DescribeTopicStatus", pb.DescribeTopicStatusRequest(topic=ORDERS))
            assert found.topic_message_type == pb.NORMAL
            route = await admin(client, "GetTopicRoute", pb.GetTopicRouteRequest(topic=ORDERS))
            assert len(json.loads(route.topic_route_data)["brokerDatas"]) == 2
            listed = await admin(
                client,
                "ListConsumerConnection",
                pb.ListConsumerConnectionRequest(group=WORKERS, topic=ORDERS),
            )
            assert [(each.client_id, each.hostname) for each in listed.clients] == [("host@1", "host")]
            asked = pb.PrintThreadStackTraceRequest(group=WORKERS, client_id="host@1")
            printing = asyncio.create_task(admin(client, "PrintThreadStackTrace", asked))
            command = (await stream.read()).print_thread_stack_trace_command
            trace = pb.ThreadStackTrace(nonce=command.nonce, thread_stack_trace="main: waits")
            await stream.write(pb.TelemetryCommand(thread_stack_trace=trace))
            assert (await printing).thread_stack_trace == "main: waits"
            asked.client_id = "other"
            assert (await admin(client, "PrintThreadStackTrace", asked)).status.code == pb.NOT_FOUND
            stream.cancel()
            with pytest.raises(grpc.aio.AioRpcError):
                await admin(client, "QueryTimeSpan", pb.QueryTimeSpanRequest(group=WORKERS))
    finally:
        await proxy.stop()


async def test_a_group_is_reset_at_every_broker(cluster: LocalCluster) -> None:
    proxy = await start(cluster, admin_open=True)
    try:
        async with GrpcClient(proxy.address) as client:
            sent = [message("orders", b"%d" % number, f"M{number}") for number in range(8)]
            await client("SendMessage", pb.SendMessageRequest(messages=sent))
            for index in range(2):
                cluster.broker(index).groups.put(SubscriptionGroupConfig("workers"))
                cluster.broker(index).offsets.commit("workers", "orders", 0, 2)
            request = pb.ResetGroupOffsetRequest(group=WORKERS, topic=ORDERS)
            assert (await admin(client, "ResetGroupOffset", request)).status.code == pb.BAD_REQUEST
            request.reset_timestamp.seconds = 0
            assert (await admin(client, "ResetGroupOffset", request)).status.code == pb.OK
            assert [cluster.broker(i).offsets.query("workers", "orders", 0) for i in range(2)] == [0, 0]
    finally:
        await proxy.stop()
