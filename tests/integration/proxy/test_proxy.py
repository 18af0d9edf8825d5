"""`aerobee proxy` in front of a cluster of two brokers: every RPC, and a receipt and a transaction that another proxy ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee import Message
from aerobee.access.config import AccessConfig
from aerobee.client.base.config import ClientConfig
from aerobee.errors import ConfigError
from aerobee.grpc.frame_scanner import PREFACE
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.config import ProxyConfig, check_trust
from aerobee.proxy.sends import TransactionId, parse_transaction_id
from aerobee.proxy.server import ProxyServer
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.protocol import TYPE_ATTRIBUTE
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient, message, until

INNER = '{"accessKey":"proxy","secretKey":"secret"}'
BROKER = {"recallMessageEnable": True, "transactionCheckInterval": 300, "transactionTimeOut": 300}


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(brokers=2, broker_config=BROKER) as started:
        await started.create_topic("orders", queues=2)
        yield started


@pytest.fixture
async def proxies(cluster: LocalCluster) -> AsyncIterator[tuple[ProxyServer, ProxyServer]]:
    made = [
        ProxyServer(ProxyConfig(nameservers=cluster.nameserver_address, host="127.0.0.1", port=0))
        for _ in range(2)
    ]
    for proxy in made:
        await proxy.start()
    yield made[0], made[1]
    for proxy in made:
        await proxy.stop()


@pytest.fixture
async def client(proxies: tuple[ProxyServer, ProxyServer]) -> AsyncIterator[GrpcClient]:
    async with GrpcClient(proxies[0].address) as made:
        yield made


@pytest.fixture
async def other(proxies: tuple[ProxyServer, ProxyServer]) -> AsyncIterator[GrpcClient]:
    async with GrpcClient(proxies[1].address, "client-2") as made:
        yield made


def topic(name: str = "orders") -> Any:
    return pb.Resource(name=name)


async def received(
    client: GrpcClient, *, renews: bool = False, broker: str = "", tag: str = "*"
) -> list[Any]:
    """The messages of one call, which waits up to 5 s."""
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name="workers"),
        message_queue=pb.MessageQueue(topic=topic(), broker=pb.Broker(name=broker)),
        filter_expression=pb.FilterExpression(type=pb.TAG, expression=tag),
        batch_size=32,
        auto_renew=renews,
    )
    if not renews:
        request.invisible_duration.seconds = 20
    request.long_polling_timeout.seconds = 1
    answers = await client.stream("ReceiveMessage", request)
    return [each.message for each in answers if each.HasField("message")]


async def all_received(client: GrpcClient, count: int) -> list[Any]:
    """So many messages, of every broker."""
    found: list[Any] = []
    async with asyncio.timeout(120):
        while len(found) < count:
            found += await received(client)
    return found


def set_type(cluster: LocalCluster, name: str, kind: str) -> None:
    for index in range(2):
        cluster.broker(index).topics.put(TopicConfig(name, 2, 2, attributes={TYPE_ATTRIBUTE: kind}))


async def test_a_route_has_the_queues_of_all_brokers_at_the_proxys_endpoints(
    client: GrpcClient, cluster: LocalCluster
) -> None:
    request = pb.QueryRouteRequest(topic=topic(), endpoints=client.endpoints())
    answer = await client("QueryRoute", request)
    assert answer.status.code == pb.OK
    assert sorted((each.broker.name, each.id) for each in answer.message_queues) == sorted(
        (name, number) for name in cluster.broker_names for number in range(2)
    )
    assert {each.broker.endpoints.SerializeToString() for each in answer.message_queues} == {
        client.endpoints().SerializeToString()
    }
    assert (
        await client("QueryRoute", pb.QueryRouteRequest(topic=topic("absent")))
    ).status.code == pb.TOPIC_NOT_FOUND
    asked = pb.QueryAssignmentRequest(topic=topic(), group=pb.Resource(name="workers"))
    assignments = (await client("QueryAssignment", asked)).assignments
    assert [each.message_queue.id for each in assignments] == [-1, -1]


async def test_messages_come_from_every_broker_and_are_acknowledged_at_another_proxy(
    client: GrpcClient, other: GrpcClient, cluster: LocalCluster
) -> None:
    assert await received(client) == []  # the group begins here
    assert await received(client) == []
    sent = [message("orders", b"%d" % number, f"M{number}") for number in range(8)]
    answer = await client("SendMessage", pb.SendMessageRequest(messages=sent))
    assert answer.status.code == pb.OK
    stored = [sum(cluster.broker(i).store.max_offset("orders", q) for q in range(2)) for i in range(2)]
    assert stored == [4, 4]
    found = await all_received(client, 8)
    assert sorted(each.body for each in found) == sorted(each.body for each in sent)
    entries = [
        pb.AckMessageEntry(message_id="M", receipt_handle=each.system_properties.receipt_handle)
        for each in found
    ]
    request = pb.AckMessageRequest(topic=topic(), group=pb.Resource(name="workers"), entries=entries)
    assert {each.status.code for each in (await other("AckMessage", request)).entries} == {pb.OK}
    garbage = pb.AckMessageRequest(
        topic=topic(), group=pb.Resource(name="workers"), entries=[pb.AckMessageEntry(receipt_handle="1 2 3")]
    )
    assert (await other("AckMessage", garbage)).status.code == pb.INVALID_RECEIPT_HANDLE


async def test_a_changed_receipt_is_used_and_a_message_comes_back(
    client: GrpcClient, other: GrpcClient
) -> None:
    await received(client), await received(client)
    await client("SendMessage", pb.SendMessageRequest(messages=[message("orders")]))
    (found,) = await all_received(client, 1)
    change = pb.ChangeInvisibleDurationRequest(
        topic=topic(),
        group=pb.Resource(name="workers"),
        receipt_handle=found.system_properties.receipt_handle,
    )
    change.invisible_duration.seconds = 1
    changed = await other("ChangeInvisibleDuration", change)
    assert changed.status.code == pb.OK
    assert changed.receipt_handle != found.system_properties.receipt_handle
    (again,) = await all_received(other, 1)
    assert again.system_properties.delivery_attempt == 2
    bury = pb.ForwardMessageToDeadLetterQueueRequest(
        topic=topic(),
        group=pb.Resource(name="workers"),
        receipt_handle=again.system_properties.receipt_handle,
        message_id=again.system_properties.message_id,
        delivery_attempt=2,
    )
    assert (await other("ForwardMessageToDeadLetterQueue", bury)).status.code == pb.OK


async def test_a_message_of_a_client_that_has_left_comes_back(client: GrpcClient, other: GrpcClient) -> None:
    await received(client), await received(client)
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name="workers"),
        message_queue=pb.MessageQueue(topic=topic()),
        batch_size=1,
        auto_renew=True,
    )
    request.long_polling_timeout.seconds = 10
    calls = [
        client.channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )(request, metadata=client._metadata(), timeout=60.0)
        for _ in range(2)
    ]
    reads = [asyncio.ensure_future(call.read()) for call in calls]
    done, _ = await asyncio.wait(reads, timeout=0.5)
    assert not done  # both brokers hold a pop
    for call in calls:
        call.cancel()
    await other("SendMessage", pb.SendMessageRequest(messages=[message("orders")]))
    (found,) = await all_received(other, 1)
    assert found.body == b"hello"


async def test_a_pop_of_a_client_that_has_left_is_withdrawn(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    """It stayed pending at the broker for 20 s, and took the next message."""
    pending = [cluster.broker(number).services.pops._waiting for number in range(2)]
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name="workers"),
        message_queue=pb.MessageQueue(topic=topic()),
        batch_size=1,
        auto_renew=True,
    )
    request.long_polling_timeout.seconds = 20
    calls = [
        client.channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )(request, metadata=client._metadata(), timeout=30.0)
        for _ in range(3)
    ]
    reads = [asyncio.ensure_future(call.read()) for call in calls]
    await until(lambda: sum(each.count for each in pending) == 3)
    for call in calls[:2]:
        call.cancel()
    await until(lambda: sum(each.count for each in pending) == 1)
    for _ in range(2):  # one for each broker
        await client("SendMessage", pb.SendMessageRequest(messages=[message("orders")]))
    assert (await reads[2]).HasField("status")
    for read in reads[:2]:
        read.cancel()
    calls[2].cancel()


async def test_a_transaction_is_ended_and_checked_at_any_proxy(
    client: GrpcClient, other: GrpcClient, cluster: LocalCluster
) -> None:
    set_type(cluster, "orders", "TRANSACTION")
    half = message("orders")
    half.system_properties.message_type = pb.TRANSACTION
    sent = (await client("SendMessage", pb.SendMessageRequest(messages=[half]))).entries[0]
    assert sent.status.code == pb.OK
    end = pb.EndTransactionRequest(
        topic=topic(), message_id=sent.message_id, transaction_id=sent.transaction_id, resolution=pb.COMMIT
    )
    assert (await other("EndTransaction", end)).status.code == pb.OK
    await until(
        lambda: sum(cluster.broker(i).store.max_offset("orders", q) for i in range(2) for q in range(2)) == 1
    )
    stream = client.telemetry()
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.add().name = "orders"
    await stream.write(pb.TelemetryCommand(settings=settings))
    assert (await stream.read()).status.code == pb.OK
    await client("SendMessage", pb.SendMessageRequest(messages=[half]))
    async with asyncio.timeout(120):
        command = (await stream.read()).recover_orphaned_transaction_command
    assert command.message.body == b"hello"
    end.transaction_id, end.source = command.transaction_id, pb.SOURCE_SERVER_CHECK
    assert (await other("EndTransaction", end)).status.code == pb.OK
    await until(
        lambda: sum(cluster.broker(i).store.max_offset("orders", q) for i in range(2) for q in range(2)) == 2
    )


def test_the_id_of_a_transaction_is_read_back() -> None:
    found = TransactionId("a@b", "broker-a", 3, 1 << 40)
    assert parse_transaction_id(str(found)) == found
    for text in ("", "a@b@c@d", "a@b@-1@2", "x" * 2_000 + "@b@1@2", "a@b@1", "a@b@١@2"):
        with pytest.raises(Exception, match="is not the id of a transaction"):
            parse_transaction_id(text)


async def test_a_message_of_another_type_is_refused(client: GrpcClient, cluster: LocalCluster) -> None:
    set_type(cluster, "orders", "FIFO")
    answer = await client("SendMessage", pb.SendMessageRequest(messages=[message("orders")]))
    assert answer.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    fifo = [message("orders", b"%d" % number, f"M{number}") for number in range(4)]
    for each in fifo:
        each.system_properties.message_type = pb.FIFO
        each.system_properties.message_group = "g"
    answer = await client("SendMessage", pb.SendMessageRequest(messages=fifo))
    assert (answer.status.code, [each.offset for each in answer.entries]) == (pb.OK, [0, 1, 2, 3])


async def test_names_of_topics_that_do_not_exist_leave_room_for_publishers(
    client: GrpcClient,
    proxies: tuple[ProxyServer, ProxyServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any client may name topics in its settings: a thousand invented ones kept the checks of all others from their clients."""
    monkeypatch.setattr("aerobee.proxy.members.PUBLISHED_MAX", 3)
    groups = proxies[0]._cluster.session._producer_groups
    stream = client.telemetry()
    settings = pb.Settings(client_type=pb.PRODUCER)
    for number in range(3):
        settings.publishing.topics.add().name = f"invented{number}"
    await stream.write(pb.TelemetryCommand(settings=settings))
    assert (await stream.read()).HasField("settings")
    await until(lambda: not groups)
    async with GrpcClient(proxies[0].address, "client-3") as publisher:
        open_stream = publisher.telemetry()
        settings = pb.Settings(client_type=pb.PRODUCER)
        settings.publishing.topics.add().name = "orders"
        await open_stream.write(pb.TelemetryCommand(settings=settings))
        await until(lambda: groups == ["orders"])
        await publisher("NotifyClientTermination", pb.NotifyClientTerminationRequest())
        await until(lambda: not groups)
    stream.cancel()


async def test_clients_that_read_nothing_hold_bounded_memory(cluster: LocalCluster) -> None:
    """A window of 0 bytes keeps responses here: each connection had 64 MiB, and connections had no bound together."""
    config = ProxyConfig(
        nameservers=cluster.nameserver_address, host="127.0.0.1", port=0, pending_reply_bytes_max=4_000
    )
    proxy = ProxyServer(config)
    await proxy.start()
    try:
        request = pb.QueryRouteRequest(topic=topic()).SerializeToString()
        block = b"".join(
            b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
            for name, value in (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", b"/apache.rocketmq.v2.MessagingService/QueryRoute"),
                (b"content-type", b"application/grpc"),
                (b"x-mq-client-id", b"c9"),
            )
        )
        sent = [PREFACE, frame(4, 0, 0, struct.pack(">HI", 4, 0))]  # SETTINGS: windows of 0 bytes
        for stream_id in range(1, 101, 2):
            data = b"\0" + struct.pack(">I", len(request)) + request
            sent += [frame(1, 4, stream_id, block), frame(0, 1, stream_id, data)]
        host, _, port = proxy.address.rpartition(":")
        incoming, outgoing = await asyncio.open_connection(host, int(port))
        outgoing.write(b"".join(sent))
        async with asyncio.timeout(120):
            with contextlib.suppress(ConnectionResetError):
                while await incoming.read(65_536):
                    pass
        outgoing.close()
        async with GrpcClient(proxy.address) as reader:
            answer = await reader("QueryRoute", pb.QueryRouteRequest(topic=topic()))
            assert answer.status.code == pb.OK
    finally:
        await proxy.stop()


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """One frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream_id) + payload


async def test_settings_are_answered_with_those_of_the_group(
    client: GrpcClient, cluster: LocalCluster
) -> None:
    for index in range(2):
        cluster.broker(index).groups.put(
            SubscriptionGroupConfig("workers", consume_message_orderly=True, retry_max_times=4)
        )
    stream = client.telemetry()
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.name = "workers"
    settings.subscription.subscriptions.add().topic.name = "orders"
    await stream.write(pb.TelemetryCommand(settings=settings))
    answered = (await stream.read()).settings
    assert (answered.subscription.fifo, answered.backoff_policy.max_attempts) == (True, 5)
    assert (await client("Heartbeat", pb.HeartbeatRequest())).status.code == pb.OK
    assert (await client("NotifyClientTermination", pb.NotifyClientTerminationRequest())).status.code == pb.OK


async def test_a_message_of_remoting_is_renewed_until_it_is_acknowledged(
    client: GrpcClient, cluster: LocalCluster, proxies: tuple[ProxyServer, ProxyServer]
) -> None:
    await received(client), await received(client)
    async with cluster.producer() as producer:
        await producer.send(Message("orders", b"x", tag="A"))
    found: list[Any] = []
    async with asyncio.timeout(120):
        while not found:
            found = await received(client, renews=True, tag="A")
    renewals = proxies[0]._renewals
    await until(lambda: len(renewals.table) == 1)
    (renewed,) = renewals.table._by_key.values()
    first = renewed.receipt
    await renewals._renew(renewed)
    assert renewed.receipt != first
    handle = found[0].system_properties.receipt_handle
    request = pb.AckMessageRequest(
        topic=topic(), group=pb.Resource(name="workers"), entries=[pb.AckMessageEntry(receipt_handle=handle)]
    )
    assert (await client("AckMessage", request)).status.code == pb.OK
    assert len(renewals.table) == 0


async def test_a_proxy_ends_with_its_calls_answered(cluster: LocalCluster) -> None:
    proxy = ProxyServer(ProxyConfig(nameservers=cluster.nameserver_address, host="127.0.0.1", port=0))
    await proxy.start()
    async with GrpcClient(proxy.address) as client:
        assert (await client("QueryRoute", pb.QueryRouteRequest(topic=topic()))).status.code == pb.OK
        await proxy.stop()
    assert proxy.traffic.connection_count == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_proxy_does_not_lend_its_user_unless_told(host: str) -> None:
    """A balancer on the same machine reaches a loopback address for clients of every address."""
    signing = ClientConfig(access_key="proxy", secret_key="secret")
    config = ProxyConfig(host=host)
    with pytest.raises(ConfigError, match="--trust-clients"):
        ProxyServer(config, client=signing)
    with pytest.raises(ConfigError, match="--trust-clients"):
        ProxyServer(config, access=AccessConfig(inner_client_authentication_credentials=INNER))
    check_trust(ProxyConfig(host=host, trusts_clients=True), AccessConfig(), signing)
    check_trust(config, AccessConfig(acl_enable=True), signing)
    check_trust(config, AccessConfig(), ClientConfig())


async def test_the_command_serves_until_it_is_stopped(cluster: LocalCluster) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aerobee", "proxy", "-n", cluster.nameserver_address, "--host", "127.0.0.1", "--port", "0", "--json",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            ready = json.loads(await process.stdout.readline())
        assert (ready["event"], ready["part"]) == ("ready", "proxy")
        async with GrpcClient(ready["address"]) as client:
            assert (await client("QueryRoute", pb.QueryRouteRequest(topic=topic()))).status.code == pb.OK
        process.terminate()
        async with asyncio.timeout(60):
            assert json.loads(await process.stdout.readline())["event"] == "stopped"
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
