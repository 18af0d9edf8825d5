"""The Admin service, asked by grpcio: one test for each of its calls, and who may make them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.config import AccessConfig
from aerobee.broker.grpc.admin_rpcs import ADMIN_SERVICE
from aerobee.client import PushConsumer
from aerobee.grpc.proto import messages as pb
from aerobee.message import Message
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.protocol import LITE_BIND_TOPIC, TYPE_ATTRIBUTE
from aerobee.testing import LocalCluster
from tests.integration.access_cluster import USERS, Cluster, make_consumer, running
from tests.integration.grpc.client import GrpcClient
from tests.integration.grpc.test_access import signed
from tests.integration.grpc.test_lite_topics import ack, receive, sync
from tests.integration.grpc.test_lite_topics import send as send_lite
from tests.integration.grpc.test_telemetry import consumer_settings
from tests.waiting import wait_until

ORDERS, READERS = pb.Resource(name="orders"), pb.Resource(name="readers")
METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["Admin"].methods]


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    settings = {"enable_lmq": True, "enable_multi_dispatch": True, "enable_property_filter": True}
    async with LocalCluster(broker_config=settings) as started:
        await started.create_topic("orders", queues=2)
        yield started


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[GrpcClient]:
    async with GrpcClient(cluster.broker().address) as made:
        yield made


async def call(client: GrpcClient, name: str, *, is_ok: bool = True, **fields: Any) -> Any:
    """Make a call; its answer is OK."""
    request_name = "ListMessageRequest" if name == "QueryMessage" else f"{name}Request"
    response = getattr(pb, f"{name}Response")
    made = client.channel.unary_unary(
        f"/{ADMIN_SERVICE}/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )
    metadata = tuple((key.replace("_", "-"), value) for key, value in client.metadata.items())
    answer = await made(getattr(pb, request_name)(**fields), metadata=metadata, timeout=60)
    assert not is_ok or answer.status.code == pb.OK, answer.status
    return answer


async def send(cluster: LocalCluster, *bodies: bytes, **fields: Any) -> list[str]:
    async with cluster.producer() as producer:
        return [(await producer.send(Message("orders", body, **fields))).message_id for body in bodies]


class Reader:
    """A push consumer of remoting, group `readers`, that takes what comes."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.bodies: list[bytes] = []
        subscriptions = {"orders": "TagA || TagB"}
        self.consumer: PushConsumer = cluster.push_consumer("readers", subscriptions, self._take)

    async def __aenter__(self) -> Reader:
        await self.consumer.start()
        return self

    async def _take(self, message: Any) -> None:
        self.bodies.append(message.body)

    async def __aexit__(self, *error: object) -> None:
        await self.consumer.close()


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """ChangeLogLevel changes it for the whole process."""
    logger = logging.getLogger("aerobee")
    before = logger.level
    yield
    logger.setLevel(before)


async def test_every_call_is_served(client: GrpcClient) -> None:
    assert len(METHODS) == 16
    for name in METHODS:  # an RPC that is not served ends with UNIMPLEMENTED
        await call(client, name, is_ok=False)


async def test_the_level_of_the_log_is_changed(client: GrpcClient) -> None:
    answer = await call(client, "ChangeLogLevel", is_ok=False, level=pb.ChangeLogLevelRequest.ERROR)
    assert answer.remark == "the log's level is ERROR"
    assert logging.getLogger("aerobee").level == logging.ERROR


async def test_a_topic_is_described(cluster: LocalCluster, client: GrpcClient) -> None:
    cluster.broker().topics.put(TopicConfig("queue", 1, 1, attributes={TYPE_ATTRIBUTE: "FIFO"}))
    answer = await call(client, "DescribeTopicStatus", topic=pb.Resource(name="queue"))
    assert (answer.topic_message_type, answer.tags) == (pb.FIFO, {TYPE_ATTRIBUTE: "FIFO"})
    answer = await call(client, "DescribeTopicStatus", is_ok=False, topic=pb.Resource(name="missing"))
    assert answer.status.code == pb.TOPIC_NOT_FOUND


async def test_the_route_of_a_topic_is_remotings(cluster: LocalCluster, client: GrpcClient) -> None:
    answer = await call(client, "GetTopicRoute", topic=ORDERS, protocol_type="remoting")
    route = json.loads(answer.topic_route_data)
    assert [queue["readQueueNums"] for queue in route["queueDatas"]] == [2]
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": cluster.broker().address}


async def test_subscriptions_are_listed_by_group_and_by_topic(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    async with Reader(cluster) as reader:
        for asked in ({"topic": ORDERS}, {"group": READERS}, {"topic": ORDERS, "group": READERS}):
            await send(cluster, b"a", tag="TagA")
            await wait_until(lambda: b"a" in reader.bodies)
            (found,) = (await call(client, "ListSubscription", **asked)).subscriptions
            assert (found.group.name, found.topic.name, found.online) == ("readers", "orders", True)
            assert (found.expression.type, found.expression.expression) == (pb.TAG, "TagA || TagB")
            assert (found.message_model, found.subscription_consistency) == (pb.CLUSTERING, True)
        (shown,) = (await call(client, "DescribeSubscription", group=READERS)).client_subscriptions
        assert shown.client.client_id == reader.consumer.client_id
        assert shown.subscription.expression.expression == "TagA || TagB"
    answer = await call(client, "ListSubscription", is_ok=False)
    assert answer.status.code == pb.BAD_REQUEST


async def test_a_subscription_is_forgotten_when_no_client_has_it(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    fields = {"topic": ORDERS, "group": READERS}
    async with Reader(cluster) as reader:
        await send(cluster, b"a", tag="TagA")
        await wait_until(lambda: reader.bodies == [b"a"])
        answer = await call(client, "DeleteSubscription", is_ok=False, **fields)
        assert answer.status.code == pb.PRECONDITION_FAILED
    offsets = cluster.broker().offsets
    assert offsets.topics_of("readers")
    await wait_until(lambda: cluster.broker().consumers.group("readers") is None)
    await call(client, "DeleteSubscription", **fields)
    assert "orders" not in offsets.topics_of("readers")


async def test_connections_of_a_group_are_listed(cluster: LocalCluster, client: GrpcClient) -> None:
    assert list((await call(client, "ListConsumerConnection", group=READERS)).clients) == []
    async with Reader(cluster) as reader:
        (found,) = (await call(client, "ListConsumerConnection", group=READERS, topic=ORDERS)).clients
        assert (found.client_id, found.language, found.egress_ip) == (
            reader.consumer.client_id, "PYTHON", "127.0.0.1",
        )  # fmt: skip
        other = pb.Resource(name="other")
        assert list((await call(client, "ListConsumerConnection", group=READERS, topic=other)).clients) == []


async def test_the_lag_of_a_group_is_described(cluster: LocalCluster, client: GrpcClient) -> None:
    await send(cluster, b"a", b"b", b"c")
    offsets = cluster.broker().offsets
    for queue_id in range(2):
        offsets.commit("readers", "orders", queue_id, 0)
    cluster.broker().groups.put(SubscriptionGroupConfig("readers"))
    answer = await call(client, "DescribeGroupAccumulation", group=READERS, topics=[ORDERS])
    whole = answer.accumulation
    assert (whole.inflight_messages, whole.ready_messages, whole.accumulation) == (0, 3, 3)
    assert answer.topic_accumulation["orders"].accumulation == 3
    (popped,) = await pop(client, "orders", 1)
    answer = await call(client, "DescribeGroupAccumulation", group=READERS)
    whole = answer.accumulation
    assert (whole.inflight_messages, whole.ready_messages, whole.accumulation) == (1, 2, 3)
    assert popped.body in (b"a", b"b", b"c")


async def pop(client: GrpcClient, topic: str, count: int) -> list[Any]:
    request = pb.ReceiveMessageRequest(
        group=READERS, message_queue=pb.MessageQueue(topic=pb.Resource(name=topic)), batch_size=count
    )
    request.invisible_duration.seconds = 60
    return [frame.message for frame in (await client.stream("ReceiveMessage", request))[1:-1]]


async def test_lite_topics_are_seen(cluster: LocalCluster, client: GrpcClient) -> None:
    broker = cluster.broker()
    broker.topics.put(TopicConfig("chat", 2, 2, attributes={TYPE_ATTRIBUTE: "LITE"}))
    broker.groups.put(SubscriptionGroupConfig("readers", attributes={LITE_BIND_TOPIC: "chat"}))
    await sync(client, "anna")
    await send_lite(client, "anna", b"a", b"b")
    await send_lite(client, "ben", b"c")
    answer = await call(client, "DescribeGroupAccumulation", group=READERS, lite_topic="anna")
    assert answer.lite_topic_accumulation["anna"].accumulation == 2
    await ack(client, *(await receive(client)))
    answer = await call(client, "DescribeGroupAccumulation", group=READERS, lite_topic="anna")
    assert answer.lite_topic_accumulation["anna"].accumulation == 0
    chat = pb.Resource(name="chat")
    found = await call(client, "QueryMessage", topic=chat, max_message_nums=10, lite_topic="anna")
    assert [each.body for each in found.messages] == [b"a", b"b"]
    answer = await call(client, "QueryMessage", is_ok=False, topic=chat, lite_topic="none")
    assert answer.status.code == pb.MESSAGE_NOT_FOUND


async def test_a_group_is_reset_to_a_time(cluster: LocalCluster, client: GrpcClient) -> None:
    await send(cluster, b"a", b"b")
    broker = cluster.broker()
    broker.groups.put(SubscriptionGroupConfig("readers"))
    for queue_id in range(2):
        broker.offsets.commit("readers", "orders", queue_id, broker.store.max_offset("orders", queue_id))
    request: dict[str, Any] = {"group": READERS, "topic": ORDERS}
    assert (await call(client, "ResetGroupOffset", is_ok=False, **request)).status.code == pb.BAD_REQUEST
    await call(client, "ResetGroupOffset", **request, reset_timestamp={"seconds": 1})
    assert len(await pop(client, "orders", 10) + await pop(client, "orders", 10)) == 2


async def test_messages_are_found_by_id_key_tag_and_time(cluster: LocalCluster, client: GrpcClient) -> None:
    ids = await send(cluster, b"a", b"b", tag="TagA", keys=("order-1",))
    await send(cluster, b"c", tag="TagB", keys=("order-2",), properties={"size": "9"})

    async def found(**fields: Any) -> list[bytes]:
        answer = await call(client, "QueryMessage", is_ok=False, topic=ORDERS, max_message_nums=10, **fields)
        assert answer.status.code in (pb.OK, pb.MESSAGE_NOT_FOUND), answer.status
        return sorted(each.body for each in answer.messages)

    assert await found(message_id=ids[1]) == [b"b"]
    assert await found(message_id="0" * 32) == []
    assert await found(message_key="order-1") == [b"a", b"b"]
    tag = pb.FilterExpression(type=pb.TAG, expression="TagB")
    assert await found(subscription=tag) == [b"c"]
    assert await found(subscription=pb.FilterExpression(type=pb.SQL, expression="size > 8")) == [b"c"]
    assert await found() == [b"a", b"b", b"c"]
    assert await found(end_timestamp={"seconds": 1}) == []
    seconds = cluster.clock.now_ms() // 1000 + 60
    assert await found(begin_timestamp={"seconds": seconds}) == []


async def test_a_scroll_id_continues_where_the_answer_ended(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    await send(cluster, *(b"%d" % number for number in range(10)))
    bodies: list[bytes] = []
    scroll = ""
    for _ in range(20):
        fields = {"scroll_id": scroll} if scroll else {}
        answer = await call(client, "QueryMessage", is_ok=False, topic=ORDERS, max_message_nums=3, **fields)
        bodies += [each.body for each in answer.messages]
        scroll = answer.scroll_id
        if not scroll:
            break
    assert sorted(bodies) == [b"%d" % number for number in range(10)]
    answer = await call(client, "QueryMessage", is_ok=False, topic=ORDERS, scroll_id="x")
    assert answer.status.code == pb.BAD_REQUEST


async def test_a_client_reports_what_it_does_and_verifies_a_message(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    (sent,) = await send(cluster, b"a")
    async with Reader(cluster) as reader:
        client_id = reader.consumer.client_id
        answer = await call(client, "GetConsumerRunningInfo", client_id=client_id, group=READERS)
        info = answer.consumer_running_info
        assert info.subscriptions["orders"].expression == "TagA || TagB"
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        fields = {"client_id": client_id, "group": READERS, "topic": ORDERS}
        await call(client, "VerifyMessage", **fields, message_id=sent)
        assert reader.bodies == [b"a"]
        answer = await call(client, "VerifyMessage", is_ok=False, **fields, message_id="0" * 32)
        assert answer.status.code == pb.MESSAGE_NOT_FOUND


async def test_a_client_is_asked_for_its_stacks(client: GrpcClient) -> None:
    stream = client.telemetry()
    await stream.write(consumer_settings("readers", "orders"))
    await stream.read()
    asked = asyncio.create_task(call(client, "PrintThreadStackTrace", client_id="client-1", group=READERS))
    nonce = (await stream.read()).print_thread_stack_trace_command.nonce
    trace = pb.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waits")
    await stream.write(pb.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=trace))
    assert (await asked).thread_stack_trace == "main: waits"
    stream.cancel()


async def test_an_operator_sends_a_message(cluster: LocalCluster, client: GrpcClient) -> None:
    answer = await call(
        client,
        "AdminSendMessage",
        topic=ORDERS,
        body=b"test",
        tag="TagA",
        key="k1",
        user_properties={"p": "v"},
    )
    found = await call(client, "QueryMessage", topic=ORDERS, message_id=answer.message_id)
    (message,) = found.messages
    assert (message.body, message.system_properties.tag) == (b"test", "TagA")
    assert (list(message.system_properties.keys), message.user_properties["p"]) == (["k1"], "v")
    answer = await call(client, "AdminSendMessage", is_ok=False, topic=ORDERS)
    assert answer.status.code == pb.MESSAGE_BODY_EMPTY


async def test_time_spans_of_a_group(cluster: LocalCluster, client: GrpcClient) -> None:
    await send(cluster, b"a", b"b")
    answer = await call(client, "QueryTimeSpan", group=READERS, topics=[ORDERS])
    assert [span.message_queue.id for span in answer.time_spans] == [0, 1]
    assert all(0 < span.min_timestamp <= span.max_timestamp for span in answer.time_spans)


async def test_rates_and_clients_of_the_broker(cluster: LocalCluster, client: GrpcClient) -> None:
    async with Reader(cluster):
        answer = await call(client, "GetProxyRuntimeStats")
        assert (answer.proxy_name, answer.consumers) == ("broker-a", 1)
        assert answer.version


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(Cluster(tmp_path, USERS)) as made:
        await make_consumer(made, "reader")
        yield made


async def test_each_call_needs_a_permission_on_the_cluster(closed: Cluster) -> None:
    async with GrpcClient(closed.broker.address) as client:
        for name in METHODS:
            answer = await call(client, name, is_ok=False, **needed(name))
            assert_refused(name, answer)
        client.metadata |= signed("reader", "readersecret")
        for name in METHODS:
            answer = await call(client, name, is_ok=False, **needed(name))
            assert_refused(name, answer)


def assert_refused(name: str, answer: Any) -> None:
    if name == "ChangeLogLevel":
        assert answer.remark.startswith("UNAUTHORIZED: "), answer
    else:
        assert answer.status.code == pb.UNAUTHORIZED, (name, answer.status)


def needed(name: str) -> dict[str, Any]:
    """Fields without which the request is refused before its permission is looked up."""
    request = getattr(pb, "ListMessageRequest" if name == "QueryMessage" else f"{name}Request")
    names = request.DESCRIPTOR.fields_by_name
    fields: dict[str, Any] = {}
    if "group" in names:
        fields["group"] = READERS
    if "topic" in names:
        fields["topic"] = ORDERS
    return fields


async def test_without_access_control_it_is_off(tmp_path: Path) -> None:
    """At a loopback address too, from which a balancer on this machine passes on clients of every address."""
    async with (
        running(Cluster(tmp_path, AccessConfig())) as opened,
        GrpcClient(opened.broker.address) as client,
    ):
        for name in METHODS:
            assert_refused(name, await call(client, name, is_ok=False, **needed(name)))


async def test_admin_open_serves_it_to_every_client(tmp_path: Path) -> None:
    async with (
        running(Cluster(tmp_path, AccessConfig(admin_open=True))) as opened,
        GrpcClient(opened.broker.address) as client,
    ):
        await call(client, "GetProxyRuntimeStats")
