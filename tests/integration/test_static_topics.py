"""Static topics over sockets: two brokers, a mapping, a remapping while messages flow, restarts, our own clients.

What mqadmin of RocketMQ does with them is in tests/interop/test_static_topics.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from aerobee import Message, MessageQueue
from aerobee.broker.static_topic.mapping_cleaning import MappingCleaning
from aerobee.client import ConsumeFrom, ConsumerConfig, PullConsumerConfig
from aerobee.clock import SystemClock
from aerobee.network import AsyncioNetwork
from aerobee.remoting import fastjson
from aerobee.remoting.body.queue_mapping import QueueMapping, QueueMappingItem
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.testing.local_cluster import LocalCluster
from tests.waiting import wait_until

TOPIC = "Static"
LOGICAL = "__syslo__global__"
NEW_BEGIN = 20_000
FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
Mapped = Mapping[int, Sequence[QueueMappingItem]]


class Tool:
    """A cluster of two brokers, and requests as a tool makes them."""

    def __init__(self, cluster: LocalCluster, client: RemotingClient) -> None:
        self.cluster = cluster
        self.client = client
        self.a, self.b = cluster.broker_names

    async def call(self, broker: str, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        address = self.cluster.broker_addresses[self.cluster.broker_names.index(broker)]
        return await self.client.invoke(address, RemotingCommand(code, ext, body), timeout_s=60)

    async def put(
        self, broker: str, hosted: Mapped, *, epoch: int, queues: int, force: bool = False
    ) -> RemotingCommand:
        """513 at one broker."""
        mapping = QueueMapping(
            TOPIC, 2, broker, epoch, hosted={key: tuple(items) for key, items in hosted.items()}
        )
        ext = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "force": "true" if force else "false",
        }
        return await self.call(
            broker, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, ext, fastjson.dumps(mapping.to_dict())
        )

    async def create(self) -> None:
        """Logical queue 0 at the first broker, 1 at the second; both lie in physical queue 0."""
        await self.accepted(self.put(self.a, {0: [QueueMappingItem(0, 0, self.a, 0)]}, epoch=1_000, queues=1))
        await self.accepted(self.put(self.b, {1: [QueueMappingItem(0, 0, self.b, 0)]}, epoch=1_000, queues=1))
        await self.routed({0: self.a, 1: self.b})

    async def move_first_to_second(self) -> None:
        """Logical queue 0 to the second broker, in the steps of RocketMQ's tool."""
        old = QueueMappingItem(0, 0, self.a, 0)
        undecided = [old, QueueMappingItem(1, 1, self.b, -1)]
        decided = [old, QueueMappingItem(1, 1, self.b, NEW_BEGIN)]
        own = [QueueMappingItem(0, 0, self.b, 0)]
        await self.accepted(self.put(self.b, {0: undecided, 1: own}, epoch=2_000, queues=2))
        await self.accepted(self.put(self.a, {0: undecided}, epoch=2_000, queues=1))
        await self.accepted(self.put(self.b, {0: decided, 1: own}, epoch=2_000, queues=2))
        await self.routed({0: self.b, 1: self.b})

    async def accepted(self, asked) -> None:
        reply = await asked
        assert (reply.code, reply.remark) == (0, None)

    async def route(self) -> dict[str, dict[int, int]]:
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        answer = await self.client.invoke(self.cluster.nameserver_address, request, timeout_s=60)
        if answer.code != 0:
            return {}
        table = fastjson.loads_object(answer.body, "route").get("topicQueueMappingByBroker", {})
        return {name: {int(k): v for k, v in info["currIdMap"].items()} for name, info in table.items()}

    async def routed(self, leaders: Mapping[int, str]) -> None:
        def led() -> dict[int, str]:
            route = self.cluster.nameserver().table.route(TOPIC)
            if route is None:
                return {}
            return {queue: name for name, info in route.mappings.items() for queue in info.led}

        await wait_until(lambda: led() == leaders)


@pytest.fixture
async def tool() -> AsyncIterator[Tool]:
    async with LocalCluster(brokers=2) as cluster:
        client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
        tool = Tool(cluster, client)
        await tool.create()
        try:
            yield tool
        finally:
            await client.close()


async def send(tool: Tool, *bodies: str) -> list[tuple[int, int]]:
    """Send to both logical queues in turn; returns (queue id, offset) of each."""
    sent_to = []
    async with tool.cluster.producer() as producer:
        queues = await producer.queues(TOPIC)
        assert queues == tuple(MessageQueue(TOPIC, LOGICAL, n) for n in range(2))
        for number, body in enumerate(bodies):
            result = await producer.send(Message(TOPIC, body.encode()), queue=queues[number % 2])
            sent_to.append((result.queue.queue_id, result.queue_offset))
    return sent_to


async def test_messages_flow_through_logical_queues_over_a_remapping(tool: Tool) -> None:
    assert await send(tool, "a0", "a1", "b0", "b1") == [(0, 0), (1, 0), (0, 1), (1, 1)]
    seen: list[tuple[str, int, int]] = []

    def handler(message) -> None:
        seen.append((message.body.decode(), message.queue.queue_id, message.queue_offset))

    async with tool.cluster.push_consumer("G", {TOPIC: "*"}, handler, config=FIRST) as consumer:
        await wait_until(lambda: len(seen) == 4)
        owned = {queue for queue in consumer.owned if queue.topic == TOPIC}
        assert owned == {MessageQueue(TOPIC, LOGICAL, n) for n in range(2)}
        await tool.move_first_to_second()
        sent_to = await send(tool, "a2", "b2")
        assert sent_to == [(0, NEW_BEGIN), (1, 2)]
        await wait_until(lambda: len(seen) == 6)
    assert sorted(seen) == [
        ("a0", 0, 0), ("a1", 1, 0), ("a2", 0, NEW_BEGIN), ("b0", 0, 1), ("b1", 1, 1), ("b2", 1, 2),
    ]  # fmt: skip
    # A group that begins again reads both parts of the queue, from one broker after the other.
    seen.clear()
    async with tool.cluster.push_consumer("New", {TOPIC: "*"}, handler, config=FIRST):
        await wait_until(lambda: len(seen) == 6)


async def test_offsets_are_found_in_the_part_that_has_them(tool: Tool) -> None:
    await send(tool, *(f"m{n}" for n in range(6)))
    group = {"consumerGroup": "G", "topic": TOPIC, "queueId": "0"}
    async with tool.cluster.pull_consumer(
        "G", config=PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
    ) as consumer:
        queue = MessageQueue(TOPIC, LOGICAL, 0)
        await consumer.assign([queue])
        assert [m.queue_offset for m in await consumer.poll(5)] == [0, 1, 2]
        await consumer.commit({queue: 2})
        before_ms = tool.cluster.broker().clock.now_ms()
        await tool.move_first_to_second()
        # Committed at the first broker, requested at the second.
        reply = await tool.call(tool.b, RequestCode.QUERY_CONSUMER_OFFSET, dict(group))
        assert (reply.code, reply.integer("offset")) == (0, 2)
        await send(tool, "later")
        assert [m.queue_offset for m in await consumer.poll(10)] == [NEW_BEGIN]
        await consumer.commit({queue: NEW_BEGIN + 1})
        assert await consumer.committed(queue) == NEW_BEGIN + 1
        assert (await consumer.begin_offset(queue), await consumer.end_offset(queue)) == (0, NEW_BEGIN + 1)
        assert await consumer.offset_for_time(queue, 0) == 0
        assert await consumer.offset_for_time(queue, before_ms + 600_000) == NEW_BEGIN + 1
    ends = [
        (await tool.call(tool.b, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {
            "topic": TOPIC, "queueId": "0", "timestamp": time, "boundaryType": "UPPER"})).integer("offset")
        for time in ("1", str(before_ms + 600_000))
    ]  # fmt: skip
    assert ends == [0, NEW_BEGIN + 1]  # behind the last message, as at a physical queue
    oldest = await tool.call(tool.b, RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": TOPIC, "queueId": "0"})
    assert 0 < oldest.integer("timestamp") <= before_ms


async def test_only_the_leader_serves_a_logical_queue(tool: Tool) -> None:
    await send(tool, "x", "y")
    await tool.move_first_to_second()
    queue = {"topic": TOPIC, "queueId": "0", "consumerGroup": "G"}
    pull = queue | {"queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "subscription": "*"}
    for code, ext in (
        (RequestCode.PULL_MESSAGE, pull),
        (RequestCode.GET_MAX_OFFSET, queue),
        (RequestCode.GET_MIN_OFFSET, queue),
        (RequestCode.QUERY_CONSUMER_OFFSET, queue),
        (RequestCode.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": "1"}),
        (RequestCode.SEND_MESSAGE, queue | {"producerGroup": "P"}),
    ):
        reply = await tool.call(tool.a, code, ext, b"body")
        assert reply.code == ResponseCode.NOT_LEADER_FOR_QUEUE, code
        assert f"broker {tool.a} does not lead" in str(reply.remark)
    # The physical queue exists for clients that name it.
    assert (await tool.call(tool.a, RequestCode.GET_MAX_OFFSET, queue | {"lo": "false"})).integer(
        "offset"
    ) == 1


async def test_a_producer_with_an_old_route_finds_the_new_leader(tool: Tool) -> None:
    async with tool.cluster.producer() as producer:
        queue = (await producer.queues(TOPIC))[0]
        first = await producer.send(Message(TOPIC, b"before"), queue=queue)
        await tool.move_first_to_second()
        second = await producer.send(Message(TOPIC, b"after"), queue=queue)
    assert (first.queue_offset, second.queue_offset) == (0, NEW_BEGIN)


async def test_a_held_pull_is_answered_with_logical_offsets(tool: Tool) -> None:
    await tool.move_first_to_second()
    async with tool.cluster.pull_consumer(
        "G", config=PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
    ) as consumer:
        queue = MessageQueue(TOPIC, LOGICAL, 0)
        await consumer.assign([queue])
        waiting = asyncio.create_task(consumer.poll(20))
        await wait_until(lambda: tool.cluster.broker(1).pending_pulls.count >= 1)
        await send(tool, "now")
        assert [(m.queue_offset, m.body) for m in await waiting] == [(NEW_BEGIN, b"now")]


async def test_mappings_outlive_restarts_and_are_registered_again(tool: Tool) -> None:
    await send(tool, "one", "two")
    await tool.move_first_to_second()
    for index in range(2):
        await tool.cluster.stop_broker(index)
    for index in range(2):
        await tool.cluster.start_broker(index)
    await tool.routed({0: tool.b, 1: tool.b})
    assert await send(tool, "three") == [(0, NEW_BEGIN)]
    config = await tool.call(tool.b, RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC, "lo": "true"})
    detail = fastjson.loads_object(config.body, "topic config")["mappingDetail"]
    assert [item["logicOffset"] for item in detail["hostedQueues"]["0"]] == [0, NEW_BEGIN]
    plain = await tool.call(tool.b, RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})
    assert "mappingDetail" not in fastjson.loads_object(plain.body, "topic config")
    everything = await tool.call(tool.b, RequestCode.GET_ALL_TOPIC_CONFIG, {})
    assert list(fastjson.loads_object(everything.body, "table")["topicQueueMappingDetailMap"]) == [TOPIC]


async def test_a_deleted_static_topic_may_return_as_normal_topic(tool: Tool) -> None:
    async with tool.cluster.admin() as admin:
        await admin.delete_topic(TOPIC)
        await wait_until(lambda: TOPIC not in tool.cluster.nameserver().table.topics)
        await admin.create_topic(TOPIC, queue_count=2)
        await wait_until(lambda: len(tool.cluster.nameserver().table.topics.get(TOPIC, {})) == 2)
    assert await tool.route() == {}
    async with tool.cluster.producer() as producer:
        assert {queue.broker_name for queue in await producer.queues(TOPIC)} == {tool.a, tool.b}


async def test_what_cannot_be_is_refused_and_changes_nothing(tool: Tool) -> None:
    item = QueueMappingItem(0, 0, tool.a, 0)
    for refused in (
        tool.put(tool.a, {0: [item]}, epoch=999, queues=1),  # older
        tool.put(tool.a, {0: [QueueMappingItem(0, 7, tool.a, 0)]}, epoch=3_000, queues=1),  # no such queue
        tool.put(tool.a, {0: [item, QueueMappingItem(1, 0, tool.b, 5)]}, epoch=1_000, queues=1),  # same epoch
    ):
        reply = await refused
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark
    strange = QueueMapping(TOPIC, 2, "another", 5_000)
    reply = await tool.call(
        tool.a,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        {"topic": TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"},
        fastjson.dumps(strange.to_dict()),
    )
    assert "another" in str(reply.remark)
    assert await tool.route() == {tool.a: {0: 0}, tool.b: {1: 0}}
    forced = await tool.put(tool.a, {0: [item]}, epoch=999, queues=1, force=True)
    assert forced.code == 0


def cleaning(tool: Tool, broker: str) -> MappingCleaning:
    running = tool.cluster.broker(tool.cluster.broker_names.index(broker))
    return next(feature for feature in running.features if isinstance(feature, MappingCleaning))


async def hosted(tool: Tool, broker: str) -> dict[str, list[int]]:
    """Logical queue -> the generations of its parts, as the broker has them."""
    answer = await tool.call(broker, RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC, "lo": "true"})
    table = fastjson.loads_object(answer.body, "config")["mappingDetail"]["hostedQueues"]
    return {str(queue): [item["gen"] for item in items] for queue, items in table.items()}


async def test_a_part_without_messages_leaves_the_mapping_and_offsets_stay(tool: Tool) -> None:
    await tool.move_first_to_second()
    assert await hosted(tool, tool.b) == {"0": [0, 1], "1": [0]}
    await send(tool, "a0", "b0")
    await cleaning(tool, tool.b).clean()
    assert await hosted(tool, tool.b) == {"0": [1], "1": [0]}
    assert await send(tool, "a1", "b1") == [(0, NEW_BEGIN + 1), (1, 1)]
    async with tool.cluster.admin() as admin:
        minimum = await tool.call(tool.b, RequestCode.GET_MIN_OFFSET, {"topic": TOPIC, "queueId": "0"})
        assert minimum.integer("offset") == NEW_BEGIN
        assert TOPIC in await admin.topics()


async def test_a_part_that_holds_a_message_stays(tool: Tool) -> None:
    await send(tool, "a0", "b0")
    await tool.move_first_to_second()
    await cleaning(tool, tool.b).clean()
    assert await hosted(tool, tool.b) == {"0": [0, 1], "1": [0]}


async def test_a_broker_that_cannot_be_asked_is_no_reason_to_forget(tool: Tool) -> None:
    await tool.move_first_to_second()
    await tool.cluster.stop_broker(0)
    await cleaning(tool, tool.b).clean()
    assert await hosted(tool, tool.b) == {"0": [0, 1], "1": [0]}


async def test_a_list_of_a_queue_that_moved_on_is_forgotten_where_it_began(tool: Tool) -> None:
    await tool.move_first_to_second()
    assert await hosted(tool, tool.a) == {"0": [0, 1]}
    await cleaning(tool, tool.a).clean()
    assert await hosted(tool, tool.a) == {"0": [0, 1]}, "its leader is who the list says"
    # And back: the second broker's list says that the first one leads, which it does.
    back = [
        QueueMappingItem(0, 0, tool.a, 0),
        QueueMappingItem(1, 1, tool.b, NEW_BEGIN),
        QueueMappingItem(2, 1, tool.a, 2 * NEW_BEGIN),
    ]
    own = [QueueMappingItem(0, 0, tool.b, 0)]
    await tool.accepted(tool.put(tool.a, {0: back}, epoch=3_000, queues=2))
    await tool.accepted(tool.put(tool.b, {0: back, 1: own}, epoch=3_000, queues=2))
    await tool.routed({0: tool.a, 1: tool.b})
    await cleaning(tool, tool.b).clean()
    assert await hosted(tool, tool.b) == {"0": [0, 1, 2], "1": [0]}
