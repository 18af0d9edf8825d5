"""What an operator asks about lite topics (200074 to 200079): answers, refusals, bounds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee.broker.lite import lite_info
from aerobee.client.session.session import Session
from aerobee.errors import InvalidParameter, SubscriptionGroupNotExist, TopicNotExist
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_queue
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import LITE_BIND_TOPIC, LITE_EXPIRATION, LITE_WILDCARD, TYPE_ATTRIBUTE
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient
from tests.integration.grpc.test_lite_topics import LMQS, ack, receive, send, sync


class Asker:
    """Makes these requests of the first broker."""

    def __init__(self, cluster: LocalCluster, session: Session) -> None:
        self.cluster = cluster
        self._session = session

    async def __call__(self, code: RequestCode, **fields: str) -> dict[str, Any]:
        answer = await self._session.invoke(self.cluster.broker().address, RemotingCommand(code, fields))
        found: dict[str, Any] = json.loads(answer.body or b"{}")
        return found


@pytest.fixture
async def asker() -> AsyncIterator[Asker]:
    async with LocalCluster(broker_config=LMQS) as cluster:
        kinds = f"+{TYPE_ATTRIBUTE}=LITE,+{LITE_EXPIRATION}=30"
        await cluster.create_topic("chat", queues=4, attributes=kinds)
        await cluster.create_topic("orders", queues=1)
        for name, more in (("readers", {}), ("all", {LITE_WILDCARD: "true"})):
            attributes = {LITE_BIND_TOPIC: "chat", **more}
            cluster.broker().groups.put(SubscriptionGroupConfig(name, attributes=attributes))
        cluster.broker().groups.put(SubscriptionGroupConfig("plain"))
        async with cluster.admin() as admin:
            yield Asker(cluster, admin._session)


@pytest.fixture
async def client(asker: Asker) -> AsyncIterator[GrpcClient]:
    async with GrpcClient(asker.cluster.broker().address) as made:
        yield made


async def test_a_broker_shows_its_lite_topics(asker: Asker, client: GrpcClient) -> None:
    await sync(client, "room1", "room2")
    await send(client, "room1", b"m0")
    found = await asker(RequestCode.GET_BROKER_LITE_INFO)
    assert (found["currentLmqNum"], found["liteSubscriptionCount"], found["eventMapSize"]) == (1, 2, 1)
    assert found["topicMeta"] == {"chat": 30}
    assert found["groupMeta"] == {"chat": ["all", "readers"]}
    await receive(client)
    assert (await asker(RequestCode.GET_BROKER_LITE_INFO))["orderInfoCount"] == 1


async def test_a_parent_has_lite_topics_groups_and_an_expiration(asker: Asker, client: GrpcClient) -> None:
    await send(client, "room1", b"m0")
    await send(client, "room2", b"m1")
    found = await asker(RequestCode.GET_PARENT_TOPIC_INFO, topic="chat")
    assert found == {
        "groups": ["all", "readers"],
        "liteTopicCount": 2,
        "lmqNum": 2,
        "topic": "chat",
        "ttl": 30,
    }
    with pytest.raises(InvalidParameter, match="type not match"):
        await asker(RequestCode.GET_PARENT_TOPIC_INFO, topic="orders")
    with pytest.raises(TopicNotExist, match="not exist"):
        await asker(RequestCode.GET_PARENT_TOPIC_INFO, topic="absent")


async def test_a_lite_topic_has_offsets_and_subscribers(asker: Asker, client: GrpcClient) -> None:
    names = {"parentTopic": "chat", "liteTopic": "room1"}
    empty = await asker(RequestCode.GET_LITE_TOPIC_INFO, **names)
    assert (empty["shardingToBroker"], empty["subscriber"]) == (False, [])
    assert empty["topicOffset"] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    await sync(client, "room1")
    await sync(client, group="all", action=pb.COMPLETE_ADD)
    await send(client, "room1", b"m0", b"m1")
    found = await asker(RequestCode.GET_LITE_TOPIC_INFO, **names)
    assert found["shardingToBroker"]
    assert found["topicOffset"]["maxOffset"] == 2
    assert found["topicOffset"]["lastUpdateTimestamp"] > 0
    assert sorted(found["subscriber"], key=lambda each: each["group"]) == [
        {"clientId": "*", "group": "all"},
        {"clientId": "client-1", "group": "readers"},
    ]


async def test_a_client_shows_what_it_subscribes(
    asker: Asker, client: GrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"parentTopic": "chat", "group": "readers", "clientId": "client-1"}
    assert (await asker(RequestCode.GET_LITE_CLIENT_INFO, **names))["liteTopicCount"] == -1
    await sync(client, "room1", "room2", "room3")
    found = await asker(RequestCode.GET_LITE_CLIENT_INFO, **names, maxCount="100")
    assert found["liteTopicSet"] == [lite_queue("chat", f"room{number}") for number in (1, 2, 3)]
    assert (found["liteTopicCount"], found["lastAccessTime"] > 0) == (3, True)
    monkeypatch.setattr(lite_info, "LITE_TOPICS_SHOWN_MAX", 2)
    found = await asker(RequestCode.GET_LITE_CLIENT_INFO, **names, maxCount="100")
    assert (len(found["liteTopicSet"]), found["liteTopicCount"]) == (2, 3)
    with pytest.raises(InvalidParameter, match=r"Subscription \[plain\]-\[chat\] not match"):
        await asker(RequestCode.GET_LITE_CLIENT_INFO, parentTopic="chat", group="plain", clientId="c")
    with pytest.raises(SubscriptionGroupNotExist):
        await asker(RequestCode.GET_LITE_CLIENT_INFO, parentTopic="chat", group="absent", clientId="c")


async def test_a_group_shows_its_lag_by_lite_topic(
    asker: Asker, client: GrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sync(client, "room1", "room2", "room3")
    await send(client, "room1", b"a0")
    await send(client, "room2", b"b0", b"b1", b"b2")
    await send(client, "room3", b"c0")
    for message in await receive(client, count=1):
        assert (message.body, await ack(client, message)) == (b"a0", pb.OK)
    found = await asker(RequestCode.GET_LITE_GROUP_INFO, group="readers", topK="1")
    assert (found["totalLagCount"], found["parentTopic"]) == (4, "chat")
    (top,) = found["lagCountTopK"]
    assert (top["liteTopic"], top["lagCount"]) == ("room2", 3)
    (oldest,) = found["lagTimestampTopK"]
    assert (oldest["liteTopic"], oldest["earliestUnconsumedTimestamp"]) == (
        "room2",
        found["earliestUnconsumedTimestamp"],
    )
    one = await asker(RequestCode.GET_LITE_GROUP_INFO, group="readers", liteTopic="room2")
    assert one["totalLagCount"] == 3
    assert (
        one["liteTopicOffsetWrapper"]["brokerOffset"],
        one["liteTopicOffsetWrapper"]["consumerOffset"],
    ) == (3, 0)
    none = await asker(RequestCode.GET_LITE_GROUP_INFO, group="readers", liteTopic="room9")
    assert (none["totalLagCount"], none["earliestUnconsumedTimestamp"]) == (-1, -1)
    monkeypatch.setattr(lite_info, "RANKED_MAX", 2)
    found = await asker(RequestCode.GET_LITE_GROUP_INFO, group="readers", topK="2000000000")
    assert len(found["lagCountTopK"]) == 2
    with pytest.raises(InvalidParameter, match="is not a LITE group"):
        await asker(RequestCode.GET_LITE_GROUP_INFO, group="plain", topK="1")


async def test_a_dispatch_offers_what_a_client_has_missed(asker: Asker, client: GrpcClient) -> None:
    await sync(client, "room1")
    await send(client, "room1", b"m0")
    subscriber = asker.cluster.broker().services.lite.subscriptions.get("readers", "client-1")
    assert subscriber is not None
    subscriber.ready.clear()
    assert await receive(client) == []
    await asker(RequestCode.TRIGGER_LITE_DISPATCH, group="readers", clientId="another")
    assert await receive(client) == []
    await asker(RequestCode.TRIGGER_LITE_DISPATCH, group="readers")
    assert [each.body for each in await receive(client)] == [b"m0"]
