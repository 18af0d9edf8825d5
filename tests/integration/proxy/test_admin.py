"""The Admin service of a proxy: off without access control, wherever the peer is; topics of the cluster and clients of the proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee.access.config import AccessConfig
from aerobee.broker.grpc.admin_rpcs import ADMIN_SERVICE
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.config import ProxyConfig
from aerobee.proxy.server import ProxyServer
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.protocol import LITE_BIND_TOPIC, TYPE_ATTRIBUTE
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient, message
from tests.integration.grpc.test_lite_topics import LMQS, sync
from tests.integration.grpc.test_lite_topics import send as send_lite
from tests.integration.proxy.test_access import Closed, as_user, closed
from tests.waiting import wait_until

__all__ = ["closed"]
METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["Admin"].methods]
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


async def start(cluster: LocalCluster, *, admin_open: bool = True) -> ProxyServer:
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
    reads = {
        "GetProxyRuntimeStats",
        "DescribeTopicStatus",
        "GetTopicRoute",
        "QueryTimeSpan",
        "DescribeGroupAccumulation",
    }
    async with as_user(closed, "reader") as reader, as_user(closed, "owner", "client-2") as owner:
        for name in METHODS:
            refused = await admin(reader, name, needed(name))
            if name == "ChangeLogLevel":
                assert refused.remark.startswith("UNAUTHORIZED: "), refused
            else:
                assert refused.status.code == pb.UNAUTHORIZED, name
        for name in reads:
            assert (await admin(owner, name, needed(name))).status.code == pb.OK, name


def needed(name: str) -> Any:
    """A request with the names without which it is refused before its permission is looked up."""
    request = getattr(pb, "ListMessageRequest" if name == "QueryMessage" else f"{name}Request")()
    for field, value in (("group", WORKERS), ("topic", ORDERS)):
        if field in request.DESCRIPTOR.fields_by_name:
            getattr(request, field).CopyFrom(value)
    return request


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
            running = await admin(client, "ListSubscription", pb.ListSubscriptionRequest(topic=ORDERS))
            (shown,) = running.subscriptions
            assert (shown.group.name, shown.online, shown.expression.expression) == ("workers", True, "*")
            described = await admin(
                client, "DescribeSubscription", pb.DescribeSubscriptionRequest(group=WORKERS)
            )
            (one,) = described.client_subscriptions
            assert (one.client.client_id, one.subscription.topic.name) == ("host@1", "orders")
            delete = pb.DeleteSubscriptionRequest(group=WORKERS, topic=ORDERS)
            assert (await admin(client, "DeleteSubscription", delete)).status.code == pb.PRECONDITION_FAILED
            stream.cancel()
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


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[GrpcClient]:
    """A client of a proxy that serves administrators."""
    proxy = await start(cluster)
    async with GrpcClient(proxy.address, "host@1") as made:
        yield made
    await proxy.stop()


async def send(client: GrpcClient, *bodies: bytes) -> None:
    sent = [message("orders", body, f"ID-{body.decode()}") for body in bodies]
    for each in sent:
        each.system_properties.tag = "even" if int(each.body) % 2 == 0 else "odd"
        each.system_properties.keys.append(f"key-{int(each.body) % 3}")
    await client("SendMessage", pb.SendMessageRequest(messages=sent))


async def query(client: GrpcClient, **fields: Any) -> Any:
    return await admin(client, "QueryMessage", pb.ListMessageRequest(topic=ORDERS, **fields))


def numbers(answer: Any) -> list[int]:
    return sorted(int(each.body) for each in answer.messages)


async def test_messages_of_every_broker_are_found(client: GrpcClient) -> None:
    await send(client, *(b"%d" % number for number in range(12)))
    assert numbers(await query(client, message_id="ID-7")) == [7]
    assert (await query(client, message_id="ID-70")).status.code == pb.MESSAGE_NOT_FOUND
    assert numbers(await query(client, message_key="key-1")) == [1, 4, 7, 10]
    tagged = pb.FilterExpression(type=pb.TAG, expression="even")
    assert numbers(await query(client, subscription=tagged, page_size=64)) == [0, 2, 4, 6, 8, 10]
    assert numbers(await query(client, page_size=64, broker_name="nowhere")) == []


async def test_a_query_continues_at_its_scroll_id(client: GrpcClient) -> None:
    await send(client, *(b"%d" % number for number in range(12)))
    answer = await query(client, page_size=5)
    assert len(answer.messages) == 5
    found = numbers(answer)
    while answer.scroll_id:
        answer = await query(client, page_size=5, scroll_id=answer.scroll_id)
        found += numbers(answer)
    assert sorted(found) == list(range(12))
    for text in ("x", "a:b:c", "broker:1:-2", "1:2"):
        refused = await query(client, scroll_id=text)
        assert refused.status.code == (pb.BAD_REQUEST if text != "1:2" else refused.status.code), text
    late = pb.ListMessageRequest(topic=ORDERS)
    late.begin_timestamp.seconds = 1 << 33
    assert (await admin(client, "QueryMessage", late)).status.code == pb.MESSAGE_NOT_FOUND


async def test_lag_and_times_are_those_of_all_brokers(cluster: LocalCluster, client: GrpcClient) -> None:
    await send(client, *(b"%d" % number for number in range(8)))
    for index in range(2):
        cluster.broker(index).groups.put(SubscriptionGroupConfig("workers"))
        cluster.broker(index).offsets.commit("workers", "orders", 0, 1)
    asked = pb.DescribeGroupAccumulationRequest(group=WORKERS, topics=[ORDERS])
    found = await admin(client, "DescribeGroupAccumulation", asked)
    assert found.status.code == pb.OK
    stored = [sum(cluster.broker(i).store.max_offset("orders", q) for q in range(2)) for i in range(2)]
    assert (found.accumulation.accumulation, found.topic_accumulation["orders"].accumulation) == (
        sum(stored) - 2,
    ) * 2
    spans = await admin(client, "QueryTimeSpan", pb.QueryTimeSpanRequest(group=WORKERS, topics=[ORDERS]))
    assert sorted(
        (each.message_queue.broker.name, each.message_queue.id) for each in spans.time_spans
    ) == sorted((name, number) for name in cluster.broker_names for number in range(2))


async def test_offsets_are_removed_at_every_broker(cluster: LocalCluster, client: GrpcClient) -> None:
    for index in range(2):
        cluster.broker(index).groups.put(SubscriptionGroupConfig("workers"))
        cluster.broker(index).offsets.commit("workers", "orders", 0, 1)
    delete = pb.DeleteSubscriptionRequest(group=WORKERS, topic=ORDERS)
    assert (await admin(client, "DeleteSubscription", delete)).status.code == pb.OK
    assert [cluster.broker(i).offsets.query("workers", "orders", 0) for i in range(2)] == [None, None]


async def test_clients_of_remoting_are_shown_and_consume_a_message(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    """Brokers know them; the proxy's own clients are with the proxy alone."""
    taken: list[bytes] = []

    async def take(received: Any) -> None:
        taken.append(received.body)

    async with cluster.push_consumer("workers", {"orders": "*"}, take) as consumer:
        asked = pb.ListConsumerConnectionRequest(group=WORKERS, topic=ORDERS)
        ids: list[str] = []
        async with asyncio.timeout(60):
            while not ids:
                ids = [
                    each.client_id for each in (await admin(client, "ListConsumerConnection", asked)).clients
                ]
        await send(client, b"5")
        await wait_until(lambda: taken == [b"5"])
        info = pb.GetConsumerRunningInfoRequest(group=WORKERS, client_id=ids[0])
        found = await admin(client, "GetConsumerRunningInfo", info)
        assert found.consumer_running_info.subscriptions["orders"].expression == "*"
        verify = pb.VerifyMessageRequest(group=WORKERS, topic=ORDERS, client_id=ids[0], message_id="ID-5")
        assert (await admin(client, "VerifyMessage", verify)).status.code == pb.OK
        assert taken == [b"5", b"5"]
        verify.message_id = "ID-6"
        assert (await admin(client, "VerifyMessage", verify)).status.code == pb.MESSAGE_NOT_FOUND
        assert consumer is not None


async def test_a_client_of_the_proxy_consumes_a_message(client: GrpcClient) -> None:
    stream = client.telemetry()
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.name = "workers"
    settings.subscription.subscriptions.add().topic.name = "orders"
    await stream.write(pb.TelemetryCommand(settings=settings))
    assert (await stream.read()).HasField("settings")
    await send(client, b"5")
    verify = pb.VerifyMessageRequest(group=WORKERS, topic=ORDERS, client_id="host@1", message_id="ID-5")
    asking = asyncio.create_task(admin(client, "VerifyMessage", verify))
    command = (await stream.read()).verify_message_command
    assert command.message.body == b"5"
    result = pb.VerifyMessageResult(nonce=command.nonce)
    await stream.write(pb.TelemetryCommand(status=pb.Status(code=pb.OK), verify_message_result=result))
    assert (await asking).status.code == pb.OK
    stream.cancel()


async def test_a_message_is_sent(client: GrpcClient) -> None:
    request = pb.AdminSendMessageRequest(topic=ORDERS, tag="console", key="K1", body=b"7")
    request.user_properties["color"] = "red"
    sent = await admin(client, "AdminSendMessage", request)
    assert sent.status.code == pb.OK
    (found,) = (await query(client, message_id=sent.message_id)).messages
    assert (found.body, found.system_properties.tag, dict(found.user_properties)) == (
        b"7",
        "console",
        {"color": "red"},
    )
    request.topic.name = "absent"
    assert (await admin(client, "AdminSendMessage", request)).status.code != pb.OK


async def test_lag_and_clients_of_a_lite_topic() -> None:
    async with LocalCluster(brokers=2, broker_config=LMQS) as cluster:
        await cluster.create_topic("chat", queues=2, attributes=f"+{TYPE_ATTRIBUTE}=LITE")
        for index in range(2):
            attributes = {LITE_BIND_TOPIC: "chat"}
            cluster.broker(index).groups.put(SubscriptionGroupConfig("readers", attributes=attributes))
        proxy = await start(cluster)
        async with GrpcClient(proxy.address, "client-1") as client:
            stream = client.telemetry()
            settings = pb.Settings(client_type=pb.LITE_PUSH_CONSUMER)
            settings.subscription.group.name = "readers"
            settings.subscription.subscriptions.add().topic.name = "chat"
            await stream.write(pb.TelemetryCommand(settings=settings))
            assert (await stream.read()).HasField("settings")
            await sync(client, "room1")
            await send_lite(client, "room1", b"m0", b"m1")
            await send_lite(client, "room2", b"m2")
            readers = pb.Resource(name="readers")
            asked = pb.DescribeGroupAccumulationRequest(group=readers, lite_topic="room1")
            found = await admin(client, "DescribeGroupAccumulation", asked)
            assert found.lite_topic_accumulation["room1"].accumulation == 2
            for name, ids in (("room1", ["client-1"]), ("room2", [])):
                who = pb.ListConsumerConnectionRequest(group=readers, liteTopic=name)
                listed = await admin(client, "ListConsumerConnection", who)
                assert [each.client_id for each in listed.clients] == ids
            lite = pb.ListMessageRequest(topic=pb.Resource(name="chat"), lite_topic="room1")
            answer = await admin(client, "QueryMessage", lite)
            assert [each.body for each in answer.messages] == [b"m0", b"m1"]
            stream.cancel()
        await proxy.stop()
