"""Access control of a proxy: its own users and policies, before a cluster that has others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from aerobee.access.config import AccessConfig
from aerobee.access.users import User, Users, disabled
from aerobee.errors import ConfigError
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.config import ProxyConfig
from aerobee.proxy.lite import broker_client_id
from aerobee.proxy.server import ProxyServer
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.signature import Credentials
from tests.integration.access_cluster import ROOT, USERS, Cluster, asked, client, running
from tests.integration.grpc.client import GrpcClient, message, until
from tests.integration.grpc.test_access import signed

OWNER = Credentials("owner", "ownersecret")
ORDERS, READER = pb.Resource(name="orders"), pb.Resource(name="reader")


@dataclass(slots=True)
class Closed:
    """A cluster with access control, and a proxy with other users in front of it."""

    cluster: Cluster
    proxy: ProxyServer
    audit: Path


async def make_topic(cluster: Cluster, name: str) -> None:
    ext = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    ext |= {"topicFilterType": "SINGLE_TAG", "order": "false"}
    made = await asked(cluster.broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext, None, ROOT)
    assert made.code == 0, made.remark


async def make_user(address: str, name: str, *resources: str, action: str = "Sub") -> None:
    """A user of the proxy, made over remoting at its port."""
    body = {"username": name, "password": f"{name}secret", "userType": "Normal"}
    made = await asked(address, RequestCode.AUTH_CREATE_USER, {"username": name}, body, OWNER)
    assert made.code == 0, made.remark
    entries = [{"resource": each, "actions": [action], "decision": "Allow"} for each in resources]
    policy = {"subject": f"User:{name}", "policies": [{"policyType": "Custom", "entries": entries}]}
    given = await asked(address, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, policy, OWNER)
    assert given.code == 0, given.remark


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[Closed]:
    """User reader may read orders as group reader, user writer may send to it."""
    audit = tmp_path / "audit.log"
    access = AccessConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username":"owner","password":"ownersecret"}',
        audit_log_path=str(audit),
    )
    async with running(Cluster(tmp_path, USERS)) as cluster:
        await make_topic(cluster, "orders")
        await make_topic(cluster, "secrets")
        config = ProxyConfig(
            nameservers=cluster.server.address, host="127.0.0.1", port=0, users_path=str(tmp_path / "users")
        )
        proxy = ProxyServer(config, client=client("root"), access=access)
        await proxy.start()
        try:
            await make_user(proxy.address, "reader", "Topic:orders", "Group:reader")
            await make_user(proxy.address, "writer", "Topic:orders", "Topic:secrets", action="Pub")
            yield Closed(cluster, proxy, audit)
        finally:
            await proxy.stop()


def as_user(closed: Closed, name: str, client_id: str = "client-1") -> GrpcClient:
    return GrpcClient(closed.proxy.address, client_id, **signed(name, f"{name}secret"))


async def send(client: GrpcClient, topic: str, body: bytes = b"x") -> Any:
    answer = await client("SendMessage", pb.SendMessageRequest(messages=[message(topic, body)]))
    return answer.status.code


async def receive(client: GrpcClient, topic: str = "orders") -> list[Any]:
    """The statuses and messages of one call."""
    request = pb.ReceiveMessageRequest(
        group=READER, message_queue=pb.MessageQueue(topic=pb.Resource(name=topic)), batch_size=32
    )
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 1
    return await client.stream("ReceiveMessage", request)


async def messages_of(client: GrpcClient) -> list[Any]:
    found: list[Any] = []

    async def look() -> bool:
        found.extend(each.message for each in await receive(client) if each.HasField("message"))
        return bool(found)

    for _ in range(30):
        if await look():
            break
    return found


REQUESTS: dict[str, Callable[[], Any]] = {
    "QueryRoute": lambda: pb.QueryRouteRequest(topic=ORDERS),
    "QueryAssignment": lambda: pb.QueryAssignmentRequest(topic=ORDERS, group=READER),
    "SendMessage": lambda: pb.SendMessageRequest(messages=[message("orders")]),
    "AckMessage": lambda: pb.AckMessageRequest(topic=ORDERS, group=READER, entries=[pb.AckMessageEntry()]),
    "ChangeInvisibleDuration": lambda: pb.ChangeInvisibleDurationRequest(topic=ORDERS, group=READER),
    "ForwardMessageToDeadLetterQueue": lambda: pb.ForwardMessageToDeadLetterQueueRequest(
        topic=ORDERS, group=READER
    ),
    "Heartbeat": lambda: pb.HeartbeatRequest(group=READER, client_type=pb.PUSH_CONSUMER),
    "NotifyClientTermination": lambda: pb.NotifyClientTerminationRequest(group=READER),
    "EndTransaction": lambda: pb.EndTransactionRequest(topic=ORDERS, transaction_id="1@b@1@1"),
    "RecallMessage": lambda: pb.RecallMessageRequest(topic=ORDERS, recall_handle="x"),
    "SyncLiteSubscription": lambda: pb.SyncLiteSubscriptionRequest(topic=ORDERS, group=READER),
    "UpdateOffset": lambda: pb.UpdateOffsetRequest(message_queue=queue(), group=READER),
    "GetOffset": lambda: pb.GetOffsetRequest(message_queue=queue(), group=READER),
    "QueryOffset": lambda: pb.QueryOffsetRequest(message_queue=queue()),
}


def queue() -> Any:
    return pb.MessageQueue(topic=ORDERS, broker=pb.Broker(name="broker-a"))


async def test_every_rpc_needs_a_user_of_the_proxy(closed: Closed) -> None:
    """Users of the cluster behind it are unknown here."""
    async with GrpcClient(closed.proxy.address) as anonymous, as_user(closed, "root") as other:
        for each in (anonymous, other):
            for name, request in REQUESTS.items():
                assert (await each(name, request())).status.code == pb.UNAUTHORIZED, name
            assert (await receive(each))[0].status.code == pb.UNAUTHORIZED
            pull = pb.PullMessageRequest(message_queue=queue(), group=READER)
            assert (await each.stream("PullMessage", pull))[0].status.code == pb.UNAUTHORIZED
            stream = each.telemetry()
            assert (await stream.read()).status.code == pb.UNAUTHORIZED
            assert await stream.code() is grpc.StatusCode.OK
    assert closed.cluster.broker.store.max_offset("orders", 0) == 0


async def test_policies_of_the_proxy_decide(closed: Closed) -> None:
    async with as_user(closed, "reader") as reader, as_user(closed, "writer", "client-2") as writer:
        await receive(reader)
        assert await send(reader, "orders") == pb.UNAUTHORIZED
        assert (await receive(writer))[0].status.code == pb.UNAUTHORIZED
        assert await send(writer, "orders") == pb.OK
        (found,) = await messages_of(reader)
        handle = found.system_properties.receipt_handle
        ack = pb.AckMessageRequest(
            topic=ORDERS, group=READER, entries=[pb.AckMessageEntry(receipt_handle=handle)]
        )
        assert (await writer("AckMessage", ack)).status.code == pb.UNAUTHORIZED
        assert (await reader("AckMessage", ack)).status.code == pb.OK
    refused = [json.loads(line) for line in closed.audit.read_text().splitlines()]
    assert {each["who"] for each in refused if each["result"].startswith("refused")} >= {"reader", "writer"}
    assert any(each["result"] == "passed" for each in refused), "the requests that made users"


async def test_a_forged_receipt_makes_no_dead_letter_of_another_topic(closed: Closed) -> None:
    """The proxy's own user may read every record: a dead letter would show one to the group."""
    async with as_user(closed, "reader") as reader, as_user(closed, "writer", "client-2") as writer:
        await receive(reader)
        assert await send(writer, "orders", b"mine") == pb.OK
        (found,) = await messages_of(reader)
        assert await send(writer, "secrets", b"not yours") == pb.OK
        tokens = found.system_properties.receipt_handle.split(" ")
        record = closed.cluster.broker.store.get_messages("secrets", 0, 0, count_max=1)
        forged = " ".join([*tokens[:-1], str(offset_of(record.body))])
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            topic=ORDERS, group=READER, receipt_handle=forged, message_id="x", delivery_attempt=1
        )
        answer = await reader("ForwardMessageToDeadLetterQueue", request)
        assert answer.status.code == pb.INVALID_RECEIPT_HANDLE
        request.receipt_handle = " ".join([*tokens[:-1], "999999"])
        answer = await reader("ForwardMessageToDeadLetterQueue", request)
        assert answer.status.code == pb.INVALID_RECEIPT_HANDLE
        assert closed.cluster.broker.store.max_offset("%DLQ%reader", 0) == 0
        request.receipt_handle = " ".join(tokens)
        answer = await reader("ForwardMessageToDeadLetterQueue", request)
        assert answer.status.code == pb.OK
        assert closed.cluster.broker.store.max_offset("%DLQ%reader", 0) == 1


def offset_of(body: bytes) -> int:
    """The physical offset in a record."""
    return int.from_bytes(body[28:36], "big")


async def test_a_user_who_loses_the_permission_gets_no_message(closed: Closed) -> None:
    """A pop that waits at a broker outlives the permission with which it began."""
    users = users_of(closed.proxy)
    async with as_user(closed, "reader") as reader:
        await receive(reader)
        request = pb.ReceiveMessageRequest(group=READER, message_queue=pb.MessageQueue(topic=ORDERS))
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.seconds = 20
        call = reader.channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )(request, metadata=reader._metadata(), timeout=60)
        first = call.read()
        waiting = closed.cluster.broker.services.pops
        await until(lambda: len(tasks_named(closed.proxy, "proxy-pop")) > 0 and waiting is not None)
        users.put(disabled(users.users["reader"]))
        async with as_user(closed, "writer", "client-2") as writer:
            assert await send(writer, "orders") == pb.OK
        assert (await first).status.code == pb.UNAUTHORIZED
        users.put(User("reader", "readersecret"))
        assert len(await messages_of(reader)) == 1, "it came back"


def users_of(proxy: ProxyServer) -> Users:
    assert proxy.access is not None
    assert proxy.access.users is not None
    return proxy.access.users


def tasks_named(proxy: ProxyServer, name: str) -> list[Any]:
    return [task for task in proxy._cluster.session.tasks._running if task.get_name() == name]


def test_brokers_know_a_client_by_its_user_too() -> None:
    assert broker_client_id(("c1", "")) == "c1"
    ids = {broker_client_id(client) for client in (("c1", "a"), ("c1", "b"), ("a@c1", ""), ("b@c", "1@a"))}
    assert len(ids) == 4


async def test_users_need_a_directory() -> None:
    access = AccessConfig(
        authentication_enabled=True, init_authentication_user='{"username":"o","password":"s"}'
    )
    with pytest.raises(ConfigError, match="usersPath"):
        ProxyServer(ProxyConfig(), access=access)
