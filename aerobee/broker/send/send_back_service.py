"""Takes messages back from consumers, for redelivery or to the dead-letter topic, independent of the protocol
(AbstractSendMessageProcessor).

The record is stored again in %RETRY%group behind a delay level, or in %DLQ%group when its tries are used up or the
consumer asks for that. RETRY_TOPIC keeps the topic it first had, ORIGIN_MESSAGE_ID its first id. An Aerobee consumer
may request a delay in milliseconds: then the timer delivers the message, instead of a delay level.

send_back.py is the encoder for remoting.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.send.batch_queue import message_of_batch
from aerobee.broker.send.dead_letter import note_death, note_error, note_position, tries_bound, tries_failed
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.send_header import FIRST_RETRY_LEVEL
from aerobee.broker.state.config import PERM_WRITE, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.refusal import Reason, Refused
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
from aerobee.remoting.protocol import FAQ
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.queue_table import MULTI_DISPATCH, MULTI_OFFSET

OF_A_TIMER = (
    *TIMER_DELAYS,
    TIMER_OUT_MS,
    TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ROLL_TIMES,
)  # what a message that waited before brings along


@dataclass(slots=True, kw_only=True)
class SendBackRequest:
    """The message that a consumer sends back. `physical_offset` is its record's offset in the commit log.

    `delay_level` below 0: the message is dead; 0: the level depends on its number of tries. `delay_ms` at 0 or above
    replaces the level, if the timer is available. `tries_max`: number of tries after which the message is dead; None:
    the group's setting. `origin_id`: the UNIQ_KEY of one message of a batch. The last three are the consumer's words,
    for a dead letter.
    """

    group: str
    physical_offset: int
    delay_level: int = 0
    delay_ms: int = -1
    tries_max: int | None = None
    unit_mode: bool = False
    origin_id: str = ""
    last_error: str = ""
    tries: str = ""
    death_reason: str = ""


class SendBackService:
    """Stores the sent-back message again under its retry or dead-letter topic. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        writer: MessageWriter,
        topics: TopicTable,
        groups: GroupTable,
        stats: BrokerStats,
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
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
        self._pick_queue = pick_queue

    def send_back(self, asked: SendBackRequest, may_consume: Callable[[Record], bool]) -> AppendResult | None:
        """Store the record again, readable on return. `may_consume` says whether the consumer may have the record at all.

        None: the group keeps no retries, and nothing is stored. Raises Refused, RemoteError at a bound, StoreError.
        """
        group = self._groups.find_or_create(asked.group)
        if group is None:
            raise Refused(
                Reason.GROUP_UNKNOWN,
                f"subscription group not exist, {asked.group}; create it, or set autoCreateSubscriptionGroup\n{FAQ}",
            )
        if not self._live.value.broker_permission & PERM_WRITE or not self._role.is_master:
            raise Refused(
                Reason.FORBIDDEN, f"the broker[{self._identity.address}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return None
        message, properties = self._again(asked, self._record(asked, may_consume), group)
        try:
            result = self._writer.put(message, properties)
        except StoreError:
            self._stats.put_failed()
            raise
        self._stats.send_back(asked.group, properties["RETRY_TOPIC"])
        self._stats.topic_put(message.topic, 1, result.size)
        return result

    def _record(self, asked: SendBackRequest, may_consume: Callable[[Record], bool]) -> Record:
        """The record of the sent-back message. Raises Refused."""
        data = self._store.named_record(asked.physical_offset)
        try:
            record = None if data is None else decode_record(data)
        except MalformedRecord as error:
            raise Refused(Reason.RECORD_UNKNOWN, str(error)) from error
        if record is None or not may_consume(record):
            raise Refused(
                Reason.RECORD_UNKNOWN,
                f"look message by offset failed, {asked.physical_offset}: no record of this broker begins there",
            )
        if not record.sys_flag & INNER_BATCH:
            return record
        # Only the one message is sent back: a whole batch would take one queue offset in the retry topic, and
        # later messages would get the offsets of its others.
        try:
            one = message_of_batch(record, asked.origin_id)
        except MalformedRecord as error:
            raise Refused(Reason.RECORD_UNKNOWN, str(error)) from error
        if one is None:
            raise Refused(
                Reason.RECORD_UNKNOWN,
                f"the record at {asked.physical_offset} is a batch, and no message of it has the id {asked.origin_id[:64]!r}: send a copy",
            )
        return one

    def _again(
        self, asked: SendBackRequest, record: Record, group: SubscriptionGroupConfig
    ) -> tuple[StoredMessage, dict[str, str]]:
        """The message for the retry topic or the dead letters, and its properties."""
        properties = dict(record.properties)
        properties["RETRY_TOPIC"] = _first_topic(record, group.group_name)
        properties.setdefault("ORIGIN_MESSAGE_ID", record.offset_message_id)
        if not record.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            name = self._live.value.broker_name
            note_position(properties, name, record.queue_id, record.queue_offset)
        properties["WAIT"] = "false"
        level = asked.delay_level
        note_error(properties, asked.last_error)
        if level < 0 or record.reconsume_times >= tries_bound(group, asked.tries_max):
            tries = record.reconsume_times + 1
            note_death(
                properties,
                topic=properties["RETRY_TOPIC"],
                message_id=properties.get("UNIQ_KEY", properties["ORIGIN_MESSAGE_ID"]),
                tries=tries,
                reason="the consumer requested it" if level < 0 else tries_failed(tries),
                told_tries=asked.tries,
                told_reason=asked.death_reason,
            )
            topic = self._topics.create_dead_letter_topic(group.group_name)
            queue_id = 0
            properties[DELAY] = "0"
            for name in (MULTI_DISPATCH, MULTI_OFFSET):  # the LMQs have the message already
                properties.pop(name, None)
        else:
            topic = self._topics.create_retry_topic(group.group_name, group.retry_queue_nums, asked.unit_mode)
            queue_id = self._pick_queue(topic.write_queue_nums)
            if not self._waits_exactly(asked.delay_ms, properties):
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

    def _waits_exactly(self, wait_ms: int, properties: dict[str, str]) -> bool:
        """Set the exact delivery time that an Aerobee consumer requests; False when a delay level must be used."""
        config = self._store.config
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
