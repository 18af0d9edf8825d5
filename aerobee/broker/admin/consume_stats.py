"""Lag of groups: GET_CONSUME_STATS 208, QUERY_CONSUME_TIME_SPAN 303, QUERY_CORRECTION_OFFSET 308,
GET_BROKER_CONSUME_STATS 317.

Source: AdminBrokerProcessor, ConsumeStats, OffsetWrapper (RocketMQ). The lag of a queue is brokerOffset -
consumerOffset; lastTimestamp is the store time of the last consumed message, 0 when unknown. For an online group with a
filter, `wantedDiff` (Aerobee-specific; a metric in RocketMQ) is the part of the lag that matches the filter, by
estimateAccumulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aerobee.broker.admin.sliced_json import dump_sliced
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.consumer.queue_lag import queue_position
from aerobee.broker.consumer.wanted_messages import WantedMessages, wanted_count
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.metrics.stats import GROUP_GET_NUMS, BrokerStats
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.errors import RemoteError
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body.message_queue import queue_to_dict
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.protocol import OFFSET_MAX
from aerobee.store.message_store import MessageStore

ANSWER_QUEUES_MAX = 1 << 16  # maximum number of queues in one reply: about 12 MB, of at most 16 MiB per frame
QUEUES_PER_TURN = 64  # queues per slice, then other requests are served

QueueStats = dict[str, int]


class ConsumeStatsCalls:
    """Answers 208, 303, 308 and 317."""

    def __init__(
        self,
        *,
        groups: GroupTable,
        topics: TopicTable,
        mappings: QueueMappings,
        offsets: ConsumerOffsets,
        consumers: ConsumerRegistry,
        stats: BrokerStats,
        store: MessageStore,
        expressions: Expressions,
        live: LiveConfig,
        identity: BrokerIdentity,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._mappings = mappings
        self._offsets = offsets
        self._consumers = consumers
        self._stats = stats
        self._store = store
        self._wanted = WantedMessages(
            store=store, topics=topics, consumers=consumers, expressions=expressions, live=live
        )
        self._identity = identity
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction_offsets,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
        }

    async def consume_stats(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """208: lag of a group per queue, in the named topics or in all topics with offsets of the group."""
        group = request.text("consumerGroup")
        named = request.field("topicList") or request.field("topic")
        topics: Iterable[str] = (
            dict.fromkeys(filter(None, named.split(";"))) if named else self._offsets.topics_of(group)
        )
        table: dict[MessageQueue, QueueStats] = {}
        tps = 0.0
        consumed = self._consumed_topics(group, topics)
        self._check_count(sum(map(self._queue_count, consumed)), "name fewer topics in topicList")
        for topic in consumed:
            table.update(await self._topic_stats(group, topic))
            tps += self._stats.minute_tps(GROUP_GET_NUMS, f"{topic}@{group}")
        return request.reply(body=await dump_sliced({"consumeTps": tps}, "offsetTable", table.items(), {}))

    async def broker_consume_stats(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """317: the same for every group of the broker, ordered topics only with `isOrder`."""
        order_only = request.boolean("isOrder", False)
        groups: list[bytes] = []
        behind = in_flight = count = 0
        for group in list(self._groups.groups):
            found: list[bytes] = []
            for topic in self._consumed_topics(group, self._offsets.topics_of(group)):
                config = self._topics.get(topic)
                if order_only and (config is None or not config.order):
                    continue
                count += self._queue_count(topic)
                self._check_count(count, "request one group at a time (GET_CONSUME_STATS)")
                table = await self._topic_stats(group, topic)
                behind += sum(queue["brokerOffset"] - queue["consumerOffset"] for queue in table.values())
                in_flight += sum(queue["pullOffset"] - queue["consumerOffset"] for queue in table.values())
                tps = self._stats.minute_tps(GROUP_GET_NUMS, f"{topic}@{group}")
                found.append(await dump_sliced({"consumeTps": tps}, "offsetTable", table.items(), {}))
            groups.append(b"{" + fastjson.dumps(group) + b":[" + b",".join(found) + b"]}")
            await asyncio.sleep(0)
        before = fastjson.dumps({"brokerAddr": self._identity.address})[:-1]
        after = fastjson.dumps({"totalDiff": behind, "totalInflightDiff": in_flight})[1:]
        return request.reply(body=before + b',"consumeStatsList":[' + b",".join(groups) + b"]," + after)

    def time_span(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """303: store times of the first, the last and the last consumed message of each queue."""
        group, topic = request.text("group"), request.text("topic")
        config = self._topics.get(topic)
        if config is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist")
        store, now_ms = self._store, self._clock.now_ms()
        spans = []
        for queue_id in range(config.write_queue_nums):
            begin, end = max(0, store.min_offset(topic, queue_id)), store.max_offset(topic, queue_id)
            first_ms = store.store_time(topic, queue_id, begin)
            consumed = self._offsets.query(group, topic, queue_id) or 0
            spans.append(
                {
                    "consumeTimeStamp": store.store_time(topic, queue_id, consumed - 1)
                    if consumed > 0
                    else first_ms,
                    "delayTime": max(0, now_ms - store.store_time(topic, queue_id, consumed))
                    if consumed < end
                    else 0,
                    "maxTimeStamp": store.store_time(topic, queue_id, end - 1) if end > 0 else -1,
                    "messageQueue": queue_to_dict(MessageQueue(topic, self._identity.name, queue_id)),
                    "minTimeStamp": first_ms,
                }
            )
        return request.reply(body=fastjson.dumps({"consumeTimeSpanSet": spans}))

    def correction_offsets(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """308: per queue the smallest offset of all groups except `filterGroups`; the largest int64 for a queue in
        which `compareGroup` is already behind that offset.
        """
        topic = request.text("topic")
        left_out = set(request.text("filterGroups", "").split(","))
        smallest: dict[int, int] = {}
        for group in self._offsets.groups_of(topic):
            if group in left_out:
                continue
            for queue_id, offset in self._offsets.queues_of(group, topic).items():
                if offset >= self._store.min_offset(topic, queue_id):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, OFFSET_MAX))
        for queue_id, offset in self._offsets.queues_of(request.text("compareGroup"), topic).items():
            if smallest.get(queue_id, OFFSET_MAX) > offset:
                smallest[queue_id] = OFFSET_MAX
        return request.reply(body=fastjson.dumps({"correctionOffsets": smallest}))

    def _queue_count(self, topic: str) -> int:
        config = self._topics.get(topic)
        return config.read_queue_nums if config is not None else 0

    def _check_count(self, count: int, instead: str) -> None:
        """Raises RemoteError for a reply that exceeds the frame limit."""
        if count > ANSWER_QUEUES_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"more than {ANSWER_QUEUES_MAX} queues would be in the answer: {instead}",
            )

    def _consumed_topics(self, group: str, topics: Iterable[str]) -> list[str]:
        """Leave out deleted topics, and topics to which the connected group no longer subscribes."""
        online = self._consumers.group(group)
        subscribed = online.subscriptions if online is not None else {}
        return [
            topic
            for topic in topics
            if self._topics.get(topic) is not None and (not subscribed or topic in subscribed)
        ]

    async def _topic_stats(self, group: str, topic: str) -> dict[MessageQueue, QueueStats]:
        """Stats of each queue. Reading store times may touch the disk, so other requests are served in between."""
        config = self._topics.get(topic)
        table: dict[MessageQueue, QueueStats] = {}
        takes = self._wanted.filter_of(group, topic)
        # For a static topic's queue the reply must state that nothing is committed: the reader then reads the
        # previous part.
        nothing = -1 if self._mappings.get(topic) is not None else 0
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            position = queue_position(self._store, self._offsets, group, topic, queue_id)
            consumed = nothing if position.committed is None else position.committed
            last_ms = self._store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else 0
            stats = table[MessageQueue(topic, self._identity.name, queue_id)] = {
                "brokerOffset": position.max_offset,
                "consumerOffset": consumed,
                "lastTimestamp": max(0, last_ms),
                "pullOffset": max(consumed, position.pulled or 0),
            }
            if takes is not None and position.max_offset > consumed:
                stats["wantedDiff"] = wanted_count(position, queue_id, takes)
                await asyncio.sleep(0)
            if queue_id % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        return table
