"""Administrative requests on topics: 17, 18, 21, 202, 215, 300, 305, 316, 321, 351.

Source: AdminBrokerProcessor (RocketMQ). An invalid request is answered with INVALID_PARAMETER and a remark that states
the allowed values. A change reaches the NameServers through the topic table's change notice.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import Any

from aerobee.broker.admin.creation_times import CreationTimes
from aerobee.broker.admin.sliced_json import dump_sliced
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.lock_table import LockTable
from aerobee.broker.metrics.stats import TOPIC_PUT_NUMS, BrokerStats
from aerobee.broker.replication.metadata_sync import BEHIND_FIELD, LOG_END_FIELD
from aerobee.broker.send.message_type import MIXED
from aerobee.broker.state.attributes import TOPIC_ATTRIBUTES, apply_changes, parse_changes
from aerobee.broker.state.background import shield
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import DELETED_FIELD, TopicTable, check_creatable
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame, UsageError
from aerobee.message import DLQ_PREFIX, LEGAL_NAME, RETRY_PREFIX, MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.group_list import GroupList
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.body.topic_config import MULTI_TAG, PERM_MAX, SINGLE_TAG, TopicConfig
from aerobee.remoting.body.topic_list import TopicList
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.protocol import ONLY_NEW_FIELD, TYPE_ATTRIBUTE
from aerobee.store.message_store import MessageStore
from aerobee.system_names import LMQ_PREFIX

log = logging.getLogger(__name__)

ILLEGAL_NAME_REMARK = "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
TOPICS_PER_REQUEST_MAX = 1_000
QUEUES_PER_TURN = 64  # queues of one 202 per slice, then other requests are served
QUEUE_ENTRIES_MAX = 2_000  # maximum number of entries of one 321; the tool requests 10 by default


class AdminTopicCalls:
    """Answers 17, 18, 21, 202, 215, 300, 305, 316, 321 and 351."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        mappings: QueueMappings,
        offsets: ConsumerOffsets,
        consumers: ConsumerRegistry,
        locks: LockTable,
        stats: BrokerStats,
        store: MessageStore,
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
        clock: Clock,
    ) -> None:
        self._role = role
        self._topics = topics
        self._mappings = mappings
        self._offsets = offsets
        self._consumers = consumers
        self._locks = locks
        self._stats = stats
        self._store = store
        self._live = live
        self._identity = identity
        self._times = CreationTimes(
            stats.registry,
            "topic_create_execution_time",
            "Duration of requests that create or change topics, ms",
            clock,
        )

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._times.measured(
                self.update, lambda request: self._topics.is_system(request.text("topic", ""))
            ),
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self._times.measured(self.update_list, lambda _: False),
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_configs,
            RequestCode.GET_TOPIC_STATS_INFO: self.status,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumed_by,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.QUERY_CONSUME_QUEUE: self.queue_entries,
            RequestCode.GET_TOPIC_CONFIG: self.config,
        }

    # --- changing

    async def update(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """17: create or change a topic. Repeating the same settings changes nothing, nor does ONLY_NEW_FIELD for a
        topic that exists."""
        try:
            wanted = TopicConfig(
                request.text("topic"),
                request.integer("readQueueNums"),
                request.integer("writeQueueNums"),
                request.integer("perm"),
                _filter_type(request.text("topicFilterType", SINGLE_TAG)),
                request.integer("topicSysFlag", 0),
                request.boolean("order", False),
            )
            is_kept = (
                request.boolean(ONLY_NEW_FIELD, False) and self._topics.get(wanted.topic_name) is not None
            )
            config = self._checked(wanted, parse_changes(request.text("attributes", "")))
        except UsageError as error:
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
        if not is_kept and config != self._topics.get(config.topic_name):
            await self._topics.put_async((config,))
            log.info("topic %s was set by %s: %s", config.topic_name, peer.address, config)
        return request.reply()

    async def update_list(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """18: the same for a list of topics; all are applied or none."""
        fields = fastjson.loads_object(
            request.body, "CreateTopicListRequestBody", fastjson.REQUEST_DIALECT_BYTES_MAX
        )
        wanted = [TopicConfig.from_dict(item) for item in json_fields.objects(fields, "topicConfigList")]
        if not 0 < len(wanted) <= TOPICS_PER_REQUEST_MAX:
            return request.reply(
                ResponseCode.INVALID_PARAMETER,
                remark=f"topicConfigList has {len(wanted)} topics, must have 1 to {TOPICS_PER_REQUEST_MAX}",
            )
        try:
            configs = [self._checked(config, config.attributes) for config in wanted]
        except UsageError as error:
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
        changed = [config for config in configs if config != self._topics.get(config.topic_name)]
        if changed:
            await self._topics.put_async(changed)
        return request.reply()

    def _checked(self, wanted: TopicConfig, attribute_changes: dict[str, str]) -> TopicConfig:
        """Return the config to store. Raises UsageError, which states the allowed values."""
        if wanted.topic_name and not LEGAL_NAME.match(wanted.topic_name):
            raise UsageError(ILLEGAL_NAME_REMARK)
        check_creatable(self._topics, wanted.topic_name)
        queue_nums_max = self._live.value.topic_queue_nums_max
        for key, count in (
            ("readQueueNums", wanted.read_queue_nums),
            ("writeQueueNums", wanted.write_queue_nums),
        ):
            if not 1 <= count <= queue_nums_max:
                raise UsageError(f"{key} is {count}, must be from 1 to {queue_nums_max} (topicQueueNumsMax)")
        if not 0 <= wanted.perm <= PERM_MAX:
            raise UsageError(f"perm is {wanted.perm}, must be a sum of 4 (read), 2 (write) and 1 (inherit)")
        if (
            attribute_changes.get(f"+{TYPE_ATTRIBUTE}") == MIXED
            and not self._live.value.enable_mixed_message_type
        ):
            raise UsageError(
                "MIXED message type is not supported. Set enableMixedMessageType at the broker to allow it"
            )
        stored = self._topics.get(wanted.topic_name)
        attributes = apply_changes(
            stored.attributes if stored is not None else {},
            attribute_changes,
            TOPIC_ATTRIBUTES,
            creating=stored is None,
        )
        return TopicConfig(
            wanted.topic_name,
            wanted.read_queue_nums,
            wanted.write_queue_nums,
            wanted.perm,
            wanted.topic_filter_type,
            wanted.topic_sys_flag,
            wanted.order,
            attributes,
        )

    async def delete(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """215: delete a topic with its queues and offsets. Deleting an unknown topic succeeds."""
        topic = request.text("topic", "")
        if not topic.strip():
            return request.reply(ResponseCode.INVALID_PARAMETER, remark="The specified topic is blank.")
        if self._topics.is_own(topic):
            return request.reply(
                ResponseCode.INVALID_PARAMETER,
                remark=f"The topic[{topic}] is conflict with system topic: it belongs to the broker and stays",
            )
        deleted = [topic]
        if self._live.value.clear_retry_topic_when_delete_topic:
            # Retry topics of pop consumers belong to one topic of the group: both naming schemes.
            for group in self._offsets.groups_of(topic):
                deleted += [f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"]
        await shield(self._delete(topic, deleted))
        log.info("topic %s was deleted by %s", topic, peer.address)
        return request.reply()

    async def clean_unused(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """316: remove the queues of topics that are not in the topic table."""
        removed = await shield(self._delete_unused())
        if removed:
            log.info("queues of unused topics were removed: %s", ", ".join(removed))
        return request.reply()

    async def _delete_unused(self) -> list[str]:
        # Checked and removed in one event loop iteration: a topic that is created in between has messages
        # already.
        used = {
            *self._topics.topics,
            *self._topics.system_topics,
            # RocketMQ keeps them too: the config of a retry topic with messages may be lost.
            *(
                name
                for name, _ in self._store.queues
                if name.startswith((RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX))
            ),
        }
        for name in {name for name, _ in self._store.queues} - used:
            self._forget(name)
        return await self._store.delete_topics_except(used)

    async def _delete(self, topic: str, deleted: list[str]) -> None:
        # After the file is written: otherwise removed queues could not be restored when the write fails. An
        # LMQ is in no table, and another replica may have it when this broker does not.
        has_queues = topic.startswith(LMQ_PREFIX) or any(name == topic for name, _ in self._store.queues)
        gone = {topic, *await self._topics.delete_async(deleted, (topic,) if has_queues else ())}
        for name in gone:
            self._forget(name)
        await self._store.delete_topics(gone)
        await self._mappings.delete(topic)

    def _forget(self, topic: str) -> None:
        self._offsets.remove_topic(topic)
        self._locks.remove_topic(topic)
        self._stats.remove_topic(topic)

    # --- reading

    def config(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """351: one topic's settings; with `lo` also the mapping of a static one."""
        topic = request.text("topic")
        config = self._topics.get(topic)
        if config is None:
            return request.reply(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {topic}"
            )
        fields = config.to_dict()
        mapping = self._mappings.get(topic)
        if mapping is not None and request.boolean("lo", False):
            fields["mappingDetail"] = mapping.to_dict()
        return request.reply(body=fastjson.dumps(fields))

    async def all_configs(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """21: the topic table, or a page of it with `maxTopicNum` (5.3 and later).

        A reader with another data version starts again. The total is exact: readers continue until they have that many
        topics. Aerobee's slaves also request the log's end and the deleted topics (replication/metadata_sync.py); an
        elected broker that is not master yet replies that its table is behind its log.
        """
        version = self._topics.data_version
        start, count = page_of(request, "topicSeq", "maxTopicNum", version, len(self._topics.topics))
        topics = self._topics.topics  # a change replaces the object and never modifies it
        ext = {"totalTopicNum": str(len(topics))}
        of_slaves: dict[str, Any] = {}
        if LOG_END_FIELD in (request.ext or {}):
            ext[LOG_END_FIELD] = str(self._store.log.end)
            if not self._role.serves_group:
                ext[BEHIND_FIELD] = "true"
            of_slaves = {DELETED_FIELD: self._topics.deleted}
        body = await dump_sliced(
            {
                "dataVersion": version.to_dict(),
                "mappingDataVersion": self._mappings.data_version.to_dict(),
            },
            "topicConfigTable",
            ((name, config.to_dict()) for name, config in islice(topics.items(), start, start + count)),
            # 5.x readers expect the mapping fields, empty or not.
            {
                "topicQueueMappingDetailMap": self._mappings.details(islice(topics, start, start + count)),
                "topicQueueMappingInfoMap": {},
                **of_slaves,
            },
        )
        return request.reply(ext=ext, body=body)

    async def status(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """202: begin, end and time of the last message of each queue, and the topic's rate."""
        topic = request.text("topic")
        config = self._topics.get(topic)
        if config is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist")
        table: dict[MessageQueue, dict[str, int]] = {}
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            if queue_id % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await asyncio.sleep(0)
            end = self._store.max_offset(topic, queue_id)
            table[MessageQueue(topic, self._identity.name, queue_id)] = {
                "lastUpdateTimestamp": max(0, self._store.store_time(topic, queue_id, end - 1))
                if end > 0
                else 0,
                "maxOffset": end,
                "minOffset": max(0, self._store.min_offset(topic, queue_id)),
            }
        tps = self._stats.minute_tps(TOPIC_PUT_NUMS, topic)
        return request.reply(body=fastjson.dumps({"offsetTable": table, "topicPutTps": tps}))

    def consumed_by(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """300: groups that subscribe to a topic now, and groups with offsets for it."""
        topic = request.text("topic")
        groups = dict.fromkeys(
            [*self._consumers.groups_subscribed_to(topic), *self._offsets.groups_of(topic)]
        )
        return request.reply(body=GroupList(tuple(groups)).encode())

    def system_topics(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """305: the system topics of the broker."""
        return request.reply(body=TopicList(tuple(sorted(self._topics.system_topics))).encode())

    def queue_entries(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """321: entries of a consume queue as stored on disk, with the filter result of a named group."""
        topic, queue_id = request.text("topic"), request.integer("queueId")
        index, count = request.integer("index"), request.integer("count")
        if index < 0:
            raise MalformedFrame(f"index is {index}, must not be below 0")
        count = min(max(0, count), QUEUE_ENTRIES_MAX)
        queue = self._store.queues.get((topic, queue_id))
        if queue is None:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"{queue_id}@{topic} is not exist! It has no message yet"
            )
        subscription = None
        reply: dict[str, Any] = {"maxQueueIndex": queue.max_offset, "minQueueIndex": queue.min_offset}
        if group := request.field("consumerGroup"):
            subscription = self._consumers.subscription(group, topic)
            if subscription is None:
                reply["filterData"] = f"{group}@{topic} is not online!"
            else:
                reply["subscriptionData"] = subscription.to_dict()
        entries = []
        for offset in range(max(index, queue.min_offset), min(index + count, queue.max_offset)):
            entry = queue.entry(offset)
            if entry is not None:
                entries.append(_entry_dict(entry[0], entry[1], entry[2], subscription))
        reply["queueData"] = entries
        return request.reply(body=fastjson.dumps(dict(sorted(reply.items()))))


def page_of(
    request: RemotingCommand, start_key: str, count_key: str, version: DataVersion, total: int
) -> tuple[int, int]:
    """Return start and length of the requested page of a table; without a length, the whole table.

    A data version in the request that differs from the table's means that the table changed: the page starts at 0.
    """
    count = request.int32(count_key, 0)
    if count <= 0:
        return 0, total
    start = max(0, request.int32(start_key, 0))
    known = request.text("dataVersion", "")
    if known and DataVersion.decode(known.encode()) != version:
        start = 0
    return start, count


def _entry_dict(
    physical_offset: int, size: int, tags_code: int, subscription: SubscriptionData | None
) -> dict[str, Any]:
    codes = subscription.tag_codes if subscription is not None else None
    return {
        "eval": subscription is not None and (codes is None or tags_code in codes),
        "physicOffset": physical_offset,
        "physicSize": size,
        "tagsCode": tags_code,
    }


def _filter_type(text: str) -> str:
    if text not in (SINGLE_TAG, MULTI_TAG):
        raise UsageError(f"topicFilterType is {text!r}, must be {SINGLE_TAG} or {MULTI_TAG}")
    return text
