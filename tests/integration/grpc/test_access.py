"""Access control for RPCs: the signature over the date, and the policies of remoting."""

from __future__ import annotations

import asyncio
import hmac
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from aerobee.broker.grpc.access import parse_authorization
from aerobee.grpc.frame_scanner import PREFACE
from aerobee.grpc.proto import messages as pb
from aerobee.remoting.codes import RequestCode
from tests.integration.access_cluster import ROOT, USERS, Cluster, asked, make_consumer, running
from tests.integration.grpc.client import GrpcClient, message

DATE = "20261120T102726Z"


def signed(user: str, secret: str, *, suffix: str = "", upper: bool = True) -> dict[str, str]:
    """The metadata with which the official clients prove their user."""
    found = hmac.digest(secret.encode(), DATE.encode(), "sha1").hex()
    return {
        "authorization": f"MQv2-HMAC-SHA1 Credential={user}{suffix}, SignedHeaders=x-mq-date-time, "
        f"Signature={found.upper() if upper else found}",
        "x-mq-date-time": DATE,
    }


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Access control, topic orders, user reader who may read it."""
    async with running(Cluster(tmp_path, USERS)) as cluster:
        await make_consumer(cluster, "reader")
        ext = {
            "topic": "orders",
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
        }
        ext |= {"topicFilterType": "SINGLE_TAG", "order": "false"}
        made = await asked(cluster.broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext, None, ROOT)
        assert made.code == 0, made.remark
        yield cluster


def test_authorization_is_read_as_clients_write_it() -> None:
    signature = bytes.fromhex("3BA9C18E69286E18B5DCDFD7F042BC0F8FB6D909")
    assert parse_authorization(signed("ak", "sk")["authorization"]) == ("ak", signature)
    go = signed("ak", "sk", suffix="//Rocketmq", upper=False)["authorization"]
    assert parse_authorization(go) == ("ak", signature)
    assert parse_authorization("MQv2-HMAC-SHA1 Credential=, Signature=xyz") == ("", b"")
    assert parse_authorization("") == ("", b"")


async def code_of_send(cluster: Cluster, metadata: dict[str, str]) -> tuple[int, str]:
    async with GrpcClient(cluster.broker.address) as client:
        client.metadata |= metadata
        answer = await client("SendMessage", pb.SendMessageRequest(messages=[message("orders")]))
        return answer.status.code, answer.status.message


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({}, "username cannot be null"),
        (signed("", ""), "username cannot be null"),
        (signed("mallory", "x"), "User:mallory is not found."),
        (signed("root", "wrong"), "check signature failed"),
        ({**signed("root", "rootsecret"), "x-mq-date-time": "20261120T102727Z"}, "check signature failed"),
        ({"authorization": signed("root", "rootsecret")["authorization"]}, "check signature failed"),
        (signed("reader", "readersecret"), "User:reader has no permission to access Topic:orders"),
        (
            {**signed("reader", "readersecret"), "rpc-remote-address": "127.0.0.1"},
            "User:reader has no permission",
        ),
    ],
)
async def test_a_send_without_the_permission_is_refused(
    closed: Cluster, metadata: dict[str, str], text: str
) -> None:
    code, found = await code_of_send(closed, metadata)
    assert code == pb.UNAUTHORIZED
    assert found.startswith(text)
    assert closed.broker.store.max_offset("orders", 0) == 0


async def test_a_send_with_the_permission_is_served(closed: Cluster) -> None:
    assert (await code_of_send(closed, signed("root", "rootsecret", upper=False)))[0] == pb.OK


async def test_each_rpc_is_refused_without_a_user(closed: Cluster) -> None:
    topic, group = pb.Resource(name="orders"), pb.Resource(name="reader")
    requests = {
        "QueryRoute": pb.QueryRouteRequest(topic=topic),
        "QueryAssignment": pb.QueryAssignmentRequest(topic=topic, group=group),
        "Heartbeat": pb.HeartbeatRequest(group=group, client_type=pb.PUSH_CONSUMER),
        "NotifyClientTermination": pb.NotifyClientTerminationRequest(group=group),
        "EndTransaction": pb.EndTransactionRequest(topic=topic, transaction_id="1", resolution=pb.COMMIT),
        "RecallMessage": pb.RecallMessageRequest(topic=topic, recall_handle="x"),
    }
    async with GrpcClient(closed.broker.address) as client:
        for name, request in requests.items():
            assert (await client(name, request)).status.code == pb.UNAUTHORIZED, name
        stream = client.telemetry()
        assert (await stream.read()).status.code == pb.UNAUTHORIZED
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_reader_may_join_its_group_alone(closed: Cluster) -> None:
    async with GrpcClient(closed.broker.address) as client:
        client.metadata |= signed("reader", "readersecret")
        assert (
            await client("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders")))
        ).status.code == pb.OK
        for group, code in (("reader", pb.OK), ("others", pb.UNAUTHORIZED)):
            settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
            settings.subscription.group.name = group
            settings.subscription.subscriptions.add().topic.name = "orders"
            stream = client.telemetry()
            await stream.write(pb.TelemetryCommand(settings=settings))
            assert (await stream.read()).status.code == code
    assert closed.broker.consumers.group("others") is None


async def test_a_client_id_belongs_to_its_user(closed: Cluster) -> None:
    """Another user who calls itself so gets neither the first one's commands nor its memberships."""
    async with GrpcClient(closed.broker.address) as first, GrpcClient(closed.broker.address) as second:
        first.metadata |= signed("root", "rootsecret")
        second.metadata |= signed("reader", "readersecret")
        settings = pb.Settings(client_type=pb.PRODUCER)
        settings.publishing.topics.add().name = "orders"
        stream = first.telemetry()
        await stream.write(pb.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == pb.OK
        other = second.telemetry()
        assert await other.initial_metadata() is not None
        ended = await second("NotifyClientTermination", pb.NotifyClientTerminationRequest())
        assert ended.status.code == pb.OK
        (member,) = closed.broker.producers.members("orders")
        assert (member.peer.is_open, member.principal) == (True, "root")


async def test_access_is_checked_before_the_native_core_stores_a_message(closed: Cluster) -> None:
    made = message("orders", message_id="A0")
    made.system_properties.born_timestamp.seconds = 1_700_000_000
    codes = []
    for user, secret in (("reader", "readersecret"), ("root", "wrong")):
        async with GrpcClient(closed.broker.address) as client:
            client.metadata |= signed(user, secret)
            answer = await client("SendMessage", pb.SendMessageRequest(messages=[made]))
            codes.append(answer.status.code)
    assert codes == [pb.UNAUTHORIZED, pb.UNAUTHORIZED]


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream_id) + payload


async def test_no_send_in_one_read_with_its_headers_is_stored_without_its_user(closed: Cluster) -> None:
    """Headers and requests of many calls in one write, whole and cancelled: nothing of them may reach the log."""
    made = message("orders", message_id="A0")
    made.system_properties.born_timestamp.seconds = 1_700_000_000
    request = pb.SendMessageRequest(messages=[made]).SerializeToString()
    data = b"\0" + struct.pack(">I", len(request)) + request
    common = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/apache.rocketmq.v2.MessagingService/SendMessage",
        b"content-type": b"application/grpc",
        b"x-mq-client-id": b"c1",
    }
    block = b"".join(_literal(*pair) for pair in common.items())
    reader = signed("reader", "readersecret")["x-mq-date-time"]
    blocks = (block, block + _literal(b"x-mq-date-time", reader.encode()) + _literal(b"authorization", b"x"))
    host, _, port = closed.broker.address.rpartition(":")
    incoming, outgoing = await asyncio.open_connection(host, int(port))
    sent = [PREFACE, _frame(4, 0, 0, b"")]
    for number in range(200):
        stream_id = 2 * number + 1
        sent += [_frame(1, 4, stream_id, blocks[number % 2]), _frame(0, 1, stream_id, data)]
        if number % 3 == 0:
            sent.append(_frame(3, 0, stream_id, b"\0\0\0\x08"))
    outgoing.write(b"".join([*sent, _frame(6, 0, 0, b"finished")]))
    got = b""
    async with asyncio.timeout(120):
        while b"finished" not in got:
            got += await incoming.read(65_536)
    outgoing.close()
    assert closed.broker.store.max_offset("orders", 0) == 0
