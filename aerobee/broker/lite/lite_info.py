"""What an operator asks about lite topics by remoting; `mqadmin` has a command for each.

    GET_BROKER_LITE_INFO   200074    sizes of this broker's tables, lite topics' parents and groups
    GET_PARENT_TOPIC_INFO  200075    a topic of type LITE: expiration, number of lite topics, groups
    GET_LITE_TOPIC_INFO    200076    one lite topic: offsets and subscribers
    GET_LITE_CLIENT_INFO   200077    one client of a group: the lite topics that it subscribes
    GET_LITE_GROUP_INFO    200078    lag of a group, of one lite topic or of those with the highest lag
    TRIGGER_LITE_DISPATCH  200079    look for messages for each subscription of a group, or of one of its clients

Source: LiteManagerProcessor (RocketMQ 5.5.0), whose answers these are. Differences: lag is computed when it is requested, where RocketMQ
needs liteLagLatencyCollectEnable; `shardingToBroker` says whether the lite topic lies here, because a broker does not know the topic's
other brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from heapq import nlargest, nsmallest
from typing import Any, NamedTuple

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.lite.lite_group import LiteGroup, lite_group
from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.pop.order_info import OrderInfo
from aerobee.broker.send.lmq import LmqEntries
from aerobee.broker.send.message_type import NORMAL
from aerobee.broker.state.topic_table import TopicTable
from aerobee.errors import RemoteError
from aerobee.lite_topic import LITE_PREFIX, lite_queue, split_lite_queue
from aerobee.remoting import fastjson
from aerobee.remoting.body.consume_stats import OffsetWrapper
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.protocol import LITE_EXPIRATION, TYPE_ATTRIBUTE
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.queue_table import LMQ_QUEUE_ID

SLICE_COUNT = 200  # lite topics looked at before other requests are served
QUEUES_SLICE_COUNT = 20_000  # as many queues' names
RANKED_MAX = 1_000  # topK
LITE_TOPICS_SHOWN_MAX = 10_000  # of one client
SUBSCRIBERS_SHOWN_MAX = 10_000  # of one lite topic
NEVER = -1  # expiration of a topic without the attribute; a time or a lag that is not known


class _Lag(NamedTuple):
    """Lag of a group in one lite topic; `since_ms` is the store time of the first message that is not consumed."""

    lite_topic: str
    messages: int
    since_ms: int

    def to_dict(self) -> dict[str, object]:
        """As LiteLagInfo."""
        return {
            "earliestUnconsumedTimestamp": self.since_ms,
            "lagCount": self.messages,
            "liteTopic": self.lite_topic,
        }


class LiteInfoCalls:
    """Handlers of these requests. They belong to the broker's event loop."""

    def __init__(
        self,
        *,
        service: LiteService,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        orders: OrderInfo,
        lmqs: LmqEntries | None,
    ) -> None:
        self._service = service
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._orders = orders
        self._lmqs = lmqs

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_LITE_INFO: self.broker_info,
            RequestCode.GET_PARENT_TOPIC_INFO: self.parent_topic,
            RequestCode.GET_LITE_TOPIC_INFO: self.lite_topic,
            RequestCode.GET_LITE_CLIENT_INFO: self.client,
            RequestCode.GET_LITE_GROUP_INFO: self.group,
            RequestCode.TRIGGER_LITE_DISPATCH: self.dispatch,
        }

    async def broker_info(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """200074: sizes, and the names of parents and groups."""
        names = {name async for name in self._names_of_queues()}
        subscriptions = self._service.subscriptions
        return request.reply(
            body=fastjson.dumps(
                {
                    "cqTableSize": len(names),
                    "currentLmqNum": self._lmq_count(),
                    "eventMapSize": sum(1 for each in subscriptions.everything() if each.ready),
                    "groupMeta": {topic: sorted(groups) for topic, groups in self._groups_by_topic().items()},
                    "liteSubscriptionCount": subscriptions.count,
                    "maxLmqNum": self._store.config.max_lmq_consume_queue_num,
                    "offsetTableSize": self._offsets.count,
                    "orderInfoCount": sum(
                        1 for topic, *_ in self._orders.blocks() if topic.startswith(LITE_PREFIX)
                    ),
                    "storeType": "default",
                    "topicMeta": {
                        topic.topic_name: _expiration(topic)
                        for topic in self._topics.topics.values()
                        if _is_lite(topic)
                    },
                }
            )
        )

    async def _names_of_queues(self) -> AsyncIterator[str]:
        """The topic or LMQ of each queue; other requests are served in between, for there may be a million."""
        for number, (name, _) in enumerate(tuple(self._store.queues)):
            if number % QUEUES_SLICE_COUNT == QUEUES_SLICE_COUNT - 1:
                await asyncio.sleep(0)
            yield name

    def parent_topic(self, peer: Peer, request: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand]:
        """200075: a topic of type LITE. Raises RemoteError."""
        return self._parent_topic(request, self._parent(request.text("topic")))

    async def _parent_topic(self, request: RemotingCommand, topic: TopicConfig) -> RemotingCommand:
        name, count = topic.topic_name, 0
        prefix = lite_queue(name, "")
        async for lmq in self._names_of_queues():
            count += lmq.startswith(prefix)
        body = {
            "groups": sorted(self._groups_by_topic().get(name, ())),
            "liteTopicCount": count,
            "lmqNum": self._lmq_count(),
            "topic": name,
            "ttl": _expiration(topic),
        }
        return request.reply(body=fastjson.dumps(body))

    def lite_topic(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """200076: offsets and subscribers of a lite topic. Raises RemoteError."""
        parent = self._parent(request.text("parentTopic")).topic_name
        name = request.text("liteTopic", "")
        lmq, store = lite_queue(parent, name), self._store
        high, low, newest_ms = store.max_offset(lmq, LMQ_QUEUE_ID), 0, 0
        if high > 0:
            low = store.min_offset(lmq, LMQ_QUEUE_ID)
            newest_ms = store.store_time(lmq, LMQ_QUEUE_ID, high - 1)
        body = {
            "liteTopic": name,
            "parentTopic": parent,
            "shardingToBroker": high > 0,
            "subscriber": list(self._subscribers(lmq, parent)),
            "topicOffset": {
                "lastUpdateTimestamp": newest_ms,
                "maxOffset": max(0, high),
                "minOffset": max(0, low),
            },
        }
        return request.reply(body=fastjson.dumps(body))

    def _subscribers(self, lmq: str, parent: str) -> Iterator[dict[str, str]]:
        """As ClientGroup; a wildcard group has one entry."""
        left = SUBSCRIBERS_SHOWN_MAX
        for group, subscribers in self._service.subscriptions.of(lmq, parent):
            found = self._service.group(group)
            if found is not None and found.is_wildcard:
                yield {"clientId": "*", "group": group}
                continue
            for subscriber in subscribers:
                if left <= 0:
                    return
                left -= 1
                yield {"clientId": subscriber.client_id, "group": group}

    def client(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """200077: what a client subscribes, at most `maxCount` names. Raises RemoteError."""
        parent = self._parent(request.text("parentTopic")).topic_name
        name, client_id = request.text("group"), request.text("clientId", "")
        config = self._groups.get(name)
        if config is None:
            raise RemoteError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{name}] not exist.")
        group = lite_group(config)
        if group is None or group.topic != parent:
            text = f"Subscription [{name}]-[{parent}] not match."
            raise RemoteError(ResponseCode.INVALID_PARAMETER, text)
        shown_max = min(max(0, request.integer("maxCount", 1_000)), LITE_TOPICS_SHOWN_MAX)
        body: dict[str, object] = {
            "clientId": client_id,
            "group": name,
            "lastAccessTime": NEVER,
            "lastConsumeTime": 0,
            "liteTopicCount": NEVER,
            "parentTopic": parent,
        }
        subscriber = self._service.subscriptions.get(name, client_id)
        if subscriber is not None:
            body["lastAccessTime"] = subscriber.seen_ms
            body["liteTopicCount"] = len(subscriber.lmqs)
            body["liteTopicSet"] = [lmq for lmq, _ in zip(subscriber.lmqs, range(shown_max), strict=False)]
        return request.reply(body=fastjson.dumps(body))

    # --- lag

    def group(
        self, peer: Peer, request: RemotingCommand
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """200078: the lag of a group. Raises RemoteError."""
        group = self._lite_group(request.text("group"))
        name = request.text("liteTopic", "")
        body: dict[str, object] = {"group": group.name, "liteTopic": name, "parentTopic": group.topic}
        if not name:
            return self._ranked(request, group, body)
        return request.reply(body=fastjson.dumps(body | self._lag_of(group, name)))

    def _lag_of(self, group: LiteGroup, name: str) -> dict[str, object]:
        store, lmq = self._store, lite_queue(group.topic, name)
        high = store.max_offset(lmq, LMQ_QUEUE_ID)
        if high <= 0:
            return {"earliestUnconsumedTimestamp": NEVER, "totalLagCount": NEVER}
        offset = self._offsets.query(group.name, lmq, LMQ_QUEUE_ID)
        if offset is None or offset < 0:
            return {"earliestUnconsumedTimestamp": 0, "totalLagCount": 0}
        last_ms = store.store_time(lmq, LMQ_QUEUE_ID, offset - 1) if offset > 0 else 0
        return {
            "earliestUnconsumedTimestamp": store.store_time(lmq, LMQ_QUEUE_ID, offset)
            if offset < high
            else NEVER,
            "liteTopicOffsetWrapper": OffsetWrapper(high, offset, last_ms).to_dict(),
            "totalLagCount": high - offset,
        }

    async def _ranked(
        self, request: RemotingCommand, group: LiteGroup, body: dict[str, object]
    ) -> RemotingCommand:
        """The lite topics with the highest lag, and those with the longest."""
        ranked_max = min(max(0, request.integer("topK", 20)), RANKED_MAX)
        store, prefix, lags = self._store, lite_queue(group.topic, ""), list[_Lag]()
        names = [each for each in self._offsets.topics_of(group.name) if each.startswith(prefix)]
        for number, lmq in enumerate(names):
            if number % SLICE_COUNT == SLICE_COUNT - 1:
                await asyncio.sleep(0)
            offset = self._offsets.query(group.name, lmq, LMQ_QUEUE_ID)
            high, found = store.max_offset(lmq, LMQ_QUEUE_ID), split_lite_queue(lmq)
            if offset is None or found is None:
                continue
            offset = max(offset, store.min_offset(lmq, LMQ_QUEUE_ID))
            if 0 <= offset < high:
                lags.append(_Lag(found[1], high - offset, store.store_time(lmq, LMQ_QUEUE_ID, offset)))
        longest = nsmallest(ranked_max, lags, key=lambda lag: (lag.since_ms, lag.lite_topic))
        body |= {
            "earliestUnconsumedTimestamp": min((lag.since_ms for lag in lags), default=NEVER),
            "lagCountTopK": [
                lag.to_dict()
                for lag in nlargest(ranked_max, lags, key=lambda lag: (lag.messages, lag.lite_topic))
            ],
            "lagTimestampTopK": [lag.to_dict() for lag in longest],
            "totalLagCount": sum(lag.messages for lag in lags),
        }
        return request.reply(body=fastjson.dumps(body))

    def dispatch(self, peer: Peer, request: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand]:
        """200079: offer each subscribed lite topic with messages to its subscribers. Raises RemoteError."""
        group = self._lite_group(request.text("group"))
        return self._dispatch(request, group, request.text("clientId", ""))

    async def _dispatch(self, request: RemotingCommand, group: LiteGroup, client_id: str) -> RemotingCommand:
        for _ in self._service.offer_again(group.name, client_id):
            await asyncio.sleep(0)
        return request.reply()

    # --- inside

    def _parent(self, name: str) -> TopicConfig:
        """Raises RemoteError for a topic that does not exist, or has another type."""
        topic = self._topics.get(name)
        if topic is None:
            raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{name}] not exist.")
        if not _is_lite(topic):
            raise RemoteError(ResponseCode.INVALID_PARAMETER, f"Topic [{name}] type not match.")
        return topic

    def _lite_group(self, name: str) -> LiteGroup:
        """Raises RemoteError for a group that does not exist, or consumes no lite topics."""
        config = self._groups.get(name)
        if config is None:
            raise RemoteError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{name}] not exist.")
        found = lite_group(config)
        if found is None:
            raise RemoteError(ResponseCode.INVALID_PARAMETER, f"Group [{name}] is not a LITE group.")
        return found

    def _groups_by_topic(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for config in self._groups.groups.values():
            group = lite_group(config)
            if group is not None:
                found.setdefault(group.topic, []).append(group.name)
        return found

    def _lmq_count(self) -> int:
        return 0 if self._lmqs is None else self._lmqs.count()


def _is_lite(topic: TopicConfig) -> bool:
    return topic.attributes.get(TYPE_ATTRIBUTE, NORMAL) == "LITE"


def _expiration(topic: TopicConfig) -> int:
    """Minutes; NEVER without the attribute."""
    text = topic.attributes.get(LITE_EXPIRATION, "")
    return int(text) if text.isdecimal() and len(text) < 10 else NEVER
