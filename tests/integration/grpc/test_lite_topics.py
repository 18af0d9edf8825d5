"""Lite topics by gRPC, asked by grpcio: LITE messages, SyncLiteSubscription, ReceiveMessage of lite groups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.pop.pop_service import PopCall
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_queue
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.protocol import (
    LITE_BIND_TOPIC,
    LITE_EXCLUSIVE,
    LITE_EXPIRATION,
    LITE_MODEL,
    LITE_QUOTA,
    LITE_WILDCARD,
    TYPE_ATTRIBUTE,
)
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient, message
from tests.integration.grpc.through import BOTH, served
from tests.waiting import wait_until

CHAT = pb.Resource(name="chat")
LMQS = {"enable_lmq": True, "enable_multi_dispatch": True}


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(broker_config=LMQS) as started:
        await started.create_topic("chat", queues=4, attributes=f"+{TYPE_ATTRIBUTE}=LITE")
        put_group(started, "readers")
        yield started


@pytest.fixture(params=BOTH)
async def client(cluster: LocalCluster, request: pytest.FixtureRequest) -> AsyncIterator[GrpcClient]:
    async with served(cluster, request.param) as address, GrpcClient(address) as made:
        yield made


def put_group(cluster: LocalCluster, name: str, attributes: dict[str, str] | None = None) -> None:
    named = {LITE_BIND_TOPIC: "chat", **(attributes or {})}
    cluster.broker().groups.put(SubscriptionGroupConfig(name, attributes=named))


async def send(client: GrpcClient, lite_topic: str, *bodies: bytes) -> list[Any]:
    found = []
    for body in bodies:
        sent = message("chat", body, message_id=body.decode())
        sent.system_properties.message_type = pb.LITE
        sent.system_properties.lite_topic = lite_topic
        found.append(await client("SendMessage", pb.SendMessageRequest(messages=[sent])))
    return found


async def sync(
    client: GrpcClient,
    *lite_topics: str,
    action: Any = pb.PARTIAL_ADD,
    group: str = "readers",
    topic: str = "chat",
    offset: Any = None,
) -> Any:
    request = pb.SyncLiteSubscriptionRequest(
        action=action,
        topic=pb.Resource(name=topic),
        group=pb.Resource(name=group),
        lite_topic_set=lite_topics,
    )
    if offset is not None:
        request.offset_option.CopyFrom(offset)
    return (await client("SyncLiteSubscription", request)).status


async def receive(
    client: GrpcClient,
    *,
    group: str = "readers",
    poll_s: int = 0,
    attempt: str = "",
    auto_renew: bool = False,
    count: int = 32,
) -> list[Any]:
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=CHAT),
        batch_size=count,
        auto_renew=auto_renew,
    )
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = poll_s
    if attempt:
        request.attempt_id = attempt
    frames = await client.stream("ReceiveMessage", request, timeout=30)
    assert frames[0].status.code in (pb.OK, pb.MESSAGE_NOT_FOUND), frames[0].status
    return [frame.message for frame in frames[1:-1]]


def seen(messages: list[Any]) -> list[tuple[str, bytes]]:
    return [(each.system_properties.lite_topic, each.body) for each in messages]


async def ack(client: GrpcClient, *messages: Any, group: str = "readers", names_lite: bool = True) -> Any:
    entries = []
    for each in messages:
        system = each.system_properties
        entry = pb.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        if names_lite:
            entry.lite_topic = system.lite_topic
        entries.append(entry)
    request = pb.AckMessageRequest(group=pb.Resource(name=group), topic=CHAT, entries=entries)
    return (await client("AckMessage", request)).status.code


async def change(client: GrpcClient, popped: Any, seconds: int, *, suspend: bool = False) -> Any:
    system = popped.system_properties
    request = pb.ChangeInvisibleDurationRequest(
        group=pb.Resource(name="readers"), topic=CHAT, receipt_handle=system.receipt_handle,
        message_id=system.message_id, lite_topic=system.lite_topic, suspend=suspend,
    )  # fmt: skip
    request.invisible_duration.seconds = seconds
    return await client("ChangeInvisibleDuration", request)


async def test_a_client_gets_the_lite_topics_that_it_subscribes(client: GrpcClient) -> None:
    assert (await sync(client, "room1", "room2")).code == pb.OK
    answers = await send(client, "room1", b"a", b"b") + await send(client, "room2", b"c")
    assert [answer.entries[0].status.code for answer in answers] == [pb.OK] * 3
    await send(client, "room3", b"not subscribed")
    found = await receive(client)
    assert sorted(seen(found)) == [("room1", b"a"), ("room1", b"b"), ("room2", b"c")]
    system = found[0].system_properties
    assert (system.message_type, found[0].topic.name, system.queue_id) == (pb.LITE, "chat", 0)
    assert (system.queue_offset, system.delivery_attempt) == (0, 1)
    assert system.receipt_handle.split(" ")[3] == "999"


async def test_a_lite_topic_is_blocked_until_its_block_is_acknowledged(client: GrpcClient) -> None:
    await sync(client, "room1")
    await send(client, "room1", b"a", b"b")
    first = await receive(client, count=1)
    assert seen(first) == [("room1", b"a")]
    assert await receive(client) == []
    waiting = asyncio.create_task(receive(client, poll_s=20))
    assert await ack(client, *first) == pb.OK
    assert seen(await waiting) == [("room1", b"b")]


async def test_the_same_attempt_gets_the_same_messages(client: GrpcClient) -> None:
    await sync(client, "room1")
    await send(client, "room1", b"a")
    assert seen(await receive(client, attempt="one")) == [("room1", b"a")]
    again = await receive(client, attempt="one")
    assert seen(again) == [("room1", b"a")]
    assert again[0].system_properties.delivery_attempt == 1


async def test_messages_before_the_first_pop_arrive(client: GrpcClient) -> None:
    await sync(client, "old", "new")
    await send(client, "new", *(b"%d" % number for number in range(40)))
    found: list[Any] = []
    while len(found) < 40:
        found += (more := await receive(client, poll_s=10))
        await ack(client, *more)
    assert [each.body for each in found] == [b"%d" % number for number in range(40)]


async def test_a_waiting_client_is_woken_and_others_are_not(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    async with GrpcClient(cluster.broker().address, "client-2") as other:
        await sync(client, "room1")
        await sync(other, "room2")
        polls = [asyncio.create_task(receive(each, poll_s=20)) for each in (client, other)]
        waiting = cluster.broker().services.lite._waiting
        await wait_until(lambda: waiting.count == 2)
        await send(client, "room2", b"for two")
        assert seen(await polls[1]) == [("room2", b"for two")]
        assert not polls[0].done()
        await send(client, "room1", b"for one")
        assert seen(await polls[0]) == [("room1", b"for one")]


async def test_a_pop_behind_a_proxy_is_withdrawn_when_its_client_leaves(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed pending at the broker, and took the next message of the lite topic."""
    waiting, dropped, drop = cluster.broker().services.lite._waiting, list[bool](), LiteService.drop

    def note(service: LiteService, call: PopCall) -> bool:
        dropped.append(drop(service, call))
        return dropped[-1]

    monkeypatch.setattr(LiteService, "drop", note)
    async with served(cluster, "proxy") as address, GrpcClient(address) as client:
        await sync(client, "room1")
        poll = asyncio.create_task(receive(client, poll_s=20))
        await wait_until(lambda: waiting.count == 1)
        poll.cancel()
        await wait_until(lambda: dropped)
        assert (dropped, waiting.count) == ([True], 0)
        await send(client, "room1", b"next")
        assert seen(await receive(client)) == [("room1", b"next")]


async def test_a_shared_group_gets_each_message_once(cluster: LocalCluster, client: GrpcClient) -> None:
    async with GrpcClient(cluster.broker().address, "client-2") as other:
        await sync(client, "room1")
        await sync(other, "room1")
        found: list[Any] = []
        for number in range(6):
            await send(client, "room1", b"%d" % number)
            for each in (client, other):
                found += (more := await receive(each))
                await ack(each, *more)
        assert [each.body for each in found] == [b"%d" % number for number in range(6)]


async def test_a_suspended_lite_topic_comes_back_as_a_whole(client: GrpcClient) -> None:
    await sync(client, "room1")
    await send(client, "room1", b"a", b"b")
    first, _ = await receive(client)
    answer = await change(client, first, 0, suspend=True)
    assert answer.status.code == pb.OK
    again = await receive(client, poll_s=10)
    assert seen(again) == [("room1", b"a"), ("room1", b"b")]
    assert [each.system_properties.delivery_attempt for each in again] == [2, 2]


async def test_a_message_that_is_put_off_alone_waits_for_its_block(client: GrpcClient) -> None:
    await sync(client, "room1")
    await send(client, "room1", b"a", b"b")
    first, second = await receive(client)
    assert (await change(client, first, 0)).status.code == pb.OK
    assert await receive(client) == []
    assert await ack(client, second) == pb.OK
    assert [each.body for each in await receive(client, poll_s=10)] == [b"a", b"b"]


async def test_a_request_without_the_lite_topic_finds_it_in_the_record(client: GrpcClient) -> None:
    await sync(client, "room1")
    await send(client, "room1", b"a")
    (first,) = await receive(client, auto_renew=True)
    assert await ack(client, first, names_lite=False) == pb.OK
    await send(client, "room1", b"b")
    assert seen(await receive(client, poll_s=10)) == [("room1", b"b")]


async def test_a_dead_letter_leaves_its_lite_topic(cluster: LocalCluster, client: GrpcClient) -> None:
    await sync(client, "room1")
    await send(client, "room1", b"a", b"b")
    first, second = await receive(client)
    system = first.system_properties
    answer = await client(
        "ForwardMessageToDeadLetterQueue",
        pb.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name="readers"), topic=CHAT, receipt_handle=system.receipt_handle,
            message_id=system.message_id, delivery_attempt=17, max_delivery_attempts=17, lite_topic="room1",
        ),
    )  # fmt: skip
    assert answer.status.code == pb.OK
    assert await ack(client, second) == pb.OK
    assert cluster.broker().store.max_offset("%DLQ%readers", 0) == 1
    assert await receive(client) == []


async def test_an_exclusive_lite_topic_goes_to_the_newest_subscriber(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    put_group(cluster, "single", {LITE_MODEL: LITE_EXCLUSIVE})
    stream = client.telemetry()
    await stream.write(settings("single", pb.LITE_PUSH_CONSUMER))
    assert (await stream.read()).settings.subscription.lite_subscription_quota == 2_000
    await sync(client, "room1", group="single")
    async with GrpcClient(cluster.broker().address, "client-2") as other:
        await sync(other, "room1", group="single")
        command = await stream.read()
        assert command.notify_unsubscribe_lite_command.lite_topic == "room1"
        await send(client, "room1", b"a")
        assert await receive(client, group="single") == []
        assert seen(await receive(other, group="single")) == [("room1", b"a")]
    stream.cancel()


def settings(group: str, kind: Any) -> pb.TelemetryCommand:
    found = pb.Settings(client_type=kind)
    found.subscription.group.name = group
    found.subscription.subscriptions.add().topic.name = "chat"
    return pb.TelemetryCommand(settings=found)


@pytest.mark.parametrize("kind", [pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER])
async def test_lite_consumers_need_a_lite_group(client: GrpcClient, kind: Any) -> None:
    stream = client.telemetry()
    await stream.write(settings("readers", kind))
    assert (await stream.read()).status.code == pb.OK
    stream.cancel()
    stream = client.telemetry()
    await stream.write(settings("others", kind))
    assert "regular group cannot use LITE mode: others" in await stream.details()


async def test_a_complete_set_replaces_the_one_before(cluster: LocalCluster, client: GrpcClient) -> None:
    lite = cluster.broker().services.lite
    await sync(client, "room1", "room2")
    assert (await sync(client, "room2", "room 3", action=pb.COMPLETE_ADD)).code == pb.OK
    subscriber = lite.subscriptions.get("readers", "client-1")
    assert subscriber is not None
    assert list(subscriber.lmqs) == [lite_queue("chat", "room2")]
    await sync(client, "room2", action=pb.PARTIAL_REMOVE)
    assert list(subscriber.lmqs) == []
    await sync(client, "room2")
    await sync(client, action=pb.COMPLETE_REMOVE)
    assert lite.subscriptions.get("readers", "client-1") is None
    assert lite.subscriptions.count == 0


async def test_a_client_that_ends_subscribes_nothing(cluster: LocalCluster, client: GrpcClient) -> None:
    await sync(client, "room1")
    request = pb.NotifyClientTerminationRequest(group=pb.Resource(name="readers"))
    await client("NotifyClientTermination", request)
    assert cluster.broker().services.lite.subscriptions.count == 0


async def test_offset_options_say_where_a_group_begins(client: GrpcClient) -> None:
    await send(client, "room1", *(b"%d" % number for number in range(5)))
    options = [
        (pb.OffsetOption(policy=pb.OffsetOption.MIN), b"0"),
        (pb.OffsetOption(offset=3), b"3"),
        (pb.OffsetOption(tail_n=2), b"1"),
        (pb.OffsetOption(timestamp=0), b"0"),
    ]
    for option, first in options:
        assert (await sync(client, "room1", offset=option)).code == pb.OK
        found = await receive(client, count=1)
        assert [each.body for each in found] == [first]
    await sync(client, "room1", offset=pb.OffsetOption(policy=pb.OffsetOption.MAX))
    assert await receive(client) == []


async def test_a_wildcard_group_gets_every_lite_topic(cluster: LocalCluster, client: GrpcClient) -> None:
    put_group(cluster, "all", {LITE_WILDCARD: "true"})
    await send(client, "before", b"a")
    assert (await sync(client, "x", group="all")).code == pb.ILLEGAL_TOPIC
    assert (await sync(client, "*", action=pb.COMPLETE_ADD, group="all")).code == pb.OK
    await send(client, "after", b"b")
    found = seen(await receive(client, group="all"))
    assert sorted(found) == [("after", b"b"), ("before", b"a")]


async def test_what_cannot_be_subscribed_is_refused(cluster: LocalCluster, client: GrpcClient) -> None:
    cluster.broker().groups.put(SubscriptionGroupConfig("plain"))
    put_group(cluster, "small", {LITE_QUOTA: "1"})
    for name, text in (
        ("room 1", "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"),
        ("x" * 65, "lite topic exceed the max size 64"),
        (" ", "lite topic cannot be the char sequence of whitespace"),
    ):
        found = await sync(client, name)
        assert (found.code, found.message) == (pb.ILLEGAL_LITE_TOPIC, text)
        assert (await send(client, name, b"a"))[0].status.code == pb.ILLEGAL_LITE_TOPIC
    found = await sync(client, "a", group="missing")
    if client.address == cluster.broker().address:
        assert (found.code, found.message) == (pb.ILLEGAL_CONSUMER_GROUP, "group not found: missing")
    else:  # a proxy takes an unknown group for one that is made when it is used
        text = "lite group missing is expected to bind topic null, but actual is chat"
        assert (found.code, found.message) == (pb.ILLEGAL_TOPIC, text)
    found = await sync(client, "a", group="plain")
    text = "lite group plain is expected to bind topic null, but actual is chat"
    assert (found.code, found.message) == (pb.ILLEGAL_TOPIC, text)
    found = await sync(client, *(f"r{number}" for number in range(302)), group="small")
    text = "lite subscription quota exceeded: 1"
    assert (found.code, found.message) == (pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, text)
    found = await sync(client, "a", offset=pb.OffsetOption())
    assert found.code == pb.INTERNAL_SERVER_ERROR


async def lite_control(cluster: LocalCluster, *client_ids: str) -> RemotingCommand:
    """LITE_SUBSCRIPTION_CTL, as RocketMQ's proxy sends it for its clients."""
    entries = [
        {"action": "COMPLETE_ADD", "clientId": each, "group": "readers", "topic": "chat", "liteTopicSet": []}
        for each in client_ids
    ]
    body = json.dumps({"subscriptionSet": entries}).encode()
    host, _, port = cluster.broker().address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_frame(RemotingCommand(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body, opaque=1)))
    async with asyncio.timeout(120):
        head = await reader.readexactly(4)
        answer = await reader.readexactly(int.from_bytes(head, "big"))
    writer.close()
    return decode_frame(head + answer)


async def test_clients_that_subscribe_nothing_are_bounded(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is kept for three minutes: one connection could make millions of them, with ids of any size."""
    monkeypatch.setattr("aerobee.broker.lite.lite_service.SUBSCRIBERS_MAX", 40)
    assert (await lite_control(cluster, *(f"c{number}" for number in range(40)))).code == 0
    refused = await lite_control(cluster, "c40")
    assert (refused.code != 0, "40 clients subscribe" in (refused.remark or "")) == (True, True)
    assert (await lite_control(cluster, "c7")).code == 0, "it subscribes already"
    refused = await lite_control(cluster, "x" * 1_025)
    assert "clientId has 1025 characters" in (refused.remark or "")


async def test_a_broker_without_lmqs_refuses_lite_messages() -> None:
    async with LocalCluster() as cluster, GrpcClient(cluster.broker().address) as client:
        cluster.broker().topics.put(TopicConfig("chat", 4, 4, attributes={TYPE_ATTRIBUTE: "LITE"}))
        put_group(cluster, "readers")
        assert (await send(client, "room1", b"a"))[0].status.code == pb.NOT_IMPLEMENTED
        assert (await sync(client, "room1")).code == pb.NOT_IMPLEMENTED


async def test_a_restarted_broker_continues_where_the_group_was(cluster: LocalCluster) -> None:
    async with GrpcClient(cluster.broker().address) as client:
        await sync(client, "room1")
        await send(client, "room1", b"a", b"b")
        await ack(client, *(await receive(client, count=1)))
    await cluster.stop_broker()
    await cluster.start_broker()
    async with GrpcClient(cluster.broker().address) as client:
        await sync(client, "room1", action=pb.COMPLETE_ADD)
        assert seen(await receive(client, poll_s=10)) == [("room1", b"b")]


async def test_an_idle_lite_topic_expires(cluster: LocalCluster, client: GrpcClient) -> None:
    attributes = {TYPE_ATTRIBUTE: "LITE", LITE_EXPIRATION: "30"}
    broker = cluster.broker()
    broker.topics.put(TopicConfig("chat", 4, 4, attributes=attributes))
    await sync(client, "idle", "wanted")
    await send(client, "idle", b"a")
    await send(client, "wanted", b"b")
    for each in await receive(client):
        if each.system_properties.lite_topic == "idle":
            await ack(client, each)
    await cluster.advance_clock(29 * 60, step_s=60)
    assert broker.store.max_offset(lite_queue("chat", "idle"), 0) == 1
    await cluster.advance_clock(6 * 60, step_s=60)
    await wait_until(lambda: broker.store.max_offset(lite_queue("chat", "idle"), 0) == 0)
    assert broker.store.max_offset(lite_queue("chat", "wanted"), 0) == 1
    await sync(client, "idle")  # the client was silent for too long
    await send(client, "idle", b"anew")
    assert seen(await receive(client, poll_s=10)) == [("idle", b"anew")]
