"""Requests that name a logical queue: sends, pulls, offsets; and UPDATE_AND_CREATE_STATIC_TOPIC 513, which creates the
mapping.

Stands before the handlers of the physical queues. A request for another topic, or one with `lo=false` (it was forwarded
to this broker, or names the physical queue), continues to them directly. A request for a logical queue is answered with
NOT_LEADER_FOR_QUEUE unless this broker leads it; the leader translates queue and offsets, forwards to the broker that
has the part, and translates the reply back.

Source: rewriteRequestForStaticTopic in SendMessageProcessor, PullMessageProcessor, ConsumerManageProcessor and
AdminBrokerProcessor (RocketMQ). Differences: offsets by time (29) come from the first part that has a message of that time
or later, where RocketMQ lets a later part override an earlier one, and gives 0 when nothing was found here; the earliest
store time (32) and the end (30) come from the part's physical queue; a send without a queue takes one that this broker leads.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aerobee.broker.consumer.offset_calls import UPPER, OffsetCalls
from aerobee.broker.pull.pending_pulls import PendingPulls
from aerobee.broker.pull.pull_calls import PullCalls
from aerobee.broker.send.send_calls import SendCalls
from aerobee.broker.send.send_header import LONG_NAMED
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.peer_brokers import PeerBrokers
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.topic_table import TopicTable, check_creatable
from aerobee.broker.static_topic.pull_translation import PullTranslation
from aerobee.errors import RemoteError, UsageError
from aerobee.message import TRANSACTION_PREPARED
from aerobee.remoting.body.queue_mapping import Items, QueueMapping, QueueMappingItem, find_item
from aerobee.remoting.body.topic_config import MULTI_TAG, PERM_MAX, SINGLE_TAG, TopicConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import OFFSET_MAX

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogicalQueue:
    """One logical queue that this broker leads."""

    queue_id: int
    items: Items

    @property
    def leader(self) -> QueueMappingItem:
        """The part that takes new messages."""
        return self.items[-1]


class StaticTopicCalls:
    """Answers 10, 310, 320, 11, 361, 14, 15, 29 to 32 for logical queues, and 513."""

    def __init__(
        self,
        *,
        mappings: QueueMappings,
        topics: TopicTable,
        sends: SendCalls,
        pulls: PullCalls,
        offsets: OffsetCalls,
        pending_pulls: PendingPulls,
        brokers: PeerBrokers,
        live: LiveConfig,
        identity: BrokerIdentity,
    ) -> None:
        self._mappings = mappings
        self._topics = topics
        self._sends = sends
        self._pulls = pulls
        self._offsets = offsets
        self._pending_pulls = pending_pulls
        self._brokers = brokers
        self._live = live
        self._identity = identity

    def handlers(self) -> dict[int, Handler]:
        offsets = self._offsets
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self._logical(self.query, offsets.query),
            RequestCode.UPDATE_CONSUMER_OFFSET: self._logical(self.commit, offsets.commit),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._logical(self.by_time, offsets.by_time),
            RequestCode.GET_MAX_OFFSET: self._logical(self.maximum, offsets.maximum),
            RequestCode.GET_MIN_OFFSET: self._logical(self.minimum, offsets.minimum),
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._logical(
                self.earliest_store_time, offsets.earliest_store_time
            ),
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: self.update,
        }

    # --- making

    async def update(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """513: take over a topic's settings and its mapping at this broker. `force` accepts any mapping.

        The mapping is stored first: a topic that was an ordinary one must not serve logical ids as its own.
        """
        mapping = QueueMapping.decode(request.body)
        config = TopicConfig(
            request.text("topic"),
            request.integer("readQueueNums"),
            request.integer("writeQueueNums"),
            request.integer("perm"),
            MULTI_TAG if request.text("topicFilterType", SINGLE_TAG) == MULTI_TAG else SINGLE_TAG,
            request.integer("topicSysFlag", 0),
            request.boolean("order", False),
        )
        try:
            self._check(config, mapping)
            known = self._topics.get(config.topic_name)
            if known is not None:
                config = dataclasses.replace(config, attributes=known.attributes)
            before = self._mappings.get(config.topic_name)
            now = await self._mappings.put(mapping, force=request.boolean("force", False))
        except UsageError as error:
            log.warning("static topic %s is not changed: %s", config.topic_name, error)
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        # Registered at NameServers and in caches with the topic, even if its own settings are unchanged.
        await self._topics.put_async((config,))
        # Pulls that wait at a queue which continues elsewhere learn of it now, not at their deadline.
        for queue_id in (set() if before is None else set(before.led().values())) - set(now.led().values()):
            self._pending_pulls.release_queue(config.topic_name, queue_id)
        log.info("static topic %s was set by %s: %s", config.topic_name, peer.address, mapping)
        return request.reply()

    def _check(self, config: TopicConfig, mapping: QueueMapping) -> None:
        """Raise UsageError for a topic or a mapping that cannot be this broker's."""
        topic = config.topic_name
        check_creatable(self._topics, topic)
        limit = self._live.value.topic_queue_nums_max
        for key, count in (
            ("readQueueNums", config.read_queue_nums),
            ("writeQueueNums", config.write_queue_nums),
        ):
            if not 0 <= count <= limit:
                raise UsageError(f"{key} is {count}, must be from 0 to {limit} (topicQueueNumsMax)")
        if not 0 <= config.perm <= PERM_MAX:
            raise UsageError(f"perm is {config.perm}, must be a sum of 4 (read), 2 (write) and 1 (inherit)")
        if mapping.topic != topic:
            raise UsageError(f"the mapping is one of topic {mapping.topic}, the request one of {topic}")
        if mapping.broker_name != self._identity.name:
            raise UsageError(
                f"the mapping is one of broker {mapping.broker_name}, this is {self._identity.name}"
            )
        for queue_id, items in mapping.hosted.items():
            own = [item.queue_id for item in items if item.broker_name == mapping.broker_name]
            if own and max(own) >= max(config.read_queue_nums, config.write_queue_nums):
                raise UsageError(
                    f"logical queue {queue_id} of {topic} has a part in queue {max(own)} here, and the topic has "
                    f"{config.write_queue_nums} to write and {config.read_queue_nums} to read"
                )

    # --- sends and pulls

    def send(self, peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        """10, 310, 320: stored in the physical queue, answered with the logical one."""
        topic_key, queue_key, flag_key = (
            ("topic", "queueId", "sysFlag") if request.code in LONG_NAMED else ("b", "e", "f")
        )
        mapping = self._mapping_of(request, topic_key)
        if mapping is None:
            return self._sends.send(peer, request)
        wanted = request.integer(queue_key)
        if wanted < 0:
            wanted = next(iter(mapping.led()), wanted)
        queue = self._led(mapping, wanted)
        if queue is None:
            return self._not_leader(request, mapping.topic, wanted)
        fields = {**(request.ext or {}), queue_key: str(queue.leader.queue_id)}
        # The offset that the end of a transaction names is one of the half queue, which has no logical form.
        is_half = bool(request.int32(flag_key, 0) & TRANSACTION_PREPARED)

        def logical(reply: RemotingCommand) -> RemotingCommand:
            if reply.ext is not None and "queueOffset" in reply.ext:
                reply.ext["queueId"] = str(queue.queue_id)
                if is_half:
                    return reply
                reply.ext["queueOffset"] = str(queue.leader.loosely_logical(int(reply.ext["queueOffset"])))
            return reply

        return self._sends.send(peer, dataclasses.replace(request, ext=fields), rewrite=logical)

    def pull(self, peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        """11, 361: from the part that has the offset, here or at its broker."""
        mapping = self._mapping_of(request)
        if mapping is None:
            return self._pulls.pull(peer, request)
        queue = self._led(mapping, request.integer("queueId"))
        if queue is None:
            return self._not_leader(request, mapping.topic, request.integer("queueId"))
        translation = PullTranslation.of(queue.items, request.integer("queueOffset"))
        if translation is None:
            return self._undecided(request, mapping.topic, queue)
        is_local = translation.item.broker_name == self._identity.name
        asked = dataclasses.replace(request, ext=translation.fields(request, is_local=is_local))
        if is_local:
            return self._pulls.pull(peer, asked, rewrite=translation.reply, signed=request)
        return self._pull_from(translation, asked)

    async def _pull_from(self, translation: PullTranslation, request: RemotingCommand) -> Reply:
        answer = await self._brokers.invoke(translation.item.broker_name, _as_own(request))
        return translation.reply(_as_reply(request, answer))

    # --- offsets

    async def query(self, request: RemotingCommand, queue: LogicalQueue, peer: Peer) -> RemotingCommand:
        """14: the group's committed offset, searched from the newest part to the oldest."""
        if len(queue.items) == 1 and queue.leader.logic_offset == 0:
            # A queue with one part that begins at 0 is treated as an ordinary queue, with the rule for new
            # groups.
            return await self._ask(peer, request, queue.leader, self._offsets.query)
        reply = request.reply(
            ResponseCode.QUERY_NOT_FOUND, remark="Not found, maybe this group consumer boot first", ext={}
        )
        for item in reversed(queue.items):
            reply = await self._ask(peer, request, item, self._offsets.query, setZeroIfNotFound="false")
            if reply.code != ResponseCode.QUERY_NOT_FOUND:
                if reply.code == ResponseCode.SUCCESS:
                    reply.ext = {"offset": str(item.logical(reply.integer("offset")))}
                return reply
        return reply

    async def commit(self, request: RemotingCommand, queue: LogicalQueue, peer: Peer) -> RemotingCommand:
        """15: at the broker and the queue of the part that has the offset."""
        offset = request.integer("commitOffset")
        item = find_item(queue.items, offset)
        if item is None:
            return self._undecided(request, request.text("topic"), queue)
        return await self._ask(
            peer, request, item, self._offsets.commit, commitOffset=str(max(0, item.physical(offset)))
        )

    async def by_time(self, request: RemotingCommand, queue: LogicalQueue, peer: Peer) -> RemotingCommand:
        """29: LOWER in the first part that has a message of that time or later, UPPER in the last that has an earlier one."""
        decided = [item for item in queue.items if item.is_decided]
        if not decided:
            return self._undecided(request, request.text("topic"), queue)
        if request.text("boundaryType", "").upper() == UPPER:
            return await self._by_time_upper(request, decided, peer)
        for item in decided[:-1]:
            reply = await self._ask(peer, request, item, self._offsets.by_time)
            end = await self._ask(peer, request, item, self._offsets.maximum, RequestCode.GET_MAX_OFFSET)
            found, limit = reply.integer("offset", -1), end.integer("offset", 0)
            if item.has_end:
                limit = min(limit, item.end_offset)
            if 0 <= found < limit:
                return request.reply(ext={"offset": str(item.logical(found))})
        reply = await self._ask(peer, request, decided[-1], self._offsets.by_time)
        return request.reply(ext={"offset": str(decided[-1].logical(max(0, reply.integer("offset", 0))))})

    async def _by_time_upper(
        self, request: RemotingCommand, decided: list[QueueMappingItem], peer: Peer
    ) -> RemotingCommand:
        time_ms = request.integer("timestamp")
        for item in reversed(decided[1:]):
            first = await self._ask(
                peer,
                request,
                item,
                self._offsets.earliest_store_time,
                RequestCode.GET_EARLIEST_MSG_STORETIME,
            )
            if 0 <= first.integer("timestamp", -1) <= time_ms:
                reply = await self._ask(peer, request, item, self._offsets.by_time)
                return request.reply(ext={"offset": str(item.logical(max(0, reply.integer("offset", 0))))})
        reply = await self._ask(peer, request, decided[0], self._offsets.by_time)
        return request.reply(ext={"offset": str(decided[0].logical(max(0, reply.integer("offset", 0))))})

    async def maximum(self, request: RemotingCommand, queue: LogicalQueue, peer: Peer) -> RemotingCommand:
        """30: where the newest part that consumers may read ends."""
        item = find_item(queue.items, OFFSET_MAX)
        if item is None:
            return self._undecided(request, request.text("topic"), queue)
        reply = await self._ask(peer, request, item, self._offsets.maximum)
        return request.reply(ext={"offset": str(item.logical(reply.integer("offset")))})

    async def minimum(self, request: RemotingCommand, queue: LogicalQueue, peer: Peer) -> RemotingCommand:
        """31: where the oldest part begins."""
        item = find_item(queue.items, 0)
        if item is None:
            return self._undecided(request, request.text("topic"), queue)
        reply = await self._ask(peer, request, item, self._offsets.minimum)
        offset = item.loosely_logical(reply.integer("offset"))
        return request.reply(ext={"offset": str(offset)}, remark="")

    async def earliest_store_time(
        self, request: RemotingCommand, queue: LogicalQueue, peer: Peer
    ) -> RemotingCommand:
        """32: when the oldest message of the oldest part was stored."""
        item = find_item(queue.items, 0)
        if item is None:
            return self._undecided(request, request.text("topic"), queue)
        reply = await self._ask(peer, request, item, self._offsets.earliest_store_time)
        return request.reply(ext={"timestamp": reply.text("timestamp")})

    # --- helpers

    def _logical(
        self,
        serve: Callable[[RemotingCommand, LogicalQueue, Peer], Coroutine[Any, Any, RemotingCommand]],
        physical: Callable[[Peer, RemotingCommand], RemotingCommand],
    ) -> Handler:
        """A handler that gives requests for logical queues to `serve`, all others to `physical`."""

        def handle(peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
            mapping = self._mapping_of(request)
            if mapping is None:
                return physical(peer, request)
            queue = self._led(mapping, request.integer("queueId"))
            if queue is None:
                return self._not_leader(request, mapping.topic, request.integer("queueId"))
            return serve(request, queue, peer)

        return handle

    def _mapping_of(self, request: RemotingCommand, topic_key: str = "topic") -> QueueMapping | None:
        """The mapping of the request's topic, None when it means a physical queue."""
        table = self._mappings.by_topic
        if not table or (topic := request.field(topic_key)) not in table:
            return None
        if request.ext is not None and "lo" in request.ext and not request.boolean("lo", True):
            return None
        return table[topic]

    def _led(self, mapping: QueueMapping, queue_id: int) -> LogicalQueue | None:
        items = mapping.hosted.get(queue_id)
        if not items or items[-1].broker_name != self._identity.name:
            return None
        return LogicalQueue(queue_id, items)

    def _not_leader(self, request: RemotingCommand, topic: str, queue_id: int) -> RemotingCommand:
        return request.reply(
            ResponseCode.NOT_LEADER_FOR_QUEUE,
            remark=f"{topic}-{queue_id}: broker {self._identity.name} does not lead this logical queue",
        )

    def _undecided(self, request: RemotingCommand, topic: str, queue: LogicalQueue) -> RemotingCommand:
        return request.reply(
            ResponseCode.SYSTEM_ERROR,
            remark=f"{topic}-{queue.queue_id}: no part of this logical queue has an offset yet",
        )

    async def _ask(
        self,
        peer: Peer,
        request: RemotingCommand,
        item: QueueMappingItem,
        serve: Callable[[Peer, RemotingCommand], RemotingCommand],
        code: RequestCode | None = None,
        **fields: str,
    ) -> RemotingCommand:
        """The answer for one physical queue: from `serve` when it lies here, else from its broker by the same code.

        Raises RemoteError for every refusal but QUERY_NOT_FOUND.
        """
        ext = {
            **(request.ext or {}),
            "queueId": str(item.queue_id),
            "lo": "false",
            "bname": item.broker_name,
            **fields,
        }
        asked = dataclasses.replace(request, code=request.code if code is None else int(code), ext=ext)
        if item.broker_name == self._identity.name:
            answer = serve(peer, asked)
        else:
            answer = await self._brokers.invoke(item.broker_name, _as_own(asked))
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            raise RemoteError(answer.code, answer.remark)
        return _as_reply(request, answer)


def _as_own(request: RemotingCommand) -> RemotingCommand:
    """A request of this broker with the same fields and body."""
    return RemotingCommand(request.code, request.ext, request.body)


def _as_reply(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
    """Another broker's answer as the reply to `request`."""
    return request.reply(answer.code, remark=answer.remark, ext=dict(answer.ext or {}), body=answer.body)
