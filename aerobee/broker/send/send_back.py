"""CONSUMER_SEND_MSG_BACK 36: a consumer gives a message back, for a later try or as dead (AbstractSendMessageProcessor).

The record is stored again in %RETRY%group behind a delay level, or in %DLQ%group when its tries are used up or the
consumer asks for that. RETRY_TOPIC keeps the topic it first had, ORIGIN_MESSAGE_ID its first id. A consumer of ours may
ask for a delay in milliseconds (delayMillis): then the message waits in the timer and not behind a level.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.admission.record_access import RecordAccess
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.send.batch_queue import message_of_batch
from aerobee.broker.send.dead_letter import note_death, note_error, tries_bound, tries_failed
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.send_header import VERSION_WITH_MAX_RECONSUME
from aerobee.broker.state.config import PERM_WRITE, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.refusal import store_refusal
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.errors import MalformedRecord, StoreError, UsageError
from aerobee.message import (
    DLQ_PREFIX,
    INNER_BATCH,
    RETRY_PREFIX,
    Record,
    check_topic_name,
    decode_record,
    encode_properties,
    next_try,
    pack_host,
)
from aerobee.property_names import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAYS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
)
from aerobee.remoting.body.pop_handle import topic_before_retry
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import FAQ
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.queue.queue_table import MULTI_DISPATCH, MULTI_OFFSET

FIRST_RETRY_LEVEL = 3  # 10 s
OF_A_TIMER = (
    *TIMER_DELAYS,
    TIMER_OUT_MS,
    TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ROLL_TIMES,
)  # what a message that waited before brings along


class RecordLog(Protocol):
    """What sending back needs of the store."""

    config: StoreConfig

    def named_record(self, physical_offset: int) -> bytes | None: ...


class SendBackCalls:
    """The handler of 36."""

    def __init__(
        self,
        *,
        store: RecordLog,
        writer: MessageWriter,
        topics: TopicTable,
        groups: GroupTable,
        stats: BrokerStats,
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
        ack: AckPolicy,
        records: RecordAccess,
        pick_queue: Callable[[int], int] = random.randrange,
    ) -> None:
        self._store = store
        self._writer = writer
        self._topics = topics
        self._groups = groups
        self._stats = stats
        self._live = live
        self._identity = identity
        self._role = role
        self._ack = ack
        self._records = records
        self._pick_queue = pick_queue

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Store the record again. Replies 0 once it is stored (with sync flush: once it is durable)."""
        group_name = request.text("group")
        group = self._groups.find_or_create(group_name)
        if group is None:
            return request.reply(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group not exist, {group_name}; create it, or set "
                f"autoCreateSubscriptionGroup\n{FAQ}",
            )
        if not self._live.value.broker_permission & PERM_WRITE or not self._role.is_master:
            return request.reply(
                ResponseCode.NO_PERMISSION,
                remark=f"the broker[{self._identity.address}] sending message is forbidden",
            )
        if group.retry_queue_nums <= 0:
            return request.reply()
        physical_offset = request.integer("offset")
        data = self._store.named_record(physical_offset)
        try:
            record = None if data is None else decode_record(data)
        except MalformedRecord as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if record is None or not self._records.may_consume(peer, request, record, group_name):
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"look message by offset failed, {physical_offset}: no record of this broker begins there",
            )
        if record.sys_flag & INNER_BATCH:
            # The whole batch would have the offset of one message in the retry topic, and the next one those of its others.
            unique_id = request.text("originMsgId", "")
            try:
                record = message_of_batch(record, unique_id)
            except MalformedRecord as error:
                return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
            if record is None:
                return request.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"the record at {physical_offset} is a batch, and no message of it has the id {unique_id[:64]!r}: send a copy",
                )
        message, properties = self._again(request, record, group)
        try:
            result = self._writer.put(message, properties)
        except StoreError as error:
            self._stats.put_failed()
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark)
        self._stats.send_back(group_name, properties["RETRY_TOPIC"])
        self._stats.topic_put(message.topic, 1, result.size)
        reply = request.reply()
        return (
            reply
            if request.is_oneway
            else self._ack.answer(peer, reply, result.end, request_code=request.code)
        )

    def _again(
        self, request: RemotingCommand, record: Record, group: SubscriptionGroupConfig
    ) -> tuple[StoredMessage, dict[str, str]]:
        """The message for the retry topic or the dead letters, and its properties."""
        properties = dict(record.properties)
        properties["RETRY_TOPIC"] = _first_topic(record, group.group_name)
        properties.setdefault("ORIGIN_MESSAGE_ID", record.offset_message_id)
        properties["WAIT"] = "false"
        level = request.integer("delayLevel", 0)
        requested = None
        if request.version >= VERSION_WITH_MAX_RECONSUME and request.field("maxReconsumeTimes"):
            requested = request.integer("maxReconsumeTimes")
        note_error(properties, request)
        if level < 0 or record.reconsume_times >= tries_bound(group, requested):
            tries = record.reconsume_times + 1
            note_death(
                properties,
                topic=properties["RETRY_TOPIC"],
                message_id=properties.get("UNIQ_KEY", properties["ORIGIN_MESSAGE_ID"]),
                tries=tries,
                reason="the consumer requested it" if level < 0 else tries_failed(tries),
                request=request,
            )
            topic = self._topics.create_dead_letter_topic(group.group_name)
            queue_id = 0
            properties[DELAY] = "0"
            for name in (MULTI_DISPATCH, MULTI_OFFSET):  # the LMQs have the message already
                properties.pop(name, None)
        else:
            topic = self._topics.create_retry_topic(
                group.group_name, group.retry_queue_nums, request.boolean("unitMode", False)
            )
            queue_id = self._pick_queue(topic.write_queue_nums)
            if not self._waits_exactly(request, level, properties):
                properties[DELAY] = str(level or FIRST_RETRY_LEVEL + record.reconsume_times)
        message = StoredMessage(
            topic=topic.topic_name,
            queue_id=queue_id,
            body=record.body,
            properties=encode_properties(properties).encode(errors="surrogateescape"),
            born_host=pack_host(*record.born_host),
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp=record.born_timestamp,
            reconsume_times=next_try(record.reconsume_times),
        )
        return message, properties

    def _waits_exactly(self, request: RemotingCommand, level: int, properties: dict[str, str]) -> bool:
        """Set the time that a consumer of ours asks for to the millisecond; False when a level has to do."""
        config = self._store.config
        wait_ms = request.integer("delayMillis", -1)
        if not config.timer_wheel_enable or not 0 <= wait_ms <= config.timer_max_delay_sec * 1000:
            return False
        for name in OF_A_TIMER:
            properties.pop(name, None)
        properties.pop(DELAY, None)
        if wait_ms > 0:
            properties[TIMER_DELAY_MS] = str(wait_ms)
        return True


def _first_topic(record: Record, group: str) -> str:
    """The topic that a message was sent to first. A retry or a dead letter says it in RETRY_TOPIC; in any other record that is what
    its sender made up, and so is what cannot be a topic's name."""
    if record.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        named = record.properties.get("RETRY_TOPIC", "")
        with suppress(UsageError):
            check_topic_name(named)
            return named
    return topic_before_retry(record.topic, group)
