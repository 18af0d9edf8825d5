"""The queue of a message group: messages of one group go to one queue, in order (SelectMessageQueueByHash). Core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aerobee.errors import UsageError
from aerobee.lite_topic import lite_topic_fault
from aerobee.message import SHARDING_KEY, Message, MessageQueue, java_hash
from aerobee.property_names import LITE_TOPIC
from aerobee.queue_choice import group_queue

Selector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]


def by_message_group(
    queues: Sequence[MessageQueue], _message: Message, message_group: object
) -> MessageQueue:
    """The selector behind `send(message, message_group=...)`: one queue per group while the queues stay the same.

    Text is hashed as SelectMessageQueueByHash does, so a Java producer with the same sharding key picks the same queue.
    """
    return queues[abs(java_hash(str(message_group))) % len(queues)]


def by_lite_topic(queues: Sequence[MessageQueue], _message: Message, lite_topic: object) -> MessageQueue:
    """The selector behind `send(message, lite_topic=...)`: the queue that RocketMQ's proxy chooses among the same queues."""
    return queues[group_queue(str(lite_topic), len(queues))]


def with_lite_topic(message: Message, lite_topic: str) -> Message:
    """The message with its lite topic. Raises UsageError for a message that no lite topic takes."""
    if not isinstance(lite_topic, str):
        raise UsageError(f"lite_topic is {lite_topic!r}: it must be text")
    if fault := lite_topic_fault(lite_topic):
        raise UsageError(f"lite_topic {lite_topic!r}: {fault}")
    if message.priority >= 0 or message.is_delayed or SHARDING_KEY in message.properties:
        raise UsageError("lite_topic excludes a priority, a delay and a message group")
    return replace(message, properties={**message.properties, LITE_TOPIC: lite_topic})


def with_message_group(message: Message, message_group: object) -> Message:
    """The message with its group in __SHARDINGKEY, as FIFO messages have it, unless it has one already."""
    if message.priority >= 0:
        raise UsageError("priority excludes a message group: a message of a group has no priority")
    if SHARDING_KEY in message.properties or not str(message_group):
        return message
    return replace(message, properties={**message.properties, SHARDING_KEY: str(message_group)})
