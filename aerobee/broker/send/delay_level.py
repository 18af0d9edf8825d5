"""The put hook that rewrites a message with a delay level for the schedule topic (HookUtils.handleScheduleMessage of
RocketMQ).

A message with DELAY=n goes to queue n-1 of SCHEDULE_TOPIC_XXXX; REAL_TOPIC and REAL_QID say where it belongs. The
store gives its queue entry the time of delivery in place of the tag's hash. schedule.py delivers it.
"""

from __future__ import annotations

from aerobee.broker.state.feature import PutHook
from aerobee.message import TRANSACTION_COMMIT, TRANSACTION_MASK, encode_properties
from aerobee.property_names import DELAY, REAL_QUEUE_ID, REAL_TOPIC
from aerobee.store.log.dispatch import index_texts
from aerobee.store.log.stored_message import StoredMessage
from aerobee.system_names import SCHEDULE_TOPIC


def delay_level(properties: dict[str, str], level_count: int) -> int:
    """The level in the properties, at most `level_count`; 0 without a level, or if it is no number."""
    text = properties.get(DELAY)
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return 0
    return min(int(text), level_count)


def to_schedule_topic(message: StoredMessage, properties: dict[str, str], level_count: int) -> StoredMessage:
    """Return the message to store: `message` itself, or its form for the schedule topic.

    `properties` are those of `message`; they are changed with it. Prepared and rollback messages are left alone.
    """
    level = delay_level(properties, level_count)
    if level == 0 or message.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
        return message
    properties[DELAY] = str(level)
    properties[REAL_TOPIC] = message.topic
    properties[REAL_QUEUE_ID] = str(message.queue_id)
    return replaced(message, SCHEDULE_TOPIC, level - 1, properties)


def replaced(message: StoredMessage, topic: str, queue_id: int, properties: dict[str, str]) -> StoredMessage:
    """The same message with another topic and queue and these properties."""
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=encode_properties(properties).encode(errors="surrogateescape"),
        born_host=message.born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        index_keys=index_texts(properties),
    )


def delay_level_hook(level_count: int) -> PutHook:
    """The put hook of a broker with `level_count` levels."""

    def form(message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
        return to_schedule_topic(message, properties, level_count)

    return PutHook(frozenset({DELAY}), form)
